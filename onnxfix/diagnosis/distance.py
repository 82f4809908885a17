"""How far two tensors are from each other, in the few figures that decide where a difference begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxfix.proof.compare.tolerance import EXACT, distances, gaps, wide

BLOCK = 1 << 16  # elements that stay in the processor's cache
LEVELS = (0.5, 0.9)
"""The quantiles that are compared besides the largest difference, which one unstable element may decide."""
_FEWEST, _DRAWN = 16, 1 << 16  # elements that have quantiles, and those that they are estimated from


@dataclass(frozen=True)
class Typical:
    """Quantiles (``LEVELS``) of the absolute differences, and of the truth's magnitudes, of finite elements."""

    off: tuple[float, ...]
    size: tuple[float, ...]


@dataclass(frozen=True)
class Distance:
    """``largest`` absolute difference of elements that are finite on both sides, ``scale`` the largest finite magnitude
    of the truth, with its range from ``low`` to ``high``. ``special`` counts elements that are NaN or infinite on one
    side only (or another infinity), ``differing`` those that are not equal. ``shape`` says that shapes differ.
    ``typical``: None where nothing differs or there are too few elements. ``at`` is the flat index of the element with
    the largest difference, of the first special one where there is any."""

    largest: float = 0.0
    scale: float = 0.0
    low: float = 0.0
    high: float = 0.0
    special: int = 0
    differing: int = 0
    shape: bool = False
    typical: Typical | None = None
    at: int = 0

    @property
    def error(self) -> float:
        """The largest difference; infinite where shapes or special values differ."""
        return math.inf if self.shape or self.special else self.largest

    @property
    def relative(self) -> float:
        """The difference as a share of the scale; infinite where shapes or special values differ. Where the truth is 0
        throughout, the absolute difference."""
        return self.error / self.scale if self.scale else self.error


_NONE = Distance(low=math.inf, high=-math.inf)


def distance(truth: Any, other: Any) -> Distance:
    """Compare two arrays of numbers or truths in blocks, in float64 (whole numbers exactly); sequences and maps item by
    item; anything else, such as strings, for equality only."""
    if isinstance(truth, (list, tuple)) and isinstance(other, (list, tuple)):
        return _items(list(truth), list(other))
    if isinstance(truth, dict) and isinstance(other, dict):
        if truth.keys() != other.keys():
            return Distance(shape=True)
        return _items(list(truth.values()), [other[key] for key in truth])
    if not (_is_number(truth) and _is_number(other)):
        return Distance() if _equal(truth, other) else Distance(1.0, 1.0, differing=1)
    truth, other = np.asarray(truth), np.asarray(other)
    if truth.shape != other.shape:
        return Distance(shape=True)
    a, b = truth.reshape(-1), other.reshape(-1)
    found = _NONE
    for start in range(0, a.size, BLOCK):
        found = _joined(found, _block(a[start : start + BLOCK], b[start : start + BLOCK], start))
    found = _closed(found)
    return replace(found, typical=_typical(a, b)) if found.largest else found


def _typical(a: Any, b: Any) -> Typical | None:
    """The quantiles, of elements drawn at random where there are many: the same ones each time."""
    if a.size < _FEWEST:
        return None
    if a.size > _DRAWN:
        drawn = np.random.default_rng(0).integers(0, a.size, _DRAWN)
        a, b = a[drawn], b[drawn]
    with np.errstate(all="ignore"):
        x, y = wide(a), wide(b)
        both = np.isfinite(x) & np.isfinite(y)
        if not both.any():
            return None
        off, size = np.abs(x - y)[both], np.abs(x)[both]
    return Typical(*(tuple(np.quantile(one, LEVELS).tolist()) for one in (off, size)))


def _is_number(value: Any) -> bool:
    """Whether it is an array of numbers or truths, or one number."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind not in "OUS"
    return isinstance(value, (int, float, complex))


def _items(truth: Sequence[Any], other: Sequence[Any]) -> Distance:
    if len(truth) != len(other):
        return Distance(shape=True)
    found = _NONE
    for one, two in zip(truth, other, strict=True):
        found = _joined(found, distance(one, two))
    return _closed(found)


def _closed(found: Distance) -> Distance:
    """Without the range of nothing."""
    return found if found.low <= found.high else replace(found, low=0.0, high=0.0)


def _block(a: Any, b: Any, start: int) -> Distance:
    plain = a.dtype == b.dtype and a.dtype.isbuiltin == 1 and a.dtype.kind != "c"
    equal = plain and bool((a == b).all())
    x = a if equal else wide(a)
    off = np.zeros(1) if equal else gaps(a, b)
    if x.dtype.kind != "c":
        low, high, largest = float(x.min()), float(x.max()), float(off.max())
        if math.isfinite(low) and math.isfinite(high) and math.isfinite(largest):
            scale, differing = max(abs(low), abs(high)), int(np.count_nonzero(off))
            return Distance(largest, scale, low, high, differing=differing, at=start + int(off.argmax()))
    x, y = wide(a), wide(b)
    odd = distances(x, y, EXACT)[2]
    whole = np.isfinite(x)
    off = np.where(whole & np.isfinite(y), gaps(a, b), 0.0)
    real, size = x.real[whole], np.abs(x[whole])
    return Distance(
        float(off.max(initial=0.0)),
        float(size.max(initial=0.0)),
        float(real.min(initial=math.inf)),
        float(real.max(initial=-math.inf)),
        int(odd.sum()),
        int((odd | (off != 0)).sum()),
        at=start + int(np.argmax(odd if odd.any() else off)),
    )


def _joined(a: Distance, b: Distance) -> Distance:
    return Distance(
        max(a.largest, b.largest),
        max(a.scale, b.scale),
        min(a.low, b.low),
        max(a.high, b.high),
        a.special + b.special,
        a.differing + b.differing,
        a.shape or b.shape,
        at=a.at if a.special or (a.largest >= b.largest and not b.special) else b.at,
    )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and bool(np.all(a == b))
    return type(a) is type(b) and bool(np.all(a == b))
