"""Which rules made a difference: by the marks of touched nodes and by the fixes of a report."""

from __future__ import annotations

from collections.abc import Iterable

from onnxfix.changes.messages import marks
from onnxfix.difference.matching import Pairs
from onnxfix.graph.overlay import Node, Value
from onnxfix.place import Place

_STEPS = 64
"""Nodes between one that is gone and the next that is left."""


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
