"""Which nodes follow others: those that only move values, those that only read them, and small islands whose Casts
would cost more than they gain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from onnx import ModelProto, NodeProto

from onnxfix.files import walk
from onnxfix.lowering.lowered import MOVES, Lowerable, is_heavy

MOST = 4
"""Computing nodes of an island that is given up for fewer Casts."""


@dataclass(frozen=True)
class Graph:
    """The main graph as far as types go. ``io_low``: inputs and outputs have the low type."""

    model: ModelProto
    able: Lowerable
    io_low: bool = False

    @cached_property
    def nodes(self) -> list[NodeProto]:
        return list(self.model.graph.node)

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
        inputs = {info.name for info in self.model.graph.input}
        stored = {tensor.name for tensor in self.model.graph.initializer} - inputs
        return frozenset(
            stored.union(
                *(node.output for node in self.nodes if node.op_type == "Constant" and not node.domain)
            )
        )

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The nodes that read a float32 tensor, those that read it inside themselves too."""
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            names = set(walk.reads(node)) if walk.subgraphs(node) else set(node.input)
            for name in names & self.able.floats:
                found.setdefault(name, []).append(index)
        return found

    @cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(info.name for info in self.model.graph.output)

    def computes(self, index: int) -> bool:
        """Whether the node computes something in floating point, and does not only move or compare it."""
        node = self.nodes[index]
        if node.op_type in MOVES or node.op_type in ("Constant", "Cast", "Shape", "Size", "ConstantOfShape"):
            return False
        return any(name in self.able.floats for name in node.output)

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

    def low_tensor(self, name: str, low: set[int] | frozenset[int]) -> bool:
        """Whether a tensor has the low type."""
        made = self.producers.get(name)
        if made is None:
            return self.io_low
        return made in low and name in set(self.results(made))

    def casts(self, low: set[int] | frozenset[int]) -> int:
        """How many Casts the choice of nodes takes."""
        count = 0
        for name in self.able.floats - self.constants:
            stored = self.low_tensor(name, low)
            kinds = {self._reads_low(index, name, low) for index in self.readers.get(name, ())} - {None}
            if name in self.outputs:
                kinds.add(self.io_low)
            count += len(kinds - {stored})
        return count

    def _reads_low(self, index: int, name: str, low: set[int] | frozenset[int]) -> bool | None:
        """Whether a node reads a tensor in the low type; None where it takes either."""
        node = self.nodes[index]
        if node.op_type in ("Shape", "Size", "Cast") and not node.domain:
            return None
        if index not in low:
            return False
        return any(node.input[slot] == name for slot in self.able.slots[index].inputs)


def settled(graph: Graph, kept: frozenset[int]) -> tuple[frozenset[int], frozenset[int]]:
    """The nodes that get the low type if those in ``kept`` must not, and those that do not for fewer Casts."""
    able = graph.able.slots
    low = {i for i in able if i not in kept and graph.computes(i)}
    _follow(graph, low, kept)
    given: set[int] = set()
    while True:
        island = _island(graph, low)
        if island is None:
            break
        low -= island
        given |= {index for index in island if graph.computes(index)}
        _follow(graph, low, kept | frozenset(given))
    for index in able:
        if graph.reads_only(index) and index not in kept and graph.nodes[index].op_type != "Cast":
            sources = list(graph.sources(index))
            if sources and all(graph.low_tensor(name, low) for name in sources):
                low.add(index)
    return frozenset(low), frozenset(given)


def _follow(graph: Graph, low: set[int], kept: frozenset[int]) -> None:
    """Nodes that move values take the type of what they read; of float32, that of all that read them."""
    movers = [
        i for i in graph.able.slots if i not in kept and not graph.computes(i) and not graph.reads_only(i)
    ]
    low.difference_update(movers)
    for index in movers:
        sources = list(graph.sources(index))
        if sources and all(graph.low_tensor(name, low) for name in sources):
            low.add(index)
    for index in reversed(movers):
        if index in low:
            continue
        results = list(graph.results(index))
        readers = [reader for name in results for reader in graph.readers.get(name, ())]
        held = not graph.io_low and any(name in graph.outputs for name in results)
        if readers and not held and all(reader in low for reader in readers):
            low.add(index)


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
        if count > MOST or any(is_heavy(graph.nodes[index].op_type) for index in island):
            continue
        if graph.casts(low - island) < whole:
            return island
    return None


def _connected(graph: Graph, low: set[int], start: int) -> set[int]:
    """The nodes in the low type that hand tensors of it to each other."""

    def beside(index: int) -> list[int]:
        found = [graph.producers.get(name, -1) for name in graph.sources(index)]
        found += [reader for name in graph.results(index) for reader in graph.readers.get(name, ())]
        return [other for other in found if other in low]

    return walk.reached([start], beside)
