"""The walk of a ``ModelProto``: its graphs, nodes and tensors at any depth, and what a node reads.

Every walk of the protobuf goes through here, so that all agree on what is inside what: an attribute holds the graph
``g`` if that is set, then its list ``graphs``. The overlay (:mod:`onnxfix.graph.overlay`) is built on it, and is what
rules walk instead. All walks are iterative: nesting is limited by protobuf (100 levels), not by Python's stack.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

_GRAPH = AttributeProto.GRAPH
_Item = TypeVar("_Item")


def copied(message: _Item) -> _Item:
    """A copy of a protobuf message."""
    copy = type(message)()
    copy.CopyFrom(message)  # type: ignore[attr-defined]
    return copy


def domain_of(name: str) -> str:
    """The name of an operator set's domain; ONNX's own, which has two, is ""."""
    return "" if name == "ai.onnx" else name


def attribute_graphs(attribute: AttributeProto) -> Sequence[GraphProto]:
    """The graphs that an attribute holds, in stored order."""
    if attribute.type == _GRAPH or attribute.HasField("g"):  # a stated graph that is missing is an empty one
        return [attribute.g, *attribute.graphs]
    return attribute.graphs


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs in a node's attributes, in stored order, without those inside them."""
    return [graph for attribute in node.attribute[:] for graph in attribute_graphs(attribute)]


def bodies(model: ModelProto) -> Iterator[GraphProto | FunctionProto]:
    """The main graph, then the local functions. Training graphs are left out."""
    yield model.graph
    yield from getattr(model, "functions", ())


def graphs(root: GraphProto) -> Iterator[GraphProto]:
    """A graph and every graph inside it, outer first, in stored order (that of ``Scope.walk``)."""
    stack = [root]
    while stack:
        graph = stack.pop()
        yield graph
        stack.extend(reversed([inner for node in graph.node for inner in subgraphs(node)]))


def graph_nodes(root: GraphProto) -> list[NodeProto]:
    """The nodes of a graph, then those of each graph inside it, in the order of ``graphs``."""
    return [node for graph in graphs(root) for node in graph.node]


def nodes(roots: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """These nodes, each followed by the nodes inside it."""
    stack = [iter(roots)]
    while stack:
        for node in stack[-1]:
            yield node
            inner = subgraphs(node)
            if inner:
                stack.append(iter([one for graph in inner for one in graph.node]))
                break
        else:
            stack.pop()


def model_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of the main graph and the local functions, at any depth."""
    for body in bodies(model):
        yield from nodes(body.node)


def reads(node: NodeProto) -> Iterator[str]:
    """Names that a node reads: its inputs, and what the nodes inside it read and the graphs inside it return.

    Names that are defined inside the node are among them.
    """
    for one in nodes([node]):
        yield from one.input
        for graph in subgraphs(one):
            yield from (info.name for info in graph.output)


def defined(graph: GraphProto) -> set[str]:
    """The names of values that a graph itself defines."""
    found = {name for node in graph.node for name in node.output if name}
    found.update(info.name for info in graph.input)
    found.update(tensor.name for tensor in graph.initializer)
    found.update(tensor.values.name for tensor in graph.sparse_initializer)
    return found


def captures(node: NodeProto) -> list[str]:
    """What a node reads of the graphs around it."""
    if not subgraphs(node):
        return list(node.input)
    inner = {name for one in nodes([node]) for graph in subgraphs(one) for name in defined(graph)}
    return [*node.input, *(name for name in reads(node) if name not in inner)]


def renamed(node: NodeProto, names: Mapping[str, str], *, prefix: str = "") -> NodeProto:
    """A copy of a node that reads and writes values by other names, in its subgraphs too, as far as these do not
    define a value of that name themselves."""
    found = copied(node)
    found.name = f"{prefix}{node.name}" if node.name else ""
    found.output[:] = [names.get(name, name) for name in found.output]
    waiting = [(found, names)]
    while waiting:
        one, new = waiting.pop()
        one.input[:] = [new.get(name, name) for name in one.input]
        for graph in subgraphs(one):
            hidden = defined(graph)
            seen = {name: to for name, to in new.items() if name not in hidden}
            for info in graph.output:
                info.name = seen.get(info.name, info.name)
            waiting.extend((inner, seen) for inner in graph.node)
    return found


def order(stored: Sequence[NodeProto], rank: Sequence[int] = ()) -> list[int]:
    """The topological order of one graph's nodes, as positions: stored order where that is one, or that of ``rank``,
    which has a number for each. Nodes in a cycle, and behind it, come last."""
    maker = {name: number for number, node in enumerate(stored) for name in node.output if name}
    readers: dict[int, list[int]] = {}
    waits = []
    for number, node in enumerate(stored):
        needed = {maker[name] for name in captures(node) if name in maker}
        waits.append(len(needed))
        for one in needed:
            readers.setdefault(one, []).append(number)
    rank = rank or range(len(stored))
    ready = [(rank[number], number) for number, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        number = heapq.heappop(ready)[1]
        found.append(number)
        for one in readers.get(number, ()):
            waits[one] -= 1
            if not waits[one]:
                heapq.heappush(ready, (rank[one], one))
    done = set(found)
    return found + [number for number in range(len(waits)) if number not in done]


def ancestors(producers: Mapping[str, NodeProto], names: Iterable[str]) -> set[str]:
    """The values that ``names`` depend on, and ``names`` themselves; ``producers`` has each value's node."""
    return reached(names, lambda name: reads(producers[name]) if name in producers else ())


def reached(start: Iterable[_Item], after: Callable[[_Item], Iterable[_Item]]) -> set[_Item]:
    """The items of ``start`` and all that they lead to, step by step; ``after`` has the next ones of each."""
    found: set[_Item] = set()
    stack = list(start)
    while stack:
        item = stack.pop()
        if item not in found:
            found.add(item)
            stack.extend(after(item))
    return found


def model_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of the model: initializers, attributes, sparse parts, subgraphs, functions, training graphs."""
    roots = [model.graph]
    for info in model.training_info:
        roots += [info.initialization, info.algorithm]
    for graph in roots:
        yield from _stored_tensors(graph)
        yield from node_tensors(graph.node)
    for function in getattr(model, "functions", ()):
        yield from node_tensors(function.node)
        yield from _attribute_tensors([getattr(function, "attribute_proto", ())])


def node_tensors(roots: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Every tensor in the attributes of these nodes, and of the nodes inside them."""
    return _attribute_tensors([node.attribute for node in roots])


def _stored_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def _attribute_tensors(stack: list[Iterable[AttributeProto]]) -> Iterator[TensorProto]:
    while stack:
        for attribute in stack.pop():
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse_values = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for sparse in (*sparse_values, *attribute.sparse_tensors):
                yield sparse.values
                yield sparse.indices
            for graph in attribute_graphs(attribute):
                yield from _stored_tensors(graph)
                stack.extend(node.attribute for node in graph.node)


def clear_negative(info: ValueInfoProto) -> ValueInfoProto:
    """The declaration without negative sizes, which mean an unknown size, as none does."""
    negative = [i for i, dim in enumerate(info.type.tensor_type.shape.dim) if dim.dim_value < 0]
    if negative:
        info = ValueInfoProto.FromString(info.SerializeToString())
    for axis in negative:
        info.type.tensor_type.shape.dim[axis].ClearField("dim_value")
    return info
