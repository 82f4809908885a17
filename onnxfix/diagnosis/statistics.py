"""How far two values of an output are from each other: the figures that people ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfix.diagnosis.figures import Percentile, Values, as_text, least_rtol, unit
from onnxfix.diagnosis.records import NonFinite, OutputComparison
from onnxfix.record import record
from onnxfix.verification.compare import tolerance
from onnxfix.verification.compare.compare import bits_differ, dtype_name, structure_of
from onnxfix.verification.compare.decades import Decades

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

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
        truth_nonfinite=tally.nonfinite[0],
        other_nonfinite=tally.nonfinite[1],
        noise=noise,
        differs=found.differs,
    )


@record
class _Leaf:
    """Two arrays of one shape; ``at`` is their position in sequences and maps around them."""

    truth: Array
    other: Array
    at: tuple[int, ...]
    sample: int

    @property
    def text(self) -> bool:
        return _is_text(self.truth.dtype) or _is_text(self.other.dtype)

    def blocks(self) -> Iterator[tuple[int, Array, Array]]:
        """Flat blocks of both, each with the position of its first element."""
        truth, other = (np.ascontiguousarray(side).reshape(-1) for side in (self.truth, self.other))
        for start in range(0, truth.size, BLOCK):
            yield start, np.asarray(truth[start : start + BLOCK]), np.asarray(other[start : start + BLOCK])

    def index(self, flat: int) -> tuple[int, ...]:
        """The index of an element in the output."""
        return (*self.at, *map(int, np.unravel_index(flat, self.truth.shape)))


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
        self.differing = 0
        self.comparable = True
        self.rtol: float | None = 0.0
        self.atol: float | None = 0.0
        self.nonfinite = (NonFinite(), NonFinite())
        self._low, self._high, self._scale, self._largest = math.inf, -math.inf, 0.0, 0.0
        self._max = [0.0, 0.0]
        self._sums: dict[str, list[float]] = {key: [] for key in ("abs", "rel", "tt", "oo", "to", "dd")}
        self._counts = [0, 0]
        self._rows = [0, 0]
        self._special: tuple[_Leaf, int] | None = None
        self._worst: tuple[_Leaf, int] | None = None
        self._first: tuple[_Leaf, int] | None = None
        self._numeric = [leaf for leaf in leaves if not leaf.text]
        total = sum(leaf.truth.size for leaf in self._numeric)
        self._p99 = Percentile(total), Percentile(total)
        self._errors = Decades()
        for leaf in self._numeric:
            self._scan(leaf)
        self._values = Values(self._low, self._high)
        self._unit = unit(self._largest)
        for leaf in self._numeric:
            self._measure(leaf)
            self._argmax(leaf)
        for leaf in leaves:
            if leaf.text:
                self._texts(leaf)

    def figures(self) -> dict[str, Any]:
        """The fields of ``OutputComparison`` that this knows alone."""
        place = self._special or self._worst or self._first
        means = [
            _total(self._sums[key]) / count if count else 0.0
            for key, count in zip(("abs", "rel"), self._counts, strict=True)
        ]
        return {
            "max_abs": self._max[0],
            "mean_abs": means[0],
            "p99_abs": self._p99[0].at(0.99),
            "max_rel": self._max[1],
            "mean_rel": means[1],
            "p99_rel": self._p99[1].at(0.99),
            "scale": self._scale,
            "cosine": self._cosine(),
            "snr": self._snr(),
            "argmax": self._rows[0] / self._rows[1] if self._rows[1] else None,
            "worst": place[0].index(place[1]) if place else None,
            "sample": place[0].sample if place else 0,
            "values": _values_at(*place) if place else None,
            "histogram": self._values.histogram(),
            "errors": self._errors.histogram(),
        }

    def _cosine(self) -> float | None:
        tt, oo, to, dd = (_total(self._sums[key]) for key in ("tt", "oo", "to", "dd"))
        if not tt or not oo:
            return None
        return 1.0 if not dd else min(max(to / (math.sqrt(tt) * math.sqrt(oo)), -1.0), 1.0)

    def _snr(self) -> float | None:
        signal, distance = _total(self._sums["tt"]), _total(self._sums["dd"])
        return 10.0 * (math.log10(signal) - math.log10(distance)) if signal and distance else None

    def _scan(self, leaf: _Leaf) -> None:
        """Ranges of finite values, and what is not finite."""
        for start, *sides in leaf.blocks():
            for side, block in enumerate(map(tolerance.wide, sides)):
                finite = np.isfinite(block)
                if not finite.all():
                    self._count_nonfinite(side, leaf, start, block, finite)
                some = block[finite]
                if not some.size:
                    continue
                if some.dtype.kind != "c":
                    self._low, self._high = (
                        min(self._low, float(some.min())),
                        max(self._high, float(some.max())),
                    )
                largest = float(np.abs(some).max())
                self._largest = max(self._largest, largest)
                if not side:
                    self._scale = max(self._scale, largest)

    def _count_nonfinite(self, side: int, leaf: _Leaf, start: int, block: Array, finite: Array) -> None:
        known, nan = self.nonfinite[side], int(np.isnan(block).sum())
        first = known.first if known.first is not None else leaf.index(start + int(np.argmin(finite)))
        inf = int(finite.size - np.count_nonzero(finite)) - nan
        both = list(self.nonfinite)
        both[side] = NonFinite(known.nan + nan, known.inf + inf, first)
        self.nonfinite = (both[0], both[1])

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
            if wide.dtype.kind != "c":
                for side, block in enumerate((wide, wide_other)):
                    self._values.add(side, block[np.isfinite(block)])
            self._sum(wide[both], wide_other[both])

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
        for place, errors in enumerate((distance, relative)):
            self._p99[place].add(errors)
            self._counts[place] += errors.size
        self._sums["abs"].append(float(distance.sum()))
        self._sums["rel"].append(float(relative.sum()))

    def _sum(self, truth: Array, other: Array) -> None:
        """Sums of squares and products."""
        parts = [_parts(side) for side in (truth, other)]
        if self._unit:
            parts = [np.ldexp(side, -self._unit) for side in parts]
        one, two = parts
        off = two - one
        for key, left, right in (("tt", one, one), ("oo", two, two), ("to", one, two), ("dd", off, off)):
            self._sums[key].append(float(np.dot(left, right)))

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

    def _texts(self, leaf: _Leaf) -> None:
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


def _is_text(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "OUST"


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


def _values_at(leaf: _Leaf, flat: int) -> tuple[str, str]:
    index = np.unravel_index(flat, leaf.truth.shape)
    return as_text(leaf.truth[index]), as_text(leaf.other[index])
