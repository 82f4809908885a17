"""Layers that are never read back, and forms that this TensorRT does not make: should another one make them, they are
not guessed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfix.tensorrt.lift.emit import Emit, table
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


def reason(
    folder: Path,
    kind: str,
    native: Any,
    inputs: dict[str, tuple[int, ...]],
    dtype: str = "FLOAT",
    outputs: tuple[str, ...] = ("FLOAT",),
) -> str:
    """Why a layer with these inputs of one type, and outputs of these types, is not read back."""
    emit = Emit(folder / "x.data")
    tensors = tuple(Tensor(name, dtype, shape, True, None) for name, shape in inputs.items())
    for tensor in tensors:
        emit.declare(tensor)
    made = tuple(Tensor(f"y{place}", one, (2,), False, None) for place, one in enumerate(outputs))
    with pytest.raises(Unliftable) as error:
        table()[kind](emit, Layer(0, kind, "layer", "node", tensors, made, native))
    return str(error.value)


def plugin(**names: str) -> SimpleNamespace:
    return SimpleNamespace(**{f"plugin_{key}": name for key, name in names.items()})


SECOND = plugin(type="ROIAlign_TRT", version="1", namespace="")
THIRD = Third(plugin(name="Mine", version="2", namespace="acme"))


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("PLUGIN_V2", SECOND, "the plugin ROIAlign_TRT, version 1: compiled code, which cannot be read back"),
        ("PLUGIN_V3", THIRD, "the plugin Mine, version 2, namespace acme: compiled code"),
        ("PLUGIN_V3", None, "a plugin without a name: compiled code"),
        ("PLUGIN_V3", Third(None), "a plugin without a name"),
        ("PLUGIN_V3", Third(plugin(name="")), "a plugin without a name"),
    ],
)
def test_plugins(kind: str, given: Any, words: str, tmp_path: Path) -> None:
    assert words in reason(tmp_path, kind, SimpleNamespace(plugin=given), {})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("DYNAMIC_QUANTIZE", "FP4 with FP8 scales that are not constant"),
        ("MOE", "mixture of experts"),
        ("DIST_COLLECTIVE", "between GPUs"),
    ],
)
def test_other_kinds(kind: str, words: str, tmp_path: Path) -> None:
    assert words in reason(tmp_path, kind, None, {}, outputs=("FP4", "FP8"))


@pytest.mark.parametrize(
    ("kind", "properties", "shapes", "words"),
    [
        ("NMS", {}, [(2, 7, 3, 4), (2, 7, 3), ()], "boxes of its own"),
        ("REVERSE_SEQUENCE", {"batch_axis": 2, "sequence_axis": 0}, [(2, 3, 4), (4,)], "along axis 0"),
        (
            "GATHER",
            {"mode": SimpleNamespace(name="DEFAULT"), "num_elementwise_dims": 1},
            [(3, 4), (3,)],
            "1 el",
        ),
    ],
)
def test_forms_that_no_parser_makes(
    tmp_path: Path, kind: str, properties: dict[str, Any], shapes: list[tuple[int, ...]], words: str
) -> None:
    inputs = {f"x{place}": shape for place, shape in enumerate(shapes)}
    assert words in reason(tmp_path, kind, SimpleNamespace(**properties), inputs)


def named(**words: str) -> SimpleNamespace:
    """A layer's properties that are values of enumerations."""
    return SimpleNamespace(**{key: SimpleNamespace(name=word) for key, word in words.items()})


@pytest.mark.parametrize(
    ("properties", "heads", "dtype", "why"),
    [
        ({"causal_kind": "BANDED"}, 4, "FLOAT", "a causal mask of kind BANDED"),
        ({"norm_op": "SIGMOID"}, 4, "FLOAT", "attention with normalization SIGMOID"),
        ({"key_value_form": "PACKED_NHD"}, 4, "FLOAT", "form PADDED_BHND with keys of form PACKED_NHD"),
        ({"query_form": "PACKED_HND"}, 4, "FLOAT", "queries of form PACKED_HND"),
        ({}, 5, "FLOAT", "5 heads of queries and 2 of keys"),
        ({}, 4, "INT8", "q is of type INT8"),
    ],
)
def test_attention(tmp_path: Path, properties: dict[str, str], heads: int, dtype: str, why: str) -> None:
    usual = {"causal_kind": "NONE", "norm_op": "SOFTMAX"}
    forms = dict.fromkeys(("query_form", "key_value_form"), "PADDED_BHND")
    native = SimpleNamespace(attention=named(**{**usual, **forms, **properties}))
    shapes = {"q": (2, heads, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)}
    assert why in reason(tmp_path, "ATTENTION_INPUT", native, shapes, dtype)


@pytest.mark.parametrize(
    ("mode", "form", "why"),
    [
        ("CIRCULAR", "PADDED_BHND", "a key/value cache of mode CIRCULAR"),
        ("LINEAR", "PACKED_HND", "an update of form PACKED_HND"),
    ],
)
def test_cache_updates(tmp_path: Path, mode: str, form: str, why: str) -> None:
    shapes = {"c": (2, 2, 6, 4), "u": (3, 2, 4), "w": (2,)}
    assert why in reason(tmp_path, "KV_CACHE_UPDATE", named(cache_mode=mode, update_form=form), shapes)


@pytest.mark.parametrize(
    ("axes", "groups", "dtype", "why"),
    [
        (0b0000, 1, "FLOAT", "over axes 0b0 of 4 dimensions"),
        (0b11000, 1, "FLOAT", "over axes 0b11000 of 4 dimensions"),
        (0b1110, 2, "FLOAT", "of 2 groups over axes [1, 2, 3]"),
        (0b1100, 1, "INT8", "x is of type INT8"),
    ],
)
def test_normalizations(tmp_path: Path, axes: int, groups: int, dtype: str, why: str) -> None:
    shapes = {"x": (2, 4, 3, 5), "s": (1, 4, 1, 1), "b": (1, 4, 1, 1)}
    native = SimpleNamespace(axes=axes, num_groups=groups, epsilon=1e-5, is_v2=True)
    assert why in reason(tmp_path, "NORMALIZATION", native, shapes, dtype)
