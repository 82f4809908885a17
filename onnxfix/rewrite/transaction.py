"""Applies fixes to a model: each as a whole or not at all, with use-def links kept right throughout.

Here are the edits of what graphs declare (types of values, initializers, imports), and what follows from all edits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onnx import GraphProto

from onnxfix.errors import EditError
from onnxfix.files import walk
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.model import Model
from onnxfix.rewrite import edits as ed
from onnxfix.rewrite.changes import nodes
from onnxfix.rewrite.changes.nodes import remove_node
from onnxfix.rewrite.changes.state import MARK, State, mark, order_nodes, remove, remove_where, take_back
from onnxfix.source import inherit


def add_initializer(state: State, edit: ed.AddInitializer) -> None:
    """Add an initializer."""
    scope, name = edit.scope, edit.tensor.name
    if not isinstance(scope.proto, GraphProto):
        raise EditError("a function has no initializers")
    if not name or scope.lookup(name) is not None or not state.is_free(scope, name):
        raise EditError(f"the name {name!r} is taken")
    tensor = scope.proto.initializer.add()
    tensor.CopyFrom(edit.tensor)
    value = scope.values[name] = Value(name, scope)
    value.initializer = tensor
    state.take_name(scope, name)
    state.undo.append(lambda: _discard(state, value))
    state.reorder(scope)


def _discard(state: State, value: Value) -> None:
    """Undo of ``add_initializer``."""
    state.dropped[value] = None
    value.scope.values.pop(value.name, None)
    assert isinstance(value.scope.proto, GraphProto)
    take_back(value.scope.proto.initializer, value.initializer)


def remove_initializer(state: State, edit: ed.RemoveInitializer) -> None:
    """Remove an initializer, dense or sparse."""
    value = edit.value
    if value._uses or not value.replaceable or value.is_input:
        raise EditError(f"initializer {value.name!r} is still needed")
    if value in state.dropped:
        raise EditError(f"initializer {value.name!r} is removed already")
    scope = value.scope
    state.dropped[value] = None
    scope.values.pop(value.name, None)
    state.undo.append(lambda: state.dropped.pop(value, None))
    state.undo.append(lambda: scope.values.__setitem__(value.name, value))
    state.reorder(scope)


def set_value_info(state: State, edit: ed.SetValueInfo) -> None:
    """Set or delete the declared type of a value, or set that of a graph output."""
    infos, scope = edit.scope.proto.value_info, edit.scope
    known = state.infos.get(scope)
    if known is None:
        known = state.infos[scope] = {}
        for info in infos:
            known.setdefault(info.name, []).append(info)
    present = known.get(edit.name, [])
    graph = scope.proto if isinstance(scope.proto, GraphProto) else GraphProto()
    outputs = [info for info in graph.output if info.name == edit.name]
    if edit.info is not None and outputs and not (present and outputs[0].HasField("type")):
        present = outputs
    scope.forget_declared()
    state.fix_names.add(edit.name)
    if edit.info is not None and present:
        first, old = present[0], walk.copied(present[0])
        first.CopyFrom(edit.info)
        state.undo.append(lambda: first.CopyFrom(old))
        return
    known[edit.name] = []
    state.undo.append(lambda: known.__setitem__(edit.name, present))
    if edit.info is None:  # deleted when the transaction closes, all at once
        state.stale_infos.setdefault(scope, []).extend(present)
        state.reorder(scope)
        state.undo.append(lambda: _keep_infos(state, scope, len(present)))
    else:
        added = infos.add()
        added.CopyFrom(edit.info)
        known[edit.name] = [added]
        state.undo.append(lambda: take_back(infos, added))


def _keep_infos(state: State, scope: Scope, count: int) -> None:
    """Undo of a removal: edits are undone last to first, so that its messages are the last ones."""
    stale = state.stale_infos[scope]
    del stale[len(stale) - count :]


def sort_nodes(state: State, edit: ed.SortNodes) -> None:
    """Bring a scope into topological order when the transaction closes."""
    state.sorted[edit.scope] = None
    state.reorder(edit.scope)


def set_import(state: State, edit: ed.SetImport) -> None:
    """Import another version of ONNX's operators."""
    imports = state.model.proto.opset_import
    entry = next((one for one in imports if one.domain in ("", "ai.onnx")), None)
    if entry is None:
        raise EditError("the model imports no version of ONNX's operators that could be changed")
    before = int(entry.version)
    entry.version = edit.version
    state.undo.append(lambda: setattr(entry, "version", before))


def close(state: State) -> None:
    """Remove what the fixes left without a reader, and bring the protobuf's lists into order."""
    state.undo, state.fix_names = [], set()
    state.model_names.update(state.new_names)
    _prune(state)
    state.names |= state.fix_names
    for scope in state.reordered:
        _reorder(state, scope)
    for scope, infos in state.stale_infos.items():
        remove(scope.proto.value_info, infos)
        scope.forget_declared()
    for scope, dropped in _by_scope(state.dropped).items():
        _delete_initializers(scope, dropped)
    _delete_names(state)
    for scope in state.sorted:
        scope.nodes = scope.topological()
        order_nodes(scope)
    state.model.invalidate()


def _prune(state: State) -> None:
    """Remove producers and initializers that lost their last reader to these fixes, and what only they read."""
    while state.unread:
        value = state.unread.pop()
        if value._uses or not value.replaceable or value.is_input or value.scope in state.buried:
            continue
        node = value.producer
        if node is not None:
            if node not in state.removed and all(
                v is None or (not v._uses and v.replaceable) for v in node.outputs
            ):
                remove_node(state, ed.RemoveNode(node))
        elif (value.initializer is not None or value.sparse) and value not in state.dropped:
            state.dropped[value] = None
            state.reorder(value.scope)


def _reorder(state: State, scope: Scope) -> None:
    nodes: list[Node] = []
    for node in scope.nodes:
        nodes += state.inserted.get(node, ())
        nodes.append(node)
    nodes += state.appended.get(scope, ())
    scope.nodes = [node for node in nodes if node not in state.removed]
    order_nodes(scope)


def _by_scope(values: dict[Value, None]) -> dict[Scope, list[Value]]:
    found: dict[Scope, list[Value]] = {}
    for value in values:
        found.setdefault(value.scope, []).append(value)
    return found


def _delete_initializers(scope: Scope, dropped: list[Value]) -> None:
    if not isinstance(scope.proto, GraphProto):
        return
    remove(scope.proto.initializer, [value.initializer for value in dropped if value.initializer is not None])
    sparse = {value.name for value in dropped if value.sparse}
    if sparse:
        remove_where(scope.proto.sparse_initializer, lambda row: row.values.name in sparse)


def _delete_names(state: State) -> None:
    """Delete the values that nothing defines any more, and their declarations."""
    gone: dict[Scope, set[str]] = {}
    for value in (*state.dangling, *state.dropped):
        if value.producer is None and value.scope.values.get(value.name) in (value, None):
            value.scope.values.pop(value.name, None)
            gone.setdefault(value.scope, set()).add(value.name)
    for scope, names in gone.items():
        state.names |= names
        remove(scope.proto.value_info, [info for info in scope.proto.value_info if info.name in names])
        scope.forget_declared()


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
        close(self._state)


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
    ed.AddInitializer: add_initializer,
    ed.RemoveInitializer: remove_initializer,
    ed.SetValueInfo: set_value_info,
    ed.SortNodes: sort_nodes,
    ed.SetImport: set_import,
}
