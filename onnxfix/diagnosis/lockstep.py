"""The walk: the truth and the other side, chunk by chunk in the order of computation, on one sample.

For each chunk of the truth's nodes: the truth's values; those of the other side in its own run (propagated error); what
the regions of the other side compute from the truth's values (own error), all in one session; and how far the truth
itself moves with its inputs (noise), where something differs. Values are dropped as soon as nothing needs them.

The values stay in the sandbox, and what is measured of them comes back after each chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from onnx import ModelProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Values, in_type, kind_of
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.graph import Graph, Region, declared_types, levels, regions
from onnxfix.diagnosis.rows import Noise, Row, Side, Walk, aligned, own_size
from onnxfix.errors import Fault

_FIRST, _MOST = 2, 400  # nodes of a chunk
_BYTES = 96 << 20  # of outputs of a chunk

Step = Callable[[int, int], int]
"""Walks through one chunk, from one node to before another; returns the bytes of the truth's values in it."""


@dataclass
class Watch:
    """Sees the values of a walk. A watch is a dataclass that holds what it found: it goes to the sandbox and back.
    ``compares``: only regions compute, from the truth's values, and ``compare`` gets both values of each tensor."""

    compares: ClassVar[bool] = False

    def look(self, values: Values) -> None:
        """See the truth's values of a chunk, before they are dropped."""

    def compare(self, name: str, number: int, truth: Any, other: Any) -> None:
        """See both values of a tensor, which the truth's node ``number`` computes."""


class Lockstep:
    """Walks through one sample."""

    def __init__(self, bench: Bench, truth: Graph, side: Side, watch: Watch | None = None) -> None:
        self.bench, self.truth, self.side = bench, truth, side
        self._run, self.watch = partial(side.run, bench), watch or Watch()
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
            for name in side.graph.nodes[number].output:
                if name in self.ours:
                    self._needed[self.ours[name]] = max(
                        self._needed.get(self.ours[name], -1), self.levels[number]
                    )
        self._uncut = frozenset(self._find_uncut())
        self._types = declared_types(side.graph)
        self.walk = Walk(types=self._types)
        self.values: dict[str, Any] = {}
        self.theirs: dict[str, Any] = {}
        self.whole: dict[str, Distance] = {}
        self._computed: dict[str, Any] = {}  # by the regions of the chunk, by the truth's names

    def __reduce__(self) -> tuple[Any, ...]:
        return Lockstep, (self.bench.inside(), self.truth, self.side, self.watch)

    def run(self, feed: Values, their_feed: Values, say: Callable[[int, int], None] | None = None) -> Walk:
        """Walk through all nodes. ``their_feed`` are the inputs of the other side by its own names.

        Where the sandbox dies of a chunk, the walk begins again with a call for each run, which tells what it died of.
        """
        if self.side.runner is None:
            with contextlib.suppress(Fault):
                self.bench.call(
                    f"{__name__}:begin", lockstep=self, feed=dict(feed), their_feed=dict(their_feed)
                )
                self._steps(lambda start, end: self._ask("step", start=start, end=end), say)
                walk = self.walk
                self._ask("end")
                walk.truth, walk.other, self.walk = self.walk.truth, self.walk.other, walk
                return walk
            if self.bench.clock.over:
                self.walk.complete = False
                return self.walk
            self.walk = Walk(types=self._types)
        self.values, self.theirs = dict(feed), dict(their_feed)
        self._steps(self._chunk, say)
        self._outputs()
        return self.walk

    def _ask(self, function: str, **arguments: int) -> int:
        """Have the sandbox do a step.

        Raises:
            Fault: it failed, or the child died.
        """
        size, self.walk, self.watch, runs, evaluated = self.bench.call(f"{__name__}:{function}", **arguments)
        self.bench.runs += runs
        self.bench.evaluated |= evaluated
        if self.walk.cause == "memory":
            self.walk.failed = self.bench.worker.starved(self.walk.failed)
        return int(size)

    def _steps(self, step: Step, say: Callable[[int, int], None] | None) -> None:
        """Walk from chunk to chunk, as far as the truth runs."""
        start, count, total = 0, _FIRST, len(self.truth.nodes)
        while start < total:
            if self.bench.clock.over:
                self.walk.complete = False
                break
            if say is not None:
                say(start, total)
            end = start + count
            while end < total and end in self._uncut:
                end += 1
            end = min(end, total)
            size = step(start, end)
            if self.walk.failed and self.bench.clock.over:
                self.walk.failed, self.walk.cause, self.walk.complete = "", "", False
                break
            if (self.walk.cause == "memory" or self.walk.no_kernel) and count > 1 and end - start > 1:
                # Less at a time may fit, or be few enough nodes for the reference evaluator.
                self.walk.failed, self.walk.cause, self.walk.no_kernel = "", "", False
                count = min(count, end - start) // 2
                continue
            if self.walk.failed:
                break
            start = end
            count = max(1, min(_MOST, count * 4, int(count * _BYTES / max(size, 1))))

    def _outputs(self) -> None:
        """The model's outputs on both sides, those that are constant included."""
        for graph, values in ((self.truth, self.values), (self.side.graph, self.theirs)):
            constant = [name for name in graph.outputs if name not in values and graph.is_constant(name)]
            values.update(self.bench.run_part(graph, (), constant, {}).values)
        self.walk.truth = {name: self.values[name] for name in self.truth.outputs if name in self.values}
        self.walk.other = {
            self.ours.get(name, name): self.theirs[name]
            for name in self.side.graph.outputs
            if name in self.theirs
        }

    def _find_uncut(self) -> Iterator[int]:
        """Where the walk must not be cut: values that are no tensors cross there, which have no type to declare."""
        for name in self.truth.untensored:
            if name in self.truth.producer:
                yield from range(self.truth.producer[name] + 1, self._needed.get(name, -1) + 1)
        graph = self.side.graph
        for name in graph.untensored:
            if name in graph.producer:
                yield from range(self.levels[graph.producer[name]] + 1, self._used.get(name, -1) + 1)

    def measure(self, here: Sequence[Region], values: Values, their_feed: Values) -> Walk:
        """Only the own errors of these regions. ``values`` are the truth's that they need, ``their_feed`` the inputs of
        the other side."""
        self.values, self.theirs = dict(values), dict(their_feed)
        self._own(here)
        self._noise(here)
        return self.walk

    def _chunk(self, start: int, end: int) -> int:
        """One chunk; returns the bytes of the truth's values in it."""
        self.walk.failed, self.walk.cause, self.walk.no_kernel = "", "", False
        numbers = [n for n in range(start, end) if self.truth.nodes[n].op_type != "Constant"]
        made = [
            name
            for number in numbers
            for name in self.truth.nodes[number].output
            if name and (name in self._needed or name in self.truth.outputs)
        ]
        reply = self.bench.run_part(self.truth, numbers, made, self.values)
        if reply.error:
            self.walk.failed, self.walk.cause, self.walk.no_kernel = reply.error, reply.cause, reply.no_kernel
            return 0
        self.values.update(reply.values)
        self.watch.look(reply.values)
        self.walk.drawn.update(
            (name, reply.values[name])
            for number in self.truth.random.intersection(numbers)
            for name in self.truth.nodes[number].output
            if name in reply.values
        )
        self.walk.kinds.update((name, kind_of(value)) for name, value in reply.values.items())
        if not self.walk.stopped and not self.watch.compares:
            self._theirs(start, end)
        here = [one for one in self.regions if start <= one.at < end]
        self._own(here)
        self._noise(here)
        self._release(end)
        return sum(getattr(value, "nbytes", 0) for value in reply.values.values())

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
        self._advance([number for number in numbers if not self._drawn(number)], end)

    def _drawn(self, number: int) -> bool:
        """Whether the node draws numbers: if the truth's draw is known, the other side goes on with that."""
        graph = self.side.graph
        names = [name for name in graph.nodes[number].output if name]
        if number not in graph.random or any(self.ours.get(name) not in self.values for name in names):
            return False
        self.theirs.update((name, self.values[self.ours[name]]) for name in names)
        return True

    def _advance(self, numbers: Sequence[int], end: int, split: bool = False) -> None:
        """Run these nodes of the other side. ``split``: they are a part of a chunk, which others of it continue."""
        graph = self.side.graph
        made = [
            name
            for number in numbers
            for name in graph.nodes[number].output
            if name
            and (
                name in self.ours
                or name in graph.outputs
                or self._used.get(name, -1) >= end
                or (split and name in self._used)
            )
        ]
        reply = self.bench.run_part(graph, numbers, made, self.theirs, run=self._run)
        if reply.error and len(numbers) > 1 and reply.cause not in ("timeout", "fault"):
            half = len(numbers) // 2
            for some in (numbers[:half], numbers[half:]):
                if not self.walk.stopped:
                    self._advance(some, end, split=True)
            return
        if reply.error:
            self.walk.stopped, self.walk.at = reply.error, numbers[0]
            return
        self.theirs.update(reply.values)
        self._types.update((name, kind_of(value).dtype) for name, value in reply.values.items())
        for name, value in reply.values.items():
            ours = self.ours.get(name, "")
            if ours in self.values:
                self.whole[ours] = distance(self.values[ours], aligned(value, self.values[ours]))

    # -------------------------------------------------------------------------------------------- own errors

    def _own(self, here: Sequence[Region]) -> None:
        """What regions compute from the truth's values, and how far it is from the truth's."""
        known = {name: held for name, held in self.theirs.items() if name in self.side.graph.inputs}
        for region in here:
            for theirs, ours in region.inputs.items():
                known[theirs] = in_type(self.values[ours], self._types.get(theirs, ""))
        asked = [(one.nodes, list(one.targets)) for one in here]
        replies = self.bench.run_apart(self.side.graph, asked, known, run=self._run)
        for region, reply in zip(here, replies, strict=True):
            if reply.error:
                self.walk.refused.update(dict.fromkeys(region.targets.values(), reply.error))
            before = [self.whole[name].relative for name in region.inputs.values() if name in self.whole]
            for theirs, ours in region.targets.items():
                number = self.truth.producer.get(ours, -1)
                if number < 0 or number in self.truth.random:
                    continue
                truth, own = self.values[ours], reply.values.get(theirs)
                if self.watch.compares:
                    if theirs in reply.values:
                        self.watch.compare(ours, number, truth, own)
                    continue
                kind = kind_of(truth)
                row = Row(
                    ours,
                    number,
                    own=distance(truth, aligned(own, truth)) if theirs in reply.values else None,
                    whole=self.whole.get(ours),
                    before=max(before, default=0.0) if self.whole else None,
                    dtype=kind.dtype,
                    shape=kind.shape,
                    region=region,
                    kernels=self.side.kernels,
                )
                self._put(row, own)

    def _put(self, row: Row, computed: Any) -> None:
        """Keep a row; of several for one tensor the one with the largest own error."""
        old = self.walk.rows.get(row.name)
        if old is not None and old.own is not None and own_size(row) <= own_size(old):
            return
        self.walk.rows[row.name] = row
        if computed is not None:
            self._computed[row.name] = computed

    def _noise(self, here: Sequence[Region]) -> None:
        """How far the truth moves where the other side differs."""
        names = dict.fromkeys(ours for region in here for ours in region.targets.values())
        rows = (self.walk.rows.get(name) for name in names)
        off = [row for row in rows if row is not None and row.own is not None and row.own.relative > 0]
        noise = Noise(self.bench, self.truth, self.side.unit, self.values, self._computed)
        self.walk.rows.update((row.name, row) for row in noise.weigh(off))
        self._computed.clear()

    def _release(self, end: int) -> None:
        """Drop what nothing reads any more."""
        for name in [n for n in self.values if self._needed.get(n, -1) < end and n not in self.truth.outputs]:
            if name not in self.truth.inputs and name not in self.walk.drawn:
                del self.values[name]
        graph = self.side.graph
        for name in [n for n in self.theirs if self._used.get(n, -1) < end and n not in graph.outputs]:
            if name not in graph.inputs:
                del self.theirs[name]


_HELD: list[Lockstep] = []
"""In the sandbox: the walk whose values it has."""


def begin(lockstep: Lockstep, feed: Values, their_feed: Values) -> None:
    """In the sandbox: begin a walk."""
    lockstep.values, lockstep.theirs = dict(feed), dict(their_feed)
    _HELD[:] = [lockstep]


def step(start: int, end: int) -> tuple[int, Walk, Watch, float, bool]:
    """In the sandbox: walk through one chunk; what its nodes showed, and what ran for it."""
    return _found(_HELD[0], _HELD[0]._chunk(start, end))


def end() -> tuple[int, Walk, Watch, float, bool]:
    """In the sandbox: end the walk with the model's outputs."""
    lockstep = _HELD.pop()
    lockstep._outputs()
    return _found(lockstep, 0)


def _found(lockstep: Lockstep, size: int) -> tuple[int, Walk, Watch, float, bool]:
    runs, lockstep.bench.runs = lockstep.bench.runs, 0.0
    return size, lockstep.walk, lockstep.watch, runs, lockstep.bench.evaluated


def walk_alone(bench: Bench, graph: Graph, feed: Values, watch: Watch | None = None) -> Lockstep:
    """A walk through one graph."""
    lockstep = Lockstep(bench, graph, Side(Graph(ModelProto()), {}), watch)
    lockstep.run(feed, {})
    return lockstep


def beginnings(truth: Graph, beyond: Collection[str]) -> list[str]:
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
