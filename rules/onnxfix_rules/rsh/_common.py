"""Shared by the Reshape rules: the requested shape as symbolic integers, and how to write the meaning of a 0."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from onnxfix.rule import Dim, Draft, Model, Node, Value, shared, symbols


def requested(node: Node, model: Model) -> tuple[Dim, ...] | None:
    """The elements of a Reshape's shape input; None if its length or values are unknown.

    An invalid shape (below -1, two -1, not a vector of int64) also gives None.
    """
    known = shared(model, _requested)  # half a dozen rules ask
    if node not in known:
        known[node] = _dims(node, model)
    return known[node]


def _requested(model: Model) -> dict[Node, tuple[Dim, ...] | None]:
    return {}


def _dims(node: Node, model: Model) -> tuple[Dim, ...] | None:
    shape = node.input(1)
    if shape is None or node.opset < 5:
        return None
    dims = _elements(shape, model)
    if dims is None:
        return None
    static = [d.value for d in dims if d.value is not None]
    return None if any(v < -1 for v in static) or static.count(-1) > 1 else dims


def _elements(shape: Value, model: Model) -> tuple[Dim, ...] | None:
    array = shape.constant()
    if array is not None:
        return (
            tuple(symbols.constant(int(v)) for v in array)
            if array.ndim == 1 and array.dtype == np.int64
            else None
        )
    known = model.shapes.value(shape)
    return tuple(known.data) if known is not None and len(known.shape) == 1 else None


def sizes(dims: Sequence[Dim]) -> tuple[int, ...] | None:
    """The dimensions as integers if all are static."""
    static = tuple(d.value for d in dims if d.value is not None)
    return static if len(static) == len(dims) else None


def zeros(dims: Sequence[Dim]) -> list[int]:
    """Positions that hold a literal 0."""
    return [i for i, d in enumerate(dims) if d.value == 0]


def inferred(dims: Sequence[Dim]) -> int | None:
    """Position of the literal -1."""
    return next((i for i, d in enumerate(dims) if d.value == -1), None)


def shape_of(value: Value | None, model: Model) -> tuple[Dim, ...] | None:
    """The symbolic shape of a value; None if even the rank is unknown."""
    found = None if value is None else model.shapes.shape(value)
    return None if found is None else tuple(found)


def keeps_zero(node: Node) -> bool:
    """Whether the node has an effective ``allowzero=1`` (from opset 14)."""
    return node.opset >= 14 and bool(node.attr("allowzero", 0) == 1)


def copies_zero(node: Node) -> bool:
    """Whether a 0 in the shape copies the dimension of the data: ``allowzero`` is 0 or absent."""
    return node.opset >= 5 and bool(node.attr("allowzero", 0) == 0)


def let_zero_copy(draft: Draft, node: Node, model: Model) -> None:
    """Make a 0 copy: remove the attribute, or write 0 if the target fails without it."""
    draft.set_attr(node, "allowzero", 0 if model.target.requires_allowzero else None)


def text(dims: Sequence[Dim]) -> str:
    """``[N, 3, -1]``."""
    return f"[{', '.join(str(d) for d in dims)}]"


@lru_cache(maxsize=1 << 10)
def count(dims: tuple[Dim, ...]) -> Dim:
    """The number of elements of a tensor of these dimensions."""
    return symbols.product(dims)


@lru_cache(maxsize=1 << 10)
def quotient(count: Dim, others: Dim) -> Dim | None:
    """``count / others`` where it is exact for every assignment, else None."""
    if others.value == 0:
        return None
    found = symbols.divide(count, others)
    return found if found * others is count else None


def copy_fits(dims: Sequence[Dim], data: Sequence[Dim] | None) -> bool:
    """Whether interpreting every 0 as "copy" gives a possible shape, as far as known."""
    if data is None:
        return True
    if any(i >= len(data) for i in zeros(dims)):
        return False
    if inferred(dims) is not None:
        return True
    copied = [data[i] if d.value == 0 else d for i, d in enumerate(dims)]
    return not symbols.equal(symbols.product(copied), symbols.product(data)).no
