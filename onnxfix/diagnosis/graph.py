"""A model to cut parts of: its main graph, with the weights left in their files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from onnxfix import walk
from onnxfix.backends import ort_weights
from onnxfix.diagnosis.store import Held
from onnxfix.errors import ModelError

OWN = "/own/"
"""What separates the number of a region from the name of its output in a part apart."""


class Graph:
    """The main graph of a model whose local functions are inlined.

    ``nodes`` are in topological order. ``inputs`` are those without a default. ``folder`` is where the external data of
    ``proto`` is; ``mapped`` is how many bytes of files its weights may map.
    """

    def __init__(
        self, proto: ModelProto, folder: str = "", mapped: int = 0, path: Path | None = None
    ) -> None:
        self.proto, self.folder, self.mapped, self.path = proto, folder, mapped, path
        weights = {tensor.name for tensor in proto.graph.initializer}
        self.inputs = {info.name: info for info in proto.graph.input if info.name not in weights}
        self.outputs = [info.name for info in proto.graph.output]
        self.weights = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.sparse = {tensor.values.name: tensor for tensor in proto.graph.sparse_initializer}
        self.nodes = _sorted(proto.graph)
        self.producer = {
            name: number for number, node in enumerate(self.nodes) for name in node.output if name
        }

    @cached_property
    def reads(self) -> list[tuple[str, ...]]:
        """The values of the main graph that each node reads, those read in its subgraphs included."""
        known = {*self.producer, *self.inputs, *self.weights, *self.sparse}
        return [
            tuple(dict.fromkeys(name for name in walk.reads(node) if name and name in known))
            for node in self.nodes
        ]

    @cached_property
    def last_use(self) -> dict[str, int]:
        """The number of the last node that reads each value."""
        return {name: number for number, names in enumerate(self.reads) for name in names}

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
        self,
        numbers: Collection[int],
        outputs: Sequence[str],
        known: Mapping[str, Held],
        *,
        static: bool = False,
    ) -> tuple[ModelProto, tuple[str, ...]]:
        """A model of these nodes, and the names of its inputs: the values that they read and do not make.

        ``known`` are the values of inputs, of which types and ranks are declared (sizes too with ``static``).
        """
        nodes = [self.nodes[number] for number in sorted(numbers) if self.nodes[number].op_type != "Constant"]
        made = {name for node in nodes for name in node.output if name}
        read = [name for number in sorted(numbers) for name in self.reads[number] if name not in made]
        return self._model(nodes, read, outputs, known, static=static)

    def apart(
        self,
        regions: Sequence[tuple[Collection[int], Sequence[str]]],
        known: Mapping[str, Held],
        *,
        static: bool = False,
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
            nodes.extend(renamed(self.nodes[one], new, prefix=f"{number}{OWN}") for one in chosen)
            read.extend(name for one in chosen for name in self.reads[one] if name not in made)
            names.append({name: new[name] for name in outputs if name in new})
        wanted = [name for region in names for name in region.values()]
        model, inputs = self._model(nodes, read, wanted, known, static=static)
        return model, inputs, names

    def _model(
        self,
        nodes: Sequence[NodeProto],
        read: Iterable[str],
        outputs: Sequence[str],
        known: Mapping[str, Held],
        *,
        static: bool,
    ) -> tuple[ModelProto, tuple[str, ...]]:
        read = list(dict.fromkeys(read))
        weights, constants = self.constants(name for name in read if self.is_constant(name))
        given = tuple(name for name in read if not self.is_constant(name))
        model = ModelProto(ir_version=self.proto.ir_version)
        model.opset_import.extend(self.proto.opset_import)
        graph = model.graph
        graph.name = "part"
        graph.node.extend([*constants, *nodes])
        graph.initializer.extend(weights)
        graph.sparse_initializer.extend(self.sparse[name] for name in read if name in self.sparse)
        graph.input.extend(self._declared(name, known.get(name), static) for name in given)
        made = {name for node in graph.node for name in node.output}
        for name in outputs:
            if name not in made:
                raise ModelError(f"{name}: is not computed by this part of the model")
            graph.output.append(ValueInfoProto(name=name))
        return model, given

    def _declared(self, name: str, held: Held | None, static: bool) -> ValueInfoProto:
        if held is not None and held.is_tensor:
            elem = helper.np_dtype_to_tensor_dtype(held.array_dtype)
            dims = held.shape if static else [None] * len(held.shape)
            return helper.make_tensor_value_info(name, elem, dims)
        if name in self.inputs:
            info = ValueInfoProto()
            info.CopyFrom(self.inputs[name])
            return info
        if held is not None and held.value is not None and getattr(held.value, "dtype", None) is not None:
            return helper.make_tensor_value_info(name, TensorProto.STRING, [None] * len(held.shape))
        return ValueInfoProto(name=name)


def renamed(node: NodeProto, names: Mapping[str, str], *, prefix: str = "") -> NodeProto:
    """A copy of a node that reads and writes values by other names, in its subgraphs too."""
    found = NodeProto()
    found.CopyFrom(node)
    found.name = f"{prefix}{node.name}"
    for one in walk.nodes([found]):
        one.input[:] = [names.get(name, name) for name in one.input]
        for graph in walk.subgraphs(one):
            for info in graph.output:
                info.name = names.get(info.name, info.name)
    found.output[:] = [names.get(name, name) for name in found.output]
    return found


def open_graph(path: Path) -> Graph:
    """The graph of a model file, its weights left in the file where that pays.

    Raises:
        ModelError: it cannot be read. Local functions must be inlined by the caller (``has_functions``).
    """
    where = ort_weights.stored(str(path))
    proto = where.skeleton
    if proto is None:
        try:
            proto = onnx.load(path, load_external_data=False)
        except Exception as error:
            raise ModelError(f"{path}: {error}") from error
    return Graph(proto, where.folder or str(path.parent), where.inside + where.outside, path)


def has_functions(graph: Graph) -> bool:
    """Whether a node of it calls a local function."""
    return bool(graph.proto.functions)


def _sorted(graph: GraphProto) -> list[NodeProto]:
    """The nodes in topological order, stored order where that is one. A node in a cycle comes last."""
    made = {name for node in graph.node for name in node.output if name}
    done: set[str] = set()
    waiting, order = list(graph.node), list[NodeProto]()
    while waiting:
        later = []
        for node in waiting:
            if any(name in made and name not in done for name in _outer(node)):
                later.append(node)
            else:
                order.append(node)
                done.update(node.output)
        if len(later) == len(waiting):
            return [*order, *later]
        waiting = later
    return order


def _outer(node: NodeProto) -> list[str]:
    inner = {name for graph in walk.subgraphs(node) for one in walk.nodes(graph.node) for name in one.output}
    return [name for name in walk.reads(node) if name not in inner]
