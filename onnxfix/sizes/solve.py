"""Sizes that meet what a model demands, as near as possible to sizes that somebody wishes for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial

from onnxfix.shapes.symbols import evaluate
from onnxfix.sizes.demands import Demand, Kind
from onnxfix.sizes.problem import Problem

Sizes = dict[str, int]
#: Sizes to try for a dimension: the small ones, what images, windows and strides are made of, powers of two.
GRID = tuple(
    sorted(
        {*range(18), *range(20, 65, 4), *range(64, 257, 16), *range(256, 1025, 32)}
        | {2**k for k in range(4, 21)}
        | {8000, 16000, 32000, 44100, 48000}
    )
)
_STEPS = 60  # sizes that are changed before a search is given up
_ELSEWHERE = (1, 2, 3, 4, 8)
_TRIED = 8  # sizes of one symbol that are looked at more closely in a step


def repaired(
    problem: Problem, wish: Mapping[str, int], fixed: Mapping[str, int] | None = None
) -> Sizes | None:
    """Sizes for all free symbols that meet every demand, near to ``wish``; None where none were found.

    ``fixed`` sizes are not changed. A wish that meets all demands comes back as it is. The same arguments give the same
    sizes; no model is executed.
    """
    sizes = {name: wish.get(name, 1) for name in problem.free} | dict(fixed or {})
    free = [name for name in problem.free if name not in (fixed or {})]
    seen: set[tuple[tuple[str, int], ...]] = set()
    others: list[Sizes] = []  # what was not gone on with: to come back to from a dead end
    for _ in range(_STEPS):
        broken = problem.broken(sizes)
        if not broken:
            return sizes
        seen.add(tuple(sizes.items()))
        moves = [
            {**sizes, name: value}
            for demand in broken[:4]
            for name in sorted(problem.parts(demand).intersection(free))
            for value in _values(problem, sizes, name, demand, wish)
        ]
        # No size of a single symbol helps: begin elsewhere.
        moves = moves or [
            {**sizes, name: value}
            for name in sorted(problem.parts(broken[0]).intersection(free))
            for value in _ELSEWHERE
        ]
        fresh = [one for one in moves if tuple(one.items()) not in seen]
        if not fresh:
            others = [one for one in others if tuple(one.items()) not in seen]
            fresh, others = others, []
        if not fresh:
            return None
        sizes = min(fresh, key=lambda one: (len(problem.broken(one)), _distance(one, wish)))
        others += [one for one in fresh if one is not sizes]
    return None


def fitted(problem: Problem, wish: Mapping[str, int], fixed: Mapping[str, int] | None = None) -> Sizes | None:
    """Sizes that meet the demands of all branches too, or where there are none, those that bind in any case."""
    for one in dict.fromkeys((problem.strict, problem)):
        found = repaired(one, wish, fixed)
        if found is not None:
            return found
    return None


def _values(
    problem: Problem, sizes: Mapping[str, int], name: str, demand: Demand, wish: Mapping[str, int]
) -> list[int]:
    """Sizes of a symbol for which a demand holds, the nearest to the wished one first."""
    found = candidates(problem, demand, name, sizes)
    others = [one for one in problem.by_symbol[name] if one is not demand]
    wished = wish.get(name, 1)
    # Where there are many, those that break no other demand are worth most.
    ranked = sorted(found, key=lambda value: (_apart(value, wished), value))
    good = [one for one in ranked if not problem.broken({**sizes, name: one}, others)]
    return [*good[:_TRIED], *ranked[:_TRIED]]


def candidates(problem: Problem, demand: Demand, name: str, sizes: Mapping[str, int]) -> list[int]:
    """Sizes of a symbol for which the demand holds: points of a grid, and where it begins and ends between them."""

    def gap(size: int) -> int | None:
        return _gap(problem, demand, {**sizes, name: size})

    def met(size: int) -> bool:
        found = gap(size)
        return found is not None and _met(demand, found)

    points = sorted({*GRID, *(size for size in sizes.values() if size >= 0)})
    known = [(point, found) for point in points if (found := gap(point)) is not None]
    holds = {point for point, found in known if _met(demand, found)}
    ends: set[int] = set()
    for (low, first), (high, second) in itertools.pairwise(known):
        if demand.term.kind is Kind.MULTIPLE:
            continue
        if (low in holds) != (high in holds):
            ends.update(_turn(low, high, met if high in holds else lambda size: not met(size)))
        elif first * second < 0 and demand.term.kind is not Kind.AT_LEAST:
            # Where the gap passes 0 it may stay there for a while: both ends of that.
            sign = 1 if first < second else -1
            ends.update(_turn(low, high, partial(_reaches, gap, sign, 0)))
            ends.update(_turn(low, high, partial(_reaches, gap, sign, 1)))
    return sorted(holds.union(filter(met, ends)))


def _reaches(gap: Callable[[int], int | None], sign: int, least: int, size: int) -> bool:
    return sign * (gap(size) or 0) >= least


def _turn(low: int, high: int, after: Callable[[int], bool]) -> tuple[int, int]:
    """The neighbors between which ``after`` becomes true, where it is false at ``low`` and true at ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if after(middle) else (middle, high)
    return low, high


def _gap(problem: Problem, demand: Demand, chosen: Mapping[str, int]) -> int | None:
    """How far the sides of a demand are apart; None where that is not known. 0 for sides that are related by 1."""
    sizes = problem.sizes(chosen)
    left, right = evaluate(demand.term.left, sizes), evaluate(demand.term.right, sizes)
    if left is None or right is None:
        return None
    kind = demand.term.kind
    if kind is Kind.MULTIPLE:
        return left % right if right else None
    if (kind in (Kind.BROADCAST, Kind.EXTENDS) and left == 1) or (kind is Kind.BROADCAST and right == 1):
        return 0
    return left - right


def _met(demand: Demand, gap: int) -> bool:
    return gap >= 0 if demand.term.kind is Kind.AT_LEAST else gap == 0


def _apart(value: int, wished: int) -> float:
    """How far a size is from the wished one, as a ratio; going below is worse than going above."""
    if value == wished:
        return 0.0
    ratio = math.log2((value + 1) / (wished + 1))
    return ratio if ratio > 0 else -4 * ratio


def _distance(sizes: Mapping[str, int], wish: Mapping[str, int]) -> float:
    return sum(_apart(size, wish.get(name, 1)) for name, size in sizes.items())
