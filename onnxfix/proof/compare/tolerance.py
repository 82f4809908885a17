"""The tolerance of each element type, comparisons of arrays within one, and how far float32 itself may be off: what the
original computes in float64, and with inputs that move by one rounding.

Where scores are near 1e9, a softmax in float32 is decided by rounding, and the original is no more right than a fixed
model that adds in another order. Neither is a tolerance that is wide enough for it: it would excuse a wrong weight
elsewhere. So both are held to float64, element by element, on the very feed on which they differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tolerance:
    """``|a - b| <= rtol * |a| + atol * max|a| + absolute``, with ``a`` the original's finite values.

    ``rtol`` and ``atol`` have no unit; ``absolute`` has the unit of the output.
    """

    rtol: float
    atol: float
    absolute: float = 0.0


@dataclass(frozen=True)
class Allowed:
    """A tolerance that the user gives: ``|a - b| <= rtol * |a| + atol``, ``atol`` in the unit of the output.

    It replaces the tolerance of the element type; a field that is None keeps the type's value. ``share`` is used alone:
    an error budget, as a share of the output's largest magnitude.
    """

    rtol: float | None = None
    atol: float | None = None
    share: float | None = None

    @property
    def words(self) -> str:
        """The tolerance as text."""
        pairs = (("rtol", self.rtol), ("atol", self.atol))
        if self.share is not None:
            return f"precision's budget of {self.share:g}"
        return ", ".join(f"{name} {value:g}" for name, value in pairs if value is not None)


#: Errors that reordered arithmetic may cause, by element type. Everything else (integers, bool, string) must be equal.
TOLERANCES = {
    "float64": Tolerance(1e-9, 1e-10), "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(1e-2, 2e-3), "bfloat16": Tolerance(5e-2, 1e-2),
    "complex128": Tolerance(1e-9, 1e-10), "complex64": Tolerance(1e-4, 1e-5),
}  # fmt: skip
_COARSE = Tolerance(0.25, 0.1)  # 8 bits and fewer: one step of the last place
EXACT = Tolerance(0.0, 0.0)


def tolerance_for(dtype: str, coarse: str = "", allowed: Allowed | None = None) -> Tolerance:
    """The tolerance for an element type (numpy's name of it).

    ``coarse`` names a narrower type to which the values were rounded before. ``allowed`` replaces the tolerance of both
    types, unless values of this type must be equal.
    """
    base = TOLERANCES.get(dtype, _COARSE if dtype.startswith("float") else EXACT)
    if coarse and base != EXACT:
        other = TOLERANCES[coarse]
        base = Tolerance(max(base.rtol, other.rtol), max(base.atol, other.atol))
    if allowed is not None and allowed.share is not None and base != EXACT:
        return Tolerance(0.0, allowed.share)
    if allowed is not None and base != EXACT:
        own = allowed.atol is not None
        base = Tolerance(
            base.rtol if allowed.rtol is None else allowed.rtol,
            0.0 if own else base.atol,
            absolute=allowed.atol or 0.0,
        )
    return base


def parts(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A complex array with its two parts in a last axis of size 2; other arrays unchanged."""
    if array.dtype.kind != "c":
        return array
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype).reshape(*array.shape, 2)


def wide(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As float64 or complex128, which hold all smaller types. int64 and uint64 lose low bits, but only in metrics."""
    with np.errstate(all="ignore"):
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def errors(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> dict[str, float]:
    """The largest distances between pairs of finite values, and the largest finite magnitude in ``a``."""
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        distance = np.where(finite, np.abs(a - b), 0.0)
        size = np.where(finite, np.abs(a), 0.0)
        relative = np.divide(distance, size, out=np.zeros_like(size), where=size > 0)
    return {"max_abs": float(distance.max()), "max_rel": float(relative.max()), "scale": float(size.max())}


def gaps(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Absolute errors, element by element. Errors of 64-bit integers are exact, then rounded up to float64."""
    if a.dtype != b.dtype or a.dtype.kind not in "iu" or a.dtype.itemsize < 8:
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(wide(b) - wide(a)))
    left, right = a.astype(np.uint64), b.astype(np.uint64)
    exact = np.where(a > b, left - right, right - left)
    distance = exact.astype(np.float64)
    # The largest errors round up to 2**64, which is not a uint64.
    too_small = np.minimum(distance, np.nextafter(2.0**64, 0.0)).astype(np.uint64) < exact
    return np.where(too_small & (distance < 2.0**64), np.nextafter(distance, np.inf), distance)


def outside(
    a: npt.NDArray[Any], b: npt.NDArray[Any], tolerance: Tolerance, slack: Any = 0.0
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Two masks: where ``b`` is outside the tolerance of ``a``, widened by ``slack`` (one number, or one per element),
    and where it is outside because of NaN or Inf."""
    distance, limit, special = distances(a, b, tolerance, slack)
    return special | (distance > limit), special


def distances(
    a: npt.NDArray[Any], b: npt.NDArray[Any], tolerance: Tolerance, slack: Any = 0.0
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Element by element: the distance between ``a`` and ``b`` (0 if either is not finite), the allowed distance, and
    whether NaN or Inf in one array are not matched in the other."""
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        distance = np.where(finite, np.abs(a - b), 0.0)
        size = np.where(finite, np.abs(a), 0.0)
        special = ~finite & ~((np.isnan(a) & np.isnan(b)) | (a == b))
        limit = tolerance.rtol * size + tolerance.atol * float(size.max(initial=0.0))
    return distance, limit + tolerance.absolute + slack, special


#: How far inputs are moved to see what a model's own rounding amounts to: about one unit in float32's last place.
RELATIVE = 1e-7
MOVES = 8
"""Times that inputs are moved. Measured on ONNX's Attention models: four are enough for nearly all of them."""
SHARE = 4.0
"""How many times as far from the truth another model may be as the original is, on one of these inputs."""


@dataclass(frozen=True)
class Precise:
    """What is known of one output beyond float32.

    ``value`` and ``fixed`` are what the original and the fixed model compute in float64 on this feed; ``moved`` what
    the original itself computes with its inputs moved by about one unit in the last place.
    """

    value: Any
    fixed: Any
    moved: tuple[Any, ...]

    def at(self, key: Any) -> Precise | None:
        """The same for an element of a sequence or a map; None where they have another structure."""
        try:
            return replace(
                self,
                value=self.value[key],
                fixed=self.fixed[key],
                moved=tuple(one[key] for one in self.moved),
            )
        except (IndexError, KeyError, TypeError):
            return None


def excused(
    original: npt.NDArray[Any], fixed: npt.NDArray[Any], precise: Precise, base: Tolerance
) -> npt.NDArray[np.bool_]:
    """Where floats of the fixed model may differ from the original's.

    Both must compute the same in float64, within ``base``; and the fixed model may be four times as far from that as
    the original is, with its inputs as they are or moved. What is not finite in float64 is excused where the fixed
    model has that infinity and the original the greatest number of its type instead.
    """
    known = _fitting(original, precise)
    if known is None or original.dtype.kind == "c":
        return np.zeros(original.shape, bool)
    exact, other, runs = known
    a, b = wide(original), wide(fixed)
    same = ~outside(exact, other, base)[0]
    with np.errstate(all="ignore"):
        off = [np.abs(wide(one) - exact) for one in (original, *runs)]
        noise = np.max([np.where(np.isfinite(one), one, 0.0) for one in off], axis=0)
        size = np.where(np.isfinite(exact), np.abs(exact), 0.0)
        limit = base.rtol * size + base.atol * float(size.max(initial=0.0)) + base.absolute + SHARE * noise
        near = np.isfinite(a) & np.isfinite(b) & np.isfinite(exact) & (np.abs(b - exact) <= limit)
    # the greatest and the least number of a type stand for infinity in some kernels
    end = np.finfo(original.dtype).max if original.dtype.kind == "f" else np.nan
    saturated = (np.abs(original) == end) & np.isinf(exact) & (b == exact) & (a * exact > 0)
    return np.asarray(same & (near | saturated))


def chosen(original: npt.NDArray[Any], fixed: npt.NDArray[Any], precise: Precise) -> npt.NDArray[np.bool_]:
    """Where integers or truths of the fixed model may differ from the original's: both give the same in float64, and
    the original gives what the fixed model does once its inputs move."""
    known = _fitting(original, precise)
    if known is None:
        return np.zeros(original.shape, bool)
    exact, other, runs = known
    return np.asarray((exact == other) & np.any([one == fixed for one in (original, *runs)], axis=0))


def _fitting(
    original: npt.NDArray[Any], precise: Precise
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], list[npt.NDArray[Any]]] | None:
    """The original and the fixed model in float64, and the runs with moved inputs; None of another shape or kind."""
    exact, other = np.asarray(precise.value), np.asarray(precise.fixed)
    runs = [np.asarray(one) for one in precise.moved]
    if any(one.shape != original.shape for one in (exact, other, *runs)):
        return None
    floats = "float" in original.dtype.name
    if floats != ("float" in exact.dtype.name) or exact.dtype != other.dtype:
        return None
    return (wide(exact), wide(other), runs) if floats else (exact, other, runs)


def shaken(feed: Mapping[str, Any], seed: int = 0, relative: float = RELATIVE) -> dict[str, Any]:
    """The feed with every floating-point element moved by ``relative`` up or down, at random; in half precision by one
    unit in the last place."""
    rng = np.random.default_rng(seed)
    return {name: _shaken(value, rng, relative) for name, value in feed.items()}


def _shaken(value: Any, rng: np.random.Generator, relative: float) -> Any:
    dtype = getattr(value, "dtype", np.dtype(bool)).name
    if dtype not in ("float64", "float32", "float16", "bfloat16"):
        return value
    signs = np.asarray(rng.integers(0, 2, value.shape) * 2 - 1)
    if value.dtype.itemsize > 2:
        # never a scalar, which no session takes
        return np.asarray(value * (1.0 + relative * signs), value.dtype)
    bits = np.ascontiguousarray(value).reshape(-1).view(np.uint16)
    exponent = 0x7C00 if dtype == "float16" else 0x7F80
    finite = bits & exponent != exponent
    whole = (bits & 0x7FFF != 0) & finite  # one step down from 0 would be NaN
    edge = (bits & 0x7FFF) == exponent - 1  # and one up from the greatest number infinity
    step = np.where(whole, np.where(edge, -1, signs.reshape(-1)), 0)
    return (bits.astype(np.int32) + step).astype(np.uint16).view(value.dtype).reshape(value.shape)


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
