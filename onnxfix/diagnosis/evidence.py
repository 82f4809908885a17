"""The values around a suspected node: what the truth and the other side read and write there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import NodeProto, TensorProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.lockstep import Row, Side, aligned
from onnxfix.diagnosis.regions import Region
from onnxfix.diagnosis.store import Held


@dataclass(frozen=True)
class Seen:
    """A suspected tensor: the truth's ``node`` and ``others`` of the other side; the values of ``inputs``, of the
    ``truth``'s outputs, of what the other side computes of the same inputs (``own``), and of the truth's outputs with
    inputs ``moved`` by one rounding; by the truth's names. ``weights`` are constants that the two read, by their names
    there."""

    row: Row
    node: NodeProto
    others: tuple[NodeProto, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    truth: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, TensorProto] = field(default_factory=dict)
    other_weights: Mapping[str, TensorProto] = field(default_factory=dict)
    effect: float | None = None


class Collector:
    """Runs the truth again, as far as the suspected tensors need it, and keeps the values around them."""

    def __init__(self, bench: Bench, truth: Graph, side: Side, feed: Mapping[str, Held]) -> None:
        self.bench, self.truth, self.side, self.feed = bench, truth, side, dict(feed)
        self.error = ""  # why the truth did not run, the last time

    def values(self, names: Sequence[str]) -> dict[str, Held]:
        """The truth's values of these tensors.  Empty where the truth does not run that far."""
        found = {name: self.feed[name] for name in names if name in self.feed}
        wanted = [n for n in names if n in self.truth.producer and not self.truth.is_constant(n)]
        if wanted:
            numbers = upstream(self.truth, wanted, frozenset())
            part, inputs = self.truth.part(numbers, wanted, self.feed)
            reply = self.bench.run(part, {name: self.feed[name] for name in inputs}, of=self.truth)
            found.update(reply.values)
            self.error = reply.error
        return found

    def seen(self, rows: Sequence[Row], theirs: Mapping[str, Held]) -> list[Seen]:
        """The values around each row's node. ``theirs`` are types of the other side's tensors."""
        wanted = dict.fromkeys(
            name
            for row in rows
            for name in (
                *self.truth.reads[row.number],
                *(one for one in self.truth.nodes[row.number].output if one),
                *(row.region.inputs.values() if row.region is not None else ()),
            )
            if not self.truth.is_constant(name)
        )
        known = self.values(list(wanted))
        return [self._seen(row, known, theirs) for row in rows]

    def _seen(self, row: Row, known: Mapping[str, Held], theirs: Mapping[str, Held]) -> Seen:
        node, region = self.truth.nodes[row.number], row.region
        outputs = [name for name in node.output if name in known]
        own: dict[str, Held] = {}
        if region is not None:
            given = {
                name: aligned(known[ours], theirs[name]) if name in theirs else known[ours]
                for name, ours in region.inputs.items()
                if ours in known
            }
            given.update({name: held for name, held in theirs.items() if name in self.side.graph.inputs})
            own = self._own(region, given)
        part, inputs, names = self.truth.apart([((row.number,), outputs)], known)
        moved = {}
        if all(name in known for name in inputs):
            feed = {name: known[name] for name in inputs}
            reply = self.bench.run(part, feed, of=self.truth, moved=self.side.unit, seed=1)
            moved = {n: reply.values[new].load() for n, new in names[0].items() if new in reply.values}
        return Seen(
            row,
            node,
            tuple(self.side.graph.nodes[n] for n in region.nodes) if region is not None else (),
            {name: known[name].load() for name in self.truth.reads[row.number] if name in known},
            {name: known[name].load() for name in outputs},
            {name: held.load() for name, held in own.items()},
            moved,
            _constants(self.truth, [row.number]),
            _constants(self.side.graph, region.nodes) if region is not None else {},
        )

    def _own(self, region: Region, given: Mapping[str, Held]) -> dict[str, Held]:
        graph = self.side.graph
        part, inputs, names = graph.apart([(region.nodes, list(region.targets))], given)
        if any(name not in given for name in inputs):
            return {}
        feed = {name: given[name] for name in inputs}
        reply = self.side.run(self.bench, part, feed)
        found = {region.targets[n]: reply.values[new] for n, new in names[0].items() if new in reply.values}
        return found

    def effect(self, own: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Held]:
        """The truth's outputs if these tensors had these values."""
        given = {**self.feed, **self.bench.hold(own)}
        numbers = upstream(self.truth, outputs, frozenset(own))
        reached = [name for name in outputs if name in self.truth.producer and name not in own]
        if not reached:
            return {name: given[name] for name in outputs if name in given}
        numbers = [n for n in numbers if not set(self.truth.nodes[n].output) & set(own)]
        part, inputs = self.truth.part(numbers, reached, given)
        if any(name not in given for name in inputs):
            return {}
        reply = self.bench.run(part, {name: given[name] for name in inputs}, of=self.truth)
        return (
            {**reply.values, **{name: given[name] for name in outputs if name in own}}
            if not reply.error
            else {}
        )


def upstream(graph: Graph, names: Sequence[str], given: frozenset[str]) -> list[int]:
    """The nodes that these values need, back to ``given`` ones, in order."""
    found: set[int] = set()
    stack = [name for name in names if name not in given]
    while stack:
        number = graph.producer.get(stack.pop(), -1)
        if number >= 0 and number not in found:
            found.add(number)
            stack.extend(name for name in graph.reads[number] if name not in given)
    return sorted(found)


def _constants(graph: Graph, numbers: Sequence[int]) -> dict[str, TensorProto]:
    found = {}
    for number in numbers:
        for name in graph.reads[number]:
            tensor = graph.constant(name)
            if tensor is not None:
                found[name] = tensor
    return found
