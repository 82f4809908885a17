"""Operators that move, cut or rearrange whole tensors, Reshape, and those that read shapes."""

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
from onnxfix.shapes.symbols import (
    Dim,
    constant,
    divide,
    equal,
    floordiv,
    is_zero,
    nonnegative,
    nonzero_or,
    positive,
    product,
    total,
)


def reshaped(value: Elements | None, shape: Shape) -> Elements | None:
    """The elements in another shape, if that is static."""
    sizes = small(shape)
    if value is None or sizes is None or value.size != int(np.prod(sizes)):
        return None
    return value.reshape(sizes)


@transfer("Reshape")
def _reshape(call: Call) -> Info:
    data = call.info(0)
    if call.opset < 5:
        target: list[Dim] | None = [constant(item) for item in call.attr("shape", [])]
    else:
        target = call.ints(1)
    if target is None:
        rank = call.length(1)
        return Info(data.elem, None if rank is None else call.fresh_shape(0, rank), None, data.fill)
    shape = _reshape_target(call, data.shape, target, bool(call.attr("allowzero", 0)))
    return Info(data.elem, shape, reshaped(data.value, shape), data.fill)


def _reshape_target(call: Call, source: Shape | None, target: list[Dim], allowzero: bool) -> Shape:
    """Dimensions of a Reshape. A -1 or an unknown dimension follows from the element count."""
    open_axes = [i for i, item in enumerate(target) if not nonnegative(item).yes]
    inferred = any(equal(target[i], -1).yes for i in open_axes)
    count = None if source is None else product(source)
    dims: list[Dim | None] = []
    for axis, item in enumerate(target):
        if axis in open_axes:
            dims.append(None)
        elif allowzero:
            dims.append(item)
        else:
            rest = product([other for place, other in enumerate(target) if place != axis])
            alone = not open_axes and positive(rest).yes
            dims.append(_copied(source, axis, item, count if alone else None))
    known = [d for d in dims if d is not None]
    if len(open_axes) == 1 and count is not None and len(known) == len(target) - 1:
        others = product(known)
        # With a -1, a valid execution has no 0 among the other dimensions; else that has to be proven.
        if positive(others).yes or (inferred and not allowzero):
            dims[open_axes[0]] = divide(count, others)
        elif inferred and source is not None:
            dims[open_axes[0]] = _left_over(source, known)
    return call.named(dims)


def _left_over(source: Shape, wanted: list[Dim]) -> Dim | None:
    """What -1 stands for under ``allowzero`` beside a possible 0: ONNX forbids it, ONNX Runtime leaves all zeros out.

    So only dimensions that are both there and wanted cancel, and nothing that is left may be 0.
    """
    there, others = list(source), []
    for dim in wanted:
        match = next((i for i, other in enumerate(there) if other is dim), None)
        if match is None:
            others.append(dim)
        else:
            del there[match]
    if not all(positive(dim).yes for dim in (*there, *others)):
        return None
    return divide(product(there), product(others))


def _copied(source: Shape | None, axis: int, item: Dim, count: Dim | None) -> Dim | None:
    """What ``item`` asks for where a 0 copies the input's dimension.

    Where ``item`` is 0 only together with that dimension, it is right as it stands. So it is where a 0 would make the
    whole tensor empty, and no other element of the target can be 0 (``count`` is given then): the copy has to be 0
    too, or the Reshape fails.
    """
    zero = is_zero(item)
    if zero.no:
        return item
    if source is None:
        return None
    here = source[axis] if axis < len(source) else None
    if zero.yes:
        if here is None:
            raise Unknown  # invalid: there is nothing to copy
        return here
    if (
        here is None
        or here is item
        or _vanishes(here, item)
        or (count is not None and _vanishes(count, item))
    ):
        return item
    return nonzero_or(item, here)


def _vanishes(dim: Dim, factor: Dim) -> bool:
    """Whether ``dim`` is 0 whenever ``factor``, a single product of symbols, is 0: they are its factors."""
    if len(factor.terms) != 1 or not dim.terms:
        return dim.value == 0
    atoms = factor.terms[0][0]
    return all(all(atom in mono for mono, _ in dim.terms) for atom in atoms)


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
    data, shape = call.info(0), call.info(0).shape
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
    source = call.shape(0)
    ones = [equal(dim, 1) for dim in source]
    if axes == [] and not all(answer.no for answer in ones):
        return Info(data.elem)  # ONNX Runtime removes every 1, onnx.reference none
    if axes is None:
        if any(answer.unknown for answer in ones):
            return Info(data.elem)
        removed = {i for i, answer in enumerate(ones) if answer.yes}
    else:
        removed = set(axes_of(axes, len(source)))
    shape = tuple(d for i, d in enumerate(source) if i not in removed)
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
    data, source = call.info(0), call.shape(0)
    axis = axis_of(call.attr("axis", 0), len(source))
    results, start = [], 0
    for length in _split_sizes(call, source[axis], len(call.outputs), axis):
        shape = (*source[:axis], length, *source[axis + 1 :])
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
    if len(data.shape) != 4:
        raise Unknown
    n, c, h, w = data.shape
    block = call.attr("blocksize")
    if call.op == "DepthToSpace":
        return Info(data.elem, (n, floordiv(c, block * block), h * block, w * block))
    return Info(data.elem, (n, c * (block * block), floordiv(h, block), floordiv(w, block)))
