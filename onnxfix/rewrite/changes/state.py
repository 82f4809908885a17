"""What the fixes of a transaction have changed so far, how to undo the fix that is being applied, and the order and
removal of messages in the repeated fields of a protobuf.

Messages do not hash, so they are told apart by their identity: a wrapper keeps it as long as something refers to it.
Sorting and deleting move pointers, so that references to the messages that stay remain valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onnx import ValueInfoProto

from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.model import Model


class State:
    """The model under change. Dictionaries with None for values are sets that keep their order."""

    def __init__(self, model: Model, *, hold_names: bool = False) -> None:
        self.model = model
        self.hold_names = hold_names
        self.names: set[str] = set()
        """Names of the values whose producer, consumer or declaration the applied fixes changed."""
        self.changed: set[Node] = set()
        """The nodes that the applied fixes changed or added; some may be removed again."""
        # Of all fixes, until the transaction closes.
        self.inserted: dict[Node, list[Node]] = {}
        """New nodes by the node that they stand before."""
        self.appended: dict[Scope, list[Node]] = {}
        """New nodes at the end of a scope."""
        self.added: dict[Scope, list[Node]] = {}
        """All new nodes of a scope."""
        self.removed: set[Node] = set()
        self.buried: set[Scope] = set()
        """Scopes inside removed nodes."""
        self.dangling: dict[Value, None] = {}
        """Values that lost their producer; some have another one by now."""
        self.dropped: dict[Value, None] = {}
        """Initializers that are to be deleted."""
        self.unread: list[Value] = []
        """Values that lost a reader."""
        self.infos: dict[Scope, dict[str, list[ValueInfoProto]]] = {}
        """The value_info of the scopes in which it is edited, by name."""
        self.stale_infos: dict[Scope, list[ValueInfoProto]] = {}
        """The value_info that is to be deleted."""
        self.reordered: dict[Scope, None] = {}
        """Scopes whose lists of messages change when the transaction closes."""
        self.sorted: dict[Scope, None] = {}
        """Scopes that are to be brought into topological order."""
        self.new_names: dict[str, list[Scope]] = {}
        """The names that the fixes took, each with the scopes in which it is defined. The model has them at once; with
        ``hold_names`` when the transaction closes, so that what a fix calls its values does not depend on the fixes
        before it."""
        # Of the present fix.
        self.undo: list[Callable[[], object]] = []
        self.touched: list[Node] = []
        self.orphaned: list[Value] = []
        """Values that this fix took the producer from."""
        self.fix_names: set[str] = set()
        self.model_names: set[str] = set()

    def begin(self) -> None:
        """Start the next fix."""
        self.undo, self.touched, self.orphaned, self.fix_names = [], [], [], set()
        self.model_names = self.model.names  # collected now, and not in the middle of an edit

    def rollback(self) -> None:
        """Undo what the present fix has done so far."""
        for undo in reversed(self.undo):
            undo()

    def set(self, target: Any, name: str, value: Any) -> None:
        """Set an attribute of an overlay object."""
        before = getattr(target, name)
        setattr(target, name, value)
        self.undo.append(lambda: setattr(target, name, before))

    def reorder(self, scope: Scope) -> None:
        """Bring the scope's lists into order when the transaction closes."""
        self.reordered[scope] = None

    def has_no_producer(self, value: Value) -> bool:
        """Whether the value lost its producer and has no other one yet."""
        return value.producer is None and value in self.dangling

    def nodes(self, scope: Scope) -> list[Node]:
        """The nodes of ``scope``, new ones last, without removed ones."""
        return [node for node in (*scope.nodes, *self.added.get(scope, ())) if node not in self.removed]

    def inside(self, node: Node) -> list[Scope]:
        """The subgraphs of ``node`` and those in them, as the fixes so far have left them."""
        found: list[Scope] = []
        stack = list(node.subgraphs)
        while stack:
            scope = stack.pop()
            found.append(scope)
            stack.extend(sub for child in self.nodes(scope) for sub in child.subgraphs)
        return found

    def is_free(self, scope: Scope, name: str) -> bool:
        """Whether no value inside ``scope`` has the name; another fix of this round may use it in a sibling branch."""
        if name in self.new_names:
            return not any(is_around(scope, one) for one in self.new_names[name])
        return name not in self.model_names

    def is_inside(self, scope: Scope, name: str) -> bool:
        """Whether a value of a subgraph inside ``scope`` has the name."""
        return any(name in inner.values for node in self.nodes(scope) for inner in self.inside(node))

    def take_name(self, scope: Scope, name: str) -> None:
        """Note a name that is new in ``scope``, unless the model has it elsewhere, where it stays taken."""
        if name not in self.new_names:
            if name in self.model_names:
                return
            if not self.hold_names:
                self.model_names.add(name)
        self.new_names.setdefault(name, []).append(scope)
        self.undo.append(lambda: self._release_name(name))

    def _release_name(self, name: str) -> None:
        self.new_names[name].pop()
        if not self.new_names[name]:
            del self.new_names[name]
            self.model_names.discard(name)


def is_around(scope: Scope, inner: Scope) -> bool:
    """Whether ``inner`` is in ``scope``, at any depth."""
    while inner.parent is not None:
        inner = inner.parent
        if inner is scope:
            return True
    return False


MARK = "onnxfix"
"""Key of the node metadata that names the rules whose fixes touched the node."""


def order_nodes(scope: Scope) -> None:
    """Give the protobuf's node list the order of ``scope.nodes``; nodes that are not in it are deleted."""
    position = {id(node.proto): i for i, node in enumerate(scope.nodes)}
    last = len(position)
    container = scope.proto.node
    container.sort(key=lambda proto: position.get(id(proto), last))
    del container[last:]


def remove(container: Any, messages: Iterable[Any]) -> None:
    """Delete messages from a repeated field."""
    dead = {id(message) for message in messages}
    if dead:
        remove_where(container, lambda message: id(message) in dead)


def remove_where(container: Any, condition: Callable[[Any], bool]) -> None:
    """Delete the matching messages of a repeated field."""
    items = list(container)  # keeps the wrappers alive, and with them their identity
    dead = {id(item) for item in items if condition(item)}
    if dead:
        container.sort(key=lambda item: id(item) in dead)
        del container[len(items) - len(dead) :]


def take_back(container: Any, added: Any) -> None:
    """Delete a message that was added. It mostly is the last one, which costs nothing to find."""
    if container[-1] is added:
        container.pop()
    else:
        remove(container, [added])


def mark(node: Node, code: str) -> None:
    """Name the rule in the node's metadata, beside those that touched it before."""
    own = next((entry for entry in node.proto.metadata_props if entry.key == MARK), None)
    entry = own if own is not None else node.proto.metadata_props.add(key=MARK)
    entry.value = ",".join(sorted({*marks(node), code}))


def marks(node: Node) -> set[str]:
    """The rules that its metadata names. A value that is no UTF-8, bytes in protobuf, is not of onnxfix."""
    values: list[str | bytes] = [entry.value for entry in node.proto.metadata_props if entry.key == MARK]
    return {code for value in values if isinstance(value, str) for code in value.split(",") if code}
