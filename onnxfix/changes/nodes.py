"""Edits of nodes: new and removed ones, their inputs, outputs, attributes and names."""

from __future__ import annotations

from onnx import AttributeProto

from onnxfix import edits as ed
from onnxfix import walk
from onnxfix.changes.links import connect, define, disconnect, link, move_uses, orphan
from onnxfix.changes.messages import copied, take_back
from onnxfix.changes.state import State
from onnxfix.errors import EditError, ModelError, ShadowedError
from onnxfix.graph import build, order
from onnxfix.graph.overlay import Node, Scope, Value


def add_node(state: State, edit: ed.AddNode) -> None:
    """Add a node, with the graphs in it."""
    scope = edit.scope
    proto = scope.proto.node.add()
    proto.CopyFrom(edit.proto)
    node = Node(proto, scope)
    state.reorder(scope)
    state.added.setdefault(scope, []).append(node)
    state.undo.append(lambda: _discard(state, node))
    # Inputs and captures first: a node cannot read what it makes.
    for index, name in enumerate(proto.input):
        connect(state, node, index, name, grow=True)
    _add_subgraphs(state, node)
    _refuse_shadowed_operators(state, node)
    for index, name in enumerate(proto.output):
        node.outputs.append(define(state, scope, name, node, index) if name else None)
    if edit.before is not None:
        state.inserted.setdefault(edit.before, []).append(node)
    else:
        state.appended.setdefault(scope, []).append(node)
    state.touched.append(node)


def _discard(state: State, node: Node) -> None:
    """Undo of ``add_node``."""
    state.removed.add(node)
    take_back(node.scope.proto.node, node.proto)


def _add_subgraphs(state: State, node: Node) -> None:
    """Index the graphs that came with a new node: what they define, what they capture, what they return."""
    try:
        build.fill(build.add_subgraphs(node))
    except ModelError as error:
        raise EditError(str(error)) from None
    inside = state.inside(node)
    for scope in inside:
        assert scope.parent is not None
        for name in scope.values:
            known = name in state.model_names or name in state.new_names
            if known and scope.parent.lookup(name) is not None:
                raise ShadowedError(f"{name!r} in {scope.path} would hide the value of that name around it")
            state.take_name(scope, name)
        state.fix_names.update(scope.values, scope.declared_types())
    for scope in inside:
        link(state, scope)
    try:
        for scope in node.subgraphs:  # each with all that is in it
            order.orders(scope)
    except ModelError as error:
        raise EditError(str(error)) from None


def _refuse_shadowed_operators(state: State, node: Node) -> None:
    """Refuse new nodes that mean an operator of ONNX's and would call a local function of its name."""
    if not state.model.function_names:
        return
    for each in (node, *(inner for scope in state.inside(node) for inner in scope.nodes)):
        if each.domain == "" and not each.is_onnx:
            raise ShadowedError(f"{each.op_type} is a local function of the model")


def remove_node(state: State, edit: ed.RemoveNode) -> None:
    """Remove a node, with the graphs in it."""
    node = edit.node
    state.removed.add(node)
    state.undo.append(lambda: state.removed.discard(node))
    state.reorder(node.scope)
    state.forget_knowledge(node)
    for index in range(len(node.inputs)):
        disconnect(state, node, index)
    inside = state.inside(node)
    within = set(inside)
    for inner in inside:
        _bury(state, inner, within)
    for value in node.outputs:
        if value is not None:
            orphan(state, value)


def _bury(state: State, scope: Scope, inside: set[Scope]) -> None:
    """Remove a scope with its node; ``inside`` are all the scopes inside that node."""
    state.fix_names.update(scope.values, scope.declared_types())
    state.buried.add(scope)
    state.undo.append(lambda: state.buried.discard(scope))
    for child in state.nodes(scope):
        state.forget_knowledge(child)
        for index in range(len(child.inputs)):
            disconnect(state, child, index)
    for outer in (*scope.outputs, *build.named_without_use(scope)):
        if outer.scope not in inside:  # a branch that returned, or named, an outer value
            state.set(outer, "pins", outer.pins - 1)
            state.unread.append(outer)


def set_input(state: State, edit: ed.SetInput) -> None:
    """Let an input read another value."""
    node, index = edit.node, edit.index
    if index > len(node.inputs):
        raise EditError(f"{node.place} has {len(node.inputs)} inputs; input {index} cannot be set")
    if index < len(node.inputs):
        disconnect(state, node, index)
    connect(state, node, index, edit.name, grow=index == len(node.inputs))
    state.touched.append(node)


def set_output(state: State, edit: ed.SetOutput) -> None:
    """Rename an output, and its uses with it."""
    node, index, scope = edit.node, edit.index, edit.node.scope
    old = node.outputs[index]
    if old is None or not old.replaceable:
        raise EditError(f"output {index} of {node.place} cannot be renamed")
    before = node.proto.output[index]
    new = define(state, scope, edit.name, node, index)
    node.proto.output[index] = edit.name
    node.outputs[index] = new
    state.undo.append(lambda: _restore_output(node, index, before, old))
    state.touched.extend(use.node for use in old.uses)
    move_uses(state, old, new)
    orphan(state, old)
    state.touched.append(node)


def _restore_output(node: Node, index: int, name: str, value: Value) -> None:
    node.proto.output[index] = name
    node.outputs[index] = value


def replace_uses(state: State, edit: ed.ReplaceUses) -> None:
    """Move all uses of a value to another one."""
    value = edit.value
    if not value.replaceable:
        raise EditError(f"{value.name!r} is an output or named elsewhere: its uses cannot be moved")
    new = value.scope.lookup(edit.name)
    if new is None:
        raise EditError(f"{edit.name!r} is not defined where {value.name!r} is")
    state.touched.extend(use.node for use in value.uses)
    move_uses(state, value, new)
    state.unread.append(value)


def set_attribute(state: State, edit: ed.SetAttribute) -> None:
    """Set or delete an attribute."""
    state.forget_knowledge(edit.node)
    attributes = edit.node.proto.attribute
    position = next((i for i, a in enumerate(attributes) if a.name == edit.name), None)
    if position is not None:
        before = copied(attributes[position])
        if before.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            raise EditError(f"attribute {edit.name!r} of {edit.node.place} holds a graph and stays as it is")
        del attributes[position]
        state.undo.append(lambda: attributes.insert(position, before))
    if edit.attribute is not None:
        if walk.attribute_graphs(edit.attribute):
            raise EditError(f"attribute {edit.name!r} holds a graph: it comes with a new node only")
        index = len(attributes) if position is None else position
        attributes.insert(index, edit.attribute)
        state.undo.append(lambda: attributes.__delitem__(index))
    for value in edit.node.outputs:
        if value is not None:  # the array of a Constant is kept with its output
            state.set(value, "_constant", None)
    state.touched.append(edit.node)


def rename_node(state: State, edit: ed.RenameNode) -> None:
    """Rename a node."""
    proto = edit.node.proto
    before = proto.name if proto.HasField("name") else None
    proto.name = edit.name
    # An empty name and no name are different bytes.
    state.undo.append(lambda: proto.ClearField("name") if before is None else setattr(proto, "name", before))
    state.touched.append(edit.node)
