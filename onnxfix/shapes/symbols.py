"""Symbolic integers: questions about dimensions, and arithmetic on them with opaque terms.

Equal expressions are the same object, so two dimensions are compared with ``is``. Simplifications are exact: they
hold for every assignment of the symbols within their bounds, 0 included. Three conventions define when a
dimension is right: it equals the real one in every *valid* execution (one in which no operator fails); a dimension is
between 0 and 2**31 - 1, TensorRT's own limit; and arithmetic of a model on its dimensions does not overflow.

``ceil(a / b)`` is written ``floor((a + b - 1) / b)``, ``a mod b`` is ``a - b * floor(a / b)``, and minimum and
maximum are written with ``max(0, x)``, so that different spellings of an expression become one term.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxfix.shapes.algebra.dim import (
    DIM_MAX,
    INT64_MAX,
    INT64_MIN,
    Atom,
    Dim,
    as_dim,
    constant,
    data_symbol,
    from_sum,
    symbol,
)
from onnxfix.shapes.algebra.terms import (
    NO,
    YES,
    Answer,
    Truth,
    at_least,
    broadcast,
    ceildiv,
    dim_max,
    dim_min,
    divide,
    equal,
    floordiv,
    is_one,
    is_zero,
    less,
    mod,
    nonnegative,
    nonzero_or,
    positive,
    product,
    relu,
    total,
    unknown,
)

__all__ = [
    "DIM_MAX", "INT64_MAX", "INT64_MIN", "NO", "YES", "Answer", "Dim", "Truth", "as_dim",
    "at_least", "broadcast", "ceildiv", "constant", "data_symbol", "dim_max", "dim_min", "divide",
    "equal", "evaluate", "floordiv", "is_one", "is_zero", "less", "mod", "nonnegative", "nonzero_or", "positive",
    "product", "relu", "substitute", "symbol", "total", "unknown",
]  # fmt: skip


def evaluate(dim: Dim, env: Mapping[str, int], memo: dict[Atom, int | None] | None = None) -> int | None:
    """The value of ``dim`` for the symbols ``env``.

    None if a symbol is missing, or if no valid execution has these values (division by 0, or dimensions that do not
    broadcast). ``memo`` holds what parts of other dimensions are for the same symbols, which they share, and is filled.
    """
    return _evaluate(dim, env, {} if memo is None else memo)


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
