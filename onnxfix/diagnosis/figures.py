"""Figures of many elements that are gathered block by block, so that no array is held twice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfix.diagnosis.records import Histogram

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

EXACT_UP_TO = 1 << 21
"""Elements up to which a percentile is exact; their errors are held in memory (8 bytes each)."""
_MANTISSA = 8
ACCURACY = 2.0**-_MANTISSA
"""Beyond that, a percentile is too large by at most this share of itself."""
BINS = 32
"""Bins of a histogram of values."""
_MOST = 1e300
_SHIFT = np.uint64(52 - _MANTISSA)


class Percentile:
    """The least value that a share of the elements does not exceed: exact where ``total``, the number of elements at
    most, is small, otherwise by counts of float64's exponent and upper bits of the mantissa. No element is negative."""

    def __init__(self, total: int) -> None:
        self._values: Floats | None = np.empty(total) if total <= EXACT_UP_TO else None
        self._counts = np.zeros(0 if self._values is not None else 1 << (11 + _MANTISSA), np.int64)
        self._count = 0

    def add(self, values: Floats) -> None:
        """More elements, none of them NaN."""
        if self._values is not None:
            self._values[self._count : self._count + values.size] = values
        else:
            np.add.at(self._counts, (values.view(np.uint64) >> _SHIFT).astype(np.intp), 1)
        self._count += values.size

    def at(self, share: float) -> float:
        """The value at a share of all elements, such as 0.99; 0.0 where there are none."""
        if not self._count:
            return 0.0
        rank = min(max(math.ceil(share * self._count), 1), self._count) - 1
        if self._values is not None:
            return float(np.partition(self._values[: self._count], rank)[rank])
        place = int(np.searchsorted(np.cumsum(self._counts), rank, side="right"))
        if not place:
            return 0.0  # the lowest bin: zeros, and what is too small to tell from them
        return float(np.array([(place + 1) << int(_SHIFT)], np.uint64).view(np.float64)[0])


class Values:
    """Values of both sides counted between shared edges, from the smallest to the largest of both."""

    def __init__(self, low: float, high: float) -> None:
        self.edges: Floats | None = None
        self.counts = np.zeros((2, BINS), np.int64)
        largest = max(abs(low), abs(high))
        if not math.isfinite(high - low) or largest > _MOST:
            return  # no value, or edges that float64 does not hold
        least = 2 * BINS * float(np.spacing(largest))
        if high - low < least:
            low, high = low - max(least, 0.5), high + max(least, 0.5)
        self.edges = np.histogram_bin_edges(np.empty(0), BINS, (low, high))

    def add(self, side: int, values: Floats) -> None:
        """More finite values of the truth (0) or of the other side (1)."""
        if self.edges is not None:
            self.counts[side] += np.histogram(values, BINS, (self.edges[0], self.edges[-1]))[0]

    def histogram(self) -> Histogram | None:
        """None where no finite value was seen."""
        if self.edges is None or not self.counts.any():
            return None
        truth, other = (tuple(map(int, side)) for side in self.counts)
        return Histogram(tuple(map(float, self.edges)), truth, other)


def least_rtol(distance: Floats, size: Floats) -> float:
    """The least ``rtol`` with which ``distance <= rtol * size`` (positive) holds for all elements in float64.

    A quotient that was rounded may be one step too low or too high for that.
    """
    quotient = distance / size
    top = quotient >= quotient.max() * (1.0 - 4.0 * float(np.finfo(float).eps))
    rtol, distance, size = quotient[top], distance[top], size[top]
    rtol = np.where(rtol * size < distance, np.nextafter(rtol, np.inf), rtol)
    for _ in range(2):
        below = np.nextafter(rtol, 0.0)
        rtol = np.where(below * size >= distance, below, rtol)
    return float(rtol.max())


def unit(largest: float) -> int:
    """The power of 2 by which values are divided before they are squared: 0 unless squares would leave float64."""
    if not largest or 1e-140 < largest < 1e140:
        return 0
    return math.frexp(largest)[1]


def as_text(value: Any) -> str:
    """An element as text: a float with the digits that tell it from its neighbors."""
    return str(value)
