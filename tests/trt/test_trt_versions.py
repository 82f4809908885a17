"""The installed TensorRT-RTX, whichever supported version it is: networks of real exports are read back and compared.

What is expected is the same for all versions, so that an environment with the oldest or with the newest one shows where
the package has changed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from onnxfix.proof.verify import verify
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift.network import read_dims, read_word
from onnxfix.tensorrt.records import TrtOptions
from support import handmade
from support.paths import FIXTURES
from support.real_tensorrt import REAL

#: Fixture -> what becomes of lifting it, and of the rung trt-network. An export of each kind of architecture, one that
#: TensorRT reads differently, one that only its builder refuses, and one that its parser refuses.
EXPECTED = {
    "mixed_precision.legacy.op17": ("lifted", "passed", ""),
    "bert_fp16.legacy.op13": ("lifted", "passed", ""),
    "gpt2.dynamo.op18": ("lifted", "passed", ""),
    "vit.dynamo.op20": ("lifted", "passed", ""),
    "misread/decoder": ("lifted", "failed", ""),
    "trt/top_4000": ("lifted", "passed", ""),
    "trt/uint16_cast": ("refused", "skipped", "refused"),
}


@REAL
@pytest.mark.parametrize("name", EXPECTED)
def test_a_fixture_is_read_back(name: str, worker: Worker, tmp_path: Path) -> None:
    path, (status, rung, cause) = FIXTURES / f"{name}.onnx", EXPECTED[name]
    found = lift.attempt(worker, path, tmp_path / "seen.onnx", package="tensorrt-rtx")
    assert found.status == status, found.reason
    trt = TrtOptions(package="tensorrt-rtx")
    result = verify(path, path, exact=True, rungs=["trt-network"], trt=trt, worker=worker).rungs[0]
    assert (result.status, result.cause) == (rung, cause), result.reason
    if status == "lifted":
        assert result.networks[0].layer_count == sum(count for _, count in found.layers) > 0
        assert result.networks[0].feeds > 0


# ------------------------------------------------------------------------------------- what is not set in a layer


class NoLength:
    """A Dims of TensorRT-RTX 1.4 that was not set: its length is -1."""

    def __len__(self) -> int:
        return -1

    def __getitem__(self, place: int) -> int:
        raise IndexError(place)


class Raising:
    """A layer of TensorRT-RTX 1.6 whose property was not set."""

    @property
    def block_shape(self) -> Any:
        raise RuntimeError("Could not get block_shape.")


@pytest.mark.parametrize(
    ("native", "dims"),
    [
        (SimpleNamespace(block_shape=None), None),
        (SimpleNamespace(block_shape=NoLength()), None),
        (Raising(), None),
        (SimpleNamespace(), None),
        (SimpleNamespace(block_shape=()), ()),
        (SimpleNamespace(block_shape=[1, -1]), (1, -1)),
    ],
)
def test_every_way_to_say_that_dimensions_are_not_set(native: Any, dims: Any) -> None:
    assert read_dims(native, "block_shape") == dims


def layer_of(package: str, **properties: Any) -> Any:
    """A layer whose class is of the module ``package``."""
    return type("ILayer", (SimpleNamespace,), {"__module__": package})(**properties)


def test_an_enumeration_that_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = ModuleType("old_rt"), ModuleType("new_rt")
    new.AttentionIOForm = object()  # type: ignore[attr-defined]
    for module in (old, new):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    form: dict[str, Any] = {"since": "AttentionIOForm", "before": "PADDED_BHND"}
    packed = SimpleNamespace(name="PACKED_NHD")
    assert read_word(layer_of("old_rt"), "query_form", **form) == "PADDED_BHND"
    assert read_word(layer_of("new_rt", query_form=packed), "query_form", **form) == "PACKED_NHD"
    with pytest.raises(AttributeError):  # a package that has the one and not the other is not known
        read_word(layer_of("new_rt"), "query_form", **form)
    with pytest.raises(AttributeError):
        read_word(layer_of("old_rt"), "norm_op")


@REAL
def test_what_is_not_set_in_this_package(worker: Worker, tmp_path: Path) -> None:
    """A shuffle that reshapes nothing, and a slice without axes whose start an input gives."""
    inputs = {"x": ("FLOAT", (2, 3)), "s": ("INT32", (2,))}
    turned = handmade.made(worker, tmp_path, inputs, "shuffle", ("x",), {"first_transpose": (1, 0)})
    assert turned.lifted, turned.reason
    part = ("x", (0, 0), (1, 2), (1, 1))
    sliced = handmade.made(worker, tmp_path, inputs, "slice", part, {"input 1": "s"})
    assert sliced.lifted, sliced.reason


@REAL
def test_a_causal_mask_as_every_version_sets_it(worker: Worker, tmp_path: Path) -> None:
    """``causal`` is all that TensorRT-RTX 1.4 has: the diagonal begins at the upper left."""
    import numpy as np

    from support.attention_by_hand import attention, causal, close, made, values

    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 8)}
    inputs = {name: ("FLOAT", shape) for name, shape in shapes.items()}
    given = ("q", "k", "v", "trt.AttentionNormalizationOp.SOFTMAX", True)
    found = made(worker, tmp_path, inputs, "attention", given)
    feed = values(inputs)
    got = handmade.computed(found, feed)
    close(got, attention(*feed.values(), scale=1, allowed=causal(3, 5)))
    assert not np.allclose(got, attention(*feed.values(), scale=1))
