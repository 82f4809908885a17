"""Sizes that satisfy a model's demands, as near as possible to wanted sizes, and the range that one may have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from onnxfix.inputs.sizes.demands import Demand, Kind
from onnxfix.inputs.sizes.problem import Problem

Sizes = dict[str, int]
#: Sizes to try for a dimension: small ones, usual sizes of images, windows and audio, powers of two.
GRID = tuple(
    sorted(
        {*range(18), *range(20, 65, 4), *range(64, 257, 16), *range(256, 1025, 32)}
        | {2**k for k in range(4, 21)}
        | {8000, 16000, 32000, 44100, 48000}
    )
)
_STEPS = 60  # changes of a size before the search ends
_ELSEWHERE = (1, 2, 3, 4, 8)
_TRIED = 8  # sizes of one symbol that are compared in a step
_NEAR = 256  # sizes from the minimum on that are tested one by one


def repaired(
    problem: Problem, wish: Mapping[str, int], fixed: Mapping[str, int] | None = None
) -> Sizes | None:
    """Sizes for all free symbols that satisfy every demand, near to ``wish``; None if none were found.

    ``fixed`` sizes are not changed. A wish that satisfies all demands is returned unchanged. The result is
    deterministic; no model is executed.
    """
    sizes = {name: wish.get(name, 1) for name in problem.free} | dict(fixed or {})
    free = [name for name in problem.free if name not in (fixed or {})]
    seen: set[tuple[tuple[str, int], ...]] = set()
    others: list[Sizes] = []  # alternatives, to return to from a dead end
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
        # No size of a single symbol helps: start from other sizes.
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
        far = [sum(_apart(size, wish.get(name, 1)) for name, size in one.items()) for one in fresh]
        sizes = min(zip(fresh, far, strict=True), key=lambda one: (len(problem.broken(one[0])), one[1]))[0]
        others += [one for one in fresh if one is not sizes]
    return None


def fitted(problem: Problem, wish: Mapping[str, int], fixed: Mapping[str, int] | None = None) -> Sizes | None:
    """Sizes that satisfy the demands of all branches or, if there are none, the demands that always apply."""
    for one in dict.fromkeys((problem.strict, problem)):
        found = repaired(one, wish, fixed)
        if found is not None:
            return found
    return None


def _values(
    problem: Problem, sizes: Mapping[str, int], name: str, demand: Demand, wish: Mapping[str, int]
) -> list[int]:
    """Sizes of a symbol for which a demand holds, the nearest to the wanted one first."""
    found = candidates(problem, demand, name, sizes)
    others = [one for one in problem.by_symbol[name] if one is not demand]
    wanted = wish.get(name, 1)
    # Prefer those that break no other demand.
    ranked = sorted(found, key=lambda value: (_apart(value, wanted), value))
    good = [one for one in ranked if not problem.broken({**sizes, name: one}, others)]
    return [*good[:_TRIED], *ranked[:_TRIED]]


def candidates(problem: Problem, demand: Demand, name: str, sizes: Mapping[str, int]) -> list[int]:
    """Sizes of a symbol for which the demand holds: points of a grid, and the ends of valid ranges between them."""

    def gap(size: int) -> int | None:
        return demand.term.gap(problem.sizes({**sizes, name: size}), {})

    def met(size: int) -> bool:
        found = gap(size)
        return found is not None and demand.term.met(found)

    points = sorted({*GRID, *(size for size in sizes.values() if size >= 0)})
    known = [(point, found) for point in points if (found := gap(point)) is not None]
    holds = {point for point, found in known if demand.term.met(found)}
    ends: set[int] = set()
    for (low, first), (high, second) in itertools.pairwise(known):
        if demand.term.kind is Kind.MULTIPLE:
            continue
        if (low in holds) != (high in holds):
            ends.update(_turn(low, high, met if high in holds else lambda size: not met(size)))
        elif first * second < 0 and demand.term.kind is not Kind.AT_LEAST:
            # The gap may be 0 over a range of sizes: find both ends.
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


def _apart(value: int, wanted: int) -> float:
    """The distance of a size from the wanted one, by their ratio; smaller sizes are worse than larger ones."""
    if value == wanted:
        return 0.0
    ratio = math.log2((value + 1) / (wanted + 1))
    return ratio if ratio > 0 else -4 * ratio


# ------------------------------------------------------------------------------------------------------- ranges


@dataclass(frozen=True)
class Range:
    """The valid sizes of a symbol, for valid sizes of the others: from ``least`` to ``most`` in steps of ``step``.

    ``least`` is None if no size was found, ``most`` if no upper bound is known. ``because`` are the demands at the ends
    and between the steps, each in a line. ``tied`` are the symbols whose sizes change this range: the numbers then hold
    for one choice of those sizes, and ``always_same`` says that the size equals that of the first of them.
    """

    symbol: str
    least: int | None
    most: int | None = None
    step: int = 1
    because: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    always_same: bool = False

    @property
    def span(self) -> tuple[int | None, int | None, int]:
        """Minimum, maximum and step: equal for two ranges of the same sizes."""
        return self.least, self.most, self.step


def range_of(problem: Problem, name: str, sizes: Mapping[str, int]) -> Range:
    """The sizes from 1 on that a symbol can have, for these ``sizes`` of the others."""
    demands = problem.by_symbol.get(name, ())

    def valid_at(size: int) -> bool:
        return not problem.broken({**sizes, name: size}, demands)

    points = set(GRID).difference((0,))
    for demand in demands:
        points.update(one for one in candidates(problem, demand, name, sizes) if one > 0)
    valid = sorted(one for one in points if valid_at(one))
    if not valid:
        return Range(name, None)
    least = valid[0]
    near = [one for one in range(least, least + _NEAR) if valid_at(one)]
    step = math.gcd(*(one - least for one in near)) if len(near) > 1 else 1
    top = GRID[-1] - (GRID[-1] - least) % step
    most = None if valid_at(top) else max(valid[-1], near[-1])
    outside = {least - 1, *([] if step == 1 else [least + 1]), *([] if most is None else [most + 1])}
    because: dict[str, None] = {}
    for size in sorted(outside.difference((0,))):
        for demand in problem.broken({**sizes, name: size}, demands)[:1]:
            because[f"{demand.op_type} at {demand.place}: {demand}"] = None
    return Range(name, least, most, step, tuple(because))
