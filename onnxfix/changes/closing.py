"""The end of a transaction: what the fixes left unread is removed, and the protobuf's lists get their final order."""

from __future__ import annotations

from onnx import GraphProto

from onnxfix import edits as ed
from onnxfix.changes.messages import order_nodes, remove, remove_where
from onnxfix.changes.nodes import remove_node
from onnxfix.changes.state import State
from onnxfix.graph.overlay import Node, Scope, Value


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
        _delete_infos(scope, names)


def _delete_infos(scope: Scope, names: set[str]) -> None:
    remove_where(scope.proto.value_info, lambda info: info.name in names)
    scope.forget_declared()
