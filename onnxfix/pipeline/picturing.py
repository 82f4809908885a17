"""The nodes around findings and fixes, for reports that draw them. Nothing here runs unless such a report is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import OnnxfixError
from onnxfix.graph.overlay import Node, Scope
from onnxfix.model import Model
from onnxfix.pipeline.boxes import neighborhood
from onnxfix.place import Place
from onnxfix.report.neighborhood import Mark, Picture
from onnxfix.report.report import AppliedFix, Finding, Report
from onnxfix.viewing.extract import neighbors

MOST_NODES = 9
"""Nodes of one picture."""
MOST_PICTURES = 1000
"""Findings, and fixes, that get a picture: the worst ones."""
_FAR = 2
"""Wires between the place and the farthest node."""
_FAN = 3
"""Consumers of one value that are shown."""
_ORDER = {"error": 0, "warning": 1, "info": 2}

Key = tuple[tuple[str, ...], str]
"""A node in every version of a model: the graphs around it, and its first output."""


def with_pictures(
    report: Report, original: ModelProto, result: ModelProto | None = None, base_dir: Path | None = None
) -> Report:
    """The report with what is around its findings, its fixes and its withdrawn fixes, the worst first.

    Args:
        report: of ``check``, or of an ``apply``.
        original: the model that was read.
        result: the fixed model; None where there is none.
        base_dir: the folder of the original's external data.
    """
    try:
        before = Atlas(Model(original, base_dir))
        after = before if result is None else Atlas(Model(result, base_dir))
    except OnnxfixError:  # names in a circle, or defined twice: the findings say so
        return report
    pictures = [*_of_findings(report, after), *_of_fixes(report, before, after)]
    return replace(report, pictures=tuple(pictures))


class Atlas:
    """A model, and where its nodes are."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.scopes: dict[tuple[str, ...], Scope] = {}
        self.nodes: dict[Key, Node] = {}
        for scope in model.scopes:
            self.scopes.setdefault(scope.trail, scope)
            for node in scope.nodes:
                self.nodes.setdefault((scope.trail, node.first_output), node)

    def at(self, place: Place) -> tuple[Node, ...]:
        """The node there; those that read the value there, if no node computes it; none where it is unknown."""
        node = self.nodes.get((place.graph, place.output)) if place.output else None
        if node is None and place.index >= 0 and not place.graph and not place.output:
            nodes = self.model.main.nodes
            node = nodes[place.index] if place.index < len(nodes) else None
        if node is not None:
            return (node,)
        scope = self.scopes.get(place.graph)
        value = scope.values.get(place.output) if scope is not None and place.output else None
        if value is None:
            return ()
        if value.producer is not None:
            return (value.producer,)
        return tuple(dict.fromkeys(use.node for use in value.uses[:_FAN] if use.node.scope is scope))


def _of_findings(report: Report, atlas: Atlas) -> Iterator[Picture]:
    for code, place in _worst(report.findings):
        nodes = atlas.at(place)
        if nodes:
            yield Picture(code, place, neighborhood(atlas.model, _grown(nodes), nodes))


def _of_fixes(report: Report, before: Atlas, after: Atlas) -> Iterator[Picture]:
    marks = _marks(before, after, "removed"), _marks(after, before, "added")
    for code, place in _worst(report.applied):
        there = before.at(place)
        old = _grown(there)
        left = after.at(place)
        new = _followed(old, left, after, marks[1])
        if old or new:
            first = neighborhood(before.model, old, there, marks[0]) if old else None
            second = neighborhood(after.model, new, left, marks[1]) if new else None
            yield Picture(code, place, first, second)
    for item in report.withdrawn:
        there = before.at(item.place)
        if there:
            yield Picture(item.code, item.place, neighborhood(before.model, _grown(there), there))


def _worst(items: Sequence[Finding | AppliedFix]) -> list[tuple[str, Place]]:
    """The rules and places of the worst, each once."""
    ranked = sorted(items, key=lambda one: _ORDER.get(one.severity, len(_ORDER)))
    return list(dict.fromkeys((one.code, one.place) for one in ranked))[:MOST_PICTURES]


def _grown(seeds: Sequence[Node]) -> list[Node]:
    """These nodes and the nearest around them, within one scope."""
    found = dict.fromkeys(seeds)
    edge = list(seeds)
    for _ in range(_FAR):
        edge = [one for node in edge for one in neighbors(node, _FAN) if one not in found]
        for node in edge:
            if len(found) < MOST_NODES:
                found[node] = None
        edge = [node for node in dict.fromkeys(edge) if node in found]
    return list(found)


def _followed(
    old: Sequence[Node], left: Sequence[Node], after: Atlas, mark: Callable[[Node], Mark]
) -> list[Node]:
    """The part of the result that a part of the original became: what is left of it, and what is new next to that."""
    kept = [node for one in old if (node := after.nodes.get(_key(one))) is not None]
    near = [*left, *kept]
    new = [node for _ in range(_FAR) for node in _spread(near, mark)]
    found = dict.fromkeys((*left, *new, *kept))
    return list(found)[:MOST_NODES] if kept else _grown(left)


def _spread(near: list[Node], mark: Callable[[Node], Mark]) -> list[Node]:
    """What is new next to nodes; these are added to them."""
    new = [one for node in near for one in neighbors(node, _FAN) if mark(one) and one not in near]
    near.extend(dict.fromkeys(new))
    return new


def _marks(own: Atlas, other: Atlas, absent: Mark) -> Callable[[Node], Mark]:
    """How a node of one model compares with the other model."""

    def mark(node: Node) -> Mark:
        twin = other.nodes.get(_key(node))
        if own is other or twin is None:
            return "" if own is other else absent
        return "" if _content(node) == _content(twin) else "changed"

    return mark


def _key(node: Node) -> Key:
    return node.scope.trail, node.first_output


def _content(node: Node) -> tuple[object, ...]:
    attributes = sorted(one.SerializeToString(deterministic=True) for one in node.proto.attribute)
    return node.domain, node.op_type, tuple(node.proto.input), tuple(node.proto.output), tuple(attributes)
