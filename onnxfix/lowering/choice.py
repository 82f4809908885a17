"""What a choice of nodes takes along: nodes that only move values follow others, and so do those that only read them,
DQs, and small islands whose Casts would cost more than they gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

from onnx import ModelProto, NodeProto

from onnxfix.files import walk
from onnxfix.lowering.lowered import HEAVY, MOVES, Lowerable

MOST = 4
"""Computing nodes of an island that is given up for fewer Casts."""


_PLAIN = frozenset({
    "Cast", "ConcatFromSequence", "Constant", "ConstantOfShape", "DequantizeLinear", "If", "Loop", "OptionalGetElement",
    "Scan", "SequenceAt", "SequenceConstruct", "SequenceInsert", "SequenceMap", "Shape", "Size",
})  # fmt: skip
"""Operators that write floating point and compute nothing that has a type to choose, but for the nodes inside."""


@dataclass(frozen=True)
class Graph:
    """All graphs of a model as one, as far as types go: what enters or leaves an inner graph is float32. ``io_low``:
    inputs and outputs of the model have the low type."""

    model: ModelProto
    able: Lowerable
    io_low: bool = False

    @cached_property
    def nodes(self) -> list[NodeProto]:
        return walk.graph_nodes(self.model.graph)

    @cached_property
    def producers(self) -> dict[str, int]:
        """The node that writes a tensor, constants left out."""
        return {
            name: index
            for index, node in enumerate(self.nodes)
            if node.op_type != "Constant" or node.domain
            for name in node.output
            if name
        }

    @cached_property
    def constants(self) -> frozenset[str]:
        graphs = walk.graphs(self.model.graph)
        stored = {tensor.name for graph in graphs for tensor in graph.initializer} - self.inputs
        return frozenset(
            stored.union(
                *(node.output for node in self.nodes if node.op_type == "Constant" and not node.domain)
            )
        )

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The nodes that read a float32 tensor."""
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in set(node.input) & self.able.floats:
                found.setdefault(name, []).append(index)
        return found

    @cached_property
    def origins(self) -> dict[str, set[str]]:
        """Of a float32 tensor that is no constant: itself, or the tensors whose values nodes moved to make it."""
        floats = self.able.floats - self.constants
        found: dict[str, set[str]] = {}
        for node in self.nodes:
            moved = [name for name in node.input if name in floats] if node.op_type in MOVES else []
            for name in floats.intersection(node.output) if moved else ():
                found[name] = set().union(*(found.get(source, {source}) for source in moved))
        return {name: found.get(name, {name}) for name in floats}

    @cached_property
    def uses(self) -> dict[str, list[int]]:
        """The nodes that compute from a float32 tensor, moved or not."""
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            if node.op_type not in (*MOVES, "Shape", "Size"):
                names = self.origins.keys() & set(node.input)
                for name in set().union(*(self.origins[one] for one in names)):
                    found.setdefault(name, []).append(index)
        return found

    @cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(info.name for info in self.model.graph.output)

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The inputs of the model."""
        return frozenset(info.name for info in self.model.graph.input)

    @cached_property
    def returned(self) -> frozenset[str]:
        """What inner graphs return."""
        inner = [*walk.graphs(self.model.graph)][1:]
        return frozenset(info.name for graph in inner for info in graph.output)

    def computes(self, index: int) -> bool:
        """Whether the node computes something in floating point, and does not only move or compare it."""
        node = self.nodes[index]
        if node.op_type in MOVES or node.op_type in _PLAIN:
            return False
        return any(name in self.able.floats for name in node.output)

    def dequantizes(self, index: int) -> bool:
        """Whether the node is a DQ, whose type is free: its scale can have either."""
        return self.nodes[index].op_type == "DequantizeLinear"

    def is_parted(self, index: int, low: set[int]) -> bool:
        """Whether a node reads in float32 what this DQ writes, or what moves that."""
        results = [name for name in self.results(index) if self.dequantizes(index) or name in self.able.tied]
        pairs = ((name, reader) for name in results for reader in self.readers.get(name, ()))
        return any(self._reads_low(reader, name, low) is False for name, reader in pairs)

    def reads_only(self, index: int) -> bool:
        """Whether it reads float32 and writes none: comparisons, Casts to integers, ArgMax."""
        return not self.able.slots[index].outputs

    def sources(self, index: int) -> Iterator[str]:
        """The tensors, no constants, that the node reads in the low type if it has it."""
        for slot in self.able.slots[index].inputs:
            name = self.nodes[index].input[slot]
            if name not in self.constants:
                yield name

    def results(self, index: int) -> Iterator[str]:
        for slot in self.able.slots[index].outputs:
            if self.nodes[index].output[slot]:
                yield self.nodes[index].output[slot]

    def beside(self, index: int) -> Iterator[int]:
        """The nodes that write what a node reads, and that read what it writes."""
        yield from (self.producers[name] for name in self.sources(index) if name in self.producers)
        yield from (reader for name in self.results(index) for reader in self.readers.get(name, ()))

    def low_tensor(self, name: str, low: Set[int]) -> bool:
        """Whether a tensor has the low type."""
        made = self.producers.get(name)
        if name in self.able.scans:
            kinds = {self._reads_low(index, name, low) for index in self.readers.get(name, ())}
            return True in kinds and False not in kinds and name not in self.returned
        if made is None:
            return self.io_low and name in self.inputs
        return made in low and name in set(self.results(made))

    def casts(self, low: Set[int]) -> int:
        """How many Casts the choice of nodes takes."""
        count = 0
        for name in self.able.floats - self.constants:
            stored = self.low_tensor(name, low)
            kinds = {self._reads_low(index, name, low) for index in self.readers.get(name, ())} - {None}
            if name in self.returned or (name in self.outputs and not self.io_low):
                kinds.add(False)
            count += len(kinds - {stored})
        return count

    def _reads_low(self, index: int, name: str, low: Set[int]) -> bool | None:
        """Whether a node reads a tensor in the low type; None where it takes either."""
        node = self.nodes[index]
        if node.op_type in ("Shape", "Size", "Cast") and not node.domain:
            return None
        if index not in low:
            scanned = [
                formal
                for formal, (scan, slot) in self.able.scans.items()
                if scan == index and node.input[slot] == name
            ]
            return bool(scanned) and all(self.low_tensor(formal, low) for formal in scanned)
        return any(node.input[slot] == name for slot in self.able.slots[index].inputs)


def settled(graph: Graph, kept: frozenset[int]) -> tuple[frozenset[int], frozenset[int]]:
    """The nodes that get the low type if those in ``kept`` must not, and those that do not for fewer Casts."""
    low = {i for i in graph.able.slots if i not in kept and graph.computes(i)}
    _follow(graph, low, kept)
    given: set[int] = set()
    while island := _torn(graph, low) or _island(graph, low):
        low -= island
        given |= {i for i in island if graph.computes(i) or graph.dequantizes(i)}
        _follow(graph, low, kept | frozenset(given))
    return frozenset(low), frozenset(filter(graph.computes, given))


def _follow(graph: Graph, low: set[int], kept: frozenset[int]) -> None:
    """Nodes that move values take the type of what they read; of float32, that of all that read them. A DQ, and what
    moves what it writes, has the low type where all that read it have. Nodes that write no float32 take the type of
    what they read."""
    others = [i for i in graph.able.slots if i not in kept and not graph.computes(i)]
    movers = [i for i in others if not graph.reads_only(i)]
    readers = [i for i in others if graph.reads_only(i) and graph.nodes[i].op_type != "Cast"]

    def follow(index: int) -> None:
        sources = list(graph.sources(index))
        if sources and all(graph.low_tensor(name, low) for name in sources):
            low.add(index)

    def has_low_readers(index: int) -> bool:
        results = list(graph.results(index))
        found = {reader for name in results for reader in graph.readers.get(name, ())}
        fixed = graph.returned if graph.io_low else graph.returned | graph.outputs
        held = any(name in fixed for name in results)
        return bool(found) and not held and found <= low

    while True:
        low.difference_update(others)
        low.update(filter(graph.dequantizes, movers))
        for index in movers:
            follow(index)
        low.update(i for i in reversed(movers) if i not in low and has_low_readers(i))
        for index in readers:
            follow(index)
        parted = {i for i in movers if i in low and graph.is_parted(i, low)}
        if not parted:
            return
        movers = [i for i in movers if i not in parted]


def _torn(graph: Graph, low: set[int]) -> set[int]:
    """The nodes in the low type that a Cast would part from a Q or DQ in float32."""
    found: set[int] = set()
    for name in graph.able.tied - graph.constants:
        if not graph.low_tensor(name, low):
            found.update(i for i in graph.readers.get(name, ()) if i in low and name in set(graph.sources(i)))
    for index, node in enumerate(graph.nodes):
        if node.op_type == "QuantizeLinear" and index not in low and graph.low_tensor(node.input[0], low):
            found.add(
                graph.producers.get(node.input[0], -1)
            )  # -1: an input of the graph, which may have a Cast
    return found & low


def _island(graph: Graph, low: set[int]) -> set[int] | None:
    """A small island of cheap nodes in the low type without which there are fewer Casts; None where there is none."""
    whole = graph.casts(low)
    seen: set[int] = set()
    for start in sorted(low):
        if start in seen:
            continue
        island = _connected(graph, low, start)
        seen |= island
        count = sum(graph.computes(index) for index in island)
        if not count and not any(map(graph.dequantizes, island)):
            continue  # these follow what they read again
        if count > MOST or any(graph.nodes[index].op_type in HEAVY for index in island):
            continue
        if graph.casts(low - island) < whole:
            return island
    return None


def _connected(graph: Graph, nodes: Set[int], start: int) -> set[int]:
    """The nodes, of these, that hand float32 or what becomes of it to each other."""
    return walk.reached([start], lambda index: [other for other in graph.beside(index) if other in nodes])


def stretches(graph: Graph) -> list[list[int]]:
    """The nodes that are no products, those together that hand tensors to each other without a product between. What
    no product is behind, such as a mask, joins none of them."""
    behind: set[int] = set()
    for index, node in enumerate(graph.nodes):
        made = {graph.producers.get(name, -1) for name in node.input}
        if node.op_type in HEAVY or not behind.isdisjoint(made):
            behind.add(index)
    found = []
    for nodes in (graph.able.slots.keys() - behind, graph.able.slots.keys() & behind):
        left = {index for index in nodes if graph.nodes[index].op_type not in HEAVY}
        while left:
            found.append(sorted(_connected(graph, left, min(left))))
            left.difference_update(found[-1])
    return found
