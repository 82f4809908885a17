"""Order and removal of messages in the repeated fields of a protobuf.

Messages do not hash, so they are told apart by their identity: a wrapper keeps it as long as something refers to it.
Sorting and deleting move pointers, so that references to the messages that stay remain valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onnxfix.graph.overlay import Node, Scope

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


def copied(message: Any) -> Any:
    """A copy of a message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def mark(node: Node, code: str) -> None:
    """Name the rule in the node's metadata, beside those that touched it before."""
    own = next((entry for entry in node.proto.metadata_props if entry.key == MARK), None)
    entry = own if own is not None else node.proto.metadata_props.add(key=MARK)
    entry.value = ",".join(sorted({*marks(node), code}))


def marks(node: Node) -> set[str]:
    """The rules that its metadata names. A value that is no UTF-8, bytes in protobuf, is not of onnxfix."""
    values: list[str | bytes] = [entry.value for entry in node.proto.metadata_props if entry.key == MARK]
    return {code for value in values if isinstance(value, str) for code in value.split(",") if code}
