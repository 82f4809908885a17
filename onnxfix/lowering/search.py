"""The choice of nodes: as many in the low type as the budget allows.

Guards come first. If the error is then too large, it is found out where it comes from: parts of the model are run in
the low type alone, and the parts with most of the error are split again. Inside a part, a node's own error says how
much of it is the node's. Nodes are kept in this order, those that cost least for what they gain first, and how many is
found by bisection; each step runs the whole model, on the sample with the largest error, and the result on all.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from onnxfix.lowering.choice import Graph, settled
from onnxfix.lowering.guards import Facts
from onnxfix.lowering.lowered import cost_of
from onnxfix.lowering.records import OutputError

_PARTS = 8
"""Parts that the model is divided into at first."""
_MOST_RUNS = 32
"""Runs to find out where the error comes from."""
_ROUNDS = 3
"""Bisections: each looks at one sample, and its result at all."""
_STEPS = (0.5, 0.65, 0.8, 0.9, 0.95, 0.98)
"""Shares of the nodes that are kept where bisection finds nothing."""
_GIVEN_BACK = 6
"""Parts of the kept nodes that are tried without."""
_BROKEN = 1e12
"""The squared error of a run that gives NaN or infinity."""
_CLIP = 16.0
"""Own errors above so many units of rounding count as this many: those of outputs near 0 say little about the model."""

Errors = tuple[OutputError, ...]
#: Runs the model with these nodes in the low type; ``quick``: on the sample with the largest error.
Run = Callable[[frozenset[int], bool], Errors]


@dataclass(frozen=True)
class Plan:
    """The nodes in the low type, those kept by the search and those kept for fewer Casts, and the errors. ``met``: the
    errors are within the budget. ``best`` is the smallest error that was found with any node in the low type.
    ``effects`` is the share of the squared error by node, where it was looked for; ``runs`` counts the model's runs."""

    low: frozenset[int]
    kept: frozenset[int]
    neighbors: frozenset[int]
    errors: Errors
    met: bool
    best: float
    effects: Mapping[int, float] = field(default_factory=dict)
    runs: int = 0


def worst(errors: Errors) -> float:
    """The largest error of an output; 0 without outputs."""
    return max((one.error for one in errors), default=0.0)


class Search:
    """Finds the plan for a budget (share of each output's scale). ``guarded`` are nodes that are kept in any case,
    ``seconds`` limits the search for where the error comes from."""

    def __init__(
        self,
        facts: Facts,
        graph: Graph,
        run: Run,
        budget: float,
        guarded: frozenset[int],
        seconds: float = 600.0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.facts, self.graph, self.budget, self.guarded = facts, graph, budget, guarded
        self._run, self._say = run, say
        self.runs = 0
        self.best = math.inf
        self.closest: tuple[float, frozenset[int]] = (
            math.inf,
            frozenset(),
        )  # the smallest error on one sample
        self.deadline = time.monotonic() + seconds
        self.tried: dict[tuple[frozenset[int], bool], Errors] = {}

    def plan(self) -> Plan:
        """The plan; where the budget cannot be met, the one with the smallest error."""
        found = self._plan(frozenset(), {})
        if found.met or not found.low:
            return found
        effects = self._effects()
        order = sorted(
            effects, key=lambda index: (-effects[index] / cost_of(self.graph.nodes[index].op_type), index)
        )
        limit = self.budget
        for _ in range(_ROUNDS):
            quick = self._bisect(order, effects, limit)
            if quick is None:
                self._plan(self.closest[1], effects)  # how far it gets on all samples
                break
            checked = self._plan(quick.kept, effects)  # on all samples
            if checked.met:
                return self._final(checked)
            found = checked if worst(checked.errors) < worst(found.errors) else found
            limit *= min(0.9, self.budget / worst(checked.errors))
        return self._final(self._stepped(order, effects) or found)

    def _stepped(self, order: list[int], effects: Mapping[int, float]) -> Plan | None:
        """A plan on all samples, in larger steps, where bisection on one sample found none: errors do not only fall as
        more nodes are kept."""
        for share in _STEPS:
            found = self._plan(frozenset(order[: int(len(order) * share)]), effects)
            if found.met:
                return found
        return None

    def _bisect(self, order: list[int], effects: Mapping[int, float], limit: float) -> Plan | None:
        """The fewest nodes to keep, in this order, for an error up to ``limit`` on one sample: none is too few, and all
        of them leave nothing in the low type. None where the budget is not met."""
        least: Plan | None = None
        below, above = 0, len(order)
        while above - below > 1:
            middle = (below + above) // 2
            self._say(f"keeping {middle} of {len(order)} nodes in float32")
            found = self._plan(frozenset(order[:middle]), effects, quick=True)
            if found.low and worst(found.errors) < self.closest[0]:
                self.closest = worst(found.errors), found.kept
            if worst(found.errors) <= limit:
                above, least = middle, found if found.low else least
            else:
                below = middle
        return None if least is None else self._released(least, order[:above], effects, limit)

    def _released(self, least: Plan, order: list[int], effects: Mapping[int, float], limit: float) -> Plan:
        """The plan without what is kept in vain: parts of the kept nodes are given back while the budget allows it,
        those that cost most first. Keeping the last of ``order`` may have made many of the others unnecessary."""
        kept = list(order)
        by_cost = sorted(kept, key=lambda index: (-cost_of(self.graph.nodes[index].op_type), effects[index]))
        for part in _divided(by_cost, _GIVEN_BACK):
            fewer = [index for index in kept if index not in set(part)]
            self._say(f"keeping {len(fewer)} nodes in float32")
            found = self._plan(frozenset(fewer), effects, quick=True)
            if worst(found.errors) <= limit and len(found.low) >= len(least.low):
                kept, least = fewer, found
        return least

    def _final(self, found: Plan) -> Plan:
        return replace(found, best=self.best, runs=self.runs)

    def _plan(self, kept: frozenset[int], effects: Mapping[int, float], *, quick: bool = False) -> Plan:
        low, neighbors = settled(self.graph, self.guarded | kept)
        if not any(self.graph.computes(index) for index in low):
            low = frozenset()
        if (low, quick) not in self.tried:
            self.runs += 1
            self.tried[low, quick] = self._run(low, quick)
        errors = self.tried[low, quick]
        if low and not quick:
            self.best = min(self.best, worst(errors))
        met = bool(low) and worst(errors) <= self.budget and not quick
        return Plan(low, kept, neighbors - kept, errors, met, self.best, effects, self.runs)

    # -- where the error comes from

    def _effects(self) -> dict[int, float]:
        """The share of the outputs' squared error that is put down to each node that may be kept."""
        free = [
            index
            for index in self.graph.able.slots
            if index not in self.guarded and self.graph.computes(index)
        ]
        parts = [(self._power(part), part) for part in _divided(free, _PARTS)]
        while (split := self._splittable(parts)) is not None:
            parts.remove(split)
            parts += [(self._power(half), half) for half in _divided(split[1], 2)]
        return self._shares(parts)

    def _splittable(self, parts: list[tuple[float, list[int]]]) -> tuple[float, list[int]] | None:
        """The part of several nodes with the largest error, while it matters which of them it is."""
        if self.runs >= _MOST_RUNS or time.monotonic() > self.deadline:
            return None
        several = [part for part in parts if len(part[1]) > 1]
        largest = max(several, default=None, key=lambda part: part[0])
        total = sum(power for power, _ in parts)
        return largest if largest is not None and largest[0] * 4 * len(parts) > total else None

    def _power(self, part: list[int]) -> float:
        """The squared error of the model with only this part in the low type; a large number where it breaks."""
        self.runs += 1
        self._say(f"where the error comes from: run {self.runs}")
        errors = self._run(frozenset(part), True)
        power = max((one.rms for one in errors), default=0.0) ** 2
        return power if math.isfinite(power) else _BROKEN

    def _shares(self, parts: list[tuple[float, list[int]]]) -> dict[int, float]:
        total = sum(power for power, _ in parts) or 1.0
        found = {}
        for power, part in parts:
            own = [self.facts.own[index].error if index in self.facts.own else 0.0 for index in part]
            weights = [min(error, _CLIP * self.facts.unit) ** 2 for error in own]
            whole = sum(weights) or 1.0
            for index, weight in zip(part, weights, strict=True):
                found[index] = power / total * weight / whole
        return found


def _divided(items: list[int], count: int) -> list[list[int]]:
    """Up to ``count`` runs of about the same length; none is empty."""
    count = min(count, len(items))
    edges = [len(items) * i // count for i in range(count + 1)] if count else [0]
    return [items[a:b] for a, b in itertools.pairwise(edges)]
