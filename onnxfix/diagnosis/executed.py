"""The walk where the other side is an engine, which fuses nodes and cannot be looked into without changing it.

The engine of the whole model is compared by its outputs. Where one is beyond what kernels may cost, bisection
(:mod:`onnxfix.diagnosis.marking`) narrows it down to a few nodes; their own errors are measured by an engine of these
nodes, each apart; and where none of them shows it alone, by one of all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from onnxfix.diagnosis.bench import Bench, Clock
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.engines import Engines
from onnxfix.diagnosis.evidence import Collector
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Lockstep, Row, Side, Walk, alone
from onnxfix.diagnosis.marking import Bisection, Window
from onnxfix.diagnosis.records import Marking
from onnxfix.diagnosis.regions import Region
from onnxfix.diagnosis.store import Held
from onnxfix.verification.compare.tolerance import TOLERANCES, tolerance_for

KERNELS = 2e-4
"""Share of a float32 tensor's scale that other kernels may cost over a whole model (see verification.rungs.judge)."""
_HALVES = ("float16", "bfloat16")


def is_off(held: Held, far: Distance, unit: float) -> bool:
    """Whether a tensor of an engine is beyond what kernels may cost. ``unit`` is the share of a value that one rounding
    of the engine amounts to."""
    if far.special or far.shape:
        return True
    if held.dtype not in TOLERANCES:
        return far.largest > 0
    tolerance = tolerance_for("float16" if unit > 1e-5 and held.dtype not in _HALVES else held.dtype)
    share = tolerance.rtol + tolerance.atol if held.dtype in _HALVES or unit > 1e-5 else KERNELS
    return far.largest > share * far.scale


class Execution:
    """Walks through samples with engines. ``markings`` are the builds with inner tensors as outputs, over all."""

    def __init__(
        self,
        bench: Bench,
        truth: Graph,
        side: Side,
        engines: Engines,
        clock: Clock,
        say: Callable[[str], None],
        judged: Callable[[Row], bool],
    ) -> None:
        self.bench, self.truth, self.side, self.engines = bench, truth, side, engines
        self.clock, self.say, self.judged = clock, say, judged
        self.markings: list[Marking] = []
        self.notes: list[str] = []
        self.walk = Walk()

    def run(self, feed: Mapping[str, Held], their_feed: Mapping[str, Held]) -> Walk:
        """One sample; ``their_feed`` are the inputs by the other side's names."""
        collector = Collector(self.bench, self.truth, self.side, feed)
        self.say("running the truth")
        walk = self.walk = alone(self.bench, self.truth, feed, self.clock)
        if walk.failed or not walk.complete:
            return walk
        names = list(walk.truth)
        self.engines.feed = dict(their_feed)
        kinds = {name: walk.kinds[ours].dtype for name, ours in self.side.pairs.items() if ours in walk.kinds}
        self.engines.types = {**kinds, **self.engines.types}
        self.say("building the engine")
        plain = self.engines.whole(())
        if plain.error:
            walk.stopped = plain.error
            return walk
        walk.other = {self.side.pairs.get(name, name): held for name, held in plain.values.items()}
        walk.other = {name: walk.other[name] for name in names if name in walk.other}
        off = {name: self._far(walk, name) for name in walk.other}
        wrong = [name for name, far in off.items() if is_off(walk.truth[name], far, self.side.unit)]
        if wrong:
            worst = max(wrong, key=lambda name: off[name].relative)
            self._narrow(walk, worst, feed, their_feed, collector)
        return walk

    def _far(self, walk: Walk, name: str) -> Distance:
        return distance(walk.truth[name].load(), walk.other[name].load())

    def _narrow(
        self,
        walk: Walk,
        wrong: str,
        feed: Mapping[str, Held],
        their_feed: Mapping[str, Held],
        collector: Collector,
    ) -> None:
        pairs = self.side.pairs
        theirs = {ours: name for name, ours in pairs.items()}

        def values(names: Sequence[str]) -> Mapping[str, Held]:
            found = collector.values([pairs[name] for name in names if name in pairs])
            return {name: found[pairs[name]] for name in names if pairs.get(name) in found}

        search = Bisection(
            self.side.graph,
            self.engines,
            {theirs[name]: held for name, held in walk.other.items()},
            {theirs[name]: held for name, held in walk.truth.items() if name in theirs},
            values,
            lambda name, held, far: is_off(held, far, self.side.unit),
            {name: walk.kinds[ours] for name, ours in pairs.items() if ours in walk.kinds},
            self.say,
        )
        window = search.run([theirs[wrong]], lambda: self.clock.over)
        self.markings += window.markings
        if window.reason:
            self.notes.append(f"the search for the first difference ended early: {window.reason}")
        self.say(f"measuring {len(window.nodes)} nodes apart")
        self._own(walk, window, feed, their_feed, collector)
        for name, far in ((pairs[one], far) for one, far in window.seen.items()):
            held = walk.rows.get(name)
            number = self.truth.producer[name]
            walk.rows[name] = replace(held, whole=far) if held is not None else Row(name, number, whole=far)

    def _own(
        self,
        walk: Walk,
        window: Window,
        feed: Mapping[str, Held],
        their_feed: Mapping[str, Held],
        collector: Collector,
    ) -> None:
        """The own errors of the window's nodes, each alone, then all together where none shows it."""
        lockstep = Lockstep(self.bench, self.truth, self.side)
        members = set(window.nodes)
        here = [one for one in lockstep.regions if members.issuperset(one.nodes)]
        names = dict.fromkeys(n for one in here for n in (*one.inputs.values(), *one.targets.values()))
        known = collector.values([name for name in names if name not in feed])
        here = [
            one
            for one in here
            if all(n in known or n in feed for n in (*one.inputs.values(), *one.targets.values()))
        ]
        walk.rows.update(lockstep.measure(here, {**feed, **known}, their_feed).rows)
        walk.refused.update(lockstep.walk.refused)
        if any(self.judged(row) for row in walk.rows.values()) or len(members) < 2:
            return
        together = self._together(window.nodes)
        wanted = [*together.inputs.values(), *together.targets.values()]
        given = {**feed, **collector.values([name for name in wanted if name not in feed])}
        if not together.targets or any(name not in given for name in wanted):
            return
        found = Lockstep(self.bench, self.truth, self.side).measure([together], given, their_feed).rows
        walk.rows.update({name: row for name, row in found.items() if self.judged(row)})
        self.notes.append("no node of those that are left differs alone: they were measured together")

    def _together(self, numbers: Sequence[int]) -> Region:
        """All nodes of the window as one region."""
        graph, members, pairs = self.side.graph, set(numbers), self.side.pairs
        made = {name for number in numbers for name in graph.nodes[number].output if name}
        read = {name for number in numbers for name in graph.reads[number]} - made
        outside = {
            name for number, names in enumerate(graph.reads) if number not in members for name in names
        }
        wanted = [name for name in made if name in outside or name in graph.outputs]
        targets = {name: pairs[name] for name in wanted if name in pairs}
        needed = [name for name in read if not graph.is_constant(name)]
        if any(name not in pairs for name in needed):
            targets = {}
        inputs = {name: pairs[name] for name in needed if name in pairs}
        at = max((self.truth.producer.get(name, -1) for name in targets.values()), default=-1)
        return Region(tuple(numbers), targets, inputs, at)
