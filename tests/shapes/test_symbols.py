"""The algebra of symbolic integers, against brute force over assignments (0 and 1 among them)."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfix.shapes import symbols as s
from onnxfix.shapes.algebra import dim as core
from onnxfix.shapes.symbols import Answer, Dim, Truth, constant, data_symbol, evaluate, symbol

N, M, K = symbol("N"), symbol("M"), symbol("K")
V = data_symbol("v")


class Invalid(Exception):
    """No valid execution has this assignment."""


Env = dict[str, int]


@dataclass(frozen=True)
class Pair:
    """A symbolic expression, and the same computed with plain integers."""

    dim: Dim
    plain: Callable[[Env], int]
    text: str

    def __repr__(self) -> str:
        return self.text


def leaf(name: str, dim: Dim) -> Pair:
    return Pair(dim, lambda env: env[name], name)


def number(value: int) -> Pair:
    return Pair(constant(value), lambda env: value, str(value))


LEAVES = [leaf("N", N), leaf("M", M), leaf("K", K), leaf("v", V)]


def plain_floordiv(a: int, b: int) -> int:
    if b == 0:
        raise Invalid
    return a // b


def plain_broadcast(a: int, b: int) -> int:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    raise Invalid


def binary(
    name: str, dim: Callable[[Any, Any], Dim], plain: Callable[[int, int], int]
) -> Callable[[Pair, Pair], Pair]:
    def join(a: Pair, b: Pair) -> Pair:
        return Pair(
            dim(a.dim, b.dim), lambda env: plain(a.plain(env), b.plain(env)), f"{name}({a.text}, {b.text})"
        )

    return join


BINARY = [
    binary("add", lambda a, b: a + b, lambda a, b: a + b),
    binary("sub", lambda a, b: a - b, lambda a, b: a - b),
    binary("mul", lambda a, b: a * b, lambda a, b: a * b),
    binary("max", s.dim_max, max),
    binary("min", s.dim_min, min),
    binary("broadcast", s.broadcast, plain_broadcast),
    binary("nonzero_or", s.nonzero_or, lambda a, b: a or b),
]


def scaled(a: Pair, factor: int, offset: int) -> Pair:
    return Pair(
        a.dim * factor + offset, lambda env: a.plain(env) * factor + offset, f"({a.text}*{factor}+{offset})"
    )


def divided(a: Pair, by: int) -> Pair:
    return Pair(s.floordiv(a.dim, by), lambda env: a.plain(env) // by, f"({a.text}//{by})")


def remainder(a: Pair, by: int) -> Pair:
    return Pair(s.mod(a.dim, by), lambda env: a.plain(env) % by, f"({a.text}%{by})")


def quotient(a: Pair, b: Pair) -> Pair:
    if b.dim.value == 0:
        return a
    return Pair(
        s.floordiv(a.dim, b.dim),
        lambda env: plain_floordiv(a.plain(env), b.plain(env)),
        f"({a.text}//{b.text})",
    )


@st.composite
def expressions(draw: st.DrawFn) -> Pair:
    """A chain of operations in which each takes the last result and perhaps an earlier one: grows, and shares terms."""
    pool = [*LEAVES, *(number(draw(st.integers(-4, 9))) for _ in range(2))]
    result = pool[draw(st.integers(0, len(pool) - 1))]
    for _ in range(draw(st.integers(1, 9))):
        other = pool[draw(st.integers(0, len(pool) - 1))]
        kind = draw(st.integers(0, len(BINARY) + 3))
        if kind < len(BINARY):
            result = BINARY[kind](result, other) if draw(st.booleans()) else BINARY[kind](other, result)
        elif kind == len(BINARY):
            result = scaled(result, draw(st.integers(-3, 4)), draw(st.integers(-5, 5)))
        elif kind == len(BINARY) + 1:
            result = divided(result, draw(st.sampled_from([-3, -2, -1, 1, 2, 3, 4, 6, 8])))
        elif kind == len(BINARY) + 2:
            result = remainder(result, draw(st.integers(1, 6)))
        else:
            result = quotient(result, other)
        pool.append(result)
    return result


ENVS: list[Env] = [
    {"N": n, "M": m, "K": k, "v": v}
    for n, m, k, v in itertools.product((0, 1, 2, 5), (0, 1, 3), (0, 1, 4), (-3, 0, 1, 2))
]


def plainly(pair: Pair, env: Env) -> int | None:
    try:
        return pair.plain(env)
    except Invalid:
        return None


@settings(max_examples=200)
@given(expressions())
def test_expression_is_right_in_every_valid_assignment(pair: Pair) -> None:
    lo, hi = pair.dim.bounds
    assert pair.dim.lo <= lo
    assert hi <= pair.dim.hi
    for env in ENVS:
        truth = plainly(pair, env)
        if truth is None:
            continue
        assert evaluate(pair.dim, env) == truth, (str(pair.dim), env)
        assert lo <= truth <= hi, (str(pair.dim), env)


def holds(answer: Answer, truths: list[bool]) -> bool:
    return answer.unknown or all(truth == answer.yes for truth in truths)


@settings(max_examples=150)
@given(expressions(), expressions(), st.integers(-3, 5))
def test_answers_hold_in_every_valid_assignment(a: Pair, b: Pair, bound: int) -> None:
    pairs = [(plainly(a, env), plainly(b, env)) for env in ENVS]
    both = [(x, y) for x, y in pairs if x is not None and y is not None]
    first = [x for x, _ in pairs if x is not None]
    assert holds(s.equal(a.dim, b.dim), [x == y for x, y in both])
    assert holds(s.less(a.dim, b.dim), [x < y for x, y in both])
    assert holds(s.at_least(a.dim, bound), [x >= bound for x in first])
    assert holds(s.is_one(a.dim), [x == 1 for x in first])


@settings(max_examples=100)
@given(expressions(), st.sampled_from(ENVS))
def test_substitution_is_evaluation(pair: Pair, env: Env) -> None:
    if plainly(pair, env) is None:
        return
    try:
        whole = s.substitute(pair.dim, env)
        part = s.substitute(pair.dim, {"N": env["N"]})
    except ZeroDivisionError:
        return  # the assignment has a part that is canceled in the plain computation
    assert whole.value == plainly(pair, env)
    assert "N" not in part.symbols
    assert evaluate(part, env) == plainly(pair, env)


@settings(max_examples=100)
@given(expressions(), expressions())
def test_exact_quotient(a: Pair, b: Pair) -> None:
    if b.dim.value == 0:
        return
    product = a.dim * b.dim
    result = s.divide(product, b.dim)
    for env in ENVS:
        x, y = plainly(a, env), plainly(b, env)
        if x is not None and y:
            assert evaluate(result, env) == x


def test_same_expression_is_the_same_object() -> None:
    assert (N + 1) * (M + 2) is N * M + 2 * N + M + 2
    assert s.floordiv(N + 3, 4) is s.ceildiv(N, 4)
    assert symbol("N") is N
    assert N - N is constant(0)
    assert constant(5) == 5
    assert N != M
    assert hash(constant(7)) == hash(7)
    assert len({N, symbol("N"), M}) == 2


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (s.floordiv(4 * N + 3, 4), N),
        (s.floordiv(s.floordiv(N, 2), 3), s.floordiv(N, 6)),
        (s.floordiv(s.floordiv(N + 1, 2) + 1, 2), s.floordiv(N + 3, 4)),
        (s.floordiv(-N, 4), -s.ceildiv(N, 4)),
        (s.floordiv(3 * N, 4), N - s.ceildiv(N, 4)),
        (s.floordiv(6 * N, 4), s.floordiv(3 * N, 2)),
        (N + s.mod(7 - s.mod(N, 7), 7), 7 * s.ceildiv(N, 7)),  # padding to a multiple of the window
        (N - s.dim_min(N, 1), s.relu(N - 1)),
        (s.dim_min(N, 2**40), N),
        (s.dim_max(N, 0), N),
        (s.dim_max(N, M) + s.dim_min(N, M), N + M),
        (s.relu(s.relu(N - 2) - 3), s.relu(N - 5)),
        (s.relu(3 * N - 6), 3 * s.relu(N - 2)),
        (s.broadcast(N, 1), N),
        (s.broadcast(N, 8), constant(8)),
        (s.broadcast(N, N), N),
        (s.broadcast(N, M), s.broadcast(M, N)),
        (s.broadcast(s.broadcast(N, M), N), s.broadcast(M, N)),
        (s.broadcast(N + 2, M), N + 2),
        (s.divide(N * M * 64, N * 64), M),
        (s.divide((N + M) * N * 3, N + M), 3 * N),
        (s.nonzero_or(N + 1, M), N + 1),
        (s.nonzero_or(constant(0), M), M),
    ],
    ids=str,
)
def test_spellings_of_one_thing_meet(left: Dim, right: Dim) -> None:
    assert left is right


def test_what_may_be_zero_is_not_canceled() -> None:
    assert s.floordiv(N * M, N) is not M
    assert s.floordiv((N + 1) * M, N + 1) is M
    assert s.floordiv(N, N) is not constant(1)
    with pytest.raises(ZeroDivisionError):
        s.floordiv(N, 0)


def test_broadcast_of_two_symbols_is_neither() -> None:
    both = s.broadcast(N, M)
    assert both is not N
    assert both is not M
    assert evaluate(both, {"N": 1, "M": 5}) == 5
    assert evaluate(both, {"N": 0, "M": 1}) == 0
    assert evaluate(both, {"N": 2, "M": 5}) is None


def test_answers_are_three_valued() -> None:
    assert s.is_zero(N) == Answer(Truth.UNKNOWN, frozenset({"N"}))
    assert s.positive(N).unknown
    assert s.nonnegative(N).yes
    assert s.nonnegative(V).unknown
    assert s.equal(N, N + 1).no
    assert s.equal(2 * N, 1).no
    assert s.equal(N, M).symbols == {"N", "M"}
    assert s.equal(s.floordiv(N, 2) + s.floordiv(N + 1, 2), N).yes
    assert s.nonnegative(N - s.floordiv(N, 3)).yes
    assert (~s.nonnegative(N)).no
    assert (s.is_zero(N) & s.is_zero(constant(1))).no
    assert (s.is_zero(N) | s.is_zero(constant(0))).yes
    with pytest.raises(TypeError, match="three values"):
        bool(s.is_zero(N))


def test_large_expressions_stay_bounded() -> None:
    many = [symbol(f"s{i}") for i in range(300)]
    total = s.total(many)
    assert len(total.terms) <= core.MAX_TERMS
    env = {f"s{i}": i for i in range(300)}
    assert evaluate(total, env) == sum(range(300))
    power = s.product([N + 1] * 40)
    assert evaluate(power, {"N": 1}) == 2**40
    deep = N
    for i in range(2000):
        deep = s.floordiv(deep * deep + many[i % 300], 3)
    assert deep.depth <= core.MAX_DEPTH
    assert len(str(deep)) < 4000
    assert evaluate(deep, {**env, "N": 1}) is None  # its structure was dropped: no answer, never a wrong one
    assert {"N", "s7"} <= deep.symbols


def test_printed_forms_do_not_depend_on_the_process() -> None:
    code = (
        "from onnxfix.shapes.symbols import *; import sys;"
        "names = sys.argv[1:]; d = {n: symbol(n) for n in names};"
        "print(dim_max(d['N'], d['M']), broadcast(d['M'], d['N'], d['K']), floordiv(d['K'] + d['N'], 3), d['M'] - 2)"
    )
    orders = (["N", "M", "K"], ["K", "M", "N"], ["M", "K", "N"])
    texts = {
        subprocess.run([sys.executable, "-c", code, *o], capture_output=True, text=True, check=True).stdout
        for o in orders
    }
    assert len(texts) == 1
    assert str(N * M * 2 - 1) == "2*M*N - 1"
    assert str(s.ceildiv(N, 4)) == "floor((N + 3) / 4)"
