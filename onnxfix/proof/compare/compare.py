"""Compare what two models computed: shape and dtype first, then NaN and Inf positions, then values.

``np.allclose`` broadcasts, so that () passes for (1,), and it takes -0.0 for 0.0: neither happens here.
"""

# Long because: every kind of value is judged beside the others.
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from onnxfix.proof.compare.tolerance import (
    EXACT,
    Allowed,
    ErrorHistogram,
    Precise,
    Tolerance,
    chosen,
    distances,
    error_histogram,
    errors,
    excused,
    outside,
    parts,
    tolerance_for,
    wide,
)

if TYPE_CHECKING:
    import numpy.typing as npt

Agreement = Literal["identical", "within", "different"]
#: What differs: elements that are out of tolerance; NaN or Inf at different positions; the shape or element type of a
#: tensor; the structure (tensor, sequence, map, or their length); a value that only one of the two has. "": nothing.
Difference = Literal["", "values", "special", "shape", "dtype", "structure", "absent"]


@dataclass(frozen=True)
class Twin:
    """What the original computes with its half-precision tensors in a wider type.

    ``value`` is one output of it; ``half`` names the half-precision type. ``overflow``: on this feed some value of the
    original on which this output hangs is not finite that is finite in that type. Only then may the fixed model agree
    with the twin instead of the original, element by element, where the twin is finite in the output's type: within
    half precision's tolerance where the original is out of that, and as near as the original is elsewhere. One that is
    not finite there never does. An output in a wider type may also differ from the original by as much as the original
    does from its twin, at most by half precision's tolerance.
    """

    value: Any
    half: str
    overflow: bool


@dataclass(frozen=True)
class Terms:
    """How two values are compared. ``exact``: bit by bit, whatever ``twin`` and ``precise`` say. ``coarse`` and
    ``allowed`` are as for ``tolerance_for``. Else elements may also differ as ``Twin`` or ``excused`` allows.
    ``slack`` is an additional tolerance in the output's unit: one number, or one for each element of an array."""

    exact: bool = False
    coarse: str = ""
    allowed: Allowed | None = None
    twin: Twin | None = None
    precise: Precise | None = None
    slack: Any = 0.0

    def tolerance(self, dtype: str) -> Tolerance:
        """What an element type may differ by."""
        return tolerance_for(dtype, self.coarse, self.allowed)

    def at(self, key: Any) -> Terms:
        """The same for an element of a sequence or a map."""
        slack = self.slack if np.ndim(self.slack) == 0 else 0.0
        own = replace(self, slack=slack, precise=None if self.precise is None else self.precise.at(key))
        if self.twin is None:
            return own
        try:
            return replace(own, twin=replace(self.twin, value=self.twin.value[key]))
        except (IndexError, KeyError, TypeError):  # the twin has another structure: it is no judge of this
            return replace(own, twin=None)


@dataclass(frozen=True)
class Metrics:
    """How one output (or one element of a sequence, named ``name[i]``) agrees. ``output`` names the output.

    ``kind`` says what a "different" one differs in and ``reason`` the same in words; ``sides`` are the original's and
    the fixed model's type, shape or structure as text where they differ in these.
    ``mismatches`` counts elements that are not bit-identical (every NaN equals every NaN, -0.0 is not 0.0),
    ``special`` those out of tolerance for NaN or Inf at another place, ``beyond`` the others that are out of it;
    ``max_abs`` and ``max_rel`` are over pairs of finite values; ``at`` is the index of the element that is furthest out
    of tolerance, or else differs most, with its two values as text and the error that is allowed there (``limit``, 0
    where elements must be equal). Where distances say nothing (NaN, strings), it is the first one. ``scale`` is the
    original's largest finite magnitude, 0 where nothing differs. ``by_twin`` counts the elements in which the fixed
    model agrees with the original in higher precision and not with the original, ``by_noise`` those that differ no
    more than the original does from itself in float64; ``worse`` those out of tolerance of which it cannot be said
    that the original leaves half precision's range there, or in which the fixed model alone is not finite.
    """

    name: str
    agreement: Agreement
    reason: str = ""
    kind: Difference = ""
    sides: tuple[str, str] | None = None
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    elements: int = 0
    mismatches: int = 0
    special: int = 0
    beyond: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    at: tuple[int, ...] | None = None
    values: tuple[str, str] | None = None
    scale: float = 0.0
    by_twin: int = 0
    by_noise: int = 0
    worse: int = 0
    output: str = ""
    errors: ErrorHistogram | None = None
    off: float = 0.0
    limit: float = 0.0

    @property
    def relative(self) -> float:
        """``max_abs`` as a share of ``scale``: unlike ``max_rel`` it is meaningful where values near 0 differ."""
        return self.max_abs / self.scale if self.scale else math.inf if self.max_abs else 0.0

    @property
    def place(self) -> str:
        """``at`` in words."""
        ordered = self.kind != "special" and self.dtype not in ("string", "bool")
        return f"{'worst' if ordered else 'first'} at {list(self.at or ())}"

    @property
    def excess(self) -> str:
        """The error at ``at`` and what is allowed there, in words; "" where no error is."""
        if self.kind != "values" or not self.limit:
            return ""
        return f", off by {self.off:.3g} where {self.limit:.3g} is allowed"


def different(metrics: Iterable[Metrics]) -> list[Metrics]:
    """Those that do not agree."""
    return [metric for metric in metrics if metric.agreement == "different"]


def agreement(metrics: Iterable[Metrics]) -> Agreement:
    """How all of them agree: as the worst one does."""
    found = {metric.agreement for metric in metrics}
    return "different" if "different" in found else "within" if "within" in found else "identical"


def difference(metric: Metrics) -> str:
    """How an output differs, as text."""
    if not metric.elements or not metric.mismatches:
        return f"output {metric.name} {metric.reason}"
    if metric.at is None or metric.values is None:
        return f"output {metric.name}: {metric.reason}"
    first, second = metric.values
    return f"output {metric.name}: {metric.reason}, {metric.place}: {first} against {second}{metric.excess}"


def largest(metrics: Iterable[Metrics], *, relative: bool = False) -> Metrics | None:
    """The output with the largest error, absolute or as a share of its scale; None where there is no output."""
    return max(metrics, key=lambda one: one.relative if relative else one.max_abs, default=None)


def compare_outputs(
    names: Iterable[str],
    expected: Mapping[str, Any],
    found: Mapping[str, Any],
    terms: Terms,
    *,
    side: str = "the new model",
    **more: Mapping[str, Any],
) -> tuple[Metrics, ...]:
    """Compare the outputs of two runs by name; ``side`` is what has ``found``, and ``more`` are terms that differ from
    output to output, by name."""
    metrics: list[Metrics] = []
    for name in names:
        if name not in found:
            metrics.append(_differ(name, "absent", f"is not an output of {side}", output=name))
            continue
        own = {term: values[name] for term, values in more.items() if name in values}
        metrics += compare(name, expected[name], found[name], **{**vars(terms), **own})
    return tuple(metrics)


def compare(name: str, original: Any, fixed: Any, **terms: Any) -> tuple[Metrics, ...]:
    """Compare two values of an output: arrays, lists (sequences), dicts (maps) or None (an empty optional), on
    ``Terms``."""
    how = Terms(**terms)
    how = replace(how, twin=None, precise=None) if how.exact else how
    return tuple(replace(part, output=name) for part in _compare(name, original, fixed, how))


def _compare(name: str, original: Any, fixed: Any, how: Terms) -> tuple[Metrics, ...]:
    if original is None or fixed is None:
        if original is None and fixed is None:
            return (Metrics(name, "identical", dtype="optional"),)
        return (_differ_in_structure(name, original, fixed, "absent"),)
    if isinstance(original, (list, tuple, dict)) or isinstance(fixed, (list, tuple, dict)):
        return _compare_items(name, original, fixed, how)
    return (_compare_arrays(name, np.asarray(original), np.asarray(fixed), how),)


def moved_by(name: str, value: Any, moved: Any, least: float = 0.0) -> float:
    """How far an output moves at most where inputs are ``shaken``: the greatest distance between finite values; of
    floats at least ``least``. Other models may differ by ``SHARE`` times that."""
    parts = compare(name, value, moved, exact=False)
    floor = least if any("float" in part.dtype for part in parts) else 0.0
    return max([floor, *(part.max_abs for part in parts)])


def identical(original: Any, fixed: Any) -> bool:
    """Whether two values agree bit for bit."""
    return all(part.agreement == "identical" for part in compare("", original, fixed, exact=True))


def _differ(name: str, kind: Difference, reason: str, **more: Any) -> Metrics:
    return Metrics(name, "different", reason, kind, **{"worse": 1, **more})


def _differ_in_structure(name: str, original: Any, fixed: Any, kind: Difference, keys: str = "") -> Metrics:
    sides = structure_of(original), structure_of(fixed)
    end = keys or "in the new model"
    return _differ(name, kind, f"is {sides[0]} in the original, {sides[1]} {end}", sides=sides)


def structure_of(value: Any) -> str:
    """What a value is, as text."""
    if value is None:
        return "an empty optional"
    if isinstance(value, (list, tuple)):
        return f"a sequence of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    return "a tensor"


def _compare_items(name: str, original: Any, fixed: Any, how: Terms) -> tuple[Metrics, ...]:
    """Compare sequences item by item, and maps value by value."""
    lists = [isinstance(value, (list, tuple)) for value in (original, fixed)]
    maps = [isinstance(value, dict) for value in (original, fixed)]
    keys: Iterable[Any] = range(len(original)) if all(lists) else original
    alike = len(original) == len(fixed) if all(lists) else all(maps) and original.keys() == fixed.keys()
    if not alike:
        end = "" if any(lists) else "with different keys in the new model"
        return (_differ_in_structure(name, original, fixed, "structure", end),)
    if not original:
        return (Metrics(name, "identical", dtype="map" if all(maps) else "sequence", shape=(0,)),)
    pairs = ((key, original[key], fixed[key]) for key in keys)
    return tuple(part for key, a, b in pairs for part in _compare(f"{name}[{key!r}]", a, b, how.at(key)))


def dtype_name(array: npt.NDArray[Any]) -> str:
    """The element type; "string" for text, and for objects."""
    return "string" if array.dtype.kind in "OUS" else array.dtype.name


def _compare_arrays(name: str, original: npt.NDArray[Any], fixed: npt.NDArray[Any], how: Terms) -> Metrics:
    dtype, shape = dtype_name(original), original.shape
    known: dict[str, Any] = {"dtype": dtype, "shape": shape, "elements": original.size}
    if dtype != (other := dtype_name(fixed)):
        reason = f"has type {dtype} in the original, {other} in the new model"
        return _differ(name, "dtype", reason, sides=(dtype, other), **known)
    if shape != fixed.shape:
        reason = f"has shape {shape} in the original, {fixed.shape} in the new model"
        return _differ(name, "shape", reason, sides=(str(shape), str(fixed.shape)), **known)
    unequal = _strings_differ(original, fixed) if dtype == "string" else bits_differ(original, fixed)
    known["mismatches"] = int(np.count_nonzero(unequal))
    if known["mismatches"] == 0:
        return Metrics(name, "identical", **known)
    pair = _Pair(original, fixed, unequal, how, {"name": name, **known})
    exactly = how.exact or dtype in ("string", "bool")
    if exactly or (how.tolerance(dtype) == EXACT and not np.any(how.slack)):
        return _judge_exactly(pair)
    return _judge(pair)


def _strings_differ(original: npt.NDArray[Any], fixed: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    def text(value: Any) -> str:
        return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)

    pairs = zip(original.reshape(-1), fixed.reshape(-1), strict=True)
    return np.array([text(a) != text(b) for a, b in pairs], bool).reshape(original.shape)


def bits_differ(original: npt.NDArray[Any], fixed: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where numbers of one type are not the same: every NaN is, 0.0 and -0.0 are not."""
    a, b = parts(original), parts(fixed)
    if "float" in a.dtype.name:
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        unequal = np.ascontiguousarray(a).view(unsigned) != np.ascontiguousarray(b).view(unsigned)
        if unequal.any():
            unequal &= ~(_is_nan(a) & _is_nan(b))
        unequal = unequal.reshape(a.shape)
    else:
        unequal = np.asarray(a != b)
    return np.asarray(unequal.any(axis=-1)) if original.dtype.kind == "c" else unequal


def _is_nan(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isnan(wide(array)))


@dataclass(frozen=True)
class _Pair:
    """Two arrays of one type and shape that are ``unequal`` in some elements, and how to judge that. ``known`` are the
    fields of their metrics that are known so far."""

    original: npt.NDArray[Any]
    fixed: npt.NDArray[Any]
    unequal: npt.NDArray[np.bool_]
    how: Terms
    known: dict[str, Any]

    def show(self, where: npt.NDArray[np.bool_], excess: npt.NDArray[Any] | None = None) -> dict[str, Any]:
        """Of the elements ``where``, the index and the two values of the one with the largest ``excess``, or of the
        first."""
        if excess is not None:
            excess = excess.max(axis=-1) if self.original.dtype.kind == "c" else excess
            ranked = np.where(where, excess, -np.inf)
            where = ranked == ranked.max()
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))
        return {"at": index, "values": (str(self.original[index]), str(self.fixed[index]))}

    def agree(self, **more: Any) -> Metrics:
        """The metrics where what differs is allowed."""
        return Metrics(agreement="within", **self.known, **more)

    def differ(self, kind: Difference, reason: str, **more: Any) -> Metrics:
        """The metrics where it is not."""
        return _differ(kind=kind, reason=reason, **self.known, **more)


def _judge_exactly(pair: _Pair) -> Metrics:
    """Judge elements that must be equal: integers, or all where identical bits are required."""
    unequal, distance = pair.unequal, None
    if pair.original.dtype.kind not in "OUSb":
        numbers = parts(wide(pair.original)), parts(wide(pair.fixed))
        pair.known.update(errors(*numbers), errors=error_histogram(*numbers))
        distance = distances(*numbers, EXACT)[0]
    judges: dict[str, npt.NDArray[np.bool_]] = {}
    if pair.how.twin is not None and pair.how.twin.overflow:
        twin = np.asarray(pair.how.twin.value)
        if twin.shape == pair.original.shape and twin.dtype == pair.original.dtype:
            judges["by_twin"] = np.asarray(pair.fixed == twin)
    if pair.how.precise is not None and pair.original.dtype.kind not in "OUS":
        judges["by_noise"] = chosen(pair.original, pair.fixed, pair.how.precise)
    for judge, agrees in judges.items():
        pair.known[judge] = int(np.count_nonzero(unequal & agrees))
        if agrees[unequal].all():
            return pair.agree(**pair.show(unequal, distance))
        unequal = unequal & ~agrees
    count = int(np.count_nonzero(unequal))
    differ = "are not bit-identical" if pair.how.exact else "differ"
    reason = f"{count:,} of {pair.original.size:,} elements {differ}"
    return pair.differ("values", reason, worse=count, beyond=count, **pair.show(unequal, distance))


def _judge(pair: _Pair) -> Metrics:
    """Judge elements that may differ within a tolerance."""
    original, fixed, how, known = pair.original, pair.fixed, pair.how, pair.known
    a, b, base = parts(wide(original)), parts(wide(fixed)), how.tolerance(known["dtype"])
    out, special = outside(a, b, base, how.slack)
    overflowed = np.zeros_like(out)  # where the original left half precision's range
    twin = _twin_of(original, how.twin) if out.any() else None
    if twin is not None and how.twin is not None:
        loose = tolerance_for(known["dtype"], how.twin.half)
        out &= outside(a, b, _measured(a, twin, base, loose))[0]
        if how.twin.overflow:
            usable = out & np.isfinite(twin)
            overflowed = usable & outside(a, twin, loose)[0]
            agrees = usable & ~_off_twin(a, b, twin, overflowed, base, how.twin)
            known["by_twin"] = int(np.count_nonzero(agrees))
            out, a = out & ~agrees, np.where(agrees, twin, a)
    if how.precise is not None and out.any():
        fine = tolerance_for(known["dtype"], allowed=how.allowed)
        noisy = out & excused(original, fixed, how.precise, fine)
        known["by_noise"] = int(np.count_nonzero(noisy))
        out = out & ~noisy
    known.update(errors(a, b), errors=error_histogram(a, b))
    worse = out & np.isfinite(a) & (~overflowed | ~np.isfinite(b))
    if original.dtype.kind == "c":
        special, out, worse = (np.asarray(one.any(axis=-1)) for one in (special, out, worse))
    distance, limit, _ = distances(a, b, base, how.slack)
    if not out.any():
        return pair.agree(**pair.show(pair.unequal, distance))
    special &= out
    total, moved = original.size, int(np.count_nonzero(special))
    others = int(np.count_nonzero(out)) - moved
    known.update(worse=int(np.count_nonzero(worse)), special=moved, beyond=others)
    if moved:
        more = f", {others:,} others are out of tolerance" if others else ""
        reason = f"NaN or Inf at different positions ({moved:,} of {total:,} elements){more}"
        return pair.differ("special", reason, **pair.show(special))
    place = pair.show(out, distance - limit)
    off, allowed = (float(np.max(each[place["at"]])) for each in (distance, limit))
    reason = f"{others:,} of {total:,} elements are out of tolerance"
    return pair.differ("values", reason, **place, off=off, limit=allowed)


def _twin_of(original: npt.NDArray[Any], twin: Twin | None) -> npt.NDArray[Any] | None:
    """The twin's value, not finite where it is beyond the original's type; None where it does not fit."""
    value = None if twin is None else np.asarray(twin.value)
    if value is None or value.shape != original.shape or "float" not in value.dtype.name:
        return None
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(wide(value.astype(original.dtype))), wide(value), np.nan)


def _off_twin(
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    twin: npt.NDArray[Any],
    overflowed: npt.NDArray[np.bool_],
    base: Tolerance,
    how: Twin,
) -> npt.NDArray[np.bool_]:
    """Where ``b`` is out of tolerance of the twin.

    ``overflowed`` elements get half precision's tolerance, for which numbers beyond its range do not count (a mask of
    -3.4e38 would excuse anything). In a wider type the rest gets that type's tolerance, and the original's error.
    """
    loose = tolerance_for(how.half)
    whole = np.where(np.isfinite(twin), twin, a)
    huge = np.abs(whole) > _HIGHEST[how.half]
    near = outside(np.where(huge, np.nan, whole), b, loose)[0]
    off_half = np.where(huge, outside(whole, b, Tolerance(loose.rtol, 0.0))[0], near)
    if base.rtol >= loose.rtol:
        return off_half
    finite_twin = np.where(overflowed, np.nan, twin)
    own = _measured(a, finite_twin, base, loose)
    rtol = base.rtol + 4.0 * errors(finite_twin, a)["max_rel"]
    own = replace(own, rtol=min(rtol, loose.rtol))
    return np.where(overflowed, off_half, outside(finite_twin, b, own)[0])


_HIGHEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}


def _measured(a: npt.NDArray[Any], twin: npt.NDArray[Any], base: Tolerance, most: Tolerance) -> Tolerance:
    """The tolerance with how far the original is from its twin, which half precision's own (``most``) bounds."""
    if base == most:
        return base
    off = errors(twin, a)
    share = off["max_abs"] / off["scale"] if off["scale"] else 0.0
    return Tolerance(base.rtol, min(base.atol + 4.0 * share, most.atol), base.absolute)
