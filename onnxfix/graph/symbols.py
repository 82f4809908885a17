"""Symbolic integers: what can be asked of dimensions, and the opaque terms that arithmetic makes of them.

Equal expressions are the same object, so two dimensions are compared with ``is``. Simplifications are exact: they
hold for every assignment of the symbols within their bounds, 0 included. Three conventions say when a dimension
is right: it equals the real one in every *valid* execution (one in which no operator fails); a dimension is between
0 and 2**31 - 1, TensorRT's own limit; and arithmetic that a model does on its dimensions does not overflow.

``ceil(a / b)`` is written ``floor((a + b - 1) / b)``, ``a mod b`` is ``a - b * floor(a / b)``, and minimum and
maximum are written with ``max(0, x)``, so that the many spellings of one thing meet in one term.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import reduce

from onnxfix.graph.dim import (
    DIM_MAX,
    INT64_MAX,
    INT64_MIN,
    Atom,
    Dim,
    Mono,
    as_dim,
    atom_key,
    constant,
    data_symbol,
    from_sum,
    lone_atom,
    opaque,
    symbol,
)

__all__ = [
    "DIM_MAX", "INT64_MAX", "INT64_MIN", "NO", "YES", "Answer", "BroadcastRelation", "Dim", "Truth", "as_dim",
    "at_least", "broadcast", "broadcast_relation", "ceildiv", "constant", "data_symbol", "dim_max", "dim_min", "divide",
    "equal", "evaluate", "floordiv", "is_one", "is_zero", "less", "mod", "nonnegative", "nonzero_or", "positive",
    "product", "relu", "substitute", "symbol", "total", "unknown",
]  # fmt: skip

MAX_ARGS = 16


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
    return YES if a.lo >= bound else NO if a.hi < bound else unknown(a.symbols)


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
    a, b = as_dim(a), as_dim(b)
    if a is b:
        return YES
    difference = a - b
    if not difference.terms:
        return YES
    if difference.lo > 0 or difference.hi < 0 or _off_grid(difference):
        return NO
    return YES if difference.lo == difference.hi == 0 else unknown(difference.symbols)


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


@dataclass(frozen=True)
class BroadcastRelation:
    """How two aligned dimensions meet in a broadcast; each answer is three-valued, with its symbols.

    ``equal``: they are the same number. ``a_stretched``: ``a`` is 1 and ``b`` is not, so ``a`` is repeated.
    ``b_stretched``: the reverse. UNKNOWN ``b_stretched`` for ``(N, 1)`` is the batch-1 trap: equal at N = 1 only.
    """

    equal: Answer
    a_stretched: Answer
    b_stretched: Answer


def broadcast_relation(a: Dim | int, b: Dim | int) -> BroadcastRelation:
    """How ``a`` and ``b``, two aligned dimensions, broadcast against each other."""
    same = equal(a, b)
    if same.yes:
        return BroadcastRelation(YES, NO, NO)
    one_a, one_b = is_one(a), is_one(b)
    return BroadcastRelation(same, one_a & ~one_b, one_b & ~one_a)


# ---- terms -----------------------------------------------------------------------------------------------------


def total(dims: Iterable[Dim | int]) -> Dim:
    """Their sum."""
    return reduce(lambda a, b: a + b, dims, constant(0))


def product(dims: Iterable[Dim | int]) -> Dim:
    """Their product; 1 for none."""
    return reduce(lambda a, b: a * b, dims, constant(1))


def relu(a: Dim) -> Dim:
    """``max(0, a)``."""
    if a.lo >= 0:
        return a
    if a.hi <= 0:
        return constant(0)
    common = math.gcd(*(c for _, c in a.terms))
    if common > 1:
        return relu(from_sum({m: c // common for m, c in a.terms})) * common
    for mono, factor in a.terms:
        if factor == 1 and len(mono) == 1 and mono[0].op == "relu":
            inner = from_sum({mono: 1})
            if (a - inner).hi <= 0:  # max(0, max(0, x) + y) is max(0, x + y) for y <= 0
                return relu(mono[0].args[0] + a - inner)
    if next(c for m, c in a.terms if m) < 0:
        return a + relu(-a)
    return opaque("relu", (a,), 0, a.hi)


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
        ZeroDivisionError: ``b`` is 0. Where ``b`` merely may be 0, the term stands for what a valid execution has.
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
    if b.lo <= 0:
        bound = max(abs(a.lo), abs(a.hi)) + 1
        return opaque("floordiv", (a, b), 0 if a.lo >= 0 and b.lo >= 0 else -bound, bound)
    lo = a.lo // (b.lo if a.lo < 0 else b.hi)
    hi = a.hi // (b.hi if a.hi < 0 else b.lo)
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
    # floor(3N / 4) and N - floor((N + 3) / 4) are the same: of the two spellings, keep the one with smaller factors.
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
    """``a / b`` where a valid execution has ``b != 0``, as in the -1 of a Reshape: common factors cancel."""
    a, b = as_dim(a), as_dim(b)
    exact = None if b.value == 0 else _quotient(a, b)
    return exact if exact is not None else _floordiv_term(a, b) if b.value is None else floordiv(a, b)


def _quotient(a: Dim, b: Dim) -> Dim | None:
    """``q`` with ``q * b`` identical to ``a``, by polynomial long division; None where there is none."""
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
    args: dict[Dim, None] = {}
    for dim in map(as_dim, dims):
        atom = lone_atom(dim, "broadcast")
        args.update(dict.fromkeys(atom.args if atom is not None else (dim,)))
    args.pop(constant(1), None)
    sure = [dim for dim in args if is_one(dim).no]
    if sure:
        return min(sure, key=lambda d: (d.value is None, len(d.terms), d.depth))
    if len(args) <= 1:
        return next(iter(args), constant(1))
    ordered = sorted(args, key=_dim_key)
    while len(ordered) > MAX_ARGS:
        ordered = [_broadcast_term(ordered[:MAX_ARGS]), *ordered[MAX_ARGS:]]
    return _broadcast_term(ordered)


def _broadcast_term(args: list[Dim]) -> Dim:
    return opaque("broadcast", tuple(args), min(a.lo for a in args), max(a.hi for a in args))


def _dim_key(dim: Dim) -> list[tuple[list[tuple[bytes, int]], int]]:
    return [([atom_key(atom) for atom in mono], factor) for mono, factor in dim.terms]


def nonzero_or(a: Dim, fallback: Dim) -> Dim:
    """``a``, or ``fallback`` where ``a`` is 0: an element of a Reshape target without allowzero."""
    zero = is_zero(a)
    if a is fallback or zero.no:
        return a
    return fallback if zero.yes else opaque("nonzero_or", (a, fallback), min(a.lo, fallback.lo), max(a.hi, fallback.hi))


# ---- assignments -----------------------------------------------------------------------------------------------


def evaluate(dim: Dim, env: Mapping[str, int]) -> int | None:
    """The integer that ``dim`` is when the symbols are ``env``.

    None where a symbol is missing, or where the assignment belongs to no valid execution (division by 0, or
    dimensions that do not broadcast).
    """
    return _evaluate(dim, env, {})


def _evaluate(dim: Dim, env: Mapping[str, int], memo: dict[Atom, int | None]) -> int | None:
    result = 0
    for mono, factor in dim.terms:
        for atom in mono:
            if atom not in memo:
                memo[atom] = _evaluate_atom(atom, env, memo)
            value = memo[atom]
            if value is None:
                return None
            factor *= value
        result += factor
    return result


def _evaluate_atom(atom: Atom, env: Mapping[str, int], memo: dict[Atom, int | None]) -> int | None:
    if atom.op == "symbol":
        return env.get(atom.name)
    if atom.op == "deep":
        return None
    args: list[int] = []
    for arg in atom.args:
        value = _evaluate(arg, env, memo)
        if value is None:
            return None
        args.append(value)
    if atom.op == "broadcast":
        sizes = set(args) - {1}
        return None if len(sizes) > 1 else next(iter(sizes), 1)
    if atom.op == "relu":
        return max(0, args[0])
    first, second = args
    if atom.op == "floordiv":
        return first // second if second else None
    if atom.op == "nonzero_or":
        return first or second
    return first + second if atom.op == "add" else first * second


def substitute(dim: Dim, mapping: Mapping[str, Dim | int]) -> Dim:
    """``dim`` with symbols replaced, simplified again: ``substitute(n * m, {"N": 1})``.

    Raises:
        ZeroDivisionError: the replacement makes a divisor 0.
    """
    return dim if dim.symbols.isdisjoint(mapping) else _substitute(dim, mapping, {})


def _substitute(dim: Dim, mapping: Mapping[str, Dim | int], memo: dict[Atom, Dim]) -> Dim:
    result = constant(0)
    for mono, factor in dim.terms:
        part = constant(factor)
        for atom in mono:
            if atom not in memo:
                memo[atom] = _substitute_atom(atom, mapping, memo)
            part = part * memo[atom]
        result = result + part
    return result


def _substitute_atom(atom: Atom, mapping: Mapping[str, Dim | int], memo: dict[Atom, Dim]) -> Dim:
    if atom.op == "symbol" and atom.name in mapping:
        return as_dim(mapping[atom.name])
    if atom.op in ("symbol", "deep"):
        return from_sum({(atom,): 1})
    args = [_substitute(arg, mapping, memo) for arg in atom.args]
    if atom.op == "broadcast":
        return broadcast(*args)
    if atom.op == "relu":
        return relu(args[0])
    first, second = args
    if atom.op == "floordiv":
        return floordiv(first, second)
    if atom.op == "nonzero_or":
        return nonzero_or(first, second)
    return first + second if atom.op == "add" else first * second
