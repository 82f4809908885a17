"""Three-valued answers about symbolic integers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from onnxfix.shapes.algebra.dim import Dim, as_dim


class Truth(Enum):
    """YES: in every assignment. NO: in none. UNKNOWN: it depends, or nothing was proven."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """A three-valued answer; ``symbols`` are those that an UNKNOWN depends on."""

    truth: Truth
    symbols: frozenset[str] = frozenset()

    @property
    def yes(self) -> bool:
        return self.truth is Truth.YES

    @property
    def no(self) -> bool:
        return self.truth is Truth.NO

    @property
    def unknown(self) -> bool:
        return self.truth is Truth.UNKNOWN

    def __bool__(self) -> bool:
        raise TypeError("an Answer has three values: ask for .yes, .no or .unknown")

    def __invert__(self) -> Answer:
        return YES if self.no else NO if self.yes else self

    def __and__(self, other: Answer) -> Answer:
        if self.no or other.no:
            return NO
        return YES if self.yes and other.yes else unknown(self.symbols | other.symbols)

    def __or__(self, other: Answer) -> Answer:
        return ~(~self & ~other)


YES = Answer(Truth.YES)
NO = Answer(Truth.NO)


def unknown(symbols: Iterable[str] = ()) -> Answer:
    """An UNKNOWN that depends on ``symbols``."""
    return Answer(Truth.UNKNOWN, frozenset(symbols))


# ---- questions -------------------------------------------------------------------------------------------------


def at_least(a: Dim | int, bound: int) -> Answer:
    """Whether ``a >= bound``."""
    a = as_dim(a)
    lo, hi = (a.lo, a.hi) if a.lo >= bound or a.hi < bound else a.bounds
    return YES if lo >= bound else NO if hi < bound else unknown(a.symbols)


def positive(a: Dim | int) -> Answer:
    """Whether ``a >= 1``. A symbol may be 0."""
    return at_least(a, 1)


def nonnegative(a: Dim | int) -> Answer:
    """Whether ``a >= 0``."""
    return at_least(a, 0)


def less(a: Dim | int, b: Dim | int) -> Answer:
    """Whether ``a < b``."""
    return at_least(as_dim(b) - a, 1)


def equal(a: Dim | int, b: Dim | int) -> Answer:
    """Whether ``a == b``: YES in every assignment, NO in none."""
    if a is b:
        return YES
    a, b = as_dim(a), as_dim(b)
    if a is b:
        return YES
    if a.lo > b.hi or a.hi < b.lo:
        return NO
    return _equal(a, b)


@lru_cache(maxsize=1 << 14)
def _equal(a: Dim, b: Dim) -> Answer:
    """The expensive part, cached: models compare the same few pairs again and again."""
    difference = a - b
    if difference.lo > 0 or difference.hi < 0 or _off_grid(difference):
        return NO
    lo, hi = difference.bounds
    if lo > 0 or hi < 0:
        return NO
    return YES if lo == hi == 0 else unknown(difference.symbols)


def _off_grid(dim: Dim) -> bool:
    """Whether divisibility alone keeps ``dim`` from being 0, as in ``2*N + 1``."""
    divisor = math.gcd(*(c for m, c in dim.terms if m), 0)
    return divisor > 1 and any(c % divisor for m, c in dim.terms if not m)


def is_one(a: Dim | int) -> Answer:
    """Whether ``a == 1``."""
    return equal(a, 1)


def is_zero(a: Dim | int) -> Answer:
    """Whether ``a == 0``."""
    return equal(a, 0)
