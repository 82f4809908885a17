"""Applies fixes to a model: each as a whole or not at all, with use-def links kept right throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onnxfix.errors import EditError
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.rewrite import edits as ed
from onnxfix.rewrite.changes import declarations, nodes
from onnxfix.rewrite.changes.state import MARK, State, mark
from onnxfix.source import inherit

__all__ = ["MARK", "Transaction", "commit"]


class Transaction:
    """Applies fixes one after the other; ``close`` puts the protobuf's lists into their final order.

    Between ``apply`` calls the links are right; the order of ``scope.nodes`` is right after ``close``. With
    ``hold_names``, the model gets the new names when the transaction closes.
    """

    def __init__(self, model: Model, *, hold_names: bool = False) -> None:
        self.model = model
        self._state = State(model, hold_names=hold_names)

    @property
    def names(self) -> set[str]:
        """Names of the values whose producer, consumer or declaration the applied fixes changed."""
        return self._state.names

    @property
    def changed(self) -> set[Node]:
        """The nodes that the applied fixes changed or added; some may be removed again."""
        return self._state.changed

    def apply(self, fix: Sequence[ed.Edit], code: str = "") -> None:
        """Apply one fix and mark the nodes that it touched with ``code``.

        Raises:
            EditError: the fix would break the graph; nothing of it was done.
        """
        state = self._state
        state.begin()
        try:
            for edit in fix:
                _check_alive(state, edit)
                _APPLY[type(edit)](state, edit)
            _check_orphaned(state)
        except BaseException:
            state.rollback()
            raise
        state.undo = []
        state.names |= state.fix_names
        state.changed.update(state.touched)
        self._inherit_source(fix)
        marks = bool(code) and self.model.ir_version >= 10
        for node in state.touched:
            state.names.update(["" if value is None else value.name for value in node.outputs])
            if marks and node not in state.removed:
                mark(node, code)

    def _inherit_source(self, fix: Sequence[ed.Edit]) -> None:
        """Let the new nodes say that they come from where the node does that they replace, or stand before."""
        old = [edit.node for edit in fix if isinstance(edit, ed.RemoveNode)]
        old += [edit.before for edit in fix if isinstance(edit, ed.AddNode) and edit.before is not None]
        if old and old[0].source is not None:
            added = {node for nodes in self._state.added.values() for node in nodes}
            inherit([node.proto for node in self._state.touched if node in added], old[0].proto)

    def close(self) -> None:
        """Remove what the fixes left without a reader, and bring the protobuf's lists into order."""
        declarations.close(self._state)


def commit(model: Model, fixes: Iterable[Sequence[ed.Edit]], code: str = "") -> None:
    """Apply whole fixes at once; for engines of one's own and for tests.

    Raises:
        EditError: one of them would break the graph; those before it stay applied.
    """
    transaction = Transaction(model)
    try:
        for fix in fixes:
            transaction.apply(fix, code)
    finally:
        transaction.close()


def _check_alive(state: State, edit: ed.Edit) -> None:
    """Refuse to change a removed node, or what stands inside one: the change would keep what it reads alive. What must
    still be there is a value, a node, or the scope that the edit names."""
    place: Any = getattr(edit, "value", None) or getattr(edit, "node", None) or edit
    if place.scope in state.buried:
        raise EditError(f"{place.scope.path} went with its node")
    if isinstance(place, Node) and place in state.removed:
        raise EditError(f"{place.place} is removed already")


def _check_orphaned(state: State) -> None:
    for value in state.orphaned:
        if value.producer is None and (value._uses or not value.replaceable):
            raise EditError(f"{value.name!r} is still needed, but its producer would be removed")


_APPLY: dict[type, Callable[[State, Any], None]] = {
    ed.AddNode: nodes.add_node,
    ed.RemoveNode: nodes.remove_node,
    ed.SetInput: nodes.set_input,
    ed.SetOutput: nodes.set_output,
    ed.ReplaceUses: nodes.replace_uses,
    ed.SetAttribute: nodes.set_attribute,
    ed.RenameNode: nodes.rename_node,
    ed.AddInitializer: declarations.add_initializer,
    ed.RemoveInitializer: declarations.remove_initializer,
    ed.SetValueInfo: declarations.set_value_info,
    ed.SortNodes: declarations.sort_nodes,
    ed.SetImport: declarations.set_import,
}
