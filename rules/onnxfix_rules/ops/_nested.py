"""Protobuf nodes with their subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import GraphProto, NodeProto


def graphs(node: NodeProto) -> list[GraphProto]:
    """The graphs in the node's attributes, in stored order."""
    return [graph for a in node.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]


def flat(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes without subgraphs; a node with subgraphs is replaced by their nodes."""
    for node in nodes:
        subgraphs = graphs(node)
        for graph in subgraphs:
            yield from flat(graph.node)
        if not subgraphs:
            yield node


def every(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and, recursively, those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in graphs(node):
            yield from every(graph.node)


def rename(node: NodeProto, names: Mapping[str, str]) -> None:
    """Rename values of a node and its subgraphs; the names must be unique."""
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    for graph in graphs(node):
        rename_graph(graph, names)


def rename_graph(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename values of a graph and its subgraphs."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = names.get(info.name, info.name)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        rename(node, names)
