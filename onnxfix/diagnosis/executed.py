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
from onnxfix.diagnosis.lockstep import Lockstep, Row, Side, Walk
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

    def run(self, feed: Mapping[str, Held]) -> Walk:
        """One sample."""
        walk = Walk()
        collector = Collector(self.bench, self.truth, self.side, feed)
        self.say("running the truth")
        names = [name for name in self.truth.outputs if name in self.truth.producer]
        walk.truth = collector.values(names)
        missing = [name for name in names if name not in walk.truth]
        if missing:
            walk.failed, walk.cause = collector.error or "it gave no outputs", "refused"
            return walk
        self.engines.feed = dict(feed)
        self.say("building the engine")
        plain = self.engines.whole(())
        if plain.error:
            walk.stopped = plain.error
            return walk
        walk.other = {name: plain.values[name] for name in names if name in plain.values}
        off = {name: self._far(walk, name) for name in walk.other}
        wrong = [name for name, far in off.items() if is_off(walk.truth[name], far, self.side.unit)]
        if wrong:
            worst = max(wrong, key=lambda name: off[name].relative)
            self._narrow(walk, worst, feed, collector)
        return walk

    def _far(self, walk: Walk, name: str) -> Distance:
        return distance(walk.truth[name].load(), walk.other[name].load())

    def _narrow(self, walk: Walk, wrong: str, feed: Mapping[str, Held], collector: Collector) -> None:
        def values(names: Sequence[str]) -> Mapping[str, Held]:
            found = collector.values(names)
            self.engines.types.update({name: held.dtype for name, held in found.items()})
            return found

        search = Bisection(
            self.truth,
            self.engines,
            walk.other,
            walk.truth,
            values,
            lambda name, held, far: is_off(held, far, self.side.unit),
            self.say,
        )
        window = search.run([wrong], lambda: self.clock.over)
        self.markings += window.markings
        if window.reason:
            self.notes.append(f"the search for the first difference ended early: {window.reason}")
        self.say(f"measuring {len(window.nodes)} nodes apart")
        self._own(walk, window, feed, values)
        for name, far in window.seen.items():
            held = walk.rows.get(name)
            number = self.truth.producer[name]
            walk.rows[name] = replace(held, whole=far) if held is not None else Row(name, number, whole=far)

    def _own(
        self,
        walk: Walk,
        window: Window,
        feed: Mapping[str, Held],
        values: Callable[[Sequence[str]], Mapping[str, Held]],
    ) -> None:
        """The own errors of the window's nodes, each alone, then all together where none shows it."""
        lockstep = Lockstep(self.bench, self.truth, self.side)
        members = set(window.nodes)
        here = [one for one in lockstep.regions if members.issuperset(one.nodes)]
        names = dict.fromkeys(n for one in here for n in (*one.inputs.values(), *one.targets.values()))
        known = values([name for name in names if name not in feed])
        here = [
            one
            for one in here
            if all(n in known or n in feed for n in (*one.inputs.values(), *one.targets.values()))
        ]
        walk.rows.update(lockstep.measure(here, feed, known).rows)
        walk.refused.update(lockstep.walk.refused)
        if any(self.judged(row) for row in walk.rows.values()) or len(members) < 2:
            return
        together = self._together(window.nodes)
        given = values([name for name in (*together.inputs, *together.targets) if name not in feed])
        found = Lockstep(self.bench, self.truth, self.side).measure([together], feed, given).rows
        walk.rows.update({name: row for name, row in found.items() if self.judged(row)})
        self.notes.append("no node of those that are left differs alone: they were measured together")

    def _together(self, numbers: Sequence[int]) -> Region:
        """All nodes of the window as one region."""
        graph, members = self.truth, set(numbers)
        made = {name for number in numbers for name in graph.nodes[number].output if name}
        read = {name for number in numbers for name in graph.reads[number]} - made
        outside = {
            name for number, names in enumerate(graph.reads) if number not in members for name in names
        }
        targets = {name: name for name in made if name in outside or name in graph.outputs}
        inputs = {name: name for name in read if not graph.is_constant(name)}
        return Region(tuple(numbers), targets, inputs, max(numbers))
