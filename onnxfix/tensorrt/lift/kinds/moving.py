"""Layers that move elements about, make them out of nothing, or pick them by numbers that they read: gathers, scatters,
and the choice among overlapping boxes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from onnxfix.tensorrt.lift import network
from onnxfix.tensorrt.lift.emit import Emit, lifts
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
    array, elem = network.weights_of(layer.native.weights, made.dtype, tuple(layer.native.shape))
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


@lifts("GATHER")
def _gather(e: Emit, layer: Layer) -> str:
    """ONNX's Gather, GatherElements and GatherND, but 0 for an index outside of the data (NvInfer.h, IGatherLayer)."""
    data, mode, batch = layer.need(0), layer.word("mode"), int(layer.native.num_elementwise_dims)
    if layer.need(1).rank == 0 and mode != "DEFAULT":
        raise Unliftable("its indices are a scalar")
    wide = carrier(data.dtype, "Gather", "Where")
    value = e.as_type(data, wide)
    if mode == "ND":
        value = _gather_nd(e, layer, value, wide, batch)
    elif mode in ("DEFAULT", "ELEMENT") and batch == 0:
        value = _gather_axis(e, layer, value, wide)
    else:
        raise Unliftable(f"gather mode {mode} with {batch} elementwise dimensions")
    return e.turn(value, wide, data.dtype)


def _gather_axis(e: Emit, layer: Layer, value: str, wide: str) -> str:
    data, indices, axis = layer.need(0), layer.need(1), int(layer.native.axis)
    op = "Gather" if layer.word("mode") == "DEFAULT" else "GatherElements"
    if _surely_inside(e, layer, [data.dims[axis]]):
        return e.op(op, value, e.of(indices), axis=axis)
    extent = size_of(e, data, axis)
    low, high = e.op("Neg", extent), e.op("Sub", extent, e.const(1, "INT64"))
    numbers = e.as_type(indices, "INT64")
    inside = e.op("Clip", numbers, low, high)
    found, ok = e.op(op, value, inside, axis=axis), e.op("Equal", numbers, inside)
    if op == "Gather":
        ok = _trailing(e, ok, indices.rank, data.rank - axis - 1)
    return _or_zero(e, ok, found, wide)


def _gather_nd(e: Emit, layer: Layer, value: str, wide: str, batch: int) -> str:
    data, indices = layer.need(0), layer.need(1)
    depth = indices.dims[-1]
    if depth < 0:
        raise Unliftable("how many numbers its indices have is not known")
    dims, numbers = data.dims[batch : batch + depth], e.as_type(indices, "INT64")
    if _surely_inside(e, layer, dims):
        return e.op("GatherND", value, numbers, batch_dims=batch or None)
    extents = e.ints(dims) if min(dims) >= 0 else e.op("Shape", value, start=batch, end=batch + depth)
    inside, ok = _inside_nd(e, numbers, extents)
    found = e.op("GatherND", value, inside, batch_dims=batch or None)
    return _or_zero(e, _trailing(e, ok, indices.rank - 1, data.rank - batch - depth), found, wide)


def _surely_inside(e: Emit, layer: Layer, dims: Sequence[int]) -> bool:
    """Whether the indices are known, and inside dimensions of these sizes whatever the dynamic ones are."""
    known = e.known(layer.need(1))
    if known is None:
        return False
    sizes = np.array(dims, np.int64)
    dynamic = sizes < 0
    if np.any(dynamic & (known < 0)):
        what = "a negative index along a dynamic axis, which TensorRT does not document"
        e.note(f"{what}, counts from the end here")
    last = np.where(dynamic, 1, sizes)  # a dynamic axis has an element, or nothing can be read from it
    return bool(np.all((known >= -last) & (known < last)))


def _inside_nd(e: Emit, numbers: str, extents: str) -> tuple[str, str]:
    """Tuples of indices with each index put inside, and for each tuple whether it was."""
    low, high = e.op("Neg", extents), e.op("Sub", extents, e.ints([1]))
    inside = e.op("Min", e.op("Max", numbers, low), high)
    same = e.op("Cast", e.op("Equal", numbers, inside), to=6)
    return inside, e.op("Cast", e.op("ReduceMin", same, e.ints([-1]), keepdims=0), to=9)


def _trailing(e: Emit, value: str, rank: int, more: int) -> str:
    """A value with dimensions of 1 after its own, to go with something of higher rank."""
    return e.op("Unsqueeze", value, e.ints(range(rank, rank + more))) if more else value


def _or_zero(e: Emit, ok: str, found: str, dtype: str) -> str:
    if dtype == "BOOL":
        return e.op("And", ok, found)
    return e.op("Where", ok, found, e.const(0, dtype))


@lifts("SCATTER")
def _scatter(e: Emit, layer: Layer) -> str:
    """Elements, or slices, of a copy replaced: of those with one place, any (NvInfer.h, IScatterLayer)."""
    data, indices, updates, mode = layer.need(0), layer.need(1), layer.need(2), layer.word("mode")
    if updates.dtype != data.dtype:
        raise Unliftable(f"it puts {updates.dtype} into {data.dtype}")
    wide = carrier(data.dtype, "ScatterND")
    into, put = (e.as_type(one, wide) for one in (data, updates))
    if mode == "ND":
        value = e.op("ScatterND", into, e.as_type(indices, "INT64"), put)
    elif mode == "ELEMENT":
        value = e.op("ScatterElements", into, e.of(indices), put, axis=int(layer.native.axis))
    else:
        raise Unliftable(f"its mode {mode} is not known")
    return e.turn(value, wide, data.dtype)


# -- choosing among overlapping boxes


@lifts("NMS")
def _boxes(e: Emit, layer: Layer) -> tuple[str, str]:
    """Rows of batch, class and box. The parser makes it of boxes that all classes share. Unlike ONNX's operator,
    TensorRT sorts the rows of a batch item by their scores across its classes (INMSLayer: "in order of decreasing score
    within each batchIndex"), drops boxes whose score is not above 0 where no threshold is given, and looks at no more
    than ``topk_box_limit`` scores of a batch item."""
    native, boxes, scores = layer.native, layer.need(0), layer.need(1)
    if boxes.rank != 3:
        raise Unliftable("each class has boxes of its own")
    limited = _limited(e, e.as_type(scores, "FLOAT"), scores, int(native.topk_box_limit))
    by_class = e.op("Transpose", limited, perm=[0, 2, 1])
    found = e.op(
        "NonMaxSuppression",
        e.as_type(boxes, "FLOAT"),
        by_class,
        e.cast(e.of(layer.need(2)), "INT64"),
        *(_threshold(e, layer.input(place)) for place in (3, 4)),
        center_point_box=int(layer.word("bounding_box_format") == "CENTER_SIZES"),
    )
    number = e.op("Shape", found, start=0, end=1)
    found = _sorted(e, found, e.op("GatherND", by_class, found), number, largest=1)
    batch = e.op("Gather", found, e.const(0, "INT64"), axis=1)
    found = _sorted(e, found, batch, number, largest=0)
    rows, count = layer.outputs
    return e.cast(found, rows.dtype), e.cast(e.op("Reshape", number, e.ints([])), count.dtype)


def _threshold(e: Emit, tensor: Tensor | None) -> str:
    """A threshold, 0 where none is given: the documented default of both."""
    return e.const(0.0, "FLOAT") if tensor is None else e.as_type(tensor, "FLOAT")


def _sorted(e: Emit, rows: str, keys: str, number: str, *, largest: int) -> str:
    """Rows in the order of their keys; TopK leaves equal keys in their order."""
    return e.op("Gather", rows, e.ops("TopK", keys, number, outputs=2, largest=largest)[1], axis=0)


def _limited(e: Emit, value: str, scores: Tensor, limit: int) -> str:
    """Scores with all but the ``limit`` largest of each batch item, whatever their classes, out of the running."""
    assert scores.shape is not None
    number = math.prod(scores.shape[1:]) if min(scores.shape[1:]) >= 0 else -1
    if 0 <= number <= limit:
        return value
    shape = e.op("Shape", value)
    flat = e.op("Reshape", value, e.ints([0, -1]))
    count = e.op("Min", e.op("Shape", flat, start=1), e.ints([limit]))
    best = e.ops("TopK", flat, count, outputs=2, axis=1)[1]
    none = helper.make_tensor("value", 1, [1], [0.0])
    ones = e.op("ConstantOfShape", e.op("Shape", best), value=helper.make_tensor("value", 1, [1], [1.0]))
    kept = e.op(
        "ScatterElements", e.op("ConstantOfShape", e.op("Shape", flat), value=none), best, ones, axis=1
    )
    flat = e.op("Where", e.op("Cast", kept, to=9), flat, e.const(-math.inf, "FLOAT"))
    return e.op("Reshape", flat, shape)
