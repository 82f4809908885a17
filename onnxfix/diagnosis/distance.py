"""How far two tensors are from each other, in the few figures that decide where a difference begins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

_BLOCK = 1 << 20
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
    ``typical``: None where nothing differs or there are too few elements."""

    largest: float = 0.0
    scale: float = 0.0
    low: float = 0.0
    high: float = 0.0
    special: int = 0
    differing: int = 0
    shape: bool = False
    typical: Typical | None = None

    @property
    def relative(self) -> float:
        """The difference as a share of the scale; infinite where shapes or special values differ. Where the truth is 0
        throughout, the absolute difference."""
        if self.shape or self.special:
            return math.inf
        return self.largest / self.scale if self.scale else self.largest


def distance(truth: Any, other: Any) -> Distance:
    """Compare two arrays of numbers or truths in blocks, in float64; anything else for equality only."""
    if (
        not isinstance(truth, np.ndarray)
        or not isinstance(other, np.ndarray)
        or "OUS".count(truth.dtype.kind)
    ):
        same = _equal(truth, other)
        return Distance() if same else Distance(1.0, 1.0, differing=1)
    if truth.shape != other.shape:
        return Distance(shape=True)
    a, b = truth.reshape(-1), other.reshape(-1)
    found = Distance(low=math.inf, high=-math.inf)
    for start in range(0, a.size, _BLOCK):
        found = _joined(found, _block(a[start : start + _BLOCK], b[start : start + _BLOCK]))
    if found.low > found.high:
        return Distance(special=found.special, differing=found.differing)
    return replace(found, typical=_typical(a, b)) if found.largest else found


def _typical(a: Any, b: Any) -> Typical | None:
    """The quantiles, of elements drawn at random where there are many: the same ones each time."""
    if a.size < _FEWEST:
        return None
    if a.size > _DRAWN:
        drawn = np.random.default_rng(0).integers(0, a.size, _DRAWN)
        a, b = a[drawn], b[drawn]
    with np.errstate(all="ignore"):
        x, y = (one.astype(np.complex128 if one.dtype.kind == "c" else np.float64) for one in (a, b))
        both = np.isfinite(x) & np.isfinite(y)
        if not both.any():
            return None
        off, size = np.abs(x - y)[both], np.abs(x)[both]
    return Typical(*(tuple(np.quantile(one, LEVELS).tolist()) for one in (off, size)))


def _block(a: Any, b: Any) -> Distance:
    with np.errstate(all="ignore"):
        x, y = (one.astype(np.complex128 if one.dtype.kind == "c" else np.float64) for one in (a, b))
        whole = np.isfinite(x)
        both = whole & np.isfinite(y)
        odd = ~both & ~((x == y) | (np.isnan(x) & np.isnan(y)))
        off = np.abs(x - y)[both]
        size = np.abs(x)[whole]
        real = x.real[whole] if a.dtype.kind == "c" else x[whole]
        return Distance(
            float(off.max(initial=0.0)),
            float(size.max(initial=0.0)),
            float(real.min(initial=math.inf)),
            float(real.max(initial=-math.inf)),
            int(odd.sum()),
            int(odd.sum() + (off != 0).sum()),
        )


def _joined(a: Distance, b: Distance) -> Distance:
    return Distance(
        max(a.largest, b.largest),
        max(a.scale, b.scale),
        min(a.low, b.low),
        max(a.high, b.high),
        a.special + b.special,
        a.differing + b.differing,
    )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and bool((a == b).all())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a is b or a == b)
