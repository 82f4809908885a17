"""Carries out edits on a model: each fix as a whole or not at all, use-def links kept right throughout."""
# Long because: one class with one method an edit, each beside its undo; splitting it would part the two.

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from onnx import AttributeProto, GraphProto, ValueInfoProto

from onnxfix import edits as ed
from onnxfix.errors import EditError, ModelError, ShadowedError
from onnxfix.graph import build, order, shared
from onnxfix.graph.overlay import Node, Scope, Use, Value
from onnxfix.model import Model

MARK = "onnxfix"
"""Key of the node metadata that names the rules whose fixes touched the node."""


class Transaction:
    """Applies fixes one after the other; ``close`` puts the protobuf's lists into their final order.

    Between ``apply`` calls the links are right; the order of ``scope.nodes`` is right after ``close``.
    """

    def __init__(self, model: Model, *, hold_names: bool = False) -> None:
        self.model = model
        self._hold = hold_names
        self._names: set[str] = set()
        self._undo: list[Callable[[], None]] = []
        self._inserted: dict[int, list[Node]] = {}
        self._appended: dict[int, list[Node]] = {}
        self._removed: dict[int, Node] = {}
        self._dangling: dict[int, Value] = {}
        self._dropped: dict[int, Value] = {}
        self._suspects: list[Value] = []
        self._loose: list[Value] = []
        self._touched: list[Node] = []
        self.names: set[str] = set()
        """Names of the values whose producer, consumer or declaration the applied fixes changed."""
        self.changed: set[Node] = set()
        """The nodes that the applied fixes changed or added; some may be gone again."""
        self._inner: set[str] = set()
        self._buried: set[int] = set()
        self._added: dict[int, list[Node]] = {}
        self._new: dict[str, list[Scope]] = {}
        """The names that the fixes took, each with the scopes in which it is defined. The model has them at once; with
        ``hold_names`` when the transaction closes, so that what a fix calls its values does not depend on the fixes
        before it."""
        self._infos: dict[int, dict[str, list[ValueInfoProto]]] = {}
        self._stale: dict[int, dict[int, ValueInfoProto]] = {}
        self._scopes: dict[int, Scope] = {}
        self._sorted: dict[int, Scope] = {}

    def apply(self, fix: Sequence[ed.Edit], code: str = "") -> None:
        """Carry out one fix and mark the nodes that it touched with ``code``.

        Raises:
            EditError: the fix would break the graph; nothing of it was done.
        """
        self._undo, self._touched, self._suspects, self._inner = [], [], [], set()
        self._names = self.model.names  # gathered now, and not in the middle of an edit
        try:
            for edit in fix:
                self._check_alive(edit)
                _APPLY[type(edit)](self, edit)
            self._check_dangling()
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            raise
        self._undo = []
        self.names |= self._inner
        self.changed.update(self._touched)
        marks = bool(code) and self.model.ir_version >= 10
        for node in self._touched:
            self.names.update(["" if value is None else value.name for value in node.outputs])
            if marks and id(node) not in self._removed:
                _mark(node, code)

    def _check_alive(self, edit: ed.Edit) -> None:
        """Refuse to change a node that is gone, or what stands inside one: it would keep what it reads alive."""
        place = _PLACE[type(edit)](edit)
        if id(place.scope) in self._buried:
            raise EditError(f"{place.scope.path} went with its node")
        if isinstance(place, Node) and id(place) in self._removed:
            raise EditError(f"{place.place} is removed already")

    def _check_dangling(self) -> None:
        for value in self._suspects:
            if value.producer is None and (value._uses or not value.replaceable):
                raise EditError(f"{value.name!r} is still needed, but its producer would be removed")

    # -- the edits ---------------------------------------------------------------------------------------------

    def add_node(self, edit: ed.AddNode) -> None:
        scope = edit.scope
        proto = scope.proto.node.add()
        proto.CopyFrom(edit.proto)
        node = Node(proto, scope)
        self._touch(scope)
        self._added.setdefault(id(scope), []).append(node)
        self._undo.append(lambda: self._forget(node))
        # Inputs and captures first: a node cannot read what it makes.
        for index, name in enumerate(proto.input):
            self._connect(node, index, name, grow=True)
        self._add_subgraphs(node)
        self._refuse_namesakes(node)
        for index, name in enumerate(proto.output):
            node.outputs.append(self._define(scope, name, node, index) if name else None)
        if edit.before is not None:
            self._inserted.setdefault(id(edit.before), []).append(node)
        else:
            self._appended.setdefault(id(scope), []).append(node)
        self._touched.append(node)

    def _refuse_namesakes(self, node: Node) -> None:
        """Refuse new nodes that mean an operator of ONNX's and would call a local function of its name."""
        if not self.model.function_names:
            return
        for each in (node, *(inner for scope in self._inside(node) for inner in scope.nodes)):
            if each.domain == "" and not each.is_onnx:
                raise ShadowedError(f"{each.op_type} is a local function of the model")

    def _forget(self, node: Node) -> None:
        """Undo of ``add_node``."""
        self._removed[id(node)] = node
        _take_back(node.scope.proto.node, node.proto)

    def _add_subgraphs(self, node: Node) -> None:
        """Index the graphs that came with a new node: what they define, what they capture, what they return."""
        try:
            build.fill(build.add_subgraphs(node))
        except ModelError as error:
            raise EditError(str(error)) from None
        inside = self._inside(node)
        for scope in inside:
            assert scope.parent is not None
            for name in scope.values:
                if (name in self._names or name in self._new) and scope.parent.lookup(name) is not None:
                    raise ShadowedError(
                        f"{name!r} in {scope.path} would hide the value of that name around it"
                    )
                self._take(scope, name)
            self._inner.update(scope.values, scope.declared_types())
        for scope in inside:
            self._link(scope)
        try:
            for scope in node.subgraphs:  # each with all that is in it
                order.orders(scope)
        except ModelError as error:
            raise EditError(str(error)) from None

    def _link(self, scope: Scope) -> None:
        """Connect a new subgraph's nodes and outputs to what they name."""
        assert isinstance(scope.proto, GraphProto)
        for node in scope.nodes:
            for index, name in enumerate(node.proto.input):
                self._connect(node, index, name, grow=True)
        for info in scope.proto.output:
            value = scope.lookup(info.name)
            if value is None or (id(value) in self._dangling and value.producer is None):
                raise EditError(f"{scope.path} would return {info.name!r}, which is not defined there")
            if value.scope is scope:
                value.is_output = True
            else:
                self._set(value, "pins", value.pins + 1)
            scope.outputs.append(value)
        for value in build.annotated(scope):
            self._set(value, "pins", value.pins + 1)

    def _inside(self, node: Node) -> list[Scope]:
        """The subgraphs of ``node`` and those in them, as the fixes so far have left them."""
        found: list[Scope] = []
        stack = list(node.subgraphs)
        while stack:
            scope = stack.pop()
            found.append(scope)
            stack.extend(sub for child in self._nodes(scope) for sub in child.subgraphs)
        return found

    def _nodes(self, scope: Scope) -> list[Node]:
        """The nodes of ``scope``, new ones last, without those that are gone."""
        nodes = (*scope.nodes, *self._added.get(id(scope), ()))
        return [node for node in nodes if id(node) not in self._removed]

    def _define(self, scope: Scope, name: str, node: Node, index: int) -> Value:
        value = scope.values.get(name)
        if value is not None:
            if id(value) not in self._dangling or value.producer is not None:
                raise EditError(f"the name {name!r} is taken")
        else:
            if scope.lookup(name) is not None:
                raise EditError(f"the name {name!r} is taken in a surrounding graph")
            if not self._is_free(scope, name) and self._is_inside(scope, name):
                raise EditError(f"the name {name!r} is taken in a graph inside")
            value = Value(name, scope)
            scope.values[name] = value
            self._take(scope, name)
            self._undo.append(lambda: _delete(scope.values, name))
        self._set(value, "producer", node)
        self._set(value, "output_index", index)
        return value

    def remove_node(self, edit: ed.RemoveNode) -> None:
        node = edit.node
        self._removed[id(node)] = node
        self._undo.append(lambda: _delete(self._removed, id(node)))
        self._touch(node.scope)
        self._unlearn(node)
        for index in range(len(node.inputs)):
            self._disconnect(node, index)
        inside = self._inside(node)
        known = {id(scope) for scope in inside}
        for inner in inside:
            self._inner.update(inner.values, inner.declared_types())
            self._bury(inner)
            for child in self._nodes(inner):
                self._unlearn(child)
                for index in range(len(child.inputs)):
                    self._disconnect(child, index)
            for outer in (*inner.outputs, *build.annotated(inner)):
                if id(outer.scope) not in known:  # a branch that returned, or described, an outer value
                    self._set(outer, "pins", outer.pins - 1)
                    self._loose.append(outer)
        for value in node.outputs:
            if value is not None:
                self._orphan(value)

    def _bury(self, scope: Scope) -> None:
        self._buried.add(id(scope))
        self._undo.append(lambda: self._buried.discard(id(scope)))

    def _orphan(self, value: Value) -> None:
        """``value`` has no producer from here on; a later edit of the same fix may give it one."""
        self._dangling[id(value)] = value
        self._suspects.append(value)
        self._undo.append(lambda: _delete(self._dangling, id(value)))
        self._set(value, "producer", None)
        self._set(value, "_constant", None)

    def set_input(self, edit: ed.SetInput) -> None:
        node, index = edit.node, edit.index
        if index > len(node.inputs):
            raise EditError(f"{node.place} has {len(node.inputs)} inputs; input {index} cannot be set")
        if index < len(node.inputs):
            self._disconnect(node, index)
        self._connect(node, index, edit.name, grow=index == len(node.inputs))
        self._touched.append(node)

    def _connect(self, node: Node, index: int, name: str, *, grow: bool) -> None:
        value = node.scope.lookup(name) if name else None
        if name and (value is None or (id(value) in self._dangling and value.producer is None)):
            raise EditError(f"{node.place} would read {name!r}, which is not defined there")
        if grow:
            node.inputs.append(value)
            if len(node.proto.input) < len(node.inputs):
                node.proto.input.append(name)
            self._undo.append(lambda: self._shrink(node))
        else:
            before, old = node.proto.input[index], node.inputs[index]
            node.proto.input[index], node.inputs[index] = name, value
            self._undo.append(lambda: _restore_input(node, index, before, old))
        if value is not None:
            key = (id(node), index)
            value._uses[key] = Use(node, index)
            self._undo.append(lambda: _delete(value._uses, key))
        if not grow and node.inputs[-1] is None:
            least = ed.least_inputs(node.proto)
            while len(node.inputs) > least and node.inputs[-1] is None:
                self._pop_input(node)

    @staticmethod
    def _shrink(node: Node) -> None:
        node.inputs.pop()
        del node.proto.input[len(node.inputs) :]

    def _pop_input(self, node: Node) -> None:
        """Take a left-out input away from the end of the list."""
        node.inputs.pop()
        node.proto.input.pop()
        self._undo.append(lambda: _append_empty_input(node))

    def _disconnect(self, node: Node, index: int) -> None:
        value = node.inputs[index]
        if value is None:
            return
        key = (id(node), index)
        use = value._uses.pop(key, None)
        if use is None:
            return
        self._undo.append(lambda: value._uses.__setitem__(key, use))
        self._loose.append(value)

    def set_output(self, edit: ed.SetOutput) -> None:
        node, index, scope = edit.node, edit.index, edit.node.scope
        old = node.outputs[index]
        if old is None or not old.replaceable:
            raise EditError(f"output {index} of {node.place} cannot be renamed")
        before = node.proto.output[index]
        new = self._define(scope, edit.name, node, index)
        node.proto.output[index] = edit.name
        node.outputs[index] = new
        self._undo.append(lambda: _restore_output(node, index, before, old))
        self._touched.extend(use.node for use in old.uses)
        self._move_uses(old, new)
        self._orphan(old)
        self._touched.append(node)

    def replace_uses(self, edit: ed.ReplaceUses) -> None:
        value = edit.value
        if not value.replaceable:
            raise EditError(f"{value.name!r} is an output or named elsewhere: its uses cannot be moved")
        new = value.scope.lookup(edit.name)
        if new is None:
            raise EditError(f"{edit.name!r} is not defined where {value.name!r} is")
        self._touched.extend(use.node for use in value.uses)
        self._move_uses(value, new)
        self._loose.append(value)

    def _move_uses(self, old: Value, new: Value) -> None:
        for use in old.uses:
            if use.node.scope.lookup(new.name) is not new:
                raise ShadowedError(f"{new.name!r} means another value at {use.node.place}")
            self._disconnect(use.node, use.index)
            self._connect(use.node, use.index, new.name, grow=False)

    def set_attribute(self, edit: ed.SetAttribute) -> None:
        self._unlearn(edit.node)
        attributes = edit.node.proto.attribute
        position = next((i for i, a in enumerate(attributes) if a.name == edit.name), None)
        if position is not None:
            before = _copy(attributes[position])
            if before.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                raise EditError(
                    f"attribute {edit.name!r} of {edit.node.place} holds a graph and stays as it is"
                )
            del attributes[position]
            self._undo.append(lambda: attributes.insert(position, before))
        if edit.attribute is not None:
            if edit.attribute.HasField("g") or edit.attribute.graphs:
                raise EditError(f"attribute {edit.name!r} holds a graph: it comes with a new node only")
            index = len(attributes) if position is None else position
            attributes.insert(index, edit.attribute)
            self._undo.append(lambda: attributes.__delitem__(index))
        for value in edit.node.outputs:
            if value is not None:  # what a Constant says is kept with its output
                self._set(value, "_constant", None)
        self._touched.append(edit.node)

    def rename_node(self, edit: ed.RenameNode) -> None:
        proto = edit.node.proto
        before = proto.name if proto.HasField("name") else None
        proto.name = edit.name
        # An empty name and no name are different bytes.
        self._undo.append(
            lambda: proto.ClearField("name") if before is None else setattr(proto, "name", before)
        )
        self._touched.append(edit.node)

    def add_initializer(self, edit: ed.AddInitializer) -> None:
        scope, name = edit.scope, edit.tensor.name
        if not isinstance(scope.proto, GraphProto):
            raise EditError("a function has no initializers")
        if not name or scope.lookup(name) is not None or not self._is_free(scope, name):
            raise EditError(f"the name {name!r} is taken")
        tensor = scope.proto.initializer.add()
        tensor.CopyFrom(edit.tensor)
        value = scope.values[name] = Value(name, scope)
        value.initializer = tensor
        self._take(scope, name)
        self._undo.append(lambda: self._drop_initializer(value))
        self._touch(scope)

    def _is_free(self, scope: Scope, name: str) -> bool:
        """Whether no value inside ``scope`` has the name; another fix of this round may use it in a sibling branch."""
        if name in self._new:
            return not any(_is_around(scope, one) for one in self._new[name])
        return name not in self._names

    def _is_inside(self, scope: Scope, name: str) -> bool:
        """Whether a value of a subgraph inside ``scope`` has the name."""
        return any(name in inner.values for node in self._nodes(scope) for inner in self._inside(node))

    def _take(self, scope: Scope, name: str) -> None:
        """Note a name that is new in ``scope``; unless the model had it elsewhere, where it stays taken."""
        if name not in self._new:
            if name in self._names:
                return
            if not self._hold:
                self._names.add(name)
        self._new.setdefault(name, []).append(scope)
        self._undo.append(lambda: self._give_back(name))

    def _give_back(self, name: str) -> None:
        self._new[name].pop()
        if not self._new[name]:
            del self._new[name]
            self._names.discard(name)

    def _drop_initializer(self, value: Value) -> None:
        self._dropped[id(value)] = value
        _delete(value.scope.values, value.name)
        assert isinstance(value.scope.proto, GraphProto)
        _take_back(value.scope.proto.initializer, value.initializer)

    def remove_initializer(self, edit: ed.RemoveInitializer) -> None:
        value = edit.value
        if value._uses or not value.replaceable or value.is_input:
            raise EditError(f"initializer {value.name!r} is still needed")
        if id(value) in self._dropped:
            raise EditError(f"initializer {value.name!r} is removed already")
        scope = value.scope
        self._dropped[id(value)] = value
        _delete(scope.values, value.name)
        self._undo.append(lambda: _delete(self._dropped, id(value)))
        self._undo.append(lambda: scope.values.__setitem__(value.name, value))
        self._touch(scope)

    def set_value_info(self, edit: ed.SetValueInfo) -> None:
        infos, scope = edit.scope.proto.value_info, edit.scope
        known = self._infos.get(id(scope))
        if known is None:
            known = self._infos[id(scope)] = {}
            for info in infos:
                known.setdefault(info.name, []).append(info)
        present = known.get(edit.name, [])
        scope._declared = None
        self._inner.add(edit.name)
        if edit.info is not None and present:
            first, old = present[0], _copy(present[0])
            first.CopyFrom(edit.info)
            self._undo.append(lambda: first.CopyFrom(old))
            return
        known[edit.name] = []
        self._undo.append(lambda: known.__setitem__(edit.name, present))
        if edit.info is None:  # deleted when the transaction closes, all at once
            marked = {id(info): info for info in present}
            self._stale.setdefault(id(scope), {}).update(marked)
            self._scopes[id(scope)] = scope
            self._undo.append(lambda: self._keep_infos(scope, marked))
        else:
            added = infos.add()
            added.CopyFrom(edit.info)
            known[edit.name] = [added]
            self._undo.append(lambda: _take_back(infos, added))

    def _keep_infos(self, scope: Scope, marked: dict[int, ValueInfoProto]) -> None:
        for key in marked:
            self._stale[id(scope)].pop(key, None)

    def sort_nodes(self, edit: ed.SortNodes) -> None:
        self._sorted[id(edit.scope)] = edit.scope
        self._touch(edit.scope)

    def set_import(self, edit: ed.SetImport) -> None:
        imports = self.model.proto.opset_import
        entry = next((one for one in imports if one.domain in ("", "ai.onnx")), None)
        if entry is None:
            raise EditError("the model imports no version of ONNX's operators that could be changed")
        before = int(entry.version)
        entry.version = edit.version
        self.model.knowledge = None  # of operators of another version
        self._undo.append(lambda: setattr(entry, "version", before))

    # -- bookkeeping -------------------------------------------------------------------------------------------

    def _set(self, target: Any, name: str, value: Any) -> None:
        before = getattr(target, name)
        setattr(target, name, value)
        self._undo.append(lambda: setattr(target, name, before))

    def _unlearn(self, node: Node) -> None:
        if self.model.knowledge is not None:
            self.model.knowledge.numbers.pop(node, None)

    def _touch(self, scope: Scope) -> None:
        self._scopes[id(scope)] = scope

    def close(self) -> None:
        """Remove what the fixes left without a reader, and bring the protobuf's lists into order."""
        self._undo, self._inner = [], set()
        self._names.update(self._new)
        self._prune()
        self.names |= self._inner
        for scope in self._scopes.values():
            self._reorder(scope)
        gone: dict[int, set[str]] = {}
        for value in (*self._dangling.values(), *self._dropped.values()):
            if value.producer is None and value.scope.values.get(value.name) in (value, None):
                value.scope.values.pop(value.name, None)
                gone.setdefault(id(value.scope), set()).add(value.name)
                self._scopes[id(value.scope)] = value.scope
        for key, marked in self._stale.items():
            _remove_where(self._scopes[key].proto.value_info, lambda info: id(info) in marked)  # noqa: B023
            self._scopes[key]._declared = None
        dead: dict[int, set[int]] = {}
        sparse: dict[int, set[str]] = {}
        for value in self._dropped.values():
            dead.setdefault(id(value.scope), set()).add(id(value.initializer))
            if value.sparse:
                sparse.setdefault(id(value.scope), set()).add(value.name)
        for key, names in gone.items():
            self.names |= names
            scope = self._scopes[key]
            if isinstance(scope.proto, GraphProto) and key in dead:
                _remove_where(scope.proto.initializer, lambda tensor: id(tensor) in dead[key])  # noqa: B023
            if isinstance(scope.proto, GraphProto) and key in sparse:
                rows = scope.proto.sparse_initializer
                _remove_where(rows, lambda row: row.values.name in sparse[key])  # noqa: B023
            _remove_where(scope.proto.value_info, lambda info: info.name in names)  # noqa: B023
            scope._declared = None
        for scope in self._sorted.values():
            scope.nodes = scope.topological()
            _order(scope)
        shared.forget(self.model)

    def _prune(self) -> None:
        """Remove producers and initializers that lost their last reader to these fixes, and what only they read."""
        while self._loose:
            value = self._loose.pop()
            if value._uses or not value.replaceable or value.is_input or id(value.scope) in self._buried:
                continue
            node = value.producer
            if node is not None:
                if id(node) not in self._removed and all(
                    v is None or (not v._uses and v.replaceable) for v in node.outputs
                ):
                    self.remove_node(ed.RemoveNode(node))
            elif (value.initializer is not None or value.sparse) and id(value) not in self._dropped:
                self._dropped[id(value)] = value
                self._touch(value.scope)

    def _reorder(self, scope: Scope) -> None:
        nodes: list[Node] = []
        for node in scope.nodes:
            if id(node) in self._inserted:
                nodes += self._inserted[id(node)]
            nodes.append(node)
        nodes += self._appended.get(id(scope), ())
        scope.nodes = [node for node in nodes if id(node) not in self._removed]
        _order(scope)


def _is_around(scope: Scope, inner: Scope) -> bool:
    """Whether ``inner`` is in ``scope``, at any depth."""
    while inner.parent is not None:
        inner = inner.parent
        if inner is scope:
            return True
    return False


def _order(scope: Scope) -> None:
    """Give the protobuf's node list the order of ``scope.nodes``; nodes that are not in it are deleted.

    Sorting moves pointers, so the overlay's references to the node messages stay valid.
    """
    position = {id(node.proto): i for i, node in enumerate(scope.nodes)}
    last = len(position)
    container = scope.proto.node
    container.sort(key=lambda proto: position.get(id(proto), last))
    del container[last:]


def _remove_where(container: Any, condition: Callable[[Any], bool]) -> None:
    """Delete the matching messages of a repeated field; references to the others stay valid."""
    items = list(container)  # keeps the wrappers alive, so that their ids mean something
    dead = {id(item) for item in items if condition(item)}
    if dead:
        container.sort(key=lambda item: id(item) in dead)
        del container[len(items) - len(dead) :]


def _take_back(container: Any, added: Any) -> None:
    """Delete a message that was added; mostly it is the last, which costs nothing to find."""
    if container[-1] is added:
        container.pop()
    else:
        _remove_where(container, lambda item: item is added)


def _delete(mapping: dict[Any, Any], key: Any) -> None:
    mapping.pop(key, None)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _restore_input(node: Node, index: int, name: str, value: Value | None) -> None:
    node.proto.input[index], node.inputs[index] = name, value


def _append_empty_input(node: Node) -> None:
    node.inputs.append(None)
    node.proto.input.append("")


def _restore_output(node: Node, index: int, name: str, value: Value) -> None:
    node.proto.output[index] = name
    node.outputs[index] = value


def _mark(node: Node, code: str) -> None:
    """Name the rule in the node's metadata, beside those that touched it before."""
    if not hasattr(node.proto, "metadata_props"):
        return  # onnx before 1.16 does not know the field
    for entry in node.proto.metadata_props:
        if entry.key == MARK:
            entry.value = ",".join(sorted({*entry.value.split(","), code}))
            return
    entry = node.proto.metadata_props.add()
    entry.key, entry.value = MARK, code


def commit(model: Model, fixes: Iterable[Sequence[ed.Edit]], code: str = "") -> None:
    """Carry out whole fixes at once; for engines of one's own and for tests.

    Raises:
        EditError: one of them would break the graph; those before it stay applied.
    """
    transaction = Transaction(model)
    try:
        for fix in fixes:
            transaction.apply(fix, code)
    finally:
        transaction.close()


_APPLY: dict[type, Callable[[Transaction, Any], None]] = {
    ed.AddNode: Transaction.add_node,
    ed.RemoveNode: Transaction.remove_node,
    ed.SetInput: Transaction.set_input,
    ed.SetOutput: Transaction.set_output,
    ed.ReplaceUses: Transaction.replace_uses,
    ed.SetAttribute: Transaction.set_attribute,
    ed.RenameNode: Transaction.rename_node,
    ed.AddInitializer: Transaction.add_initializer,
    ed.RemoveInitializer: Transaction.remove_initializer,
    ed.SetValueInfo: Transaction.set_value_info,
    ed.SortNodes: Transaction.sort_nodes,
    ed.SetImport: Transaction.set_import,
}

_PLACE: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((ed.ReplaceUses, ed.RemoveInitializer), attrgetter("value")),
    **dict.fromkeys(
        (ed.RemoveNode, ed.SetInput, ed.SetOutput, ed.SetAttribute, ed.RenameNode), attrgetter("node")
    ),
    **dict.fromkeys(
        (ed.AddNode, ed.AddInitializer, ed.SetValueInfo, ed.SortNodes, ed.SetImport), lambda edit: edit
    ),
}
"""What must be there for an edit: a value, a node, or the scope that the edit names."""
