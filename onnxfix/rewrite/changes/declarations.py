"""Edits of what graphs declare: types of values, initializers, imports; and what follows from all edits of a fix."""

from __future__ import annotations

from onnx import GraphProto

from onnxfix.errors import EditError
from onnxfix.files import walk
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.rewrite import edits as ed
from onnxfix.rewrite.changes.nodes import remove_node
from onnxfix.rewrite.changes.state import State, order_nodes, remove, remove_where, take_back


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
