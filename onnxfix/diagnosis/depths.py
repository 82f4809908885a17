"""How the error grows along a model."""

from __future__ import annotations

from collections.abc import Iterable

from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.records import DepthError
from onnxfix.diagnosis.rows import Row

SECTIONS = 1000
"""Sections of a model, at most."""


def depths(rows: Iterable[Row], graph: Graph) -> tuple[DepthError, ...]:
    """Of each section of the model the node with the largest error, in the order of computation."""
    step = max(1, -(-len(graph.nodes) // SECTIONS))
    worst: dict[int, Row] = {}
    for row in rows:
        if row.own is None and row.whole is None:
            continue
        old = worst.get(row.number // step)
        if old is None or _size(row) > _size(old):
            worst[row.number // step] = row
    return tuple(_error(graph, row) for _, row in sorted(worst.items()))


def _size(row: Row) -> tuple[float, float]:
    """The error at a node's output, then its own."""
    whole, own = (one.relative if one is not None else 0.0 for one in (row.whole, row.own))
    return whole, own


def _error(graph: Graph, row: Row) -> DepthError:
    own, whole = (one.relative if one is not None else None for one in (row.own, row.whole))
    return DepthError(row.number, row.name, graph.nodes[row.number].op_type, own, whole)
