"""The parts of the other model that compute, from matched tensors, the next matched ones."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfix.diagnosis.graph import Graph
from onnxfix.record import record


@record
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
