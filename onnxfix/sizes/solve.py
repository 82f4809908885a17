"""Sizes that meet what a model demands, as near as possible to sizes that somebody wishes for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from onnxfix.graph.symbols import evaluate
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
    seen = set()
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
            return None
        sizes = min(fresh, key=lambda one: (len(problem.broken(one)), _distance(one, wish)))
    return None


def fitted(problem: Problem, wish: Mapping[str, int], fixed: Mapping[str, int] | None = None) -> Sizes | None:
    """Sizes that meet the demands of all branches too, or where there are none, those that bind in any case."""
    for one in dict.fromkeys((problem.strict, problem)):
        found = repaired(one, wish, fixed)
        if found is not None:
            return found
    return None


def least(problem: Problem, name: str, sizes: Mapping[str, int]) -> int | None:
    """The least size of a symbol, from 1 on, that meets all demands where the others have these sizes, or None."""
    return next((one for one in _valid(problem, name, sizes)), None)


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
    """Sizes of a symbol, from a grid and where the demand begins or ends to hold between its points."""
    points = sorted({*GRID, *(size for size in sizes.values() if size >= 0)})
    gaps = [_gap(problem, demand, {**sizes, name: point}) for point in points]
    found = {point for point, gap in zip(points, gaps, strict=True) if gap is not None and _met(demand, gap)}
    for (low, first), (high, second) in _pairs(points, gaps):
        if demand.term.kind is Kind.MULTIPLE or _met(demand, first) == _met(demand, second) == True:  # noqa: E712
            continue
        crosses = first * second <= 0 if demand.term.kind is not Kind.AT_LEAST else _met(demand, second)
        if crosses:
            found.update(_between(problem, demand, name, sizes, low, high, rising=first < second))
    return sorted(found)


def _pairs(
    points: Sequence[int], gaps: Sequence[int | None]
) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
    known = [(point, gap) for point, gap in zip(points, gaps, strict=True) if gap is not None]
    return itertools.pairwise(known)


def _between(
    problem: Problem,
    demand: Demand,
    name: str,
    sizes: Mapping[str, int],
    low: int,
    high: int,
    *,
    rising: bool,
) -> list[int]:
    """Where a gap that rises, or falls, between two sizes passes 0: the first size of each sign's end."""
    while high - low > 1:
        middle = (low + high) // 2
        gap = _gap(problem, demand, {**sizes, name: middle})
        if gap is None:
            return []
        if (gap >= 0) if rising else (gap <= 0):
            high = middle
        else:
            low = middle
    ends = [low, high]
    return [
        one
        for one in ends
        if (gap := _gap(problem, demand, {**sizes, name: one})) is not None and _met(demand, gap)
    ]


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


def _valid(problem: Problem, name: str, sizes: Mapping[str, int]) -> Iterable[int]:
    """Sizes of a symbol, in order, that meet all demands that it has a part in."""
    among = problem.by_symbol.get(name, ())
    points = {*GRID[1:]}
    for demand in among:
        points.update(candidates(problem, demand, name, sizes))
    for value in sorted(points - {0}):
        if not problem.broken({**sizes, name: value}, among):
            yield value


def _apart(value: int, wished: int) -> float:
    """How far a size is from the wished one, as a ratio; going below is worse than going above."""
    if value == wished:
        return 0.0
    ratio = math.log2((value + 1) / (wished + 1))
    return ratio if ratio > 0 else -4 * ratio


def _distance(sizes: Mapping[str, int], wish: Mapping[str, int]) -> float:
    return sum(_apart(size, wish.get(name, 1)) for name, size in sizes.items())
