"""The sizes of a symbol that a model takes, in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnxfix.sizes.problem import Problem
from onnxfix.sizes.solve import GRID, candidates

_NEAR = 256  # sizes from the least one on that are looked at one by one


@dataclass(frozen=True)
class Range:
    """The sizes of a symbol, while the others have sizes that fit: from ``least`` to ``most`` (None: no end is known),
    in steps of ``step``. ``because`` are the demands at the ends and between the steps, each in a line. ``least`` is
    None where no size was found. ``tied`` are the symbols whose sizes change these: then the numbers are those beside
    one choice of theirs, and ``always_same`` says that the size is that of the first of them."""

    symbol: str
    least: int | None
    most: int | None = None
    step: int = 1
    because: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    always_same: bool = False

    @property
    def words(self) -> str:
        """For people: ``at least 512, multiples of 32``."""
        if self.least is None:
            return "no size that fits is known"
        if self.tied:
            return f"the same as {self.tied[0]}" if self.always_same else f"depends on {', '.join(self.tied)}"
        if self.least == self.most:
            return f"{self.least} only"
        begins = (
            "any size" if self.least <= 1 and self.most is None and self.step == 1 else f"from {self.least}"
        )
        ends = f" to {self.most}" if self.most is not None else ""
        steps = f", in steps of {self.step}" if self.step > 1 else ""
        return f"{begins}{ends}{steps}"


def range_of(problem: Problem, name: str, sizes: Mapping[str, int]) -> Range:
    """The sizes from 1 on that a symbol can have beside the ``sizes`` of the others."""
    among = problem.by_symbol.get(name, ())

    def fits(size: int) -> bool:
        return not problem.broken({**sizes, name: size}, among)

    points = set(GRID).difference((0,))
    for demand in among:
        points.update(one for one in candidates(problem, demand, name, sizes) if one > 0)
    valid = sorted(one for one in points if fits(one))
    if not valid:
        return Range(name, None)
    least = valid[0]
    near = [one for one in range(least, least + _NEAR) if fits(one)]
    step = math.gcd(*(one - least for one in near)) if len(near) > 1 else 1
    top = GRID[-1] - (GRID[-1] - least) % step
    most = None if fits(top) else max(valid[-1], near[-1])
    outside = {least - 1, *([] if step == 1 else [least + 1]), *([] if most is None else [most + 1])}
    because: dict[str, None] = {}
    for size in sorted(outside.difference((0,))):
        for demand in problem.broken({**sizes, name: size}, among)[:1]:
            because[f"{demand.op_type} at {demand.place}: {demand}"] = None
    return Range(name, least, most, step, tuple(because))
