"""Layers that move elements about, or make them out of nothing, and compute nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from onnxfix.tensorrt.lift import weights
from onnxfix.tensorrt.lift.emit import Emit
from onnxfix.tensorrt.lift.kinds import lifts
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable
from onnxfix.tensorrt.lift.records import ONNX_TYPES, numpy_type

#: Types of which ONNX has few operators, and ONNX Runtime fewer, with one that holds all their values.
_WIDER = {"FP8": "FLOAT", "FP4": "FLOAT", "E8M0": "FLOAT", "INT4": "INT8"}
#: ONNX Runtime's CPU provider lacks these of BFLOAT16, or ONNX does.
_NOT_BF16 = ("Expand", "Pad", "ReverseSequence", "Where")


def carrier(dtype: str, *ops: str) -> str:
    """A type that holds all values of TensorRT's type ``dtype`` exactly, and has these ONNX operators."""
    if dtype == "BF16" and any(op in _NOT_BF16 for op in ops):
        return "FLOAT"
    return _WIDER.get(dtype, dtype)


@dataclass(frozen=True)
class Vector:
    """A few integers: numbers that are ``known``, or else a ``name`` of a one-dimensional INT64 value."""

    known: tuple[int, ...] | None
    name: str = ""

    def value(self, e: Emit) -> str:
        """Its value in the lifted model."""
        return self.name if self.known is None else e.ints(self.known)

    def at(self, e: Emit, place: int) -> str:
        """One of them, as a scalar."""
        number = e.const(np.int64(place if self.known is None else self.known[place]))
        return e.op("Gather", self.name, number) if self.known is None else number


def vector(e: Emit, layer: Layer, place: int, attribute: str = "-") -> Vector | None:
    """What a layer takes from an input, or from a property where that input is left out; None where both are."""
    tensor = layer.input(place)
    if tensor is None:
        dims = layer.dims(attribute)  # a slice has axes since TensorRT 10.3
        return None if dims is None else Vector(dims)
    known = e.known(tensor)
    if known is not None:
        return Vector(tuple(known.reshape(-1).tolist()))
    return Vector(None, e.as_type(tensor, "INT64"))


def size_of(e: Emit, tensor: Tensor, axis: int) -> str:
    """A dimension of a tensor, as a scalar INT64."""
    extent = tensor.dims[axis]
    if extent >= 0:
        return e.const(extent, "INT64")
    return e.op("Gather", e.op("Shape", e.of(tensor)), e.const(axis, "INT64"))


@lifts("CONSTANT")
def _constant(e: Emit, layer: Layer) -> str:
    made = layer.outputs[0]
    e.uses(made.dtype)
    array, elem = weights.of(layer.native.weights, made.dtype, tuple(layer.native.shape))
    return e.weights(array, elem, of=made)


@lifts("IDENTITY", "CONDITIONAL_INPUT")
def _identity(e: Emit, layer: Layer) -> str:
    return e.op("Identity", e.of(layer.need(0)))


@lifts("SHAPE")
def _shape(e: Emit, layer: Layer) -> str:
    return e.turn(e.op("Shape", e.of(layer.need(0))), "INT64", layer.outputs[0].dtype)


@lifts("CONCATENATION")
def _concatenation(e: Emit, layer: Layer) -> str:
    dtype = layer.outputs[0].dtype
    wide = carrier(dtype, "Concat")
    parts = [e.turn(e.of(layer.need(place)), dtype, wide) for place in range(len(layer.inputs))]
    return e.turn(e.op("Concat", *parts, axis=int(layer.native.axis)), wide, dtype)


@lifts("SHUFFLE")
def _shuffle(e: Emit, layer: Layer) -> str:
    """Transpose, reshape, transpose. An order of dimensions has eight places, whatever the rank is; ``reshape_dims``
    is None for no reshape and () for one to a scalar. A 0 is a zero or the dimension in that place, a -1 whatever is
    left (NvInfer.h, IShuffleLayer: as in ONNX)."""
    data, native = layer.need(0), layer.native
    wide = carrier(data.dtype)
    value = before = e.as_type(data, wide)
    value = _transposed(e, value, native.first_transpose, data.rank)
    dims = vector(e, layer, 1, "reshape_dims")
    if dims is not None:
        zeros = not native.zero_is_placeholder and (dims.known is None or 0 in dims.known)
        value = e.op("Reshape", value, dims.value(e), allowzero=1 if zeros else None)
    value = _transposed(e, value, native.second_transpose, layer.outputs[0].rank)
    if value == before:
        return e.op("Identity", e.of(data))
    return e.turn(value, wide, data.dtype)


def _transposed(e: Emit, value: str, order: Iterable[int], rank: int) -> str:
    perm = list(order)[:rank]
    return value if perm == sorted(perm) else e.op("Transpose", value, perm=perm)


@lifts("SQUEEZE", "UNSQUEEZE")
def _squeeze(e: Emit, layer: Layer) -> str:
    """Without axes, what is dropped are the dimensions that are 1 in the network: one that is dynamic stays, even if
    it turns out to be 1 (INetworkDefinition.add_squeeze)."""
    data, axes = layer.need(0), vector(e, layer, 1)
    if axes is None:
        if layer.kind == "UNSQUEEZE" or data.shape is None:
            raise Unliftable("its axes are left out")
        axes = Vector(tuple(axis for axis, size in enumerate(data.shape) if size == 1))
    if axes.known == ():  # of which ONNX Runtime's Squeeze makes all that are 1 when it runs
        return e.op("Identity", e.of(data))
    wide = carrier(data.dtype)
    value = e.as_type(data, wide)
    value = e.op("Squeeze" if layer.kind == "SQUEEZE" else "Unsqueeze", value, axes.value(e))
    return e.turn(value, wide, data.dtype)


@lifts("FILL")
def _fill(e: Emit, layer: Layer) -> str:
    """Inputs 0 shape, 1 alpha, 2 beta, or properties. LINSPACE: alpha + the sum of each index times its beta.
    RANDOM_UNIFORM: from alpha to beta. RANDOM_NORMAL: mean alpha, deviation beta (NvInfer.h, FillOperation)."""
    word, dtype = layer.word("operation"), layer.outputs[0].dtype
    rank = layer.outputs[0].rank
    if word == "LINSPACE":
        return _linspace(e, layer, rank, dtype)
    e.random.add(layer.outputs[0])
    frame = e.op("Expand", e.const(0.0, "FLOAT"), _fill_shape(e, layer).value(e))
    if layer.input(1) is not None or layer.input(2) is not None:
        raise Unliftable("random numbers whose range is computed")
    first, second = float(layer.native.alpha), float(layer.native.beta)
    if word == "RANDOM_UNIFORM":
        value = e.op("RandomUniformLike", frame, low=first, high=second, dtype=ONNX_TYPES["FLOAT"])
    else:
        value = e.op("RandomNormalLike", frame, mean=first, scale=second, dtype=ONNX_TYPES["FLOAT"])
    return e.turn(value, "FLOAT", dtype)


def _fill_shape(e: Emit, layer: Layer) -> Vector:
    shape = vector(e, layer, 0, "shape")
    if shape is None:
        raise Unliftable("it has no shape")
    return shape


def _linspace(e: Emit, layer: Layer, rank: int, dtype: str) -> str:
    alpha, beta = layer.input(1), layer.input(2)
    if alpha is not None and beta is not None:
        types = {alpha.dtype, beta.dtype}
        if types != {dtype} and (types, dtype) != ({"INT64"}, "INT32"):
            raise Unliftable(f"alpha is {alpha.dtype} and beta {beta.dtype} where the output is {dtype}")
        # What an INT32 can hold of a sum of INT64 numbers is the same wherever they are cut off.
        first, steps = (e.as_type(one, dtype) for one in (alpha, beta))
        known = e.known(alpha), e.known(beta)
    elif alpha is None and beta is None and rank == 1:  # then beta is that of the only axis
        alpha_, beta_ = (
            np.array(one, numpy_type(dtype)) for one in (layer.native.alpha, [layer.native.beta])
        )
        known = alpha_, beta_
        first, steps = map(e.const, known)
    else:
        raise Unliftable("a linspace that has alpha or beta as a property, and is not of rank 1")
    shape, total = _fill_shape(e, layer), ""
    for axis in range(rank):
        count = e.op("Range", e.const(0, "INT64"), shape.at(e, axis), e.const(1, "INT64"))
        term = e.turn(count, "INT64", dtype)
        if known[1] is None or known[1][axis] != 1:
            term = e.op("Mul", term, e.op("Gather", steps, e.const(np.int64(axis))))
        if axis + 1 < rank:
            term = e.op("Unsqueeze", term, e.ints(range(1, rank - axis)))
        total = e.op("Add", total, term) if total else term
    if not total:
        return e.op("Identity", first)
    return total if known[0] is not None and known[0] == 0 else e.op("Add", total, first)


@lifts("REVERSE_SEQUENCE")
def _reverse_sequence(e: Emit, layer: Layer) -> str:
    """Of each slice along the batch axis, the first elements along the sequence axis in reverse. ONNX, and what the
    parser makes of it, knows the axes 0 and 1 only."""
    data, lengths, native = layer.need(0), layer.need(1), layer.native
    batch, sequence = int(native.batch_axis), int(native.sequence_axis)
    if {batch, sequence} != {0, 1}:
        raise Unliftable(f"sequences along axis {sequence} of batches along axis {batch}")
    wide = carrier(data.dtype, "ReverseSequence")
    value, counts = e.as_type(data, wide), e.as_type(lengths, "INT64")
    value = e.op("ReverseSequence", value, counts, batch_axis=batch, time_axis=sequence)
    return e.turn(value, wide, data.dtype)
