"""How two constants differ: by a factor, in single elements, transposed, or in value here and there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxfix.diagnosis.facts import Array, at, blocks, number, numeric

_ALIKE = 1e-6
"""Relative spread of a factor that is the same for all elements, besides the rounding of float32."""


@dataclass(frozen=True)
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
        sizes = f"{list(first.shape)} here and {list(second.shape)} there"
        return Change(first.size, first.size, f"has the shape {sizes}")
    found = _compared(first, second)
    if found.differing == 0:
        return None
    rounded = _rounded(first, second)
    if rounded:
        return Change(found.differing, first.size, f"is stored in {rounded} on the other side", rounded)
    scaled = found.scaled and found.differing > 1 and _same_factor(found, second)
    return Change(found.differing, first.size, _described(first, second, found), factor=scaled)


def _core(array: Array) -> tuple[int, ...]:
    """The shape without leading dimensions of 1."""
    sizes = list(array.shape)
    while sizes and sizes[0] == 1:
        sizes.pop(0)
    return tuple(sizes)


@dataclass
class _Compared:
    """Counts and places of what differs; ``low`` and ``high`` are the range of second / first where first is not 0."""

    differing: int = 0
    first: int = -1
    largest: float = 0.0
    largest_at: int = -1
    low: float = np.inf
    high: float = -np.inf
    scaled: bool = True


def _compared(first: Array, second: Array) -> _Compared:
    found = _Compared()
    for start, (one, other) in blocks(first, second):
        off = ~((one == other) | (np.isnan(one) & np.isnan(other)))
        if off.any():
            _add(found, start, off, one, other)
        ratio = other[one != 0] / one[one != 0]
        found.scaled &= bool(np.all(other[one == 0] == 0)) and bool(np.all(np.isfinite(ratio)))
        if ratio.size and found.scaled:
            found.low, found.high = min(found.low, float(ratio.min())), max(found.high, float(ratio.max()))
    return found


def _add(found: _Compared, start: int, off: Array, one: Array, other: Array) -> None:
    places = np.flatnonzero(off)
    found.differing += int(places.size)
    found.first = start + int(places[0]) if found.first < 0 else found.first
    with np.errstate(all="ignore"):
        distance = np.abs(one[places] - other[places])
    distance = np.where(np.isfinite(distance), distance, np.inf)
    worst = int(np.argmax(distance))
    if distance[worst] > found.largest:
        found.largest, found.largest_at = float(distance[worst]), start + int(places[worst])


def _described(first: Array, second: Array, found: _Compared) -> str:
    elements = first.size
    if found.differing > 1 and not np.any(second):
        return f"is all zeros on the other side ({found.differing} of {elements} elements differ)"
    if found.scaled and found.differing > 1 and _same_factor(found, second):
        return f"is the first model's times {number((found.low + found.high) / 2)} ({elements} elements)"
    if found.differing > 1 and first.ndim > 1 and first.shape == second.shape:
        axes = _transposed(first, second)
        if axes:
            return f"is transposed (the axes {axes[0]} and {axes[1]} are swapped)"
    index = np.unravel_index(found.first if found.differing == 1 else found.largest_at, first.shape)
    values = (
        f"{number(float(first[index]))} here and {number(float(second.reshape(first.shape)[index]))} there"
    )
    many = "elements differs" if found.differing == 1 else "elements differ"
    most = "" if found.differing == 1 else ", most"
    where = at([int(i) for i in index])
    return f"differs: {found.differing} of {elements} {many}{most}{where}: {values}"


def _same_factor(found: _Compared, second: Array) -> bool:
    step = 2.0 ** -(10 if second.dtype.itemsize == 2 else 22)
    spread = found.high - found.low
    middle = (found.high + found.low) / 2
    return abs(middle - 1) > 2 * step and spread <= (step + _ALIKE) * max(abs(found.low), abs(found.high))


def _transposed(first: Array, second: Array) -> tuple[int, int] | None:
    """Two axes that are swapped in the second; None where it is no such thing."""
    for one in range(first.ndim):
        for other in range(one + 1, first.ndim):
            swapped = np.swapaxes(first, one, other)
            if first.shape[one] == first.shape[other] and np.array_equal(swapped, second):
                return one, other
    return None


def _rounded(first: Array, second: Array) -> str:
    """The type of fewer bits in which ``second`` stores the values of ``first``; "" where that is not so."""
    if second.dtype.itemsize >= first.dtype.itemsize or first.dtype.kind not in "f":
        return ""
    with np.errstate(all="ignore"):
        for start in range(0, first.size, 1 << 22):
            one = np.asarray(first.reshape(-1)[start : start + (1 << 22)]).astype(second.dtype)
            other = np.asarray(second.reshape(-1)[start : start + (1 << 22)])
            if not np.array_equal(one.astype(np.float64), other.astype(np.float64), equal_nan=True):
                return ""
    return str(second.dtype)
