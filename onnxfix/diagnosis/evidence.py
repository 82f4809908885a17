"""The values around a suspected node: what the truth and the other side read and write there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from onnx import NodeProto, TensorProto

from onnxfix import walk
from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph, Region
from onnxfix.diagnosis.rows import Row, Side, aligned
from onnxfix.diagnosis.store import Held
from onnxfix.record import record


@record
class Seen:
    """A suspected tensor: the truth's ``node`` and ``others`` of the other side; the values of ``inputs``, of the
    ``truth``'s outputs, of what the other side computes of the same inputs (``own``), and of the truth's outputs with
    inputs ``moved`` by one rounding; by the truth's names. ``weights`` are constants that the two read, by their names
    there. ``types`` are the element types of what the other side reads there, and ``given`` the values of the region's
    inputs, of a node with graphs inside."""

    row: Row
    node: NodeProto
    others: tuple[NodeProto, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    truth: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, TensorProto] = field(default_factory=dict)
    other_weights: Mapping[str, TensorProto] = field(default_factory=dict)
    types: frozenset[str] = frozenset()
    effect: float | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


class Collector:
    """Runs the truth again, as far as the suspected tensors need it, and keeps the values around them."""

    def __init__(self, bench: Bench, truth: Graph, side: Side, feed: Mapping[str, Held]) -> None:
        self.bench, self.truth, self.side, self.feed = bench, truth, side, dict(feed)
        self.known: dict[str, Held] = {}
        self.error = ""  # why the truth did not run, the last time

    def values(self, names: Sequence[str]) -> dict[str, Held]:
        """The truth's values of these tensors. Empty where the truth does not run that far."""
        found = {name: self.feed[name] for name in names if name in self.feed}
        wanted = [name for name in names if name in self.truth.producer and name not in found]
        wanted = [name for name in wanted if not self.truth.is_constant(name)]
        if wanted:
            numbers = upstream(self.truth, wanted, frozenset(self.feed))
            reply = self.bench.run_part(self.truth, numbers, wanted, self.feed)
            found.update(reply.values)
            self.error = reply.error
        return found

    def seen(
        self,
        rows: Sequence[Row],
        theirs: Mapping[str, Held],
        outputs: Sequence[str] = (),
        types: Mapping[str, str] | None = None,
    ) -> list[Seen]:
        """The values around each row's node. ``theirs`` are the other side's inputs, ``types`` the element types of its
        tensors. ``outputs``: the effect on these will be asked for, so that what it needs is kept too."""
        wanted = dict.fromkeys(
            name
            for row in rows
            for name in (
                *self.truth.reads[row.number],
                *(one for one in self.truth.nodes[row.number].output if one),
                *(row.region.inputs.values() if row.region is not None else ()),
                *(self._beside([row.name], outputs) if outputs else ()),
            )
            if not self.truth.is_constant(name)
        )
        known = self.values(list(wanted))
        self.known.update(known)
        return [self._seen(row, known, theirs, types or {}) for row in rows]

    def _beside(self, names: Sequence[str], outputs: Sequence[str]) -> list[str]:
        """What the nodes between these values and the outputs read besides, as far as it is worth keeping."""
        graph = self.truth
        after = downstream(graph, names)
        numbers = [n for n in upstream(graph, outputs, frozenset(names)) if n in after]
        made = {name for number in numbers for name in graph.nodes[number].output}
        read = dict.fromkeys(name for number in numbers for name in graph.reads[number])
        found = [one for one in read if one not in made and one not in names and not graph.is_constant(one)]
        return [one for one in found if one not in graph.untensored]

    def bare(self, row: Row) -> Seen:
        """What is known of a row without running anything."""
        nodes = row.region.nodes if row.region is not None else ()
        return Seen(
            row,
            self.truth.nodes[row.number],
            tuple(self.side.graph.nodes[number] for number in nodes),
            weights=_constants(self.truth, [row.number]),
            other_weights=_constants(self.side.graph, nodes),
        )

    def _seen(
        self, row: Row, known: Mapping[str, Held], theirs: Mapping[str, Held], types: Mapping[str, str]
    ) -> Seen:
        node, region = self.truth.nodes[row.number], row.region
        outputs = [name for name in node.output if name in known]
        own: dict[str, Held] = {}
        if region is not None:
            given = {
                name: known[ours].as_type(types[name]) if name in types else known[ours]
                for name, ours in region.inputs.items()
                if ours in known
            }
            given.update({name: held for name, held in theirs.items() if name in self.side.graph.inputs})
            own = self._own(region, given)
        moved: dict[str, Any] = {}
        if outputs:
            alone = [((row.number,), outputs)]
            (values,), _ = self.bench.run_apart(self.truth, alone, known, moved=self.side.unit, seed=1)
            moved = {name: held.load() for name, held in values.items()}
        return replace(
            self.bare(row),
            inputs={name: known[name].load() for name in self.truth.reads[row.number] if name in known},
            truth={name: known[name].load() for name in outputs},
            own={name: held.load() for name, held in own.items()},
            moved=moved,
            types=frozenset(
                types[name] for name in (region.inputs if region is not None else ()) if name in types
            ),
            given={
                name: known[name].load()
                for name in (region.inputs.values() if region is not None and walk.subgraphs(node) else ())
                if name in known
            },
        )

    def _own(self, region: Region, given: Mapping[str, Held]) -> dict[str, Held]:
        asked = [(region.nodes, list(region.targets))]
        run = partial(self.side.run, self.bench)
        (values,), _ = self.bench.run_apart(self.side.graph, asked, given, run=run)
        return {region.targets[name]: held for name, held in values.items()}

    def effect(self, own: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Held]:
        """The truth's outputs that depend on these tensors, if these had these values."""
        given = {**self.feed, **self.known}
        for name, held in self.bench.hold(own).items():  # which the other side may have in another type
            given[name] = aligned(held, given[name]) if name in given else held
        after = downstream(self.truth, list(own))
        made = {name for number in after for name in self.truth.nodes[number].output}
        known = frozenset(name for name in given if name in own or name not in made)
        reached = [name for name in outputs if name in made and name not in own]
        found = {name: given[name] for name in outputs if name in own}
        if not reached:
            return found
        reply = self.bench.run_part(self.truth, upstream(self.truth, reached, known), reached, given)
        return {} if reply.error else {**reply.values, **found}


def downstream(graph: Graph, names: Sequence[str]) -> set[int]:
    """The nodes that depend on these values."""
    reached, found = set(names), set[int]()
    for number, node in enumerate(graph.nodes):
        if not reached.isdisjoint(graph.reads[number]):
            found.add(number)
            reached.update(name for name in node.output if name)
    return found


def upstream(graph: Graph, names: Sequence[str], given: frozenset[str]) -> list[int]:
    """The nodes that these values need, back to ``given`` ones, in order."""

    def makers(names: Iterable[str]) -> list[int]:
        return [graph.producer[name] for name in names if name not in given and name in graph.producer]

    return sorted(walk.reached(makers(names), lambda number: makers(graph.reads[number])))


def _constants(graph: Graph, numbers: Sequence[int]) -> dict[str, TensorProto]:
    found = {}
    for number in numbers:
        for name in graph.reads[number]:
            tensor = graph.constant(name)
            if tensor is not None:
                found[name] = tensor
    return found
