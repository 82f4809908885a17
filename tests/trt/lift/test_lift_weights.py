"""Weights of every type that TensorRT has, and packages that keep them otherwise."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.lift import network
from onnxfix.tensorrt.lift.network import Unliftable
from onnxfix.tensorrt.lift.records import ONNX_TYPES, numpy_type
from support import lifted
from support.models import of_nodes
from support.real_tensorrt import REAL

NUMBERS = {
    "FLOAT": 0,
    "HALF": 1,
    "INT8": 2,
    "UINT8": 5,
    "FP8": 6,
    "BF16": 7,
    "INT4": 9,
    "FP4": 10,
    "E8M0": 11,
}
SAYS = "the Python package keeps {} weights in a way that onnxfix does not know"


class Weights(ctypes.Structure):
    """What TensorRT's class is in memory: ctypes, too, keeps the address of the contents behind an object's header."""

    _fields_: ClassVar[Any] = (
        ("type", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )

    def __init__(self, dtype: Any, address: int, count: int) -> None:
        super().__init__(dtype.value, address, count)
        self.dtype, self.size = dtype, count


def dtype_of(name: str) -> Any:
    return SimpleNamespace(name=name, value=NUMBERS[name])


def held(name: str, raw: bytes, count: int, kind: Any = Weights) -> tuple[Any, Any]:
    """Weights, and the memory that they are in."""
    memory = ctypes.create_string_buffer(raw, len(raw))
    return kind(dtype_of(name), ctypes.addressof(memory), count), memory


@pytest.mark.parametrize(
    ("name", "raw", "wanted"),
    [
        ("BF16", b"\x80\x3f\x00\xc0\x20\x41", [1, -2, 10]),
        ("FP8", b"\x38\xc0\x7e", [1, -2, 448]),
        ("E8M0", b"\x7f\x80\x78", [1, 2, 2**-7]),
        ("INT4", b"\x91\x0f", [1, -7, -1]),  # the first in the low half
        ("FP4", b"\xc2\x07", [1, -2, 6]),
    ],
)
def test_types_that_numpy_lacks(name: str, raw: bytes, wanted: list[float]) -> None:
    native, _ = held(name, raw, 3)
    found, elem = network.weights_of(native, name, (3, 1))
    assert (found.shape, found.dtype, elem) == ((3, 1), numpy_type(name), ONNX_TYPES[name])
    assert found.astype(np.float32).reshape(-1).tolist() == wanted


def test_a_scalar_and_nothing() -> None:
    native, _ = held("BF16", b"\x80\x3f", 1)
    assert network.weights_of(native, "BF16", ())[0] == 1
    nothing = network.weights_of(Weights(dtype_of("FP8"), 0, 0), "FP8", (0, 4))[0]
    assert (nothing.shape, nothing.dtype) == ((0, 4), numpy_type("FP8"))


@pytest.mark.parametrize(
    ("native", "dtype", "shape", "reason"),
    [
        (np.zeros(6, np.float32), "FLOAT", (7,), "7 weights of FLOAT were announced, 6 of float32 are there"),
        (np.zeros(6, np.float32), "HALF", (6,), "6 weights of HALF were announced, 6 of float32 are there"),
        (held("FP8", b"123456", 6)[0], "FP8", (2, 2), "4 weights of FP8 were announced, 6 of FP8 are there"),
        (held("FP8", b"123456", 6)[0], "BF16", (6,), "6 weights of BF16 were announced, 6 of FP8 are there"),
        (held("FLOAT", b"1234", 1)[0], "FLOAT", (1,), SAYS.format("FLOAT")),
    ],
    ids=["count", "type", "count of others", "type of others", "no array"],
)
def test_other_weights_than_announced(native: Any, dtype: str, shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(Unliftable) as error:
        network.weights_of(native, dtype, shape)
    assert str(error.value) == reason


class Slots:
    """A package whose objects have something else behind their header: here an object, or nothing."""

    __slots__ = ("_first", "count", "dtype", "size")

    def __init__(self, dtype: Any, address: int, count: int) -> None:
        self.dtype, self.size, self.count = dtype, count, count
        if address:
            self._first = ctypes.c_int64(address)


class Turned(Weights):
    """A package whose struct begins with the count."""

    _fields_: ClassVar[Any] = ()

    def __init__(self, dtype: Any, address: int, count: int) -> None:
        super().__init__(dtype, address, count)
        self.type, self.count = count, dtype.value


class Copying(Weights):
    """A package that takes the values over."""

    def __init__(self, dtype: Any, address: int, count: int) -> None:
        self.own = ctypes.create_string_buffer(16)
        super().__init__(dtype, ctypes.addressof(self.own), count)


@pytest.mark.parametrize(
    "native",
    [
        Slots(dtype_of("FP8"), 64, 4),
        Slots(dtype_of("FP8"), 0, 4),
        held("FP8", b"1234", 4, Turned)[0],
        held("FP8", b"1234", 4, Copying)[0],
    ],
    ids=lambda one: type(one).__name__,
)
def test_another_layout_is_one_line(native: Any) -> None:
    with pytest.raises(Unliftable) as error:
        network.weights_of(native, "FP8", (4,))
    assert str(error.value) == SAYS.format("FP8")


@pytest.mark.parametrize("address", [0, 8, 4088, 2**20 + 4])
def test_places_where_nothing_can_be_are_not_looked_at(address: int) -> None:
    native, _ = held("FP8", b"1234", 4)
    word = ctypes.c_void_p.from_address(id(native) + object.__basicsize__)
    kept = word.value
    word.value = address
    try:
        with pytest.raises(Unliftable, match="does not know"):
            network.weights_of(native, "FP8", (4,))
    finally:
        word.value = kept


@pytest.mark.parametrize("field", ["type", "values", "count"])
def test_contents_that_do_not_fit(field: str) -> None:
    """The layout is right, this object is not."""
    native, _ = held("FP8", b"1234", 4)
    setattr(native, field, 0)
    with pytest.raises(Unliftable, match="does not know"):
        network.weights_of(native, "FP8", (4,))


# -- the real package


VALUES = [1, -2, 3, 0.5, -0.5, 6, 4, -4, 2, -1, 1.5, -6]
BIG = 3000  # enough for the file beside the model


@REAL
@pytest.mark.parametrize("name", ["FLOAT", "HALF", "BF16", "INT32", "INT64", "BOOL"])
@pytest.mark.parametrize("count", [12, BIG])
def test_constants_come_back(name: str, count: int, worker: Worker, tmp_path: Path) -> None:
    array = np.resize(VALUES, (2, count // 2)).astype(numpy_type(name))
    assert np.array_equal(_returned(worker, array, ONNX_TYPES[name], tmp_path, []), array)


@REAL
@pytest.mark.parametrize("name", ["INT8", "FP8", "INT4", "FP4"])
@pytest.mark.parametrize("count", [12, BIG])
def test_quantized_constants_come_back(name: str, count: int, worker: Worker, tmp_path: Path) -> None:
    """Those may only stand before a DequantizeLinear."""
    array = np.resize(VALUES, (2, count // 2)).astype(numpy_type(name))
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["y"])]
    assert np.array_equal(_returned(worker, array, TensorProto.FLOAT, tmp_path, nodes), array)


def _returned(worker: Worker, array: Any, to: int, folder: Path, nodes: list[onnx.NodeProto]) -> Any:
    """The weight ``w`` of the lifted model."""
    nodes = nodes or [helper.make_node("Identity", ["w"], ["y"])]
    weights = {"w": array, "s": np.float32(1)}
    made = of_nodes(nodes, {}, {"y": (to, array.shape)}, weights, opset=23, ir_version=11)
    found = lifted.lifted(worker, made, folder)
    assert found.lifted, found.reason
    [kept] = [
        one
        for one in onnx.load(found.path).graph.initializer
        if one.dims == list(array.shape) and len(one.dims) == 2
    ]
    return numpy_helper.to_array(kept)
