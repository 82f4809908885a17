"""The choice of nodes: as many in the low type as the budget allows.

Guards come first. If the error is then too large, it is found out where it comes from: parts of the model are run in
the low type alone, and the parts with most of the error are split again. Inside a part, a node's own error says how
much of it is the node's. What is kept are products, and stretches of other nodes, for Casts inside a stretch would cost
more than they gain. Those that cost least time for what they gain come first, and how many is found by bisection; each
step runs the whole model, on the sample with the largest error, and the result on all. Where the time is limited, as
many are kept as fit into it.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from onnxfix.lowering.choice import Graph, settled, stretches
from onnxfix.lowering.cost import Costs
from onnxfix.lowering.guards import Facts
from onnxfix.lowering.lowered import HEAVY, Slots
from onnxfix.lowering.records import OutputError

_PARTS = 3
"""Parts that each kind of roundings is divided into at first."""
_LONGEST = 20
"""Nodes of a stretch that are kept at once, unless it is the whole stretch."""
_LEAST = 1e-5
"""What a node costs at least, as a share of the time in float32."""
_MOST_RUNS = 32
"""Runs to find out where the error comes from."""
_ROUNDS = 3
"""Bisections: each looks at one sample, and its result at all."""
_STEPS = (0.5, 0.65, 0.8, 0.9, 0.95, 0.98)
"""Shares of the units that are kept where bisection finds nothing."""
_GIVEN_BACK = 8
"""Parts of the kept units that are tried without: one unit, one, two, four and so on."""
_BROKEN = 1e12
"""The squared error of a run that gives NaN or infinity."""
_CLIP = 16.0
"""Own errors above so many units of rounding count as this many: those of outputs near 0 say little about the model."""

Errors = tuple[OutputError, ...]
T = TypeVar("T")
#: Nodes that are kept together.
Unit = tuple[int, ...]
#: Runs the model with these nodes in the low type, or with what is rounded of them; ``quick``: on the sample with the
#: largest error.
Run = Callable[[frozenset[int] | Mapping[int, Slots], bool], Errors]


class Rounding(NamedTuple):
    """What is rounded: what a node writes, or the constants and inputs of the model that it reads."""

    node: int
    writes: bool


#: Roundings, and the squared error of the model with these alone.
Part = tuple[float, Sequence[Rounding]]


@dataclass(frozen=True)
class Plan:
    """The nodes in the low type, those kept by the search and those kept for fewer Casts, and the errors. ``met``: the
    errors are within the budget. ``best`` is the smallest error that was found with any node in the low type.
    ``effects`` is the share of the squared error by node, where it was looked for; ``runs`` counts the model's runs;
    ``time`` is the estimated time as a share of float32's."""

    low: frozenset[int]
    kept: frozenset[int]
    neighbors: frozenset[int]
    errors: Errors
    met: bool
    best: float
    effects: Mapping[int, float] = field(default_factory=dict)
    runs: int = 0
    time: float = 1.0


def worst(errors: Errors) -> float:
    """The largest error of an output; 0 without outputs."""
    return max((one.error for one in errors), default=0.0)


class Search:
    """Finds the plan for a budget (share of each output's scale). ``guarded`` are nodes that are kept in any case,
    ``seconds`` limits the search for where the error comes from, ``max_time`` the plan's time (share of float32's)."""

    def __init__(
        self,
        facts: Facts,
        graph: Graph,
        run: Run,
        budget: float,
        guarded: frozenset[int],
        seconds: float = 600.0,
        say: Callable[[str], None] = lambda text: None,
        max_time: float | None = None,
    ) -> None:
        self.facts, self.graph, self.budget, self.guarded = facts, graph, budget, guarded
        self.max_time = max_time
        self._run, self._say = run, say
        self.runs = 0
        self.best = math.inf
        self.closest = math.inf, frozenset[int]()  # the smallest error on one sample, and what it keeps
        self.deadline = time.monotonic() + seconds
        self.tried: dict[tuple[frozenset[int], bool], Errors] = {}
        self.costs = Costs(graph, facts.tensors)

    def plan(self) -> Plan:
        """The plan; where the budget cannot be met, the one with the smallest error. With a limit of time, the one with
        the smallest error of those within it, and the fastest where none is."""
        found = self._plan(frozenset(), {})
        if found.low and self.max_time is not None:
            return self._final(self._within(found, self.max_time * self.costs.seconds(frozenset())))
        if found.met or not found.low:
            return self._final(found)
        effects, order = self._effects, [*self._order]
        limit = self.budget
        for _ in range(_ROUNDS):
            quick = self._bisect(order, limit)
            if quick is None:
                self._plan(self.closest[1], effects)  # how far it gets on all samples
                break
            checked = self._plan(quick.kept, effects)  # on all samples
            if checked.met:
                return self._final(checked)
            found = checked if worst(checked.errors) < worst(found.errors) else found
            limit *= min(0.9, self.budget / worst(checked.errors))
        return self._final(self._stepped(order) or found)

    def _within(self, fastest: Plan, seconds: float) -> Plan:
        """The plan with the smallest error of the fastest one and those that keep as many units as the time allows."""
        if self.costs.seconds(fastest.low) > seconds:
            return replace(fastest, met=False)

        def fits(count: int) -> bool:
            low, _ = settled(self.graph, self.guarded | self._nodes(order[:count]))
            return self.costs.seconds(low) <= seconds

        order = [*self._order]
        most = bisect.bisect_left(range(1, len(order)), True, key=lambda count: not fits(count))
        counts = {math.ceil(most * share) for share in (*_STEPS, 1.0)}
        plans = [
            fastest,
            *(self._plan(self._nodes(order[:count]), self._effects) for count in filter(fits, counts)),
        ]
        return min(filter(lambda plan: plan.low, plans), key=lambda plan: worst(plan.errors))

    def _stepped(self, order: list[Unit]) -> Plan | None:
        """A plan on all samples, in larger steps, where bisection on one sample found none: errors do not only fall as
        more nodes are kept."""
        for share in _STEPS:
            found = self._plan(self._nodes(order[: int(len(order) * share)]), self._effects)
            if found.met:
                return found
        return None

    def _bisect(self, order: list[Unit], limit: float) -> Plan | None:
        """The fewest units to keep, in this order, for an error up to ``limit`` on one sample: none is too few, and all
        of them leave nothing in the low type. None where the budget is not met."""
        least: Plan | None = None
        below, above = 0, len(order)
        while above - below > 1:
            middle = (below + above) // 2
            found = self._kept(order[:middle])
            if found.low and worst(found.errors) < self.closest[0]:
                self.closest = worst(found.errors), found.kept
            if worst(found.errors) <= limit:
                above, least = middle, found if found.low else least
            else:
                below = middle
        return None if least is None else self._released(least, order[:above], limit)

    def _released(self, least: Plan, kept: list[Unit], limit: float) -> Plan:
        """The plan without what is kept in vain: parts of the kept units are given back while the budget allows it,
        those that cost most first. Keeping the last of them may have made many of the others unnecessary."""
        by_cost = sorted(kept, key=lambda unit: (-self._order[unit], unit))
        edges = [0, *(2**power for power in range(_GIVEN_BACK - 1)), len(by_cost)]
        for part in (by_cost[a:b] for a, b in itertools.pairwise(edges) if by_cost[a:b]):
            fewer = [unit for unit in kept if unit not in part]
            found = self._kept(fewer)
            is_faster = self.costs.seconds(found.low) <= self.costs.seconds(least.low)
            if worst(found.errors) <= limit and is_faster:
                kept, least = fewer, found
        return least

    def _kept(self, units: list[Unit]) -> Plan:
        """The plan that keeps these units, on one sample."""
        nodes = self._nodes(units)
        self._say(f"keeping {len(nodes)} nodes in float32")
        return self._plan(nodes, self._effects, quick=True)

    def _final(self, found: Plan) -> Plan:
        whole = self.costs.seconds(frozenset())
        time_share = self.costs.seconds(found.low) / whole if whole else 1.0
        return replace(found, best=self.best, runs=self.runs, time=time_share)

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

    def _nodes(self, units: Iterable[Unit]) -> frozenset[int]:
        """The nodes of units that compute; others follow them."""
        return frozenset(filter(self.graph.computes, itertools.chain.from_iterable(units)))

    @cached_property
    def _free(self) -> frozenset[int]:
        """The nodes that may be kept or not."""
        return frozenset(self.graph.able.slots.keys() - self.guarded)

    @cached_property
    def _order(self) -> dict[Unit, float]:
        """What is kept, in this order, and the seconds that each adds to the time then: the next is always what takes
        most of the error for its time. Beside what is kept, a node costs little or nothing: Casts move."""
        low, order = set(self._free), dict[Unit, float]()
        least = _LEAST * (self.costs.seconds(frozenset()) or 1.0)
        units: set[Unit] = {(index,) for index in self._free}
        for stretch in map(tuple, stretches(self.graph)):
            units |= {stretch, *map(tuple, _divided(stretch, math.ceil(len(stretch) / _LONGEST)))}
        holding: dict[int, list[Unit]] = {}
        for unit in units:
            for index in unit:
                holding.setdefault(index, []).append(unit)
        values: dict[Unit, tuple[float, int, Unit]] = {}
        costs: dict[Unit, float] = {}

        def judge(changed: Iterable[Unit]) -> None:
            for unit in changed:
                nodes = self._nodes([unit]) & low
                values.pop(unit, None)
                if nodes:
                    costs[unit] = max(self.costs.added(nodes, low), least * len(nodes))
                    values[unit] = self._gain(nodes, low) / costs[unit], -len(nodes), unit

        judge(units)
        while values:
            unit = max(values, key=values.__getitem__)
            nodes = self._nodes([unit]) & low
            low -= nodes
            order[tuple(sorted(nodes))] = costs[unit]
            around = nodes.union(*map(self.graph.beside, nodes))
            judge({one for index in around for one in holding.get(index, ())})
        return order

    def _gain(self, nodes: frozenset[int], low: set[int]) -> float:
        """The share of the squared error that goes if these nodes of ``low`` are kept too: what they alone round."""
        graph = self.graph
        read = set().union(*(graph.origins[name] for index in nodes for name in graph.sources(index)))
        names = read.union(*map(graph.results, nodes))
        gain = sum(self._roundings.get(Rounding(index, False), 0.0) for index in nodes)
        for name in names:
            around = {graph.producers.get(name, -1), *graph.uses.get(name, ())}
            if around & low <= nodes:
                gain += self._roundings.get(Rounding(graph.producers.get(name, -1), True), 0.0)
        return gain

    @cached_property
    def _effects(self) -> dict[int, float]:
        """The share of the outputs' squared error that is put down to each node that may be kept."""
        found: dict[int, float] = {}
        for (index, _), power in self._roundings.items():
            found[index] = found.get(index, 0.0) + power
        return found

    @cached_property
    def _roundings(self) -> dict[Rounding, float]:
        """The share of the outputs' squared error that each rounding has: of constants that a node reads, or of what it
        writes. A tensor between two nodes is rounded if one of them has the low type."""
        products = {index for index in self._free if self.graph.nodes[index].op_type in HEAVY}
        kinds: tuple[list[Rounding], ...] = [], [], []
        for index in sorted(filter(self.graph.computes, self.graph.able.slots)):
            uses = {use for name in self.graph.results(index) for use in self.graph.uses.get(name, ())}
            if index in self._free:
                kinds[0 if index in products else 2].append(Rounding(index, False))
            if index in self._free or uses & self._free:
                kinds[1 if index in products or uses & products else 2].append(Rounding(index, True))
        parts = [(self._power(part), part) for kind in kinds for part in _divided(kind, _PARTS)]
        while (split := self._splittable(parts)) is not None:
            parts.remove(split)
            parts += [(self._power(half), half) for half in _divided(split[1], 2)]
        return self._shares(parts)

    def _splittable(self, parts: list[Part]) -> Part | None:
        """The part of several roundings with the largest error, while it matters which of them it is."""
        if self.runs >= _MOST_RUNS or time.monotonic() > self.deadline:
            return None
        several = [part for part in parts if len(part[1]) > 1]
        largest = max(several, default=None, key=lambda part: part[0])
        total = sum(power for power, _ in parts)
        return largest if largest is not None and largest[0] * 4 * len(parts) > total else None

    def _power(self, part: Sequence[Rounding]) -> float:
        """The squared error of the model with only these roundings; a large number where it breaks."""
        self.runs += 1
        self._say(f"where the error comes from: run {self.runs}")
        slots: dict[int, Slots] = {}
        for index, writes in part:
            read, written = slots.get(index, Slots((), ()))
            inputs, outputs = self.graph.able.slots[index]
            names = self.graph.nodes[index].input
            own = tuple(slot for slot in inputs if not self._is_computed(names[slot]))
            slots[index] = Slots(read, outputs) if writes else Slots(own, written)
        errors = self._run(slots, True)
        power = max((one.rms for one in errors), default=0.0) ** 2
        return power if math.isfinite(power) else _BROKEN

    def _is_computed(self, name: str) -> bool:
        """Whether a node rounds this tensor, and not only who reads it."""
        made = (self.graph.producers.get(origin, -1) for origin in self.graph.origins.get(name, ()))
        return any(index in self.graph.able.slots and self.graph.computes(index) for index in made)

    def _shares(self, parts: list[Part]) -> dict[Rounding, float]:
        total = sum(power for power, _ in parts) or 1.0
        found = {}
        for power, part in parts:
            own = [self.facts.own[index].error if index in self.facts.own else 0.0 for index, _ in part]
            weights = [min(error, _CLIP * self.facts.unit) ** 2 for error in own]
            if not any(weights):
                weights = [1.0] * len(part)
            for rounding, weight in zip(part, weights, strict=True):
                found[rounding] = power / total * weight / sum(weights)
        return found


def _divided(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """Up to ``count`` runs of about the same length; none is empty."""
    count = min(count, len(items))
    edges = [len(items) * i // count for i in range(count + 1)] if count else [0]
    return [items[a:b] for a, b in itertools.pairwise(edges)]
