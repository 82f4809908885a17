"""Which nodes of two graphs are the same node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from onnxfix.graph.overlay import Node, Scope


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
