"""Edits of nodes: add, remove and rename them, and set what they read, write and hold."""

from __future__ import annotations

from onnx import AttributeProto, GraphProto

from onnxfix.errors import EditError, ModelError, ShadowedError
from onnxfix.files import walk
from onnxfix.graph import build, order
from onnxfix.graph.overlay import Node, Scope, Use, Value
from onnxfix.rewrite import edits as ed
from onnxfix.rewrite.changes.state import State, take_back


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
        build.fill(build.add_subgraphs(node, node.proto.attribute[:]))
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
    attributes = edit.node.proto.attribute
    position = next((i for i, a in enumerate(attributes) if a.name == edit.name), None)
    if position is not None:
        before = walk.copied(attributes[position])
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
