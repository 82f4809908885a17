"""Walks over the nodes of a protobuf graph, into subgraphs and local functions, without an overlay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import GraphProto, ModelProto, NodeProto


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all subgraphs in it."""
    stack = [graph]
    while stack:
        one = stack.pop()
        yield one
        stack.extend(inner for node in one.node for inner in subgraphs(node))


def nested(node: NodeProto) -> Iterator[NodeProto]:
    """A node and all nodes in its subgraphs."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack.extend(inner for graph in subgraphs(one) for inner in graph.node)


def nodes(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes of a model, those in subgraphs and local functions included."""
    for group in (model.graph.node, *(function.node for function in model.functions)):
        for node in group:
            yield from nested(node)


def reads(node: NodeProto) -> set[str]:
    """The names that a node reads, and every name that is read, or is an output, in its subgraphs."""
    found = set[str]()
    for one in nested(node):
        found.update(one.input)
        found.update(info.name for graph in subgraphs(one) for info in graph.output)
    return found


def upstream(graph: GraphProto, names: Iterable[str]) -> set[str]:
    """The tensors of the graph that these depend on, and they themselves."""
    makers = {name: node for node in graph.node for name in node.output if name}
    found, stack = set[str](), list(names)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(reads(makers[name]) if name in makers else ())
    return found


def downstream(graph: GraphProto, node: NodeProto) -> set[str]:
    """The outputs of a node of the graph and all tensors that depend on them. Nodes are in topological order."""
    found: set[str] = set()
    for one in graph.node:
        if one is node or not reads(one).isdisjoint(found):
            found.update(name for name in one.output if name)
    return found
