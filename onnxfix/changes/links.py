"""Connections between nodes and values: what a node reads, what it defines, and which uses move to another value."""

from __future__ import annotations

from onnx import GraphProto

from onnxfix import edits as ed
from onnxfix.changes.state import State
from onnxfix.errors import EditError, ShadowedError
from onnxfix.graph import build
from onnxfix.graph.overlay import Node, Scope, Use, Value


def connect(state: State, node: Node, index: int, name: str, *, grow: bool) -> None:
    """Let an input of ``node`` read ``name``; with ``grow`` the input is a new one at the end.

    Raises:
        EditError: the name is not defined there.
    """
    value = node.scope.lookup(name) if name else None
    if name and (value is None or state.has_no_producer(value)):
        raise EditError(f"{node.place} would read {name!r}, which is not defined there")
    if grow:
        node.inputs.append(value)
        if len(node.proto.input) < len(node.inputs):
            node.proto.input.append(name)
        state.undo.append(lambda: _shrink(node))
    else:
        before, old = node.proto.input[index], node.inputs[index]
        node.proto.input[index], node.inputs[index] = name, value
        state.undo.append(lambda: _restore_input(node, index, before, old))
    if value is not None:
        use, uses = Use(node, index), value._uses
        uses[use] = None
        state.undo.append(lambda: uses.pop(use, None))
    if not grow and node.inputs[-1] is None:
        least = ed.least_inputs(node.proto)
        while len(node.inputs) > least and node.inputs[-1] is None:
            _pop_input(state, node)


def _shrink(node: Node) -> None:
    node.inputs.pop()
    del node.proto.input[len(node.inputs) :]


def _restore_input(node: Node, index: int, name: str, value: Value | None) -> None:
    node.proto.input[index], node.inputs[index] = name, value


def _pop_input(state: State, node: Node) -> None:
    """Remove an omitted input from the end of the list."""
    node.inputs.pop()
    node.proto.input.pop()
    state.undo.append(lambda: _append_omitted_input(node))


def _append_omitted_input(node: Node) -> None:
    node.inputs.append(None)
    node.proto.input.append("")


def disconnect(state: State, node: Node, index: int) -> None:
    """Remove the use that an input of ``node`` is."""
    value, use = node.inputs[index], Use(node, index)
    if value is None or use not in value._uses:
        return
    uses = value._uses
    del uses[use]
    state.undo.append(lambda: uses.setdefault(use))
    state.unread.append(value)


def link(state: State, scope: Scope) -> None:
    """Connect a new subgraph's nodes and outputs to the values that they name.

    Raises:
        EditError: a name is not defined there.
    """
    assert isinstance(scope.proto, GraphProto)
    for node in scope.nodes:
        for index, name in enumerate(node.proto.input):
            connect(state, node, index, name, grow=True)
    for info in scope.proto.output:
        value = scope.lookup(info.name)
        if value is None or state.has_no_producer(value):
            raise EditError(f"{scope.path} would return {info.name!r}, which is not defined there")
        if value.scope is scope:
            value.is_output = True
        else:
            state.set(value, "pins", value.pins + 1)
        scope.outputs.append(value)
    for value in build.named_without_use(scope):
        state.set(value, "pins", value.pins + 1)


def define(state: State, scope: Scope, name: str, node: Node, index: int) -> Value:
    """The value that an output of ``node`` defines: a new one, or one that lost its producer.

    Raises:
        EditError: the name is taken.
    """
    value = scope.values.get(name)
    if value is not None:
        if not state.has_no_producer(value):
            raise EditError(f"the name {name!r} is taken")
    else:
        if scope.lookup(name) is not None:
            raise EditError(f"the name {name!r} is taken in a surrounding graph")
        if not state.is_free(scope, name) and state.is_inside(scope, name):
            raise EditError(f"the name {name!r} is taken in a graph inside")
        value = scope.values[name] = Value(name, scope)
        state.take_name(scope, name)
        state.undo.append(lambda: scope.values.pop(name, None))
    state.set(value, "producer", node)
    state.set(value, "output_index", index)
    return value


def orphan(state: State, value: Value) -> None:
    """Take a value's producer away; a later edit of the same fix may give it another one."""
    state.dangling[value] = None
    state.orphaned.append(value)
    state.undo.append(lambda: state.dangling.pop(value, None))
    state.set(value, "producer", None)
    state.set(value, "_constant", None)


def move_uses(state: State, old: Value, new: Value) -> None:
    """Let every reader of ``old`` read ``new``.

    Raises:
        ShadowedError: where a reader stands, the name of ``new`` means another value.
    """
    for use in old.uses:
        if use.node.scope.lookup(new.name) is not new:
            raise ShadowedError(f"{new.name!r} means another value at {use.node.place}")
        disconnect(state, use.node, use.index)
        connect(state, use.node, use.index, new.name, grow=False)
