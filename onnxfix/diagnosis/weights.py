"""How two constants differ: by a factor, in single elements, transposed, or in value here and there."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from onnxfix.diagnosis.facts import Array, at, blocks, number, numeric
from onnxfix.record import record

_ALIKE = 1e-6
"""How far a factor of float32 weights may be from that of all elements, relative."""


@record
class Change:
    """How many elements differ, and the sentence about it. ``rounded``: the other side's are these, stored in a type of
    fewer bits; ``factor``: all elements are the first's times one factor."""

    differing: int
    elements: int
    text: str
    rounded: str = ""
    factor: bool = False


def change_of(first: Array, second: Array) -> Change | None:
    """How ``second`` differs from ``first``; None where both hold the same values, whatever their types.

    Shapes that differ in leading dimensions of 1 are the same.
    """
    if not (numeric(first) and numeric(second)):
        same = first.shape == second.shape and bool(np.all(first == second))
        return None if same else Change(first.size, first.size, "holds other values")
    if _core(first) != _core(second):
        sizes = f"{list(first.shape)} in the first model and {list(second.shape)} in the other"
        return Change(first.size, first.size, f"has the shape {sizes}")
    found = _compared(first, second)
    if found.differing == 0:
        return None
    rounded = _rounded(first, second)
    if rounded:
        return Change(found.differing, first.size, f"is stored in {rounded} on the other side", rounded)
    factor = _factor(first, second, found)
    text = _described(first, second, found, factor)
    return Change(found.differing, first.size, text, factor=factor is not None)


def alike(first: Array, second: Array) -> bool:
    """Whether both hold the same values, whatever their types; cheaper than to say how they differ."""
    if not (numeric(first) and numeric(second)):
        return first.shape == second.shape and bool(np.all(first == second))
    if _core(first) != _core(second):
        return False
    return all(np.array_equal(one, other, equal_nan=True) for _, (one, other) in blocks(first, second))


def _core(array: Array) -> tuple[int, ...]:
    """The shape without leading dimensions of 1."""
    sizes = list(array.shape)
    while sizes and sizes[0] == 1:
        sizes.pop(0)
    return tuple(sizes)


@dataclass
class _Compared:
    """Counts and places of what differs; ``product`` is the sum of first * second, ``square`` that of first squared."""

    differing: int = 0
    first: int = -1
    largest: float = 0.0
    largest_at: int = -1
    product: float = 0.0
    square: float = 0.0


def _compared(first: Array, second: Array) -> _Compared:
    found = _Compared()
    for start, (one, other) in blocks(first, second):
        off = ~((one == other) | (np.isnan(one) & np.isnan(other)))
        if off.any():
            _add(found, start, off, one, other)
        with np.errstate(all="ignore"):
            found.product += float(np.sum(one * other))
            found.square += float(np.sum(one * one))
    return found


def _add(found: _Compared, start: int, off: Array, one: Array, other: Array) -> None:
    """Add a block in which ``off`` marks what differs."""
    found.differing += int(np.count_nonzero(off))
    found.first = start + int(np.argmax(off)) if found.first < 0 else found.first
    with np.errstate(all="ignore"):
        distance = np.abs(one - other)
    distance[~off] = 0.0
    distance[np.isnan(distance)] = np.inf
    worst = int(np.argmax(distance))
    if distance[worst] > found.largest:
        found.largest, found.largest_at = float(distance[worst]), start + worst


def _described(first: Array, second: Array, found: _Compared, factor: float | None) -> str:
    elements = first.size
    if elements == 1:
        return f"is {_both(first, second, 0)}"
    if found.differing > 1 and not np.any(second):
        return f"is all zeros on the other side ({found.differing} of {elements} elements differ)"
    if factor is not None:
        return f"is the first model's times {factor:.4g} ({elements} elements)"
    if found.differing > 1 and first.ndim > 1 and first.shape == second.shape:
        axes = _transposed(first, second)
        if axes:
            return f"is transposed (the axes {axes[0]} and {axes[1]} are swapped)"
    flat = found.first if found.differing == 1 else found.largest_at
    many = "elements differs" if found.differing == 1 else "elements differ, most"
    where = at([int(i) for i in np.unravel_index(flat, first.shape)])
    return f"differs: {found.differing} of {elements} {many}{where}: {_both(first, second, flat)}"


def _both(first: Array, second: Array, flat: int) -> str:
    one, other = float(first.reshape(-1)[flat]), float(second.reshape(-1)[flat])
    return f"{number(one)} in the first model and {number(other)} in the other"


def _factor(first: Array, second: Array, found: _Compared) -> float | None:
    """The factor by which all elements are scaled, up to the rounding of their types; None where there is none."""
    if found.differing < 2 or not np.isfinite(found.square) or not found.square or not found.product:
        return None
    factor = found.product / found.square
    half = min(first.dtype.itemsize, second.dtype.itemsize) == 2
    step, smallest = (2.0**-7, 2.0**-23) if half else (_ALIKE, 1e-37)
    if not np.isfinite(factor) or abs(factor - 1) <= 2.0**-10:
        return None
    for _, (one, other) in blocks(first, second):
        if not np.all(np.abs(other - factor * one) <= step * np.abs(other) + smallest):
            return None
    return factor


def _transposed(first: Array, second: Array) -> tuple[int, int] | None:
    """Two axes that are swapped in the second; None where it is no such thing."""
    for one in range(first.ndim):
        for other in range(one + 1, first.ndim):
            swapped = np.swapaxes(first, one, other)
            if first.shape[one] == first.shape[other] and np.array_equal(swapped, second):
                return one, other
    return None


def _rounded(first: Array, second: Array) -> str:
    """The type of fewer bits through which the values of ``first`` went to become ``second``; "" for none."""
    if first.dtype.kind != "f" or first.dtype.itemsize < 4 or second.dtype.kind in "biu":
        return ""
    for kind in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        if second.dtype.itemsize >= 4 or second.dtype == kind:
            with np.errstate(all="ignore"):
                through = all(
                    np.array_equal(one.astype(kind).astype(np.float64), other, equal_nan=True)
                    for _, (one, other) in blocks(first, second)
                )
            if through:
                return str(kind)
    return ""
