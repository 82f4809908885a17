"""How far two values of an output are from each other: the figures that people ask for.

They are gathered block by block, so that no array is held twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfix.diagnosis.records import Histogram, NonFinite, OutputComparison
from onnxfix.proof.compare import tolerance
from onnxfix.proof.compare.compare import bits_differ, dtype_name, structure_of
from onnxfix.proof.compare.tolerance import Decades

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Floats = npt.NDArray[np.float64]

BLOCK = 1 << 16
"""Elements that are widened to float64 at a time."""
SAMPLE = 1 << 19
"""Errors that a percentile is taken of, at most: evenly spread over the elements."""
BINS = 32
"""Bins of a histogram of values."""
_MOST = 1e300


def compare_output(name: str, pairs: Sequence[tuple[Any, Any]]) -> OutputComparison:
    """Compare an output over samples; each pair is the true value and that of the other side.

    Values are arrays of any type, numbers, lists (sequences), dicts (maps) or None (an empty optional). Arrays may be
    memory-mapped: they are read twice, in blocks. Values of different types are compared as numbers; those of different
    shapes are not compared.
    """
    figures = _Figures()
    for sample, (truth, other) in enumerate(pairs):
        figures.collect(truth, other, (), sample)
    dtype, shape = _type_and_shape(pairs[0][0]) if pairs else ("", None)
    return figures.result(name, dtype, shape)


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


class _Figures:
    """The figures of an output. ``collect`` takes its arrays apart; then one pass finds the range of all values, and a
    second one compares them."""

    def __init__(self) -> None:
        self.leaves: list[_Leaf] = []
        self.elements = self.differing = 0
        self.differs = ""  # what differs besides values
        self.comparable = True
        self.rtol: float | None = 0.0
        self.atol: float | None = 0.0
        self.nonfinite = [NonFinite(), NonFinite()]
        self.low, self.high, self.scale, self.largest = math.inf, -math.inf, 0.0, 0.0
        self.max = {"abs": 0.0, "rel": 0.0}
        self.sums = dict.fromkeys(("abs", "rel", "tt", "oo", "to", "dd"), 0.0)
        self.counts = {"abs": 0, "rel": 0}
        self.sampled: dict[str, list[Floats]] = {"abs": [], "rel": []}
        self.rows = [0, 0]  # with the same largest element, and all
        #: The first element that is finite on one side only, the worst one, and the first that differs.
        self.special: tuple[_Leaf, int] | None = None
        self.worst: tuple[_Leaf, int] | None = None
        self.first: tuple[_Leaf, int] | None = None
        self.errors, self.values = Decades(), np.zeros((2, BINS), np.int64)

    def collect(self, truth: Any, other: Any, at: tuple[int, ...], sample: int) -> None:
        """Take in a value of both sides."""
        if isinstance(truth, (list, tuple)) and isinstance(other, (list, tuple)) and len(truth) == len(other):
            for place, (one, two) in enumerate(zip(truth, other, strict=True)):
                self.collect(one, two, (*at, place), sample)
        elif isinstance(truth, dict) and isinstance(other, dict) and truth.keys() == other.keys():
            for place, (key, one) in enumerate(truth.items()):
                self.collect(one, other[key], (*at, place), sample)
        elif any(side is None or isinstance(side, (list, tuple, dict)) for side in (truth, other)):
            if truth is not None or other is not None:
                self._set_apart(truth, "", structure_of(truth), structure_of(other))
        elif np.shape(truth) != np.shape(other):
            self._set_apart(truth, "shape ", str(list(np.shape(truth))), str(list(np.shape(other))))
        else:
            leaf = _Leaf(np.asarray(truth), np.asarray(other), at, sample)
            kinds = dtype_name(leaf.truth), dtype_name(leaf.other)
            if kinds[0] != kinds[1]:
                self._note("type ", *kinds)
            self.elements += leaf.truth.size
            self.leaves.append(leaf)

    def _set_apart(self, truth: Any, what: str, one: str, two: str) -> None:
        """The value of the truth has no counterpart; an empty one counts as one element, so that it shows."""
        size = _elements(truth)
        self.elements += size
        self.differing += max(size, 1)
        self.comparable = False
        self._note(what, one, two)

    def _note(self, what: str, one: str, two: str) -> None:
        self.differs = self.differs or f"{what}{one} is {what}{two} on the other side"

    def result(self, name: str, dtype: str, shape: tuple[int, ...] | None) -> OutputComparison:
        """Compare what was collected."""
        numeric = [leaf for leaf in self.leaves if not leaf.text]
        for leaf in numeric:
            self._scan(leaf)
        edges = _edges(self.low, self.high)
        for leaf in numeric:
            self._measure(leaf, edges)
            self._count_argmax(leaf)
        for leaf in self.leaves:
            if leaf.text:
                self._compare_texts(leaf)
        place = self.special or self.worst or self.first
        mean = {key: self.sums[key] / count if count else 0.0 for key, count in self.counts.items()}
        tt, oo, to, dd = (self.sums[key] for key in ("tt", "oo", "to", "dd"))
        cosine = None
        if tt and oo:
            cosine = 1.0 if not dd else min(max(to / (math.sqrt(tt) * math.sqrt(oo)), -1.0), 1.0)
        histogram = None
        if edges is not None and self.values.any():
            truth, other = (tuple(map(int, side)) for side in self.values)
            histogram = Histogram(tuple(map(float, edges)), truth, other)
        return OutputComparison(
            name,
            dtype,
            shape,
            self.elements,
            self.differing,
            max_abs=self.max["abs"],
            mean_abs=mean["abs"],
            p99_abs=_percentile(self.sampled["abs"]),
            max_rel=self.max["rel"],
            mean_rel=mean["rel"],
            p99_rel=_percentile(self.sampled["rel"]),
            scale=self.scale,
            cosine=cosine,
            snr=10.0 * (math.log10(tt) - math.log10(dd)) if tt and dd else None,
            argmax=self.rows[0] / self.rows[1] if self.rows[1] else None,
            rtol=self.rtol if self.comparable else None,
            atol=self.atol if self.comparable else None,
            worst=place[0].index(place[1]) if place else None,
            sample=place[0].sample if place else 0,
            values=place[0].texts(place[1]) if place else None,
            truth_nonfinite=self.nonfinite[0],
            other_nonfinite=self.nonfinite[1],
            histogram=histogram,
            errors=self.errors.histogram(),
            differs=self.differs,
        )

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
                    self.low, self.high = min(self.low, float(some.min())), max(self.high, float(some.max()))
                largest = float(np.abs(some).max())
                self.largest = max(self.largest, largest)
                if not side:
                    self.scale = max(self.scale, largest)

    def _measure(self, leaf: _Leaf, edges: Floats | None) -> None:
        """The second pass: distances, tolerances, sums."""
        power = math.frexp(self.largest)[1]
        unit = power if abs(power) > 465 else 0  # values are divided by 2**unit: squares stay in float64
        for start, truth, other in leaf.blocks():
            wide, wide_other = tolerance.wide(truth), tolerance.wide(other)
            if wide.dtype != wide_other.dtype:
                wide, wide_other = wide.astype(np.complex128), wide_other.astype(np.complex128)
            both = np.isfinite(wide) & np.isfinite(wide_other)
            alike = truth.dtype == other.dtype
            different = bits_differ(*((truth, other) if alike else (wide, wide_other)))
            if different.any():
                self.differing += int(np.count_nonzero(different))
                self.first = self.first or (leaf, start + int(np.argmax(different)))
            special = ~both & different
            if special.any():
                self.comparable = False
                self.special = self.special or (leaf, start + int(np.argmax(special)))
            self._relate(leaf, start, tolerance.gaps(truth, other)[both], np.abs(wide[both]), both)
            if wide.dtype.kind != "c" and edges is not None:
                for side, block in enumerate((wide, wide_other)):
                    span = edges[0], edges[-1]
                    self.values[side] += np.histogram(block[np.isfinite(block)], BINS, span)[0]
            one, two = (
                np.ldexp(tolerance.parts(side[both]), -unit).reshape(-1) for side in (wide, wide_other)
            )
            off = two - one
            for key, left, right in (("tt", one, one), ("oo", two, two), ("to", one, two), ("dd", off, off)):
                self.sums[key] += float(np.dot(left, right))

    def _relate(self, leaf: _Leaf, start: int, distance: Array, size: Array, both: Array) -> None:
        """Errors of the elements that are finite on both sides, which ``both`` marks in the block."""
        if not distance.size:
            return
        largest = float(distance.max())
        if largest > self.max["abs"]:
            self.max["abs"] = largest
            self.worst = leaf, start + int(np.flatnonzero(both)[int(np.argmax(distance))])
            self.atol = largest if math.isfinite(largest) else None
        self.errors.add(distance)
        some = size > 0.0
        if (distance[~some] > 0.0).any():
            self.rtol = None
        with np.errstate(over="ignore"):
            relative = distance[some] / size[some]
            if relative.size and relative.max() > self.max["rel"]:
                self.max["rel"] = float(relative.max())
                rtol = least_rtol(distance[some], size[some])
                if self.rtol is not None:
                    self.rtol = max(self.rtol, rtol) if math.isfinite(rtol) else None
        step = max(1, -(-self.elements // SAMPLE))
        for key, errors in (("abs", distance), ("rel", relative)):
            self.sampled[key].append(errors[::step].copy())
            self.counts[key] += errors.size
            self.sums[key] += float(errors.sum())

    def _count_argmax(self, leaf: _Leaf) -> None:
        """Count rows in which the other side's largest element is where the truth has one as large."""
        shape, kinds = leaf.truth.shape, [leaf.truth.dtype, leaf.other.dtype]
        if not shape or shape[-1] < 2 or not leaf.truth.size or any(kind.kind in "bc" for kind in kinds):
            return
        truth, other = (
            np.ascontiguousarray(side).reshape(-1, shape[-1]) for side in (leaf.truth, leaf.other)
        )
        step = max(BLOCK // shape[-1], 1)
        for start in range(0, len(truth), step):
            one, two = (side[start : start + step] for side in (truth, other))
            # numpy's argmax errs on types of ml_dtypes
            one, two = (side if side.dtype.isbuiltin == 1 else tolerance.wide(side) for side in (one, two))
            chosen = np.take_along_axis(one, np.argmax(two, axis=-1)[:, None], axis=-1)[:, 0]
            best = np.take_along_axis(one, np.argmax(one, axis=-1)[:, None], axis=-1)[:, 0]
            self.rows[0] += int(np.count_nonzero((chosen == best) | (chosen != chosen) & (best != best)))
            self.rows[1] += len(one)

    def _compare_texts(self, leaf: _Leaf) -> None:
        """Strings, or strings and numbers: equal or not."""
        for start, truth, other in leaf.blocks():
            unequal = np.asarray(truth.astype(object) != other.astype(object), bool)
            if unequal.any():
                self.differing += int(np.count_nonzero(unequal))
                self.comparable = False
                self.first = self.first or (leaf, start + int(np.argmax(unequal)))


def _percentile(sampled: Sequence[Floats]) -> float:
    """The least error that 99 % of these do not exceed; 0.0 where there are none."""
    errors = np.concatenate([*sampled, np.empty(0)])
    rank = max(math.ceil(0.99 * errors.size), 1) - 1
    return float(np.partition(errors, rank)[rank]) if errors.size else 0.0


def least_rtol(distance: Floats, size: Floats) -> float:
    """The least ``rtol`` with which ``distance <= rtol * size`` (positive) holds for all elements in float64."""
    rtol = (distance / size).max()
    rtol = np.nextafter(np.nextafter(rtol, 0.0), 0.0)  # the quotient may have been rounded up
    while (rtol * size < distance).any():
        rtol = np.nextafter(rtol, np.inf)
    return float(rtol)


def _edges(low: float, high: float) -> Floats | None:
    """The edges of a histogram of values; None where there are none, or float64 does not hold edges."""
    largest = max(abs(low), abs(high))
    if not math.isfinite(high - low) or largest > _MOST:
        return None
    least = 2 * BINS * float(np.spacing(largest))
    if high - low < least:
        low, high = low - max(least, 0.5), high + max(least, 0.5)
    return np.histogram_bin_edges(np.empty(0), BINS, (low, high))


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
