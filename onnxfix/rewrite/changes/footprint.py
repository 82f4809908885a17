"""What the edits of a fix touch: two fixes that meet in it are not made in one round."""

from __future__ import annotations

from collections.abc import Iterable

from onnxfix.graph.overlay import Node, Value
from onnxfix.rewrite import edits as ed


def touched(edits: Iterable[ed.Edit]) -> set[object]:
    """The nodes, values, scopes and new names that the edits change: a fix's write footprint.

    Nodes that merely read another value afterwards are not in it: see ``rewired``.
    """
    found: set[object] = set()
    for edit in edits:
        if isinstance(edit, ed.AddNode):
            found.update((edit.scope, name) for name in (*edit.proto.output, *ed.defined(edit.proto)) if name)
        elif isinstance(edit, ed.AddInitializer):
            found.add((edit.scope, edit.tensor.name))
        elif isinstance(edit, ed.SetValueInfo):
            found.add((edit.scope, "value_info", edit.name))
        elif isinstance(edit, ed.SortNodes):
            found.add((edit.scope, "order"))
        elif isinstance(edit, ed.SetImport):
            found.update(edit.scope.model.scopes)
            found.update(edit.scope.model.nodes())
        elif isinstance(edit, (ed.ReplaceUses, ed.RemoveInitializer)):
            found.add(edit.value)
        else:
            found.add(edit.node)
            if isinstance(edit, ed.RemoveNode):
                found.update(value for value in edit.node.outputs if value is not None)
                for sub in edit.node.subgraphs:
                    for scope in sub.walk():
                        found.add(scope)
                        found.update(scope.nodes)
            value = renamed(edit)
            if value is not None:
                found.add(value)
    return found


def held(node: Node | None) -> set[object]:
    """A node with its outputs, and the scopes, nodes and values in it: what a copy of it depends on."""
    if node is None:
        return set()
    inside = (scope for sub in node.subgraphs for scope in sub.walk())
    return touched([ed.RemoveNode(node)]).union(*(scope.values.values() for scope in inside))


def rewired(edits: Iterable[ed.Edit]) -> set[object]:
    """The consumers of replaced values, and the scopes that get something new.

    Fixes that replace different inputs of one node, or add to one scope, do not meet in it. Where another one removes
    the node or scope, they do.
    """
    found: set[object] = set()
    for edit in edits:
        if isinstance(edit, (ed.AddNode, ed.AddInitializer, ed.SetValueInfo)):
            found.add(edit.scope)
        value = edit.value if isinstance(edit, ed.ReplaceUses) else renamed(edit)
        if value is not None:
            found.update(use.node for use in value.uses)
    return found


def renamed(edit: ed.Edit) -> Value | None:
    """The value that gets another name, which its consumers then read."""
    return edit.node.outputs[edit.index] if isinstance(edit, ed.SetOutput) else None
