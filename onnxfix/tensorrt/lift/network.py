"""A network as TensorRT's parser built it: layers cast to their own classes, and one object for each tensor.

``layer.type`` is read before a layer is cast to its class: activation and pooling layers have their own ``type``.
TensorRT returns the same Python wrapper for a tensor or a loop only while the wrapper is alive, so all are kept.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfix.tensorrt.lift.records import ONNX_TYPES, numpy_type
from onnxfix.tensorrt.log import text_of
from onnxfix.tensorrt.places import stamp_of

#: Kinds of layers whose class name does not follow from the kind.
_CLASSES = {
    "ELEMENTWISE": "ElementWise", "SOFTMAX": "SoftMax", "RAGGED_SOFTMAX": "RaggedSoftMax", "TOPK": "TopK",
    "NON_ZERO": "NonZero", "PARAMETRIC_RELU": "ParametricReLU", "LRN": "LRN", "NMS": "NMS",
    "CONDITIONAL_INPUT": "IfConditionalInput", "CONDITIONAL_OUTPUT": "IfConditionalOutput",
    "KV_CACHE_UPDATE": "KVCacheUpdate", "PLUGIN_V2": "PluginV2", "PLUGIN_V3": "PluginV3", "MOE": "MoE",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the network. ``dtype`` is TensorRT's name of its type; ``shape`` has -1 for dynamic dimensions, and
    is None if TensorRT does not know the rank."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    is_input: bool
    native: Any

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions, -1 for dynamic ones.

        Raises:
            Unliftable: TensorRT does not know its rank.
        """
        if self.shape is None:
            raise Unliftable(f"TensorRT does not know the rank of {self.name}")
        return self.shape

    @property
    def rank(self) -> int:
        """Number of dimensions; see ``dims``."""
        return len(self.dims)


def read_dims(native: Any, attribute: str) -> tuple[int, ...] | None:
    """The dimensions in a property of a TensorRT object; None if it is not set, or does not exist in this package.

    All such properties are read here, since packages express "not set" in three ways: None (TensorRT-RTX 1.6 and
    later), a Dims of length -1, whose ``len`` and ``tuple`` raise ValueError (1.4 and 1.5), and a RuntimeError
    from the property itself ("Could not get block_shape.", 1.6 and later).
    """
    try:
        dims = getattr(native, attribute, None)
        # ``len`` is needed: on Python 3.14, ``tuple`` does not call it.
        return None if dims is None or len(dims) < 0 else tuple(dims)
    except (ValueError, RuntimeError):
        return None


def read_word(native: Any, attribute: str, *, since: str = "", before: str = "") -> str:
    """The name of an enumeration's value, from a property of a TensorRT object.

    ``before`` is the value for packages that are older than the enumeration ``since``: they lack the property, and
    support no other value.
    """
    if since and not hasattr(native, attribute) and not hasattr(sys.modules[type(native).__module__], since):
        return before
    return str(getattr(native, attribute).name)


class Unliftable(Exception):
    """A layer, or a form of it, cannot be read back: ``str`` is the reason, in one line."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer. ``kind`` is TensorRT's LayerType by name; ``native`` is the TensorRT object, cast to the layer's class
    so that its properties can be read. An omitted input is None. ``label`` is the parser's name for its ONNX node.
    ``group`` is the loop or conditional of a boundary layer, "" for other layers."""

    number: int
    kind: str
    name: str
    label: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    native: Any
    group: str = ""

    def input(self, place: int) -> Tensor | None:
        """One input; None if it is omitted, or ``place`` is beyond the last input."""
        return self.inputs[place] if place < len(self.inputs) else None

    def need(self, place: int) -> Tensor:
        """One input that this kind of layer requires.

        Raises:
            Unliftable: it is left out.
        """
        found = self.input(place)
        if found is None:
            raise Unliftable(f"input {place} is left out")
        return found

    def dims(self, attribute: str) -> tuple[int, ...] | None:
        """The dimensions in a property of the layer; None if it is not set."""
        return read_dims(self.native, attribute)

    def word(self, attribute: str, *, since: str = "", before: str = "") -> str:
        """The name of an enumeration's value: ``layer.word("op")`` is "SUM". See ``read_word``."""
        return read_word(self.native, attribute, since=since, before=before)


_GROUPED = {
    **dict.fromkeys(("TRIP_LIMIT", "RECURRENCE", "ITERATOR", "LOOP_OUTPUT"), "loop"),
    **dict.fromkeys(("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT"), "conditional"),
}


class Network:
    """All layers in the order of the parser, and the network's inputs and outputs."""

    def __init__(self, trt: Any, network: Any) -> None:
        self._trt = trt
        self._tensors: dict[int, Tensor] = {}
        self._groups: dict[int, tuple[str, Any]] = {}
        self.inputs = [self._tensor(network.get_input(number)) for number in range(network.num_inputs)]
        raw = [network.get_layer(number) for number in range(network.num_layers)]
        labels = [""] * len(raw)
        label = ""
        for number in reversed(range(len(raw))):  # a layer without a stamp belongs to the next stamped layer
            labels[number] = label = stamp_of(raw[number]) or label
        self.layers = [self._layer(number, layer, labels[number]) for number, layer in enumerate(raw)]
        self.outputs = [self._tensor(network.get_output(number)) for number in range(network.num_outputs)]
        self.maker: dict[Tensor, Layer] = {t: layer for layer in self.layers for t in layer.outputs}
        self.users: dict[Tensor, list[Layer]] = defaultdict(list)
        for layer in self.layers:
            for tensor in layer.inputs:
                if tensor is not None:
                    self.users[tensor].append(layer)

    @property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """How many layers there are of each kind, by name."""
        return tuple(sorted(Counter(layer.kind for layer in self.layers).items()))

    def _tensor(self, native: Any) -> Tensor:
        key = id(native)
        if key not in self._tensors:
            name, shape = text_of(lambda: native.name), read_dims(native, "shape")
            self._tensors[key] = Tensor(name, native.dtype.name, shape, bool(native.is_network_input), native)
        return self._tensors[key]

    def _layer(self, number: int, native: Any, label: str) -> Layer:
        kind = native.type.name
        inputs = [native.get_input(place) for place in range(native.num_inputs)]
        outputs = [native.get_output(place) for place in range(native.num_outputs)]
        name = _CLASSES.get(kind) or "".join(word.capitalize() for word in kind.split("_"))
        own = getattr(self._trt, f"I{name}Layer", None)
        if own is not None:
            native.__class__ = own
        owner, group = _GROUPED.get(kind, ""), ""
        if owner:  # TensorRT's name is not unique: nodes of several graphs may share it
            around = getattr(native, owner)
            group, _ = self._groups.setdefault(id(around), (f"{owner} {len(self._groups)}", around))
        read = tuple(None if one is None else self._tensor(one) for one in inputs)
        written = tuple(self._tensor(one) for one in outputs if one is not None)
        return Layer(number, kind, text_of(lambda: native.name), label, read, written, native, group)


Array = npt.NDArray[Any]

# -- weights, of every type that TensorRT has. The Python package shows those of the types that numpy has as arrays.
# Those of BF16, FP8, INT4, FP4 and E8M0 stay objects of its class Weights (NvInfer.h: struct Weights {DataType type;
# void const* values; int64_t count;}), whose numpy gives the object itself and which show no address. The struct is
# read from where pybind11 keeps the address of what an object holds, right behind the object's header: the layout of
# pybind11 2 and 3, but promised by nobody. So it is tried first on weights of our own, whose address is known; then
# type, count and shape must agree.

#: Types of which numpy has none, with the bits of an element.
_BITS = {"BF16": 16, "FP8": 8, "E8M0": 8, "INT4": 4, "FP4": 4}
#: Behind an object's count of references and its type.
_HEADER = object.__basicsize__
_WORD = ctypes.sizeof(ctypes.c_void_p)
_PAGE = 4096  # the first page is never mapped: a small number is not an address
_MOVED = "the Python package keeps {} weights in a way that onnxfix does not know"


class _Struct(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("values", ctypes.c_void_p), ("count", ctypes.c_int64))


def weights_of(native: Any, dtype: str, shape: Sequence[int]) -> tuple[Array, int]:
    """Weights as an array of ``shape`` with ONNX's element type, for ``Emit.weights``.

    ``native`` is what a layer's property gives, ``dtype`` TensorRT's name of the type that the weights must have.
    Elements of 4 bits take a byte each. All others are views of TensorRT's memory: valid as long as the network, its
    parser and what the weights were made of.

    Raises:
        Unliftable: type or count differ from the layer's, or another version of the package stores weights of
            the types that numpy lacks in another way.
    """
    count, size = math.prod(shape), int(native.size)
    listed = isinstance(native, np.ndarray)
    have = str(native.dtype) if listed else _name(native)
    if size != count or (native.dtype != numpy_type(dtype) if listed else have != dtype):
        raise Unliftable(f"{count} weights of {dtype} were announced, {size} of {have} are there")
    if not listed and dtype not in _BITS:
        raise Unliftable(_MOVED.format(dtype))
    flat = _dense(native) if listed else _viewed(native, dtype, count)
    return flat.reshape(tuple(shape)), ONNX_TYPES[dtype]


def _dense(native: Array) -> Array:
    """An array of weights, flat.

    The bindings of TensorRT 10.6 read numpy 1's layout of a dtype. Under numpy 2 they find an element size of 0 there,
    and so make arrays with strides of 0, every element of which shows the first one. The values lie behind each other.
    """
    if native.flags.c_contiguous:
        return native.reshape(-1)
    return np.lib.stride_tricks.as_strided(native, (native.size,), (native.itemsize,))


def _name(native: Any) -> str:
    return str(native.dtype.name)


def _viewed(native: Any, dtype: str, count: int) -> Array:
    """Weights of a type that numpy lacks, flat."""
    if not count:
        return np.zeros(0, numpy_type(dtype))
    _try(type(native), native.dtype)
    address = _address(native, count)
    width = -(-count * _BITS[dtype] // 8)
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * width).from_address(address))
    kind = numpy_type(dtype)
    if _BITS[dtype] != 4:
        return np.asarray(raw.view(kind))
    flat = np.empty((width, 2), np.uint8)
    flat[:, 0] = raw & 15  # as ONNX packs them, whose bytes the parser takes as they are
    flat[:, 1] = raw >> 4
    if dtype == "INT4":
        flat ^= 8  # the sign, as ml_dtypes has it
        flat -= 8
    return np.asarray(flat.reshape(-1)[:count].view(kind))


def _try(kind: Any, dtype: Any) -> None:
    """Whether the struct is where it should be, by an object whose contents are known.

    Raises:
        Unliftable: it is not.
    """
    values = (ctypes.c_uint8 * 16)()
    try:
        probe = kind(dtype, ctypes.addressof(values), 4)
    except TypeError:
        raise Unliftable(_MOVED.format(dtype.name)) from None
    if _address(probe, 4) != ctypes.addressof(values):
        raise Unliftable(_MOVED.format(dtype.name))


def _address(native: Any, count: int) -> int:
    """Where the values of ``count`` weights lie.

    Raises:
        Unliftable: the memory does not match the object.
    """
    moved = Unliftable(_MOVED.format(_name(native)))
    if sys.implementation.name != "cpython" or type(native).__basicsize__ < _HEADER + _WORD:
        raise moved
    place = ctypes.c_void_p.from_address(id(native) + _HEADER).value
    if not place or place < _PAGE or place % _WORD:
        raise moved
    found = _Struct.from_address(place)
    if found.type != int(native.dtype.value) or found.count != count or not found.values:
        raise moved
    return int(found.values)
