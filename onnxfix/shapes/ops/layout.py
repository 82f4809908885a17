"""Operators that move, cut or rearrange whole tensors, and those that read shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxfix.shapes.ops.base import (
    Call,
    Elements,
    Info,
    Shape,
    Unknown,
    agree,
    axes_of,
    axis_of,
    broadcast_shapes,
    elements,
    small,
    transfer,
    with_shape,
)
from onnxfix.shapes.ops.reshape import reshaped
from onnxfix.shapes.symbols import Dim, constant, equal, floordiv, product, total

INT64 = TensorProto.INT64


@transfer("Shape")
def _shape_of(call: Call) -> Info:
    shape = call.info(0).shape
    start, end = call.attr("start", 0), call.attr("end")
    if shape is None:
        return Info(INT64, (call.fresh(0, 0),))
    part = shape[_clamp(start, len(shape)) : _clamp(len(shape) if end is None else end, len(shape))]
    return Info(INT64, (constant(len(part)),), elements(part))


def _clamp(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


@transfer("Size")
def _size(call: Call) -> Info:
    shape = call.info(0).shape
    return Info(INT64, (), None if shape is None else elements([product(shape)], ()))


@transfer("Flatten")
def _flatten(call: Call) -> Info:
    data = call.info(0)
    shape = call.info(0).shape
    if shape is None:
        return Info(data.elem, call.fresh_shape(0, 2))
    axis = call.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    flat = (product(shape[:axis]), product(shape[axis:]))
    return Info(data.elem, flat, reshaped(data.value, flat), data.fill)


@transfer("Transpose")
def _transpose(call: Call) -> Info:
    data = call.info(0)
    perm = call.attr("perm")
    if data.shape is None:
        return Info(data.elem, None if perm is None else call.fresh_shape(0, len(perm)))
    perm = list(range(len(data.shape)))[::-1] if perm is None else axes_of(perm, len(data.shape))
    if len(perm) != len(data.shape):
        raise Unknown
    value = None if data.value is None else data.value.transpose(perm)
    return Info(data.elem, tuple(data.shape[i] for i in perm), value, data.fill)


def _axes(call: Call, since: int) -> list[int] | None:
    """The axes, an attribute before opset ``since`` and an input from then on; raises Unknown if they are not
    static."""
    if call.opset < since:
        found = call.attr("axes")
        return None if found is None else list(found)
    if not call.has(1):
        return None
    axes = call.static_ints(1)
    if axes is None:
        raise Unknown
    return axes


def _by_rank(call: Call, data: Info, sign: int) -> Info:
    """The result if only the number of axes is known: they are added (``sign`` 1) or removed (-1)."""
    count = call.length(1)
    if data.shape is None or count is None:
        return Info(data.elem)
    return Info(data.elem, call.fresh_shape(0, len(data.shape) + sign * count))


@transfer("Squeeze")
def _squeeze(call: Call) -> Info:
    data = call.info(0)
    try:
        axes = _axes(call, 13)
    except Unknown:
        return _by_rank(call, data, -1)
    if data.shape is None:
        return Info(data.elem)
    ones = [equal(dim, 1) for dim in data.shape]
    if axes == [] and not all(answer.no for answer in ones):
        return Info(data.elem)  # ONNX Runtime removes every 1, onnx.reference none
    if axes is None:
        if any(answer.unknown for answer in ones):
            return Info(data.elem)
        removed = {i for i, answer in enumerate(ones) if answer.yes}
    else:
        removed = set(axes_of(axes, len(data.shape)))
    shape = tuple(d for i, d in enumerate(data.shape) if i not in removed)
    return Info(data.elem, shape, reshaped(data.value, shape), data.fill)


@transfer("Unsqueeze")
def _unsqueeze(call: Call) -> Info:
    data = call.info(0)
    try:
        axes = _axes(call, 13)
    except Unknown:
        return _by_rank(call, data, 1)
    if data.shape is None or axes is None:
        return Info(data.elem)
    rank = len(data.shape) + len(axes)
    new = set(axes_of(axes, rank))
    if len(new) != len(axes):
        raise Unknown
    rest = iter(data.shape)
    shape = tuple(constant(1) if i in new else next(rest) for i in range(rank))
    return Info(data.elem, shape, reshaped(data.value, shape), data.fill)


@transfer("Concat")
def _concat(call: Call) -> Info:
    elem = next((info.elem for info in call.inputs if info.elem is not None), None)
    shapes = [info.shape for info in call.inputs if info.shape is not None]
    if not shapes:
        return Info(elem)
    rank = len(shapes[0])
    axis = axis_of(call.attr("axis", 1), rank)
    if any(len(shape) != rank for shape in shapes):
        raise Unknown
    complete = len(shapes) == len(call.inputs)
    dims = [agree(shape[i] for shape in shapes) for i in range(rank)]
    dims[axis] = total(shape[axis] for shape in shapes) if complete else call.fresh(0, axis)
    value = None
    if complete and small(tuple(dims)) is not None:
        parts = [_or_unknown(info, elem) for info in call.inputs]
        if any(info.value is not None for info in call.inputs) and all(part is not None for part in parts):
            value = np.concatenate([part for part in parts if part is not None], axis=axis)
    return Info(elem, tuple(dims), value)


def _or_unknown(info: Info, elem: int | None) -> Elements | None:
    """The value, or as many unknown elements as there are (finished by the caller of the transfer function)."""
    if info.value is not None:
        return info.value
    sizes = small(info.shape)
    return None if sizes is None else np.full(sizes, None, dtype=object)


@transfer("Split")
def _split(call: Call) -> Sequence[Info]:
    data = call.info(0)
    count = len(call.outputs)
    if data.shape is None:
        return [Info(data.elem)] * count
    axis = axis_of(call.attr("axis", 0), len(data.shape))
    sizes = _split_sizes(call, data.shape[axis], count, axis)
    results, start = [], 0
    for length in sizes:
        shape = (*data.shape[:axis], length, *data.shape[axis + 1 :])
        value = None
        if data.value is not None and length.value is not None and start >= 0:
            value = data.value[(slice(None),) * axis + (slice(start, start + length.value),)]
            start += length.value
        else:
            start = -1
        results.append(
            with_shape(data, shape, value if small(shape) == getattr(value, "shape", None) else None)
        )
    return results


def _split_sizes(call: Call, whole: Dim, count: int, axis: int) -> list[Dim]:
    given = call.attr("split") if call.opset < 13 else None
    if given is not None:
        return [constant(item) for item in given]
    if call.has(1):
        found = call.ints(1)
        return (
            found
            if found is not None and len(found) == count
            else [call.fresh(k, axis) for k in range(count)]
        )
    if call.opset < 18:
        return [floordiv(whole, count)] * count
    parts = call.attr("num_outputs", count)
    chunk = floordiv(whole + (parts - 1), parts)
    sizes = [chunk] * count
    if count == parts:
        # Equal parts but for a smaller last one; ONNX leaves open what happens when that would be negative.
        sizes[-1] = whole - chunk * (parts - 1)
    return sizes


@transfer("Identity", "Dropout")
def _identity(call: Call) -> Sequence[Info]:
    data = call.info(0)
    if call.op == "Identity":
        return [data]
    mask = TensorProto.BOOL if call.opset >= 10 else data.elem
    return [Info(data.elem, data.shape), Info(mask, data.shape)][: len(call.outputs)]


@transfer("Expand")
def _expand(call: Call) -> Info:
    data = call.info(0)
    target = call.ints(1)
    if target is None:
        length = call.length(1)
        if length is None or data.shape is None:
            return Info(data.elem, None, None, data.fill)
        return Info(data.elem, call.fresh_shape(0, max(length, len(data.shape))), None, data.fill)
    if data.shape is None:
        return Info(data.elem, None, None, data.fill)
    shape = broadcast_shapes([data.shape, tuple(target)])
    value = None
    sizes = small(shape)
    if data.value is not None and sizes is not None:
        try:
            value = np.broadcast_to(data.value, sizes)
        except ValueError:
            value = None
    return Info(data.elem, shape, value, data.fill)


@transfer("Tile")
def _tile(call: Call) -> Info:
    data = call.info(0)
    if data.shape is None:
        length = call.length(1) if call.opset >= 6 else None
        return Info(data.elem, None if length is None else call.fresh_shape(0, length))
    if call.opset < 6:
        return Info(data.elem, call.fresh_shape(0, len(data.shape)))
    repeats = call.ints(1)
    if repeats is None or len(repeats) != len(data.shape):
        return Info(data.elem, call.fresh_shape(0, len(data.shape)))
    shape = tuple(d * r for d, r in zip(data.shape, repeats, strict=True))
    counts = call.static_ints(1)
    value = None
    if data.value is not None and counts is not None and small(shape) is not None:
        value = np.tile(data.value, counts)
    return Info(data.elem, shape, value)


@transfer("DepthToSpace", "SpaceToDepth")
def _depth_to_space(call: Call) -> Info:
    data = call.info(0)
    if data.shape is None:
        return Info(data.elem, call.fresh_shape(0, 4))
    n, c, h, w = _four(data.shape)
    block = call.attr("blocksize")
    if call.op == "DepthToSpace":
        return Info(data.elem, (n, floordiv(c, block * block), h * block, w * block))
    return Info(data.elem, (n, c * (block * block), floordiv(h, block), floordiv(w, block)))


def _four(shape: Shape) -> Shape:
    if len(shape) != 4:
        raise Unknown
    return shape
