"""The values of a layer's weights, of every type that TensorRT has.

The Python package shows weights of the types that numpy has as arrays. Those of BF16, FP8, INT4, FP4 and E8M0 stay
objects of its class ``Weights`` (NvInfer.h: ``struct Weights {DataType type; void const* values; int64_t count;}``),
whose ``numpy`` gives the object itself and which show no address. The struct is read from where pybind11 keeps the
address of what an object holds, right behind the object's header: the layout of pybind11 2 and 3, but promised by
nobody. So it is tried first on weights of our own, whose address is known; then type, count and shape must agree.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfix.tensorrt.lift.network import Unliftable
from onnxfix.tensorrt.lift.records import ONNX_TYPES, numpy_type

Array = npt.NDArray[Any]
#: Types of which numpy has none, with the bits of an element.
_BITS = {"BF16": 16, "FP8": 8, "E8M0": 8, "INT4": 4, "FP4": 4}
#: Behind an object's count of references and its type.
_HEADER = object.__basicsize__
_WORD = ctypes.sizeof(ctypes.c_void_p)
_PAGE = 4096  # the first page is never mapped: a small number is not an address
_MOVED = "the Python package keeps {} weights in a way that onnxfix does not know"


class _Struct(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("values", ctypes.c_void_p), ("count", ctypes.c_int64))


def of(native: Any, dtype: str, shape: Sequence[int]) -> tuple[Array, int]:
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
