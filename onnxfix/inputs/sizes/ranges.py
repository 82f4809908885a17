"""The range of sizes that a model accepts for a symbol."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnxfix.inputs.sizes.problem import Problem
from onnxfix.inputs.sizes.solve import GRID, candidates

_NEAR = 256  # sizes from the minimum on that are tested one by one


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
