"""Weights of every type that TensorRT has, and packages that keep them otherwise; layers that are never read back,
and forms that this TensorRT does not make: should another one make them, they are not guessed."""

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
from onnxfix.tensorrt.lift.emit import Emit, table
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable
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
