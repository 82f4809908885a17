"""The nodes around findings and fixes, for reports that draw them. Nothing here runs unless such a report is wanted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from onnx import ModelProto

from onnxfix.errors import OnnxfixError
from onnxfix.files.dtypes import name_of
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.graph.signatures import input_names
from onnxfix.model import Model
from onnxfix.place import Place
from onnxfix.report.findings import Box, Mark, Neighborhood, Picture, Wire
from onnxfix.report.report import AppliedFix, Finding, Report
from onnxfix.verbs.difference.pairs import attribute_text, constant_text, content_of

MOST_NODES = 9
"""Nodes of one picture."""
MOST_PICTURES = 1000
"""Findings, and fixes, that get a picture: the worst ones."""
LINES = 4
"""Lines of a box below its title."""
WIDE = 34
"""Characters of a line, and of a dimension's text together."""
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
    """The report with what is around its findings and its fixes, the worst first.

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
    found = [(code, place, nodes) for code, place in _worst(report.findings) if (nodes := after.at(place))]
    pictures = [
        Picture(code, at, neighborhood(after.model, surround(near), near)) for code, at, near in found
    ]
    return replace(report, pictures=(*pictures, *_draw_fixes(report, before, after)))


class Atlas:
    """A model, and where its nodes are."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.scopes: dict[tuple[str, ...], Scope] = {}
        self.nodes: dict[Key, Node] = {}
        for scope in model.scopes:
            self.scopes.setdefault(scope.trail, scope)
            for node in scope.nodes:
                self.nodes.setdefault(_key(node), node)

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


def neighbors(node: Node, fan: int) -> Iterator[Node]:
    """The nodes that it reads, without constants, then up to ``fan`` of those that read each output; in its graph."""
    for value in _reads(node):
        if value.producer is not None and value.producer.scope is node.scope:
            yield value.producer
    for output in node.outputs:
        for use in output.uses[:fan] if output is not None else ():
            if use.node.scope is node.scope:
                yield use.node


def surround(
    seeds: Collection[Node], distance: int = _FAR, fan: int = _FAN, most: int = MOST_NODES
) -> list[Node]:
    """These nodes and those of their graph that are at most ``distance`` values away; the nearest ``most``."""
    found = dict.fromkeys(seeds)
    edge = list(seeds)
    for _ in range(distance):
        near = dict.fromkeys(one for node in edge for one in neighbors(node, fan) if one not in found)
        edge = list(near)[: max(0, most - len(found))]
        found.update(dict.fromkeys(edge))
    return list(found)


def _draw_fixes(report: Report, before: Atlas, after: Atlas) -> Iterator[Picture]:
    removed, added = _compare_with(before, after, "removed"), _compare_with(after, before, "added")
    for code, place in _worst(report.applied):
        there, left = before.at(place), after.at(place)
        old = surround(there)
        new = _follow(old, left, after, added)
        if old or new:
            first = neighborhood(before.model, old, there, removed) if old else None
            second = neighborhood(after.model, new, left, added) if new else None
            yield Picture(code, place, first, second)


def _worst(items: Sequence[Finding | AppliedFix]) -> list[tuple[str, Place]]:
    """The rules and places of the worst, each once."""
    ranked = sorted(items, key=lambda one: _ORDER.get(one.severity, len(_ORDER)))
    return list(dict.fromkeys((one.code, one.place) for one in ranked))[:MOST_PICTURES]


def _follow(
    old: Sequence[Node], left: Sequence[Node], after: Atlas, mark: Callable[[Node], Mark]
) -> list[Node]:
    """The part of the result that a part of the original became: what is left of it, and what is new next to that."""
    kept = [node for one in old if (node := after.nodes.get(_key(one))) is not None]
    if not kept:
        return surround(left)
    near = [*left, *kept]
    new: list[Node] = []
    for _ in range(_FAR):
        more = [one for node in near for one in neighbors(node, _FAN) if mark(one) and one not in near]
        near += dict.fromkeys(more)
        new += more
    return list(dict.fromkeys((*left, *new, *kept)))[:MOST_NODES]


def _compare_with(own: Atlas, other: Atlas, absent: Mark) -> Callable[[Node], Mark]:
    """How a node of one model compares with the other model."""

    def mark(node: Node) -> Mark:
        twin = other.nodes.get(_key(node))
        if own is other or twin is None:
            return "" if own is other else absent
        same = content_of(node) == content_of(twin) and node.proto.output == twin.proto.output
        return "" if same else "changed"

    return mark


def _key(node: Node) -> Key:
    return node.scope.trail, node.first_output


def neighborhood(
    model: Model,
    nodes: Collection[Node],
    focus: Collection[Node],
    mark: Callable[[Node], Mark] | None = None,
    *,
    full: bool = False,
) -> Neighborhood:
    """Boxes for nodes of one graph and for the graph's inputs and outputs next to them.

    Args:
        model: the model that the nodes are of.
        nodes: the nodes.
        focus: those of them that it is about.
        mark: what became of a node in another model.
        full: whether the boxes of ``focus`` have all lines, uncut.
    """
    kept = dict.fromkeys(nodes)
    scope = next(iter(kept)).scope
    ordered = [node for node in model.orders[scope] if node in kept]
    boxes: list[Box] = []
    wires: list[Wire] = []
    inputs: dict[str, int] = {}
    numbers: dict[Node, int] = {}
    for value in dict.fromkeys(value for node in ordered for value in _reads(node)):
        if value.producer is None or value.scope is not scope:
            inputs[value.name] = len(boxes)
            boxes.append(Box("input", value.name))
    for node in ordered:
        above = {value.producer for value in _reads(node) if value.producer is not None} - kept.keys()
        readers = {use.node for value in node.outputs if value is not None for use in value.uses}
        numbers[node] = len(boxes)
        boxes.append(
            Box(
                "node",
                node.op_type,
                node.name or node.first_output,
                _describe(node, full=full and node in focus),
                node in focus,
                mark(node) if mark is not None else "",
                sum(one.scope is scope for one in above),
                len(readers - kept.keys()),
            )
        )
    for node in ordered:
        for value in dict.fromkeys(_reads(node)):
            source = inputs.get(value.name)
            if source is None and value.producer in kept:
                source = numbers[value.producer]
            if source is not None:
                wires.append(Wire(source, numbers[node], value.name, type_text(model, value)))
        for output in node.outputs:
            if output is not None and output.is_output:
                wires.append(Wire(numbers[node], len(boxes), output.name, type_text(model, output)))
                boxes.append(Box("output", output.name))
    return Neighborhood(tuple(boxes), tuple(wires))


def _reads(node: Node) -> Iterator[Value]:
    """The inputs of a node that are no constants."""
    return (value for value in node.inputs if value is not None and not value.is_constant)


def type_text(model: Model, value: Value) -> str:
    """Element type and shape, such as ``float[N,3,224,224]``; "" where neither is known."""
    info = model.shapes.info(value)
    if info.kind != "tensor":
        return info.kind
    elem = name_of(info.elem) if info.elem is not None else ""
    if info.shape is None:
        return elem
    dims = [text if len(text := str(dim)) <= WIDE // 2 else "…" for dim in info.shape]
    return f"{elem}[{','.join(dims)}]"


def _describe(node: Node, full: bool) -> tuple[str, ...]:
    """Attributes, and inputs that are constant; without ``full``, what does not fit is counted."""
    lines = [f"{one.name} = {attribute_text(one, node)}" for one in node.proto.attribute]
    names = input_names(node.op_type, node.opset, node.domain)
    for index, value in enumerate(node.inputs):
        if value is not None and value.is_constant:
            name = names[min(index, len(names) - 1)] if names else f"input {index}"
            lines.append(f"{name}: {constant_text(value)}")
    if full:
        return tuple(lines)
    if len(lines) > LINES:
        lines[LINES - 1 :] = [f"… {len(lines) - LINES + 1} more"]
    return tuple(line if len(line) <= WIDE else f"{line[: WIDE - 1]}…" for line in lines)
