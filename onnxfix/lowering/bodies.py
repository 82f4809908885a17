"""The graphs inside of If, Loop and Scan, as models of their own on the values that they get in a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.iterations import ENTERED, Body, Unknown, is_true, iterations, value_in
from onnxfix.errors import ModelError
from onnxfix.files import walk

_ITERATIONS = 4
"""Iterations of a loop that are looked at, from the first on."""
_RUNS = 8
"""Runs of a body that are looked at, over all samples."""


@dataclass(frozen=True)
class Entered:
    """A graph inside of a node of the main graph: the ``indices`` of its nodes in ``walk.graph_nodes``, those inside of
    them included; as a model, whose first node has the index ``start``, which may be less by nodes that the model has
    more; and its ``feeds``. Without a model, no sample runs it."""

    indices: range
    model: Graph | None = None
    start: int = 0
    feeds: Sequence[Mapping[str, Any]] = ()


def read_inside(graph: Graph) -> frozenset[str]:
    """The values that ``entered`` needs."""
    numbers = (number for number, node in enumerate(graph.nodes) if node.op_type in ENTERED)
    return frozenset(name for number in numbers for name in graph.reads[number])


def entered(graph: Graph, samples: Sequence[Mapping[str, Any]], bench: Bench) -> Iterator[Entered]:
    """The bodies of the main graph, each with what it gets in the samples. Bodies are left out if that cannot be told:
    one reads a sequence, or does not run by itself."""
    end = len(graph.nodes)
    for number, node in enumerate(graph.nodes):
        for attribute in node.attribute:
            for inner in walk.attribute_graphs(attribute):
                indices = range(end, end + len(walk.graph_nodes(inner)))
                end = indices.stop
                if node.op_type not in ENTERED:
                    continue
                try:
                    yield _enter(graph, number, attribute.name, indices, samples, bench)
                except (Unknown, ModelError, KeyError, IndexError, TypeError, ValueError):
                    continue


def _enter(
    graph: Graph, number: int, name: str, indices: range, samples: Sequence[Mapping[str, Any]], bench: Bench
) -> Entered:
    node, feeds = graph.nodes[number], list[dict[str, Any]]()
    for known in samples:
        is_taken = node.op_type != "If" or is_true(value_in(graph, known, node.input[0])) == (name[0] == "t")
        if is_taken and len(feeds) < _RUNS:
            body = Body(graph, number, known, name)
            some = itertools.islice(iterations(body, bench), _ITERATIONS)
            feeds.extend(body.feed(now.formal) for now in some)
    if not feeds:
        return Entered(indices)
    model = body.model(feeds[0], feeds[0])
    return Entered(indices, model, indices.start + len(body.body.node) - len(model.nodes), feeds)
