"""How far two values of an output are from each other: the figures that people ask for.

They are gathered block by block, so that no array is held twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfix.diagnosis.records import Histogram, NonFinite, OutputComparison
from onnxfix.verification.compare import tolerance
from onnxfix.verification.compare.compare import bits_differ, dtype_name, structure_of
from onnxfix.verification.compare.decades import Decades

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
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


def _edges(low: float, high: float) -> Floats | None:
    """The edges of a histogram of values; None where there are none, or float64 does not hold edges."""
    largest = max(abs(low), abs(high))
    if not math.isfinite(high - low) or largest > _MOST:
        return None
    least = 2 * BINS * float(np.spacing(largest))
    if high - low < least:
        low, high = low - max(least, 0.5), high + max(least, 0.5)
    return np.histogram_bin_edges(np.empty(0), BINS, (low, high))


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


BLOCK = 1 << 16
"""Elements that are widened to float64 at a time."""


def compare_output(name: str, pairs: Sequence[tuple[Any, Any]], *, noise: float = 0.0) -> OutputComparison:
    """Compare an output over samples; each pair is the true value and that of the other side.

    Values are arrays of any type, numbers, lists (sequences), dicts (maps) or None (an empty optional). Arrays may be
    memory-mapped: they are read twice, in blocks. ``noise`` is how far rounding alone moves the truth, in the output's
    unit. Values of different types are compared as numbers; those of different shapes are not compared.
    """
    found = _Pairs()
    for sample, (truth, other) in enumerate(pairs):
        found.add(truth, other, (), sample)
    tally = _Tally(found.leaves)
    dtype, shape = _type_and_shape(pairs[0][0]) if pairs else ("", None)
    possible = not found.differing and tally.comparable
    return OutputComparison(
        name,
        dtype,
        shape,
        elements=found.elements,
        differing=found.differing + tally.differing,
        **tally.figures(),
        rtol=tally.rtol if possible else None,
        atol=tally.atol if possible else None,
        noise=noise,
        differs=found.differs,
    )


@dataclass(frozen=True)
class _Leaf:
    """Two arrays of one shape; ``at`` is their position in sequences and maps around them."""

    truth: Array
    other: Array
    at: tuple[int, ...]
    sample: int

    @property
    def text(self) -> bool:
        return any(side.dtype.kind in "OUST" for side in (self.truth, self.other))

    def blocks(self) -> Iterator[tuple[int, Array, Array]]:
        """Flat blocks of both, each with the position of its first element."""
        truth, other = (np.ascontiguousarray(side).reshape(-1) for side in (self.truth, self.other))
        for start in range(0, truth.size, BLOCK):
            yield start, np.asarray(truth[start : start + BLOCK]), np.asarray(other[start : start + BLOCK])

    def index(self, flat: int) -> tuple[int, ...]:
        """The index of an element in the output."""
        return (*self.at, *map(int, np.unravel_index(flat, self.truth.shape)))

    def texts(self, flat: int) -> tuple[str, str]:
        """An element of both sides as text."""
        index = np.unravel_index(flat, self.truth.shape)
        return str(self.truth[index]), str(self.other[index])


@dataclass
class _Pairs:
    """The arrays of both sides that can be compared, and what cannot."""

    leaves: list[_Leaf] = field(default_factory=list)
    elements: int = 0
    differing: int = 0
    differs: str = ""

    def add(self, truth: Any, other: Any, at: tuple[int, ...], sample: int) -> None:
        if isinstance(truth, (list, tuple)) and isinstance(other, (list, tuple)) and len(truth) == len(other):
            for place, (one, two) in enumerate(zip(truth, other, strict=True)):
                self.add(one, two, (*at, place), sample)
        elif isinstance(truth, dict) and isinstance(other, dict) and truth.keys() == other.keys():
            for place, (key, one) in enumerate(truth.items()):
                self.add(one, other[key], (*at, place), sample)
        elif any(side is None or isinstance(side, (list, tuple, dict)) for side in (truth, other)):
            if truth is not None or other is not None:
                self._apart(truth, "", structure_of(truth), structure_of(other))
        else:
            self._arrays(np.asarray(truth), np.asarray(other), at, sample)

    def _arrays(self, truth: Array, other: Array, at: tuple[int, ...], sample: int) -> None:
        if truth.shape != other.shape:
            self._apart(truth, "shape ", str(list(truth.shape)), str(list(other.shape)))
            return
        kinds = dtype_name(truth), dtype_name(other)
        if kinds[0] != kinds[1]:
            self._note("type ", *kinds)
        self.elements += truth.size
        self.leaves.append(_Leaf(truth, other, at, sample))

    def _apart(self, truth: Any, what: str, one: str, two: str) -> None:
        """The value of the truth has no counterpart; an empty one counts as one element, so that it shows."""
        size = _elements(truth)
        self.elements += size
        self.differing += max(size, 1)
        self._note(what, one, two)

    def _note(self, what: str, one: str, two: str) -> None:
        self.differs = self.differs or f"{what}{one} is {what}{two} on the other side"


class _Tally:
    """The figures of all leaves: a first pass finds the range of values, a second one compares."""

    def __init__(self, leaves: Sequence[_Leaf]) -> None:
        self.differing, self.comparable = 0, True
        self.rtol: float | None = 0.0
        self.atol: float | None = 0.0
        self.nonfinite = [NonFinite(), NonFinite()]
        self._low, self._high, self._scale, self._largest = math.inf, -math.inf, 0.0, 0.0
        self._max = [0.0, 0.0]
        self._sums: dict[str, list[float]] = {key: [] for key in ("abs", "rel", "tt", "oo", "to", "dd")}
        self._counts, self._rows = [0, 0], [0, 0]
        #: The first element that is finite on one side only, the worst one, and the first that differs.
        self._special: tuple[_Leaf, int] | None = None
        self._worst: tuple[_Leaf, int] | None = None
        self._first: tuple[_Leaf, int] | None = None
        numeric = [leaf for leaf in leaves if not leaf.text]
        total = sum(leaf.truth.size for leaf in numeric)
        self._p99 = Percentile(total), Percentile(total)
        self._errors, self._values = Decades(), np.zeros((2, BINS), np.int64)
        for leaf in numeric:
            self._scan(leaf)
        self._edges = _edges(self._low, self._high)
        power = math.frexp(self._largest)[1]
        self._unit = (
            power if abs(power) > 465 else 0
        )  # values are divided by 2**_unit: squares stay in float64
        for leaf in numeric:
            self._measure(leaf)
            self._argmax(leaf)
        for leaf in leaves:
            if leaf.text:
                self._compare_texts(leaf)

    def figures(self) -> dict[str, Any]:
        """The fields of ``OutputComparison`` that this knows alone."""
        place = self._special or self._worst or self._first
        means = [
            _total(self._sums[key]) / count if count else 0.0
            for key, count in zip(("abs", "rel"), self._counts, strict=True)
        ]
        tt, oo, to, dd = (_total(self._sums[key]) for key in ("tt", "oo", "to", "dd"))
        cosine = None
        if tt and oo:
            cosine = 1.0 if not dd else min(max(to / (math.sqrt(tt) * math.sqrt(oo)), -1.0), 1.0)
        return {
            "max_abs": self._max[0],
            "mean_abs": means[0],
            "p99_abs": self._p99[0].at(0.99),
            "max_rel": self._max[1],
            "mean_rel": means[1],
            "p99_rel": self._p99[1].at(0.99),
            "scale": self._scale,
            "cosine": cosine,
            "snr": 10.0 * (math.log10(tt) - math.log10(dd)) if tt and dd else None,
            "argmax": self._rows[0] / self._rows[1] if self._rows[1] else None,
            "worst": place[0].index(place[1]) if place else None,
            "sample": place[0].sample if place else 0,
            "values": place[0].texts(place[1]) if place else None,
            "truth_nonfinite": self.nonfinite[0],
            "other_nonfinite": self.nonfinite[1],
            "histogram": self._histogram(),
            "errors": self._errors.histogram(),
        }

    def _histogram(self) -> Histogram | None:
        if self._edges is None or not self._values.any():
            return None
        truth, other = (tuple(map(int, side)) for side in self._values)
        return Histogram(tuple(map(float, self._edges)), truth, other)

    def _scan(self, leaf: _Leaf) -> None:
        """Ranges of finite values, and what is not finite."""
        for start, *sides in leaf.blocks():
            for side, block in enumerate(map(tolerance.wide, sides)):
                finite = np.isfinite(block)
                some = block[finite]
                if some.size < block.size:
                    known, nan = self.nonfinite[side], int(np.isnan(block).sum())
                    first = known.first or leaf.index(start + int(np.argmin(finite)))
                    inf = block.size - some.size - nan
                    self.nonfinite[side] = NonFinite(known.nan + nan, known.inf + inf, first)
                if not some.size:
                    continue
                if some.dtype.kind != "c":
                    self._low = min(self._low, float(some.min()))
                    self._high = max(self._high, float(some.max()))
                largest = float(np.abs(some).max())
                self._largest = max(self._largest, largest)
                if not side:
                    self._scale = max(self._scale, largest)

    def _measure(self, leaf: _Leaf) -> None:
        """The second pass: distances, tolerances, sums."""
        for start, truth, other in leaf.blocks():
            wide, wide_other = _wide_pair(truth, other)
            both = np.isfinite(wide) & np.isfinite(wide_other)
            alike = truth.dtype == other.dtype
            same = ~bits_differ(*((truth, other) if alike else (wide, wide_other)))
            different = int(same.size - np.count_nonzero(same))
            self.differing += different
            if different and self._first is None:
                self._first = leaf, start + int(np.argmin(same))
            special = ~both & ~same
            if special.any():
                self.comparable = False
                self._special = self._special or (leaf, start + int(np.argmax(special)))
            distance = tolerance.gaps(truth, other)[both]
            self._relate(leaf, start, distance, np.abs(wide[both]), both)
            if wide.dtype.kind != "c" and self._edges is not None:
                for side, block in enumerate((wide, wide_other)):
                    span = self._edges[0], self._edges[-1]
                    self._values[side] += np.histogram(block[np.isfinite(block)], BINS, span)[0]
            one, two = (np.ldexp(_parts(side[both]), -self._unit) for side in (wide, wide_other))
            off = two - one
            for key, left, right in (("tt", one, one), ("oo", two, two), ("to", one, two), ("dd", off, off)):
                self._sums[key].append(float(np.dot(left, right)))

    def _relate(self, leaf: _Leaf, start: int, distance: Array, size: Array, both: Array) -> None:
        """Errors of the elements that are finite on both sides, which ``both`` marks in the block."""
        if not distance.size:
            return
        largest = float(distance.max())
        if largest > self._max[0]:
            self._max[0] = largest
            self._worst = leaf, start + int(np.flatnonzero(both)[int(np.argmax(distance))])
            self.atol = largest if math.isfinite(largest) else None
        self._errors.add(distance)
        some = size > 0.0
        if (distance[~some] > 0.0).any():
            self.rtol = None
        with np.errstate(over="ignore"):
            relative = distance[some] / size[some]
            if relative.size and relative.max() > self._max[1]:
                self._max[1] = float(relative.max())
                rtol = least_rtol(distance[some], size[some])
                if self.rtol is not None:
                    self.rtol = max(self.rtol, rtol) if math.isfinite(rtol) else None
        for place, (key, errors) in enumerate((("abs", distance), ("rel", relative))):
            self._p99[place].add(errors)
            self._counts[place] += errors.size
            self._sums[key].append(float(errors.sum()))

    def _argmax(self, leaf: _Leaf) -> None:
        """Counts rows in which the other side's largest element is where the truth has one as large."""
        shape, kinds = leaf.truth.shape, [leaf.truth.dtype, leaf.other.dtype]
        if not shape or shape[-1] < 2 or not leaf.truth.size or any(kind.kind in "bc" for kind in kinds):
            return
        truth, other = (
            np.ascontiguousarray(side).reshape(-1, shape[-1]) for side in (leaf.truth, leaf.other)
        )
        step = max(BLOCK // shape[-1], 1)
        for start in range(0, len(truth), step):
            one, two = (_ordered(side[start : start + step]) for side in (truth, other))
            chosen = np.take_along_axis(one, np.argmax(two, axis=-1)[:, None], axis=-1)[:, 0]
            best = np.take_along_axis(one, np.argmax(one, axis=-1)[:, None], axis=-1)[:, 0]
            self._rows[0] += int(np.count_nonzero((chosen == best) | (chosen != chosen) & (best != best)))
            self._rows[1] += len(one)

    def _compare_texts(self, leaf: _Leaf) -> None:
        """Strings, or strings and numbers: equal or not."""
        for start, truth, other in leaf.blocks():
            unequal = np.asarray(truth.astype(object) != other.astype(object), bool)
            if unequal.any():
                self.differing += int(np.count_nonzero(unequal))
                self.comparable = False
                self._first = self._first or (leaf, start + int(np.argmax(unequal)))


def _total(sums: Sequence[float]) -> float:
    """The sum; infinite where float64 does not hold it (``math.fsum`` raises there)."""
    return float(np.sum(np.array(sums, np.float64)))


def _type_and_shape(value: Any) -> tuple[str, tuple[int, ...] | None]:
    for kind, name in (((list, tuple), "sequence"), (dict, "map"), (type(None), "optional")):
        if isinstance(value, kind):
            return name, None
    array = np.asarray(value)
    return dtype_name(array), tuple(map(int, array.shape))


def _elements(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, (list, tuple)):
        return sum(map(_elements, value))
    return sum(map(_elements, value.values())) if isinstance(value, dict) else int(np.asarray(value).size)


def _wide_pair(truth: Array, other: Array) -> tuple[Array, Array]:
    one, two = tolerance.wide(truth), tolerance.wide(other)
    return (one, two) if one.dtype == two.dtype else (one.astype(np.complex128), two.astype(np.complex128))


def _ordered(block: Array) -> Array:
    """As a type whose argmax is right: numpy's own, or float64 for those of ml_dtypes."""
    return np.asarray(block) if block.dtype.isbuiltin == 1 else tolerance.wide(block)


def _parts(wide: Array) -> Array:
    """Complex numbers as twice as many real ones."""
    return wide.view(np.float64) if wide.dtype.kind == "c" else wide
