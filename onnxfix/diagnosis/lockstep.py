"""The walk: the truth and the other side, chunk by chunk in the order of computation, on one sample.

For each chunk of the truth's nodes: the truth's values; those of the other side in its own run (propagated error); what
the regions of the other side compute from the truth's values (own error), all in one session; and how far the truth
itself moves with its inputs (noise), where something differs. Values are dropped as soon as nothing needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx import ModelProto

from onnxfix.causes import Cause
from onnxfix.diagnosis.bench import Bench, Clock
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.regions import Region, levels, regions
from onnxfix.diagnosis.store import Held

_FIRST, _MOST = 24, 400  # nodes of a chunk
_BYTES = 96 << 20  # of outputs of a chunk
_RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
)


@dataclass(frozen=True)
class Row:
    """What one tensor of the truth shows: ``own`` distance of the region that computes it, ``noise`` (absolute) that
    rounding explains, distance ``whole`` in the other side's own run, and the largest relative distance ``before``
    among the region's inputs there. None: not measured."""

    name: str
    number: int
    own: Distance | None = None
    noise: float = 0.0
    whole: Distance | None = None
    before: float | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    region: Region | None = None


Runner = Callable[[ModelProto, Mapping[str, Held]], Reply]
"""Runs a part of a model on stored values."""


@dataclass(frozen=True)
class Side:
    """The other side: its graph, its tensors by the truth's names (``pairs``: its name -> the truth's), the ``backend``
    that runs it (or ``runner``, where it is none of ONNX Runtime's), and the share ``unit`` of a value that one
    rounding of it amounts to."""

    graph: Graph
    pairs: Mapping[str, str]
    backend: str = "ort-cpu"
    unit: float = 1e-7
    runner: Runner | None = None

    def run(self, bench: Bench, part: ModelProto, feed: Mapping[str, Held]) -> Reply:
        """Run a part of its graph."""
        if self.runner is not None:
            return self.runner(part, feed)
        return bench.run(part, feed, of=self.graph, backend=self.backend)


@dataclass
class Walk:
    """The result of a walk. ``outputs`` are the truth's and the other side's values of the model's outputs.
    ``failed`` is why the truth stopped, with its ``cause``; ``stopped`` why the other side's own run did, at ``at``."""

    rows: dict[str, Row] = field(default_factory=dict)
    truth: dict[str, Held] = field(default_factory=dict)
    other: dict[str, Held] = field(default_factory=dict)
    failed: str = ""
    cause: Cause = ""
    stopped: str = ""
    at: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    complete: bool = True


class Lockstep:
    """Walks through one sample; ``keep`` are the truth's tensors whose values are kept beyond that."""

    def __init__(self, bench: Bench, truth: Graph, side: Side, *, clock: Clock | None = None) -> None:
        self.bench, self.truth, self.side, self.clock = bench, truth, side, clock or Clock(None)
        self.regions = regions(truth, side.graph, side.pairs)
        self.levels = levels(side.graph, side.pairs, truth)
        self.ours = dict(side.pairs)
        self._needed = dict(truth.last_use)
        for region in self.regions:
            for name in (*region.inputs.values(), *region.targets.values()):
                self._needed[name] = max(self._needed.get(name, -1), region.at)
        self._used: dict[str, int] = {}
        for number, names in enumerate(side.graph.reads):
            self._used.update({name: max(self._used.get(name, -1), self.levels[number]) for name in names})
        self.walk = Walk()
        self.values: dict[str, Held] = {}
        self.theirs: dict[str, Held] = {}
        self.whole: dict[str, Distance] = {}

    def run(
        self,
        feed: Mapping[str, Held],
        their_feed: Mapping[str, Held],
        say: Callable[[int, int], None] | None = None,
    ) -> Walk:
        """Walk through all nodes. ``their_feed`` are the inputs of the other side by its own names."""
        self.values, self.theirs = dict(feed), dict(their_feed)
        start, count, total = 0, _FIRST, len(self.truth.nodes)
        while start < total:
            if self.clock.over:
                self.walk.complete = False
                break
            if say is not None:
                say(start, total)
            end = min(start + count, total)
            size = self._chunk(start, end)
            if self.walk.failed:
                break
            start = end
            count = max(8, min(_MOST, count * 4, int(count * _BYTES / max(size, 1))))
        self.walk.truth = {name: self.values[name] for name in self.truth.outputs if name in self.values}
        self.walk.other = {
            self.ours.get(name, name): self.theirs[name]
            for name in self.side.graph.outputs
            if name in self.theirs
        }
        return self.walk

    def measure(self, here: Sequence[Region], feed: Mapping[str, Held], values: Mapping[str, Held]) -> Walk:
        """Only the own errors of these regions; ``values`` are the truth's that they need."""
        self.values, self.theirs = {**feed, **values}, dict(feed)
        self._own(here)
        self._noise(here)
        return self.walk

    def _chunk(self, start: int, end: int) -> int:
        """One chunk; returns the bytes of the truth's values in it."""
        numbers = [n for n in range(start, end) if self.truth.nodes[n].op_type != "Constant"]
        made = [name for n in numbers for name in self.truth.nodes[n].output if self._wanted(name)]
        reply = self._truth(numbers, made)
        if reply.error:
            self.walk.failed, self.walk.cause = reply.error, reply.cause
            return 0
        self.values.update(reply.values)
        if not self.walk.stopped:
            self._theirs(start, end)
        here = [one for one in self.regions if start <= one.at < end]
        self._own(here)
        self._noise(here)
        self._release(end)
        return sum(held.nbytes for held in reply.values.values())

    def _wanted(self, name: str) -> bool:
        return bool(name) and (name in self._needed or name in self.truth.outputs)

    def _truth(self, numbers: Sequence[int], made: Sequence[str]) -> Reply:
        if not made:
            return Reply()
        part, inputs = self.truth.part(numbers, made, self.values)
        lacking = next((name for name in inputs if name not in self.values), None)
        if lacking is not None:
            return Reply(error=f"the value of {lacking} is not known", cause="fault")
        return self.bench.run(part, {name: self.values[name] for name in inputs}, of=self.truth)

    # ---------------------------------------------------------------------------------------- the other side

    def _theirs(self, start: int, end: int) -> None:
        """The other side's own run of what belongs to this chunk, and how far it is from the truth."""
        graph = self.side.graph
        first = start == 0
        numbers = [
            number
            for number, level in enumerate(self.levels)
            if (start <= level < end or (first and level < 0)) and graph.nodes[number].op_type != "Constant"
        ]
        made = [
            name
            for number in numbers
            for name in graph.nodes[number].output
            if name and (name in self.ours or name in graph.outputs or self._used.get(name, -1) >= end)
        ]
        if not made:
            return
        part, inputs = graph.part(numbers, made, self.theirs)
        lacking = next((name for name in inputs if name not in self.theirs), None)
        if lacking is not None:
            self.walk.stopped = f"the value of {lacking} is not known"
            return
        feed = {name: self.theirs[name] for name in inputs}
        reply = self.side.run(self.bench, part, feed)
        if reply.error:
            self.walk.stopped = reply.error
            return
        self.theirs.update(reply.values)
        for name, held in reply.values.items():
            ours = self.ours.get(name, "")
            if ours in self.values:
                self.whole[ours] = distance(self.values[ours].load(), aligned(held, self.values[ours]).load())

    # -------------------------------------------------------------------------------------------- own errors

    def _own(self, here: Sequence[Region]) -> None:
        for region, found in zip(here, self._apart(here), strict=True):
            before = [self.whole[name].relative for name in region.inputs.values() if name in self.whole]
            for theirs, ours in region.targets.items():
                number = self.truth.producer.get(ours, -1)
                if number < 0 or self.truth.nodes[number].op_type in _RANDOM:
                    continue
                truth, held = self.values[ours], found.get(theirs)
                row = Row(
                    ours,
                    number,
                    whole=self.whole.get(ours),
                    dtype=truth.dtype,
                    shape=truth.shape,
                    region=region,
                )
                if held is not None:
                    row = replace(row, own=distance(truth.load(), aligned(held, truth).load()))
                self.walk.rows[ours] = replace(row, before=max(before, default=0.0) if self.whole else None)
                if held is not None:
                    held.drop()

    def _apart(self, here: Sequence[Region]) -> list[dict[str, Held]]:
        """What regions compute from the truth's values; halved where they do not run together."""
        if not here:
            return []
        graph = self.side.graph
        known = self._known(here)
        part, inputs, names = graph.apart([(one.nodes, list(one.targets)) for one in here], known)
        lacking = [name for name in inputs if name not in known]
        reply = Reply(error=f"the value of {lacking[0]} is not known") if lacking else Reply()
        if not lacking:
            feed = {name: known[name] for name in inputs}
            reply = self.side.run(self.bench, part, feed)
        if not reply.error:
            return [{name: reply.values[new] for name, new in one.items()} for one in names]
        if len(here) > 1:
            half = len(here) // 2
            return [*self._apart(here[:half]), *self._apart(here[half:])]
        self.walk.refused.update(dict.fromkeys(here[0].targets.values(), reply.error))
        return [{}]

    def _known(self, here: Sequence[Region]) -> dict[str, Held]:
        """The truth's values under the other side's names, in its types where these are known."""
        found = {name: held for name, held in self.theirs.items() if name in self.side.graph.inputs}
        for region in here:
            for theirs, ours in region.inputs.items():
                held = self.values[ours]
                seen = self.theirs.get(theirs)
                found[theirs] = aligned(held, seen) if seen is not None else held
        return found

    # ------------------------------------------------------------------------------------------------ noise

    def _noise(self, here: Sequence[Region]) -> None:
        """How far the truth moves where the other side differs: the same nodes of the truth, on moved inputs."""
        off = [
            row
            for region in here
            for row in (self.walk.rows.get(ours) for ours in region.targets.values())
            if row is not None and row.own is not None and row.own.relative > 0
        ]
        numbers = list(dict.fromkeys(row.number for row in off))
        for row, noise in zip(off, self._moved(off, numbers), strict=True):
            self.walk.rows[row.name] = replace(row, noise=noise)

    def _moved(self, off: Sequence[Row], numbers: Sequence[int]) -> list[float]:
        if not off:
            return []
        outputs = {n: [row.name for row in off if row.number == n] for n in numbers}
        part, inputs, names = self.truth.apart([([n], outputs[n]) for n in numbers], self.values)
        feed = {name: self.values[name] for name in inputs}
        where = {name: new for one in names for name, new in one.items()}
        far = [0.0] * len(off)
        for seed in range(2):
            reply = self.bench.run(part, feed, of=self.truth, moved=self.side.unit, seed=seed)
            if reply.error:
                return far if len(off) == 1 else self._split(off)
            for place, row in enumerate(off):
                moved = reply.values[where[row.name]]
                far[place] = max(far[place], distance(self.values[row.name].load(), moved.load()).largest)
            for held in reply.values.values():
                held.drop()
        return far

    def _split(self, off: Sequence[Row]) -> list[float]:
        half = len(off) // 2
        parts = (off[:half], off[half:])
        return [
            far for part in parts for far in self._moved(part, list(dict.fromkeys(r.number for r in part)))
        ]

    def _release(self, end: int) -> None:
        """Drop what nothing reads any more."""
        for name in [n for n in self.values if self._needed.get(n, -1) < end and n not in self.truth.outputs]:
            if name not in self.truth.inputs:
                self.values.pop(name).drop()
        graph = self.side.graph
        for name in [n for n in self.theirs if self._used.get(n, -1) < end and n not in graph.outputs]:
            ours = self.ours.get(name, "")
            if name not in graph.inputs and self._needed.get(ours, -1) < end:
                self.theirs.pop(name).drop()


def aligned(held: Held, like: Held) -> Held:
    """A value in the element type of another, for sides that name types differently (int32 for int64)."""
    if not held.is_tensor or not like.is_tensor or held.dtype == like.dtype:
        return held
    import numpy as np  # lazy: start-up

    with np.errstate(all="ignore"):
        value = held.load().astype(like.array_dtype)
    return Held(like.dtype, held.shape, value=value)


def beginnings(rows: Mapping[str, Row], truth: Graph, beyond: Collection[str]) -> list[str]:
    """The tensors in ``beyond`` none of whose ancestors is in it, in the order of computation."""
    off = set[str]()
    found = []
    for node in truth.nodes:
        number = truth.producer.get(next((name for name in node.output if name), ""), -1)
        if number < 0:
            continue
        upstream = any(name in off for name in truth.reads[number])
        for name in node.output:
            if name in beyond and not upstream:
                found.append(name)
            if upstream or name in beyond:
                off.add(name)
    return found
