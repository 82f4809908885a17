"""Layers that are never read back: the reason tells what a reader wants to know."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfix.tensorrt.lift import kinds
from onnxfix.tensorrt.lift.emit import Emit
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable

CORE = object()
#: Where a plugin's class comes from, and the enumeration beside it.
PluginCapabilityType = SimpleNamespace(CORE=CORE)


class Third:
    """A plugin of the third generation, which has its name in its core."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def get_capability_interface(self, kind: object) -> Any:
        return self.core if kind is CORE else None


def reason(kind: str, native: Any, folder: Path, *outputs: str) -> str:
    made = tuple(Tensor(f"y{place}", dtype, (2,), False, None) for place, dtype in enumerate(outputs))
    with pytest.raises(Unliftable) as error:
        kinds.table()[kind](Emit(folder / "x.data"), Layer(0, kind, "layer", "node", (), made, native))
    return str(error.value)


def test_a_plugin_of_the_second_generation(tmp_path: Path) -> None:
    plugin = SimpleNamespace(plugin_type="ROIAlign_TRT", plugin_version="1", plugin_namespace="")
    told = reason("PLUGIN_V2", SimpleNamespace(plugin=plugin), tmp_path)
    assert told == "the plugin ROIAlign_TRT, version 1: compiled code, which cannot be read back"


def test_a_plugin_of_the_third_generation(tmp_path: Path) -> None:
    core = SimpleNamespace(plugin_name="Mine", plugin_version="2", plugin_namespace="acme")
    told = reason("PLUGIN_V3", SimpleNamespace(plugin=Third(core)), tmp_path)
    assert told == "the plugin Mine, version 2, namespace acme: compiled code, which cannot be read back"


@pytest.mark.parametrize("plugin", [None, object(), Third(None), Third(SimpleNamespace(plugin_name=""))])
def test_a_plugin_without_a_name(plugin: Any, tmp_path: Path) -> None:
    told = reason("PLUGIN_V3", SimpleNamespace(plugin=plugin), tmp_path)
    assert told == "a plugin without a name: compiled code, which cannot be read back"


def test_a_layer_of_no_class_that_has_plugins(tmp_path: Path) -> None:
    assert "without a name" in reason("PLUGIN", SimpleNamespace(), tmp_path)


def test_scales_of_run_time_name_their_types(tmp_path: Path) -> None:
    assert reason("DYNAMIC_QUANTIZE", None, tmp_path, "FP4", "FP8").startswith(
        "FP4 with FP8 scales that are not constant"
    )


@pytest.mark.parametrize(
    ("kind", "words"), [("MOE", "mixture of experts"), ("DIST_COLLECTIVE", "between GPUs")]
)
def test_the_others(kind: str, words: str, tmp_path: Path) -> None:
    assert words in reason(kind, None, tmp_path)
