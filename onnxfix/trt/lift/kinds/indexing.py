"""Layers that pick elements by numbers that they read: gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfix.trt.lift.emit import Emit
from onnxfix.trt.lift.kinds import lifts
from onnxfix.trt.lift.kinds.moving import carrier, dims_of, int64, size_of, turned
from onnxfix.trt.lift.network import Layer, Unliftable


@lifts("GATHER")
def _gather(e: Emit, layer: Layer) -> str:
    """ONNX's Gather, GatherElements and GatherND, but 0 for an index outside of the data (NvInfer.h, IGatherLayer)."""
    data, mode, batch = layer.need(0), layer.word("mode"), int(layer.native.num_elementwise_dims)
    if layer.need(1).rank == 0 and mode != "DEFAULT":
        raise Unliftable("its indices are a scalar")
    wide = carrier(data.dtype, "Gather", "Where")
    value = turned(e, e.of(data), data.dtype, wide)
    if mode == "ND":
        value = _gather_nd(e, layer, value, wide, batch)
    elif mode == "DEFAULT" and batch == 1:
        value = _gather_rows(e, layer, value, wide)
    elif mode in ("DEFAULT", "ELEMENT") and batch == 0:
        value = _gather_axis(e, layer, value, wide)
    else:
        raise Unliftable(f"gather mode {mode} with {batch} elementwise dimensions")
    return turned(e, value, wide, data.dtype)


def _gather_axis(e: Emit, layer: Layer, value: str, wide: str) -> str:
    data, indices, axis = layer.need(0), layer.need(1), int(layer.native.axis)
    op = "Gather" if layer.word("mode") == "DEFAULT" else "GatherElements"
    if _surely_inside(e, layer, [dims_of(data)[axis]]):
        return e.op(op, value, e.of(indices), axis=axis)
    extent = size_of(e, data, axis)
    low, high = e.op("Neg", extent), e.op("Sub", extent, e.scalar(1, "INT64"))
    numbers = int64(e, indices)
    inside = e.op("Clip", numbers, low, high)
    found, ok = e.op(op, value, inside, axis=axis), e.op("Equal", numbers, inside)
    if op == "Gather":
        ok = _trailing(e, ok, indices.rank, data.rank - axis - 1)
    return _or_zero(e, ok, found, wide)


def _gather_nd(e: Emit, layer: Layer, value: str, wide: str, batch: int) -> str:
    data, indices = layer.need(0), layer.need(1)
    depth = dims_of(indices)[-1]
    if depth < 0:
        raise Unliftable("how many numbers its indices have is not known")
    dims, numbers = dims_of(data)[batch : batch + depth], int64(e, indices)
    if _surely_inside(e, layer, dims):
        return e.op("GatherND", value, numbers, batch_dims=batch or None)
    extents = e.ints(dims) if min(dims) >= 0 else e.op("Shape", value, start=batch, end=batch + depth)
    inside, ok = _inside_nd(e, numbers, extents)
    found = e.op("GatherND", value, inside, batch_dims=batch or None)
    return _or_zero(e, _trailing(e, ok, indices.rank - 1, data.rank - batch - depth), found, wide)


def _gather_rows(e: Emit, layer: Layer, value: str, wide: str) -> str:
    """DEFAULT with an elementwise dimension: the first dimensions of data and indices go together, one of them may be
    1. As a GatherND: the gathered axis comes second for it, and back to its place after it."""
    data, indices, axis = layer.need(0), layer.need(1), int(layer.native.axis)
    rank, more = data.rank, indices.rank - 1
    perm = [0, axis, *(other for other in range(1, rank) if other != axis)]
    if axis != 1:
        value = e.op("Transpose", value, perm=perm)
    numbers = e.op("Unsqueeze", int64(e, indices), e.ints([-1]))
    if dims_of(data)[0] != dims_of(indices)[0] or dims_of(data)[0] < 0:
        rows, columns = (e.op("Shape", one, start=0, end=1) for one in (value, numbers))
        value = e.op("Expand", value, e.op("Concat", columns, e.ints([1] * (rank - 1)), axis=0))
        numbers = e.op("Expand", numbers, e.op("Concat", rows, e.ints([1] * (more + 1)), axis=0))
    if _surely_inside(e, layer, [dims_of(data)[axis]]):
        value = e.op("GatherND", value, numbers, batch_dims=1)
    else:
        inside, ok = _inside_nd(e, numbers, e.op("Shape", value, start=1, end=2))
        value = _or_zero(
            e, _trailing(e, ok, more + 1, rank - 2), e.op("GatherND", value, inside, batch_dims=1), wide
        )
    if axis == 1:
        return value
    others = [1 + more + place for place in range(rank - 2)]
    return e.op("Transpose", value, perm=[0, *others[: axis - 1], *range(1, 1 + more), *others[axis - 1 :]])


def _surely_inside(e: Emit, layer: Layer, dims: Sequence[int]) -> bool:
    """Whether the indices are known, and inside dimensions of these sizes whatever the dynamic ones are."""
    known = e.known(layer.need(1))
    if known is None:
        return False
    sizes = np.array(dims, np.int64)
    dynamic = sizes < 0
    if np.any(dynamic & (known < 0)):
        e.note(
            "a negative index along a dynamic axis, which TensorRT does not document, counts from the end here"
        )
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
    return e.op("Where", ok, found, e.scalar(0, dtype))


@lifts("SCATTER")
def _scatter(e: Emit, layer: Layer) -> str:
    """Elements, or slices, of a copy replaced: of those with one place, any (NvInfer.h, IScatterLayer)."""
    data, indices, updates, mode = layer.need(0), layer.need(1), layer.need(2), layer.word("mode")
    if updates.dtype != data.dtype:
        raise Unliftable(f"it puts {updates.dtype} into {data.dtype}")
    wide = carrier(data.dtype, "ScatterND")
    into, put = (turned(e, e.of(one), one.dtype, wide) for one in (data, updates))
    if mode == "ND":
        value = e.op("ScatterND", into, int64(e, indices), put)
    elif mode == "ELEMENT":
        value = e.op("ScatterElements", into, e.of(indices), put, axis=int(layer.native.axis))
    else:
        raise Unliftable(f"its mode {mode} is not known")
    return turned(e, value, wide, data.dtype)
