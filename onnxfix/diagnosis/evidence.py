"""The evidence about a suspected node: what the truth and the other side read and write there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix import walk
from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.facts import Array, Evidence
from onnxfix.diagnosis.graph import Graph, Region, downstream, upstream
from onnxfix.diagnosis.records import Against, NodeError
from onnxfix.diagnosis.rows import Row, Side, aligned
from onnxfix.diagnosis.sides import LOW
from onnxfix.diagnosis.store import Held
from onnxfix.files.tensors import to_array
from onnxfix.place import NOWHERE

_LIMIT = 1 << 31
"""Bytes of a weight that is compared with another: those of a protobuf."""


class Collector:
    """Runs the truth again, as far as the suspected tensors need it, and keeps the values around them."""

    def __init__(
        self, bench: Bench, truth: Graph, side: Side, feed: Mapping[str, Held], against: Against = "model"
    ) -> None:
        self.bench, self.truth, self.side, self.feed, self.against = bench, truth, side, dict(feed), against
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

    def gather(
        self,
        rows: Sequence[Row],
        theirs: Mapping[str, Held],
        outputs: Sequence[str] = (),
        types: Mapping[str, str] | None = None,
    ) -> list[Evidence]:
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
        return [self._gather(row, known, theirs, types or {}) for row in rows]

    def _beside(self, names: Sequence[str], outputs: Sequence[str]) -> list[str]:
        """What the nodes between these values and the outputs read besides, as far as it is worth keeping."""
        graph = self.truth
        after = downstream(graph, names)
        numbers = [n for n in upstream(graph, outputs, frozenset(names)) if n in after]
        made = {name for number in numbers for name in graph.nodes[number].output}
        read = dict.fromkeys(name for number in numbers for name in graph.reads[number])
        found = [one for one in read if one not in made and one not in names and not graph.is_constant(one)]
        return [one for one in found if one not in graph.untensored]

    def bare(self, row: Row) -> Evidence:
        """What is known of a row without running anything."""
        numbers = row.region.nodes if row.region is not None else ()
        return Evidence(
            self.against,
            NodeError(NOWHERE, 0.0),
            self.truth.nodes[row.number],
            _weights(self.truth, [row.number]),
            {},
            {},
            others=tuple(self.side.graph.nodes[number] for number in numbers),
            constants=_weights(self.side.graph, numbers),
            low=LOW.get(self.against, ""),
            opsets=_opsets(self.truth),
            other_opsets=_opsets(self.side.graph),
            names=row.region.inputs if row.region is not None else {},
            row=row,
        )

    def _gather(
        self, row: Row, known: Mapping[str, Held], theirs: Mapping[str, Held], types: Mapping[str, str]
    ) -> Evidence:
        node, region = self.truth.nodes[row.number], row.region
        outputs = [name for name in node.output if name in known]
        own = self._own(region, known, theirs, types) if region is not None else {}
        moved: dict[str, Any] = {}
        if outputs:
            alone = [((row.number,), outputs)]
            (values,), _ = self.bench.run_apart(self.truth, alone, known, moved=self.side.unit, seed=1)
            moved = {name: held.load() for name, held in values.items()}
        bare = self.bare(row)
        reads = {name: known[name].load() for name in self.truth.reads[row.number] if name in known}
        given: dict[str, Any] = {}
        if region is not None and walk.subgraphs(node):
            given = reads | {one: known[one].load() for one in region.inputs.values() if one in known}
        return replace(
            bare,
            inputs={**bare.inputs, **_arrays(reads)},
            truth=_arrays({name: known[name].load() for name in outputs}),
            own=_arrays({name: held.load() for name, held in own.items()}),
            moved=_arrays(moved),
            types=frozenset(types[name] for name in bare.names if name in types),
            given=given,
        )

    def _own(
        self,
        region: Region,
        known: Mapping[str, Held],
        theirs: Mapping[str, Held],
        types: Mapping[str, str],
    ) -> dict[str, Held]:
        """What the other side computes of the truth's values."""
        given = {
            name: known[ours].as_type(types[name]) if name in types else known[ours]
            for name, ours in region.inputs.items()
            if ours in known
        }
        given.update({name: held for name, held in theirs.items() if name in self.side.graph.inputs})
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


def _arrays(values: Mapping[str, Any]) -> dict[str, Array]:
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _opsets(graph: Graph) -> dict[str, int]:
    return {one.domain: int(one.version) for one in graph.proto.opset_import}


def _weights(graph: Graph, numbers: Sequence[int]) -> dict[str, Array]:
    """The values of the constants that these nodes read; without those that cannot be read."""
    folder = Path(graph.folder) if graph.folder else None
    names = dict.fromkeys(name for number in numbers for name in graph.reads[number])
    tensors = {name: tensor for name in names if (tensor := graph.constant(name)) is not None}
    return _arrays({name: to_array(tensor, folder, _LIMIT) for name, tensor in tensors.items()})
