"""How errors are distributed: counts by powers of 10."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

DECADES = 16
"""Bins of a histogram of errors, at most."""
ENOUGH = 1 << 18
"""About so many elements of an output are counted; larger outputs are sampled at a fixed step."""
_LOWEST = -323
_POWERS = np.array([float(f"1e{exponent}") for exponent in range(_LOWEST, 309)])


@dataclass(frozen=True)
class ErrorHistogram:
    """How many absolute errors fall between ``edges`` (powers of 10, one more than counts; the first bin may span
    several), and how many elements have none (``zeros``). Of large outputs every ``step``-th element was counted."""

    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    zeros: int = 0
    step: int = 1


class Decades:
    """Absolute errors counted by powers of 10."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(_POWERS), np.int64)
        self._zeros = 0

    def add(self, values: Floats) -> None:
        """More errors, none of them NaN."""
        some = values[values > 0.0]
        self._zeros += values.size - some.size
        if not some.size:
            return
        ends = np.array([some.min(), some.max()])
        low, high = np.maximum(np.searchsorted(_POWERS, ends, side="right") - 1, 0)
        where = np.searchsorted(_POWERS[low + 1 : high + 1], some, side="right")  # few edges are fast
        self._counts[low : high + 1] += np.bincount(where, minlength=high + 1 - low)

    def histogram(self) -> ErrorHistogram | None:
        """One bin a decade, of which the first may span several; None where there was no element."""
        used = np.flatnonzero(self._counts)
        if not used.size:
            return ErrorHistogram(zeros=self._zeros) if self._zeros else None
        low, high = int(used[0]), int(used[-1])
        start = max(low, high - DECADES + 1)
        counts = [int(self._counts[low : start + 1].sum()), *map(int, self._counts[start + 1 : high + 1])]
        edges = [_POWERS[low], *_POWERS[start + 1 : high + 1], _POWERS[high + 1] if high < 631 else math.inf]
        return ErrorHistogram(tuple(map(float, edges)), tuple(counts), self._zeros)


def error_histogram(a: Floats, b: Floats) -> ErrorHistogram | None:
    """The absolute errors of pairs of finite values, of about ``ENOUGH`` elements; None where there is no such pair."""
    step = max(1, a.size // ENOUGH)
    a, b = a.reshape(-1)[::step], b.reshape(-1)[::step]
    finite = np.isfinite(a) & np.isfinite(b)
    tally = Decades()
    with np.errstate(all="ignore"):
        tally.add(np.abs(a[finite] - b[finite]))
    found = tally.histogram()
    return found if found is None else replace(found, step=step)
