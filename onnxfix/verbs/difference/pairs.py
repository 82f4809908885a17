"""Which nodes of two graphs belong together, and the cause of what differs: the rule behind it, or the
operators that replaced others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain

from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.place import Place
from onnxfix.rewrite.changes.state import marks
from onnxfix.verbs.difference.records import ChangeGroup, ModelChange, Sign

_CONSTANTS = ("constant", "initializer")
_EXAMPLES = 3
_STEPS = 64
"""Nodes between one that is gone and the next that is left."""


def operator_name(node: Node) -> str:
    """The operator, with its domain where that is not ONNX's."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


class Pairs:
    """The nodes of a graph of one model and of the graph in its place in another, in pairs.

    Nodes belong together by their first output. Those that are left: by name and operator, then by operator, inputs and
    attributes, each where that is unique. ``renamed`` are the outputs of pairs whose names differ, old to new.
    """

    def __init__(self, before: Scope, after: Scope) -> None:
        self.before, self.after = before, after
        self.to: dict[Node, Node] = {}
        self.renamed: dict[str, str] = {}
        self._pair(lambda node: node.first_output)
        self._pair(lambda node: (node.domain, node.op_type, node.name) if node.name else None)
        self._name()
        self._pair(content_of)
        self._name()
        self.back = {new: old for old, new in self.to.items()}

    def _pair(self, key: Callable[[Node], Hashable]) -> None:
        taken = set(self.to.values())
        left = _unique((node for node in self.before.nodes if node not in self.to), key)
        right = _unique((node for node in self.after.nodes if node not in taken), key)
        self.to.update((node, right[one]) for one, node in left.items() if one in right)

    def _name(self) -> None:
        for old, new in self.to.items():
            names = zip(old.proto.output, new.proto.output, strict=False)
            self.renamed.update((one, other) for one, other in names if one != other and one and other)


def _unique(nodes: Iterable[Node], key: Callable[[Node], Hashable]) -> dict[Hashable, Node]:
    """Nodes by a key that no other one has; without those that have none."""
    found: dict[Hashable, Node | None] = {}
    for node in nodes:
        one = key(node)
        if one is not None and one != "":
            found[one] = None if one in found else node
    return {one: node for one, node in found.items() if node is not None}


def content_of(node: Node) -> Hashable:
    """Operator, inputs and attributes: equal for nodes that compute the same."""
    attributes = sorted(one.SerializeToString(deterministic=True) for one in node.proto.attribute)
    return node.domain, node.op_type, tuple(node.proto.input), tuple(attributes)


class Reasons:
    """The rules behind each difference.

    Args:
        applied: code and place of each fix that is known to be in the second model; the marks in its nodes count too.
    """

    def __init__(self, applied: Iterable[tuple[str, Place]] = ()) -> None:
        self._applied: dict[tuple[tuple[str, ...], str], set[str]] = {}
        for code, place in applied:
            self._applied.setdefault((place.graph, place.output), set()).add(code)

    def of_pair(self, old: Node, new: Node) -> tuple[str, ...]:
        """Why a node changed: by its marks, or by the fixes for it, or for what it no longer reads."""
        found = (marks(new) - marks(old)) | self._at(old) | self._at(new)
        if not found:
            reads = set(new.proto.input)
            gone = [one.producer for one in old.inputs if one is not None and one.name not in reads]
            found = {code for node in gone if node is not None for code in self._at(node)}
        return tuple(sorted(found))

    def of_added(self, node: Node, pairs: Pairs) -> tuple[str, ...]:
        """Why a node is new: by its own mark, or by those of the nodes that read it. A fix for the node itself comes
        last: it changed what another fix had made."""
        found = marks(node) or self._near(node.outputs, pairs.back, old=False) or self._at(node)
        return tuple(sorted(found))

    def of_removed(self, node: Node, pairs: Pairs) -> tuple[str, ...]:
        """Why a node is gone: a fix was for it, or changed what read it, or else what it read."""
        found = self._at(node) or self._near(node.outputs, pairs.to, old=True)
        if not found:
            for value in node.inputs:
                producer = value.producer if value is not None else None
                if producer is not None and producer in pairs.to:
                    found |= set(self.of_pair(producer, pairs.to[producer]))
        return tuple(sorted(found))

    def of_value(self, value: Value | None, pairs: Pairs, *, old: bool) -> tuple[str, ...]:
        """Why a constant is new, or gone (``old``): a fix changed what reads it."""
        return tuple(sorted(self._near([value], pairs.to if old else pairs.back, old=old)))

    def _at(self, node: Node) -> set[str]:
        return self._applied.get((node.scope.trail, node.first_output), set())

    def _near(self, values: Iterable[Value | None], twins: dict[Node, Node], *, old: bool) -> set[str]:
        """The rules that touched the nearest nodes downstream, of those that both models have or that a fix names."""
        found: set[str] = set()
        later: set[str] = set()
        edge = [use.node for value in values if value is not None for use in value.uses]
        seen: set[Node] = set()
        while edge and len(seen) < _STEPS:
            node = edge.pop()
            if node in seen:
                continue
            seen.add(node)
            twin = twins.get(node)
            if twin is not None:
                found |= set(self.of_pair(node, twin) if old else self.of_pair(twin, node))
                continue
            own = self._at(node) if old else marks(node)
            found |= own
            later |= self._at(node)
            if not own:
                edge += [use.node for value in node.outputs if value is not None for use in value.uses]
        return found or later


def find_regions(pairs: Pairs, numbers: dict[Node, int]) -> dict[Node, int]:
    """The nodes of a graph that belong together, by a number: connected ones that are gone, those that took their
    place, and the readers of both. A value of the same name ends a region: both graphs compute it. ``numbers`` has the
    regions of the whole model, by a node of each."""
    twins = pairs.to
    replaced = {old for old, new in twins.items() if operator_name(old) != operator_name(new)}
    whole = {*replaced, *(twins[old] for old in replaced)}
    gone = [node for node in pairs.before.nodes if node not in twins or node in whole]
    new = [node for node in pairs.after.nodes if node not in pairs.back or node in whole]
    joined = [node for node in (*gone, *new) if node.op_type != "Constant"]
    above = {node: node for node in joined}

    def first(node: Node) -> Node:
        while above[node] is not node:
            above[node] = node = above[above[node]]
        return node

    def join(one: Node | None, other: Node | None) -> None:
        if one in above and other in above:
            above[first(other)] = first(one)

    for node in joined:
        for producer in _producers(node):
            join(producer if producer not in whole else None, node)
    for old, twin in twins.items():
        join(old, twin)
        for one, other in zip(_producers(old), _producers(twin), strict=False):
            join(one, other)
    regions = {node: numbers.setdefault(first(node), len(numbers)) for node in joined}
    for old, twin in twins.items():  # a reader belongs to one region, and connects it with no other one
        reads = chain(_producers(old), _producers(twin))
        if near := next((node for node in reads if node in above and node not in whole), None):
            regions.setdefault(old, regions[near])
    return regions


def _producers(node: Node) -> list[Node | None]:
    return [value.producer if value is not None else None for value in node.inputs]


def group(changes: Sequence[ModelChange]) -> tuple[ChangeGroup, ...]:
    """The changes of nodes and constants by their cause, the largest group first. Of several rules, the one behind
    most changes counts."""
    often = Counter(code for change in changes for code in change.rules)
    by_region: dict[tuple[str, object], list[int]] = {}
    for number, change in enumerate(changes):
        rule = min(change.rules, key=lambda code: (-often[code], code), default="")
        region: object = (change.region,) if change.region >= 0 else number
        if change.subject == "node" or (rule and change.subject in _CONSTANTS):
            by_region.setdefault((rule, region), []).append(number)
        elif change.subject in _CONSTANTS:
            by_region.setdefault(("", "constants"), []).append(number)
    alike: dict[object, list[list[int]]] = {}
    for (rule, _), numbers in by_region.items():
        alike.setdefault(rule or _kind(changes[number] for number in numbers), []).append(numbers)
    groups = (_sum(kind if isinstance(kind, str) else "", some, changes) for kind, some in alike.items())
    return tuple(sorted(groups, key=lambda one: (-len(one.changes), one.rule)))


def _kind(changes: Iterable[ModelChange]) -> tuple[object, ...]:
    """Equal for regions in which the same happened."""
    counts = Counter(
        (change.sign, *operators_of(change), *(detail.name for detail in change.details))
        for change in changes
        if change.subject == "node"
    )
    return tuple(sorted(counts.items()))


def operators_of(change: ModelChange) -> tuple[str, ...]:
    """The operator of a changed node, or the two of one that became another operator."""
    other = next(((one.before, one.after) for one in change.details if one.name == "operator"), None)
    return other or (change.place.op_type,)


def _sum(rule: str, regions: Sequence[Sequence[int]], changes: Sequence[ModelChange]) -> ChangeGroup:
    numbers = [*chain.from_iterable(regions)]
    counts: dict[Sign, Counter[str]] = {"removed": Counter(), "added": Counter(), "changed": Counter()}
    for change in (changes[number] for number in numbers if changes[number].subject == "node"):
        before, *after = operators_of(change)
        counts["removed" if after else change.sign][before] += 1
        counts["added"].update(after)
    removed, added, changed = (dict(one.most_common()) for one in counts.values())
    nodes = (next((at for at in some if changes[at].subject == "node"), None) for some in regions)
    examples = tuple(at for at in nodes if at is not None)[:_EXAMPLES] or tuple(numbers[:1])
    return ChangeGroup(rule, len(regions), removed, added, changed, tuple(sorted(numbers)), examples)
