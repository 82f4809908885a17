"""The walk where the other side is an engine, which fuses nodes and cannot be looked into without changing it.

The engine of the whole model is compared by its outputs. Where one is beyond what kernels may cost, bisection
(:mod:`onnxfix.diagnosis.marking`) narrows it down to a few nodes; their own errors are measured by an engine of these
nodes, each apart; and where none of them shows it alone, by one of all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from onnxfix.diagnosis.bench import Bench, Clock
from onnxfix.diagnosis.beyond import FLOOR
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.engines import Engines
from onnxfix.diagnosis.evidence import Collector
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Lockstep, Row, Side, Walk, alone
from onnxfix.diagnosis.marking import Bisection, Window
from onnxfix.diagnosis.records import Marking
from onnxfix.diagnosis.regions import Region
from onnxfix.diagnosis.rows import fitting
from onnxfix.diagnosis.store import Held
from onnxfix.trt.engine import Ran
from onnxfix.verification.compare.compare import different
from onnxfix.verification.compare.tolerance import TOLERANCES, tolerance_for
from onnxfix.verification.compare.twin import half_type
from onnxfix.verification.rungs.judge import ALIKE, Terms
from onnxfix.verification.rungs.noise import Noise
from onnxfix.verification.rungs.trials import Trial

GROWN = 8
"""Nodes before one that builds no engine alone, at most, with which it is measured instead."""
_HALVES = ("bfloat16", "float16")


def is_off(held: Held, far: Distance, coarse: str = "") -> bool:
    """Whether a tensor of an engine is beyond what kernels may cost. ``coarse`` is a type of fewer bits that values
    go through on their way."""
    if far.special or far.shape:
        return True
    if held.dtype not in TOLERANCES:
        return far.largest > 0
    tolerance = tolerance_for(held.dtype, coarse)
    share = tolerance.rtol + tolerance.atol if coarse or held.dtype in _HALVES else ALIKE
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
        self.half = half_type(truth.proto)
        # TF32 keeps as many digits as half precision.
        self.coarse = self.half or ("float16" if side.unit > 1e-5 else "")

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
        walk.off = tuple(self._wrong(walk, feed))
        if walk.off:
            far = {name: distance(walk.truth[name].load(), walk.other[name].load()) for name in walk.off}
            self._narrow(walk, max(far, key=lambda name: far[name].relative), feed, their_feed, collector)
        return walk

    def _wrong(self, walk: Walk, feed: Mapping[str, Held]) -> list[str]:
        """The outputs that the proof calls wrong: the rung trt-gpu judges them in the same way on these inputs."""
        ours = {name: walk.truth[name].load() for name in walk.other}
        theirs = {name: fitting(held, walk.truth[name]) for name, held in walk.other.items()}
        terms = Terms([*theirs], coarse=self.coarse)
        trial = Trial("", None, {name: held.load() for name, held in feed.items()}, Ran(ours))
        trials, step = [trial] if self.truth.path is not None else [], self.bench.timeout
        path = self.truth.path or self.bench.scratch
        noise = Noise(self.bench.worker, path, trials, "ort-cpu", step=step, half=bool(self.half))
        found = noise.judge(terms, trial, None, Ran(theirs))
        wrong = [one for result in found.results for one in different(result.metrics)]
        return [] if found.finding == "agree" else list(dict.fromkeys(one.output for one in wrong))

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
            lambda name, held, far: is_off(held, far, self.coarse),
            {name: walk.kinds[ours] for name, ours in pairs.items() if ours in walk.kinds},
            self.say,
        )
        window = search.run([theirs[wrong]], lambda: self.clock.over)
        self.markings += window.markings
        walk.left = window.nodes
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
        members, producer = set(window.nodes), self.side.graph.producer
        here = [one for one in lockstep.regions if any(producer[name] in members for name in one.targets)]
        found = self._measured(here, feed, their_feed, collector)
        walk.rows.update(found.rows)
        for one in [one for one in here if self._is_refused(one, found)]:
            grown = self._grown(one, lockstep.regions)
            while grown is not None and len(grown.nodes) <= len(one.nodes) + GROWN:
                more = self._measured([grown], feed, their_feed, collector)
                if not more.refused:
                    walk.rows.update((name, row) for name, row in more.rows.items() if row.own is not None)
                    for name in one.targets.values():
                        found.refused.pop(name, None)
                    break
                grown = self._grown(grown, lockstep.regions)
        walk.refused.update(found.refused)
        if any(self.judged(row) for row in walk.rows.values()) or len(members) < 2:
            return
        together = self._together(window.nodes)
        if not together.targets:
            return
        rows = self._measured([together], feed, their_feed, collector).rows
        walk.rows.update({name: row for name, row in rows.items() if self.judged(row)})
        self.notes.append("no node of those that are left differs alone: they were measured together")

    def _measured(
        self,
        here: Sequence[Region],
        feed: Mapping[str, Held],
        their_feed: Mapping[str, Held],
        collector: Collector,
    ) -> Walk:
        """The own errors of those of these regions whose values are known."""
        names = [(*one.inputs.values(), *one.targets.values()) for one in here]
        wanted = dict.fromkeys(name for some in names for name in some if name not in feed)
        given = {**feed, **collector.values(list(wanted))}
        known = [all(name in given for name in some) for some in names]
        ready = [one for one, whole in zip(here, known, strict=True) if whole]
        for one in ready:  # outputs that nothing reads are not known from the truth's own walk
            self.engines.types.update((name, given[ours].dtype) for name, ours in one.targets.items())
        found = Lockstep(self.bench, self.truth, self.side).measure(ready, given, their_feed)
        for name, row in found.rows.items() if self.half else ():
            if row.region is not None and len(row.region.nodes) > 1:
                found.rows[name] = replace(row, kernels=max(row.kernels, FLOOR[self.half]))
        return found

    @staticmethod
    def _is_refused(region: Region, found: Walk) -> bool:
        return any(name in found.refused for name in region.targets.values())

    def _grown(self, region: Region, regions: Sequence[Region]) -> Region | None:
        """The region with the nodes that compute its inputs: TensorRT may take what they compute only from them. None
        where there are none."""
        by_target = {name: one for one in regions for name in one.targets}
        before = [by_target[name] for name in region.inputs if name in by_target]
        nodes = sorted({*region.nodes, *(number for one in before for number in one.nodes)})
        made = {name for number in nodes for name in self.side.graph.nodes[number].output}
        inputs = {
            name: ours for one in (region, *before) for name, ours in one.inputs.items() if name not in made
        }
        if not before:
            return None
        return Region(tuple(nodes), region.targets, inputs, region.at)

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
