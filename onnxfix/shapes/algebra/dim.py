"""The symbolic integer itself: an interned polynomial over symbols and opaque terms.

:mod:`onnxfix.shapes.symbols` has the operations and the conventions; import from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import index
from typing import Any
from weakref import WeakValueDictionary

DIM_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_TERMS, MAX_DEGREE, MAX_DEPTH = 48, 10, 64
HUGE = 2**512
"""No valid execution has integers as large as this. Bounds stop here, or they would double in length at each
product."""


class Atom:
    """A symbol, or an opaque term over other dimensions; interned."""

    __slots__ = ("__weakref__", "args", "depth", "digest", "hi", "is_count", "lo", "name", "op")

    def __init__(self, op: str, name: str, args: tuple[Dim, ...], lo: int, hi: int, is_count: bool) -> None:
        self.op = op
        self.name = name
        self.args = args
        self.lo = lo
        self.hi = hi
        self.is_count = is_count
        self.depth = 0 if op in ("symbol", "deep") else 1 + max(a.depth for a in args)
        self.digest = _digest(op, name, args)

    def __repr__(self) -> str:
        return f"Atom({_atom_text(self, [TEXT_LIMIT])})"


Mono = tuple[Atom, ...]
Terms = tuple[tuple[Mono, int], ...]


class Dim:
    """An immutable, interned integer polynomial: the same expression is the same object.

    ``value`` is the integer if it is static. ``lo`` and ``hi`` bound it in every assignment (``bounds`` may be closer).
    ``is_count``: it contains no integer from the caller's data, so that by the bound on dimensions, arithmetic on it
    does not overflow.
    """

    __slots__ = (
        "__weakref__", "_bounds", "_str", "_symbols", "depth", "hi", "is_count", "lo", "terms", "value"
    )  # fmt: skip

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.value: int | None = (
            0 if not terms else terms[0][1] if len(terms) == 1 and not terms[0][0] else None
        )
        self.depth: int = max((atom.depth for mono, _ in terms for atom in mono), default=0)
        self.is_count = all(atom.is_count for mono, _ in terms for atom in mono)
        self.lo, self.hi = _interval(terms)
        self._bounds: tuple[int, int] | None = None
        self._symbols: frozenset[str] | None = None
        self._str: str | None = None

    @property
    def symbols(self) -> frozenset[str]:
        """Names of all symbols in the expression, also those inside opaque terms."""
        if self._symbols is None:
            self._symbols = _symbols_of(self)
        return self._symbols

    @property
    def bounds(self) -> tuple[int, int]:
        """The closest proven bounds; they cost more than ``lo`` and ``hi``, and are cached."""
        if self._bounds is None:
            self._bounds = _bounds(self)
        return self._bounds

    def __hash__(self) -> int:
        return hash(self.value) if self.value is not None else object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same expression. False does not mean that they differ: use ``symbols.equal``."""
        return self is other or (isinstance(other, int) and self.value == other)

    def __repr__(self) -> str:
        return f"Dim({self})"

    def __str__(self) -> str:
        if self._str is None:  # rules distinguish findings by it, and use the same few again and again
            self._str = text_of(self)
        return self._str

    def __add__(self, other: Dim | int) -> Dim:
        other = as_dim(other)
        if not self.terms or not other.terms:
            return other if not self.terms else self
        if other.value is not None:
            return self._plus(other.value)
        if self.value is not None:
            return other._plus(self.value)
        total = dict(self.terms)
        for mono, factor in other.terms:
            total[mono] = total.get(mono, 0) + factor
        terms = _sorted_terms(total)
        return from_terms(terms) if len(terms) <= MAX_TERMS else _added(self, other)

    def __mul__(self, other: Dim | int) -> Dim:
        other = as_dim(other)
        if other.value is not None:
            return self._times(other.value)
        if self.value is not None:
            return other._times(self.value)
        if (
            len(self.terms) * len(other.terms) <= 4 * MAX_TERMS
            and _degree(self) + _degree(other) <= MAX_DEGREE
        ):
            total: dict[Mono, int] = {}
            for mono_a, factor_a in self.terms:
                for mono_b, factor_b in other.terms:
                    mono = _times(mono_a, mono_b)
                    total[mono] = total.get(mono, 0) + factor_a * factor_b
            terms = _sorted_terms(total)
            if len(terms) <= MAX_TERMS:
                return from_terms(terms)
        corners = [a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
        return opaque("mul", tuple(sorted((self, other), key=_order)), min(corners), max(corners))

    def _plus(self, number: int) -> Dim:
        """The sum with an integer, which is the first term."""
        if self.value is not None:
            return constant(self.value + number)
        mono, factor = self.terms[0]
        if mono:
            terms = (((), number), *self.terms)
        elif factor + number:
            terms = (((), factor + number), *self.terms[1:])
        else:
            terms = self.terms[1:]
        return from_terms(terms) if len(terms) <= MAX_TERMS else _added(self, constant(number))

    def _times(self, number: int) -> Dim:
        """The product with an integer, whose terms have the same order."""
        if self.value is not None:
            return constant(self.value * number)
        if number in (0, 1):
            return self if number else constant(0)
        return from_terms(tuple((mono, factor * number) for mono, factor in self.terms))

    def __sub__(self, other: Dim | int) -> Dim:
        return self + as_dim(other) * -1

    def __rsub__(self, other: int) -> Dim:
        return as_dim(other) - self

    def __neg__(self) -> Dim:
        return self * -1

    __radd__ = __add__
    __rmul__ = __mul__


_atoms: WeakValueDictionary[Any, Atom] = WeakValueDictionary()
_dims: WeakValueDictionary[Terms, Dim] = WeakValueDictionary()


def _intern(op: str, name: str, args: tuple[Dim, ...], lo: int, hi: int, is_count: bool) -> Atom:
    key = (op, name, args, lo, hi, is_count)
    atom = _atoms.get(key)
    if atom is None:
        atom = Atom(op, name, args, lo, hi, is_count)
        _atoms[key] = atom
    return atom


def from_terms(terms: Terms) -> Dim:
    """The one object for these terms, which must be sorted and free of zeros."""
    found = _dims.get(terms)
    if found is None:
        found = Dim(terms)
        _dims[terms] = found
    return found


def from_sum(total: Mapping[Mono, int]) -> Dim:
    """The polynomial with these coefficients."""
    return from_terms(_sorted_terms(total))


def opaque(op: str, args: tuple[Dim, ...], lo: int, hi: int) -> Dim:
    """An interned opaque term. A term that is nested too deeply loses its structure, to limit recursion."""
    name = ""
    if max(a.depth for a in args) >= MAX_DEPTH:
        op, name = "deep", op  # the name distinguishes a quotient from a maximum of the same two
    atom = _intern(op, name, args, max(lo, -HUGE), min(hi, HUGE), all(a.is_count for a in args))
    return from_terms((((atom,), 1),))


@lru_cache(maxsize=1 << 12, typed=True)
def constant(value: int) -> Dim:
    """The integer ``value``.

    Raises:
        TypeError: it is not an integer.
    """
    value = int(index(value))
    return from_terms((((), value),) if value else ())


def _added(a: Dim, b: Dim) -> Dim:
    """Their sum as one opaque term."""
    return opaque("add", tuple(sorted((a, b), key=_order)), a.lo + b.lo, a.hi + b.hi)


def as_dim(value: Dim | int) -> Dim:
    """``value`` itself, or an integer as a constant."""
    return value if isinstance(value, Dim) else constant(int(value))


def symbol(name: str) -> Dim:
    """A dimension called ``name``: between 0 and 2**31 - 1; of a graph input, or counted from data."""
    return from_terms((((_intern("symbol", name, (), 0, DIM_MAX, True),), 1),))


def data_symbol(name: str, lo: int = INT64_MIN, hi: int = INT64_MAX) -> Dim:
    """An integer that depends on the caller's data, from ``lo`` to ``hi``."""
    return from_terms((((_intern("symbol", name, (), lo, hi, False),), 1),))


def lone_atom(dim: Dim, op: str) -> Atom | None:
    """The atom, if ``dim`` is exactly one term of kind ``op``, else None."""
    if len(dim.terms) == 1:
        mono, factor = dim.terms[0]
        if factor == 1 and len(mono) == 1 and mono[0].op == op:
            return mono[0]
    return None


def atom_key(atom: Atom) -> tuple[bytes, int]:
    """Sort key of atoms: the same in every process, unless digests collide."""
    return (atom.digest, id(atom))


def _order(dim: Dim) -> list[tuple[list[bytes], int]]:
    """Sort key of dimensions: the same in every process."""
    return [([atom.digest for atom in mono], factor) for mono, factor in dim.terms]


def _digest(op: str, name: str, args: tuple[Dim, ...]) -> bytes:
    """A key to sort by that is the same in every process, so that printed forms are stable."""
    if op == "symbol":
        return name.encode("utf-8", "surrogateescape")
    import hashlib  # lazy: start-up, brings OpenSSL

    state = hashlib.blake2b(f"{op} {name}".encode(), digest_size=8)
    for arg in args:
        for mono, factor in arg.terms:
            for atom in mono:
                state.update(atom.digest)
            state.update(b"%d;" % factor)
        state.update(b"|")
    return b"~" + state.digest()


def _sorted_terms(total: Mapping[Mono, int]) -> Terms:
    terms = [term for term in total.items() if term[1]]
    if len(terms) > 1:
        terms.sort(key=lambda term: (len(term[0]), [atom_key(atom) for atom in term[0]]))
    return tuple(terms)


def _times(a: Mono, b: Mono) -> Mono:
    return tuple(sorted(a + b, key=atom_key)) if a and b else a or b


def _degree(dim: Dim) -> int:
    return len(dim.terms[-1][0]) if dim.terms else 0


def _symbols_of(dim: Dim) -> frozenset[str]:
    found: set[str] = set()
    seen: set[Atom] = set()
    stack: list[Dim] = [dim]
    while stack:
        for mono, _ in stack.pop().terms:
            for atom in mono:
                if atom.op == "symbol":
                    found.add(atom.name)
                elif atom not in seen:
                    seen.add(atom)
                    stack.extend(atom.args)
    return frozenset(found)


def _bounds(dim: Dim) -> tuple[int, int]:
    lo, hi, terms = dim.lo, dim.hi, dim.terms
    if len(terms) > 1 and any(len(m) == 1 and m[0].op in ("floordiv", "relu") for m, _ in terms):
        negated = tuple((m, -c) for m, c in terms)
        lo = max(lo, *(_relaxed_lower(terms, through) for through in (False, True)))
        hi = min(hi, *(-_relaxed_lower(negated, through) for through in (False, True)))
    return lo, hi


def _interval(terms: Terms) -> tuple[int, int]:
    lo = hi = 0
    for mono, factor in terms:
        low = high = factor
        for atom in mono:
            corners = (low * atom.lo, low * atom.hi, high * atom.lo, high * atom.hi)
            low, high = min(corners), max(corners)
        lo += low
        hi += high
    return max(lo, -HUGE), min(hi, HUGE)


def _relaxed_lower(terms: Terms, through_relu: bool) -> int:
    """A lower bound by linear bounds on floor and max: decides that ``N - floor(N / 2)`` is not negative."""
    total: dict[Mono, int] = dict(terms)  # times `scale`, so that all numbers are integers
    scale = 1
    for _ in range(8):
        pick = next(
            (m for m, c in total.items() if c and len(m) == 1 and m[0].op in ("floordiv", "relu")), None
        )
        if pick is None:
            break
        factor = total.pop(pick)
        atom = pick[0]
        inner, offset = factor, 0
        if atom.op == "floordiv":
            divisor = atom.args[1].value
            if divisor is None:
                inner, offset = 0, factor * (atom.lo if factor > 0 else atom.hi)
            else:
                scale *= divisor
                for mono in total:
                    total[mono] *= divisor
                offset = -factor * (divisor - 1) if factor > 0 else 0
        elif factor > 0:
            inner = factor if through_relu else 0
        else:
            offset = factor * max(0, -atom.args[0].lo)
        if inner:
            for mono, part in atom.args[0].terms:
                total[mono] = total.get(mono, 0) + inner * part
        total[()] = total.get((), 0) + offset
    return -(-_interval(tuple(total.items()))[0] // scale)


TEXT_LIMIT = 400
"""Approximate maximum length of a text in characters; the rest is written as ``(...)``."""


def text_of(dim: Dim) -> str:
    """The polynomial as one would write it, positive terms first."""
    return _text(dim, [TEXT_LIMIT])


def _text(dim: Dim, budget: list[int]) -> str:
    parts = sorted(
        (("*".join(_atom_text(atom, budget) for atom in m), c) for m, c in dim.terms),
        key=lambda p: (p[1] < 0, not p[0], p[0]),
    )
    text = ""
    for mono, factor in parts:
        size = mono if abs(factor) == 1 and mono else f"{abs(factor)}*{mono}" if mono else str(abs(factor))
        sign = "-" if factor < 0 else "+"
        text += f" {sign} {size}" if text else f"-{size}" if factor < 0 else size
    return text or "0"


def _atom_text(atom: Atom, budget: list[int]) -> str:
    if atom.op == "symbol":
        budget[0] -= len(atom.name)
        return atom.name
    budget[0] -= 8
    if budget[0] <= 0 or atom.op == "deep":
        return "(...)"
    args = [_text(arg, budget) for arg in atom.args]
    if atom.op == "floordiv":
        return "floor(" + " / ".join(f"({a})" if " " in a or "*" in a else a for a in args) + ")"
    if atom.op == "relu":
        return f"max(0, {args[0]})"
    return f"{atom.op}({', '.join(args)})"
