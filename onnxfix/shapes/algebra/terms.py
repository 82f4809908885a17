"""Terms of symbolic dimensions, and what is known of their truth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, reduce

from onnxfix.shapes.algebra.dim import Dim, Mono, as_dim, atom_key, constant, from_sum, lone_atom, opaque


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


MAX_ARGS = 32


def total(dims: Iterable[Dim | int]) -> Dim:
    """Their sum."""
    return reduce(lambda a, b: a + b, dims, constant(0))


def product(dims: Iterable[Dim | int]) -> Dim:
    """Their product; 1 for none."""
    return reduce(lambda a, b: a * b, dims, constant(1))


def relu(a: Dim) -> Dim:
    """``max(0, a)``."""
    lo, hi = (a.lo, a.hi) if a.lo >= 0 or a.hi <= 0 else a.bounds
    if lo >= 0:
        return a
    if hi <= 0:
        return constant(0)
    common = math.gcd(*(c for _, c in a.terms))
    if common > 1:
        return relu(from_sum({m: c // common for m, c in a.terms})) * common
    for mono, factor in a.terms:
        if factor == 1 and len(mono) == 1 and mono[0].op == "relu":
            inner = from_sum({mono: 1})
            if (a - inner).bounds[1] <= 0:  # max(0, max(0, x) + y) is max(0, x + y) for y <= 0
                return relu(mono[0].args[0] + a - inner)
    if next(c for m, c in a.terms if m) < 0:
        return a + relu(-a)
    return opaque("relu", (a,), 0, hi)


def dim_max(a: Dim | int, b: Dim | int) -> Dim:
    """The larger one."""
    a, b = as_dim(a), as_dim(b)
    return a + relu(b - a)


def dim_min(a: Dim | int, b: Dim | int) -> Dim:
    """The smaller one."""
    a, b = as_dim(a), as_dim(b)
    return a - relu(a - b)


def floordiv(a: Dim | int, b: Dim | int) -> Dim:
    """``floor(a / b)``, rounding towards minus infinity.

    Raises:
        ZeroDivisionError: ``b`` is 0. If ``b`` may be 0, the term has the value of a valid execution.
    """
    a, b = as_dim(a), as_dim(b)
    if b.value is not None:
        return _floordiv_static(-a, -b.value) if b.value < 0 else _floordiv_static(a, b.value)
    if is_zero(b).no:
        exact = _quotient(a, b)
        if exact is not None:
            return exact
    return _floordiv_term(a, b)


def _floordiv_term(a: Dim, b: Dim) -> Dim:
    (lo, hi), (least, most) = a.bounds, b.bounds
    if least <= 0:
        bound = max(abs(lo), abs(hi)) + 1
        return opaque("floordiv", (a, b), 0 if lo >= 0 and least >= 0 else -bound, bound)
    lo //= least if lo < 0 else most
    hi //= most if hi < 0 else least
    return constant(lo) if lo == hi else opaque("floordiv", (a, b), lo, hi)


def _floordiv_static(a: Dim, b: int) -> Dim:
    if b == 0:
        raise ZeroDivisionError("division of a dimension by 0")
    whole = from_sum({m: c // b for m, c in a.terms})
    rest = from_sum({m: c % b for m, c in a.terms})
    if rest.value is not None:
        return whole
    common = math.gcd(b, *(c for m, c in rest.terms if m))
    if common > 1:
        return whole + _floordiv_static(from_sum({m: c // common for m, c in rest.terms}), b // common)
    # floor(3N / 4) and N - floor((N + 3) / 4) are the same: keep the one with smaller factors.
    factors = [c for m, c in rest.terms if m]
    if [b - c for c in factors] < factors:
        return whole - _floordiv_static(constant(b - 1) - rest, b)
    for mono, factor in rest.terms:
        if factor == 1 and len(mono) == 1 and mono[0].op == "floordiv" and mono[0].args[1].value is not None:
            top, bottom = mono[0].args[0], mono[0].args[1].value
            others = rest - from_sum({mono: 1})
            return whole + _floordiv_static(top + others * bottom, bottom * b)
    return whole + _floordiv_term(rest, constant(b))


def ceildiv(a: Dim | int, b: int) -> Dim:
    """``ceil(a / b)`` for a positive ``b``."""
    return floordiv(as_dim(a) + (b - 1), b)


def mod(a: Dim | int, b: Dim | int) -> Dim:
    """``a - b * floor(a / b)``: has the sign of ``b``."""
    return as_dim(a) - as_dim(b) * floordiv(a, b)


def divide(a: Dim | int, b: Dim | int) -> Dim:
    """``a / b`` if ``b != 0`` in every valid execution, as for the -1 of a Reshape: common factors cancel."""
    a, b = as_dim(a), as_dim(b)
    exact = None if b.value == 0 else _quotient(a, b)
    return exact if exact is not None else _floordiv_term(a, b) if b.value is None else floordiv(a, b)


def _quotient(a: Dim, b: Dim) -> Dim | None:
    """``q`` with ``q * b`` identical to ``a``, by polynomial long division, or None."""
    if a is b:
        return constant(1)
    atoms = sorted({atom for m, _ in (*a.terms, *b.terms) for atom in m}, key=atom_key)

    def leading(terms: Mapping[Mono, int]) -> Mono:
        return max(terms, key=lambda m: [m.count(atom) for atom in atoms])

    rest, found = dict(a.terms), constant(0)
    top = leading(dict(b.terms))
    for _ in range(len(a.terms) + 1):
        if not rest:
            break
        lead = leading(rest)
        left = list(lead)
        for atom in top:
            if atom not in left:
                return None
            left.remove(atom)
        factor, remainder = divmod(rest[lead], dict(b.terms)[top])
        if remainder:
            return None
        found = found + from_sum({tuple(left): factor})
        rest = dict((a - found * b).terms)
    return found if found * b is a else None


def broadcast(*dims: Dim | int) -> Dim:
    """The dimension that these aligned ones broadcast to: the one that is not 1; valid executions have only one."""
    one = constant(1)
    several = dict.fromkeys(dim for dim in map(as_dim, dims) if dim is not one)
    if len(several) <= 1:
        return next(iter(several), one)
    args: dict[Dim, None] = {}
    for dim in several:
        atom = lone_atom(dim, "broadcast")
        args.update(dict.fromkeys(atom.args if atom is not None else (dim,)))
    args.pop(one, None)
    sure = [dim for dim in args if _never_one(dim)]
    if sure:
        return min(sure, key=lambda d: (d.value is None, len(d.terms), d.depth))
    if len(args) <= 1:
        return next(iter(args), constant(1))
    ordered = sorted(args, key=_dim_key)
    while len(ordered) > MAX_ARGS:
        ordered = [_broadcast_term(ordered[:MAX_ARGS]), *ordered[MAX_ARGS:]]
    return _broadcast_term(ordered)


def _never_one(dim: Dim) -> bool:
    if dim.lo > 1 or dim.hi < 1:
        return True
    alone = len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1
    return not alone and is_one(dim).no


def _broadcast_term(args: list[Dim]) -> Dim:
    # Without the closer bounds, min(N, 64) might seem negative, and every dimension that depends on it.
    return opaque(
        "broadcast", tuple(args), min(_bounded(a)[0] for a in args), max(_bounded(a)[1] for a in args)
    )


def _bounded(dim: Dim) -> tuple[int, int]:
    """Bounds, the expensive ones only if the cheap ones leave the sign open."""
    return (dim.lo, dim.hi) if dim.lo >= 0 else dim.bounds


def _dim_key(dim: Dim) -> list[tuple[list[tuple[bytes, int]], int]]:
    return [([atom_key(atom) for atom in mono], factor) for mono, factor in dim.terms]


def nonzero_or(a: Dim, fallback: Dim) -> Dim:
    """``a``, or ``fallback`` if ``a`` is 0: an element of a Reshape target without allowzero."""
    zero = is_zero(a)
    if a is fallback or zero.no:
        return a
    return (
        fallback
        if zero.yes
        else opaque("nonzero_or", (a, fallback), min(a.lo, fallback.lo), max(a.hi, fallback.hi))
    )
