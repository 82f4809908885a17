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
from onnxfix.diagnosis.bench import Bench, Clock, drop
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.distance import Distance, distance
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.regions import Region, levels, regions
from onnxfix.diagnosis.store import Held

_FIRST, _MOST = 24, 400  # nodes of a chunk
_BYTES = 96 << 20  # of outputs of a chunk
_BOUND = 64  # nodes of the truth that a region stands for
_RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
)


@dataclass(frozen=True)
class Row:
    """What one tensor of the truth shows: ``own`` distance of the region that computes it, ``noise`` (absolute) that
    rounding explains, with its quantiles ``typical_noise`` (``distance.LEVELS``; none for few elements) and the number
    of elements that rounding makes finite or not (``unstable``), distance ``whole`` in the other side's own run, and
    the largest relative distance ``before`` among the region's inputs there. None: not measured."""

    name: str
    number: int
    own: Distance | None = None
    noise: float = 0.0
    typical_noise: tuple[float, ...] = ()
    unstable: int = 0
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
    """The result of a walk. ``truth`` and ``other`` are the two sides' values of the model's outputs.

    ``failed`` is why the truth stopped, with its ``cause``; ``stopped`` why the other side's own run did. ``refused``
    are regions that did not run alone, by a target, with the reason. ``kinds`` are types and shapes of the truth's
    tensors, without values.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    truth: dict[str, Held] = field(default_factory=dict)
    other: dict[str, Held] = field(default_factory=dict)
    failed: str = ""
    cause: Cause = ""
    stopped: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    kinds: dict[str, Held] = field(default_factory=dict)


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
        self._computed: dict[str, Held] = {}  # by the regions of the chunk, by the truth's names

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

    def measure(
        self, here: Sequence[Region], values: Mapping[str, Held], their_feed: Mapping[str, Held]
    ) -> Walk:
        """Only the own errors of these regions. ``values`` are the truth's that they need, ``their_feed`` the inputs of
        the other side."""
        self.values, self.theirs = dict(values), dict(their_feed)
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
        self.walk.kinds.update((name, Held(held.dtype, held.shape)) for name, held in reply.values.items())
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
                    self._computed[ours] = held

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
        """How far the truth moves where the other side differs: its nodes from the region's inputs on, these moved. If
        only the last node's inputs moved, a rounding that the truth has before it and the other side has not would
        count as noise."""
        off = [
            row
            for region in here
            for row in (self.walk.rows.get(ours) for ours in region.targets.values())
            if row is not None and row.own is not None and row.own.relative > 0
        ]
        for row in self._moved(off):
            self.walk.rows[row.name] = row
        drop(list(self._computed.values()))
        self._computed.clear()

    def _moved(self, off: Sequence[Row]) -> list[Row]:
        if not off:
            return []
        outputs: dict[int, list[Row]] = {}
        for row in off:
            outputs.setdefault(row.number, []).append(row)
        asked = [(self._back(rows), [row.name for row in rows]) for rows in outputs.values()]
        part, inputs, names = self.truth.apart(asked, self.values)
        feed = {name: self.values[name] for name in inputs}
        where = {name: new for one in names for name, new in one.items()}
        replies: list[Reply] = []
        for moved, seed in ((0.0, 0), (self.side.unit, 0), (self.side.unit, 1)):
            replies.append(self.bench.run(part, feed, of=self.truth, moved=moved, seed=seed))
            if replies[-1].error:
                break
        if not replies[-1].error:
            found = [self._weighed(row, [one.values[where[row.name]] for one in replies]) for row in off]
        elif len(off) == 1:
            found = list(off)
        else:
            half = len(off) // 2
            found = [*self._moved(off[:half]), *self._moved(off[half:])]
        drop([held for one in replies for held in one.values.values()])
        return found

    def _weighed(self, row: Row, values: Sequence[Held]) -> Row:
        """A row with its noise. ``values`` are what the truth's nodes compute by themselves of the same inputs, and of
        moved ones: ONNX Runtime may compute a node among others with more digits than alone, in half precision."""
        base, truth, own = values[0].load(), self.values[row.name], row.own
        computed = self._computed.get(row.name)
        if computed is not None and distance(truth.load(), base).relative > 0:
            own = distance(base, aligned(computed, truth).load())
        noise = [distance(base, one.load()) for one in values[1:]]
        quantiles = [one.typical.off for one in noise if one.typical is not None]
        return replace(
            row,
            own=own,
            noise=max(one.largest for one in noise),
            typical_noise=tuple(map(max, *quantiles)) if len(quantiles) > 1 else (*quantiles, ())[0],
            unstable=max(one.special for one in noise),
        )

    def _back(self, rows: Sequence[Row]) -> list[int]:
        """The truth's nodes that compute these outputs of one node from what the region reads; the node alone where
        that does not bound them."""
        given = {name for row in rows if row.region is not None for name in row.region.inputs.values()}
        found, stack = {rows[0].number}, [rows[0].number]
        while stack:
            for name in self.truth.reads[stack.pop()]:
                number = self.truth.producer.get(name, -1)
                if name in given or self.truth.is_constant(name) or number in found or number < 0:
                    continue
                found.add(number)
                stack.append(number)
                if len(found) > _BOUND:
                    return [rows[0].number]
        return sorted(found)

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


def alone(bench: Bench, truth: Graph, feed: Mapping[str, Held]) -> Walk:
    """A walk through the truth, without another side."""
    return Lockstep(bench, truth, Side(Graph(ModelProto()), {})).run(feed, {})


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
