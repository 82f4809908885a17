"""A model to cut parts of: its main graph, with the weights left in their files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxfix.diagnosis.child import Values, kind_of
from onnxfix.errors import ModelError
from onnxfix.files import walk
from onnxfix.inputs.feeds.flow import DRAWS
from onnxfix.place import Place
from onnxfix.runtime.backends import ort_weights

Part = tuple[Collection[int], Sequence[str]]
"""Nodes, by their numbers, and which of their outputs are wanted."""
OWN = "/own/"
"""What separates the number of a region from the name of its output in a part apart."""


class Graph:
    """The main graph of a model whose local functions are inlined.

    ``nodes`` are in topological order. ``inputs`` are those without a default. ``folder`` is where the external data of
    ``proto`` is; ``mapped`` is how many bytes of files its weights may map. ``untensored`` are values of the main graph
    that are sequences, maps or optionals. ``origins`` are the places of inlined nodes, by output.
    """

    def __init__(
        self,
        proto: ModelProto,
        folder: str = "",
        mapped: int = 0,
        path: Path | None = None,
        untensored: Iterable[str] = (),
    ) -> None:
        self.proto, self.folder, self.mapped, self.path = proto, folder, mapped, path
        self.origins: dict[str, Place] = {}
        self.weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.sparse = {tensor.values.name: tensor for tensor in proto.graph.sparse_initializer}
        weights = {*self.weights, *self.sparse}
        self.inputs = {info.name: info for info in proto.graph.input if info.name not in weights}
        odd = (name for name, info in self.inputs.items() if info.type.WhichOneof("value") != "tensor_type")
        self.untensored = frozenset((*untensored, *odd))
        self.outputs = list(dict.fromkeys(info.name for info in proto.graph.output))
        self.nodes = [proto.graph.node[number] for number in walk.order(proto.graph.node)]
        self.producer = {
            name: number for number, node in enumerate(self.nodes) for name in node.output if name
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, (self.proto, self.folder, self.mapped, self.path, self.untensored)

    @cached_property
    def reads(self) -> list[tuple[str, ...]]:
        """The values of the main graph that each node reads, those read in its subgraphs included."""
        known = {*self.producer, *self.inputs, *self.weights, *self.sparse}
        return [
            tuple(dict.fromkeys(name for name in walk.captures(node) if name and name in known))
            for node in self.nodes
        ]

    @cached_property
    def last_use(self) -> dict[str, int]:
        """The number of the last node that reads each value."""
        return {name: number for number, names in enumerate(self.reads) for name in names}

    @cached_property
    def varying(self) -> frozenset[str]:
        """The values that depend on an input: what is made of weights alone shows where it meets these."""
        found = set(self.inputs)
        for number, node in enumerate(self.nodes):
            if not found.isdisjoint(self.reads[number]):
                found.update(name for name in node.output if name)
        return frozenset(found)

    def share(self, part: ModelProto) -> float:
        """How much of this graph a part of it is: 1 if it has as many nodes, Constant nodes aside."""
        return _computing(part.graph.node) / max(1, _computing(self.nodes))

    @cached_property
    def random(self) -> frozenset[int]:
        """The numbers of the nodes that draw numbers, also inside."""
        return frozenset(
            number for number, node in enumerate(self.nodes) if any(map(self._draws, walk.nodes([node])))
        )

    def _draws(self, node: NodeProto) -> bool:
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:  # whether this is training
            tensor = self.constant(node.input[2])
            return tensor is None or bool(numpy_helper.to_array(tensor))
        return node.op_type in DRAWS

    def is_constant(self, name: str) -> bool:
        """Whether it is a weight, or the output of a Constant node."""
        if name in self.producer:
            return self.nodes[self.producer[name]].op_type == "Constant"
        return name in self.weights or name in self.sparse

    def constant(self, name: str) -> TensorProto | None:
        """The tensor of a constant; None for one that is given in another form, or for a value that is computed."""
        if name in self.weights and name not in self.producer:
            return self.weights[name]
        number = self.producer.get(name)
        if number is not None and self.nodes[number].op_type == "Constant":
            return next((one.t for one in self.nodes[number].attribute if one.name == "value"), None)
        return None

    def constants(self, names: Iterable[str]) -> tuple[list[TensorProto], list[NodeProto]]:
        """The weights and the Constant nodes that give these values."""
        weights, nodes = [], []
        for name in dict.fromkeys(names):
            if name in self.producer:
                nodes.append(self.nodes[self.producer[name]])
            elif name in self.weights:
                weights.append(self.weights[name])
        return weights, nodes

    # ------------------------------------------------------------------------------------------------ parts

    def part(
        self, numbers: Collection[int], outputs: Sequence[str], known: Values
    ) -> tuple[ModelProto, tuple[str, ...]]:
        """A model of these nodes, and the names of its inputs: the values that they read and do not make.

        ``known`` are the values of inputs, of which types and ranks are declared (of vectors the size, too).

        Raises:
            ModelError: one of ``outputs`` is neither computed by these nodes nor constant.
        """
        nodes = [self.nodes[number] for number in sorted(numbers) if self.nodes[number].op_type != "Constant"]
        made = {name for node in nodes for name in node.output if name}
        read = [name for number in sorted(numbers) for name in self.reads[number] if name not in made]
        return self._model(nodes, read, outputs, known)

    def apart(
        self, regions: Sequence[Part], known: Values
    ) -> tuple[ModelProto, tuple[str, ...], list[dict[str, str]]]:
        """A model in which each region (nodes, and which of their outputs) computes by itself, on inputs of the model.

        Returns the model, the names of its inputs, and by region: output -> its name in the model.
        """
        nodes: list[NodeProto] = []
        read: list[str] = []
        names: list[dict[str, str]] = []
        for number, (members, outputs) in enumerate(regions):
            chosen = [one for one in sorted(members) if self.nodes[one].op_type != "Constant"]
            made = {name for one in chosen for name in self.nodes[one].output if name}
            new = {name: f"{number}{OWN}{name}" for name in made}
            nodes.extend(walk.renamed(self.nodes[one], new, prefix=f"{number}{OWN}") for one in chosen)
            read.extend(name for one in chosen for name in self.reads[one] if name not in made)
            names.append({name: new[name] for name in outputs if name in new})
        wanted = [name for region in names for name in region.values()]
        model, inputs = self._model(nodes, read, wanted, known)
        return model, inputs, names

    def _model(
        self, nodes: Sequence[NodeProto], read: Iterable[str], outputs: Sequence[str], known: Values
    ) -> tuple[ModelProto, tuple[str, ...]]:
        made = {name for node in nodes for name in node.output}
        read = list(
            dict.fromkeys([*read, *(one for one in outputs if one not in made and self.is_constant(one))])
        )
        weights, constants = self.constants(name for name in read if self.is_constant(name))
        given = tuple(name for name in read if not self.is_constant(name))
        # Before version 4, an initializer had to be an input too.
        model = ModelProto(ir_version=max(4, self.proto.ir_version))
        model.opset_import.extend(self.proto.opset_import)
        graph = model.graph
        graph.name = "part"
        graph.node.extend([*constants, *nodes])
        graph.initializer.extend(weights)
        graph.sparse_initializer.extend(self.sparse[name] for name in read if name in self.sparse)
        graph.input.extend(self._declared(name, known.get(name)) for name in given)
        made.update(name for name in read if self.is_constant(name))
        for name in outputs:
            if name not in made:
                raise ModelError(f"{name}: is not computed by this part of the model")
            graph.output.append(ValueInfoProto(name=name))
        return model, given

    def _declared(self, name: str, value: Any) -> ValueInfoProto:
        is_tensor = bool(kind_of(value).dtype)
        if name in self.inputs and (not is_tensor or name in self.untensored):
            return walk.copied(self.inputs[name])
        if isinstance(value, np.ndarray):
            elem = helper.np_dtype_to_tensor_dtype(value.dtype) if is_tensor else TensorProto.STRING
            # ONNX Runtime's Resize counts the elements of "sizes", and takes an unknown number for 0.
            dims = value.shape if value.ndim == 1 else [None] * value.ndim
            return helper.make_tensor_value_info(name, elem, dims)
        return ValueInfoProto(name=name)


def _computing(nodes: Iterable[NodeProto]) -> int:
    return sum(node.op_type != "Constant" for node in nodes)


def open_graph(path: Path) -> Graph:
    """The graph of a model file, its weights left in the file where that pays.

    Raises:
        ModelError: it cannot be read. Local functions must be inlined by the caller.
    """
    where = ort_weights.stored(str(path))
    proto = where.skeleton
    if proto is None:
        try:
            proto = onnx.load(path, load_external_data=False)
        except Exception as error:
            raise ModelError(f"{path}: {error}") from error
    return Graph(proto, where.folder or str(path.parent), where.inside + where.outside, path)


def declared_types(graph: Graph) -> dict[str, str]:
    """The element types (numpy's names) that a graph declares for its inputs, outputs and inner tensors."""
    proto = graph.proto.graph
    infos = (*proto.value_info, *proto.output, *graph.inputs.values())
    elems = {one.name: one.type.tensor_type.elem_type for one in infos if one.type.HasField("tensor_type")}
    strings = TensorProto.STRING
    return {
        name: helper.tensor_dtype_to_np_dtype(elem).name
        for name, elem in elems.items()
        if elem and elem != strings
    }


@dataclass(frozen=True)
class Region:
    """Nodes of the other model (``nodes``, by number) that compute ``targets`` (its name -> the truth's) from
    ``inputs`` (its name -> the truth's), and from its own weights. ``at`` is the number of the truth's node after which
    all of these are known."""

    nodes: tuple[int, ...]
    targets: Mapping[str, str]
    inputs: Mapping[str, str]
    at: int


def regions(truth: Graph, other: Graph, pairs: Mapping[str, str]) -> list[Region]:
    """All regions, by the truth's nodes in the order of computation. ``pairs`` leads from the other model's tensors to
    the truth's; constants on either side count as not matched, and so do names that are not in the graphs. No region
    begins at a value that is no tensor, or contains a random operator."""
    matched = {
        theirs: ours for theirs, ours in pairs.items() if _computed(other, theirs) and _computed(truth, ours)
    }
    odd = other.untensored | {theirs for theirs, ours in matched.items() if ours in truth.untensored}
    begins = {theirs: ours for theirs, ours in matched.items() if theirs not in odd}
    found = []
    for number, node in enumerate(other.nodes):
        targets = {name: matched[name] for name in node.output if name in matched}
        if not targets:
            continue
        members, inputs = _closed(other, number, begins)
        if other.random.intersection(members):
            continue
        ours = [*targets.values(), *(matched[name] for name in inputs)]
        at = max(truth.producer.get(name, -1) for name in ours)
        if at >= 0:
            found.append(Region(tuple(members), targets, {name: matched[name] for name in inputs}, at))
    return sorted(found, key=lambda one: one.at)


def _computed(graph: Graph, name: str) -> bool:
    return (name in graph.producer or name in graph.inputs) and not graph.is_constant(name)


def _closed(graph: Graph, number: int, matched: Mapping[str, str]) -> tuple[list[int], list[str]]:
    """The nodes that this node needs back to matched values, in order, and these values. Constants are left out."""
    members, inputs, stack = {number}, dict[str, None](), [number]
    while stack:
        for name in graph.reads[stack.pop()]:
            if graph.is_constant(name):
                continue
            if name in matched:
                inputs[name] = None
            elif name in graph.producer and graph.producer[name] not in members:
                members.add(graph.producer[name])
                stack.append(graph.producer[name])
    return sorted(members), list(inputs)


def levels(other: Graph, pairs: Mapping[str, str], truth: Graph) -> list[int]:
    """For each node of the other model the truth's node after which it can run and be compared: the greatest number of
    a matched tensor among its outputs and all that it depends on. It never falls along an edge."""
    made: dict[str, int] = {}
    found = []
    for number, node in enumerate(other.nodes):
        own = [truth.producer.get(pairs[name], -1) for name in node.output if name in pairs]
        level = max([*own, *(made.get(name, -1) for name in other.reads[number])], default=-1)
        found.append(level)
        made.update((name, level) for name in node.output if name)
    return found


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
