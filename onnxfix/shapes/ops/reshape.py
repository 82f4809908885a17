"""Reshape: 0, -1 and allowzero, with partly known targets."""

from __future__ import annotations

import numpy as np

from onnxfix.shapes.ops.base import Call, Elements, Info, Shape, Unknown, small, transfer
from onnxfix.shapes.symbols import (
    Dim,
    constant,
    divide,
    equal,
    is_zero,
    nonnegative,
    nonzero_or,
    positive,
    product,
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
    return tuple(call.fresh(0, i) if d is None else d for i, d in enumerate(dims))


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
