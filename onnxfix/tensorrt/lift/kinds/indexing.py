"""Layers that pick elements by numbers that they read: gathers, scatters, and the choice among overlapping boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import helper

from onnxfix.tensorrt.lift.emit import Emit
from onnxfix.tensorrt.lift.kinds import lifts
from onnxfix.tensorrt.lift.kinds.moving import carrier, size_of
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable


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
