"""Nodes as protobuf messages, with the graphs that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import GraphProto, NodeProto


def graphs(node: NodeProto) -> list[GraphProto]:
    """The graphs in its attributes, in stored order."""
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]


def flat(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of the graphs in a node in its place."""
    for node in nodes:
        held = graphs(node)
        for graph in held:
            yield from flat(graph.node)
        if not held:
            yield node


def every(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of the graphs in them."""
    for node in nodes:
        yield node
        for graph in graphs(node):
            yield from every(graph.node)


def rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Let a node, and the graphs in it, use other names, where none is given twice."""
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    for graph in graphs(node):
        rename_graph(graph, names)


def rename_graph(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Let a graph, and those in it, use other names."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = names.get(info.name, info.name)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        rename(node, names)
