"""Writing the nodes of a subgraph out where the node that holds it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import NodeProto, TensorProto

from onnxfix.edits import AddNode, Draft
from onnxfix.graph import tensors
from onnxfix.graph.overlay import Node, Scope, Value

OPTIONAL_IDENTITY = 16
"""Opset since which Identity takes every type of value; tensors always, sequences since 14."""


def needed(body: Scope, wanted: Sequence[Value]) -> list[Node] | None:
    """The nodes of ``body`` that the wanted values need, producers first; None where they cannot be written out.

    They cannot where one holds a subgraph (new nodes have none), or where a weight is sparse.
    """
    live: set[int] = set()
    pending = [value for value in wanted if value.scope is body]
    while pending:
        value = pending.pop()
        node = value.producer
        if value.sparse:
            return None
        if node is None or id(node) in live:
            continue
        if node.subgraphs:
            return None
        live.add(id(node))
        pending.extend(v for v in node.inputs if v is not None and v.scope is body)
    return [node for node in body.topological() if id(node) in live]


def visible(node: Node, values: Sequence[Value]) -> bool:
    """Whether the names mean these values where ``node`` stands, as they do inside its subgraphs."""
    return all(node.scope.lookup(value.name) is value for value in values)


class Inliner:
    """Copies nodes of ``body`` to where ``draft``'s anchor stands, once or more often, under new names."""

    def __init__(self, draft: Draft, body: Scope) -> None:
        self._draft = draft
        self._body = body
        self._weights: dict[int, str] = {}

    def copy(
        self, nodes: Sequence[Node], given: Mapping[Value, str], targets: Mapping[Value, str]
    ) -> dict[Value, str]:
        """Add a copy of the nodes; ``given`` are the names that stand for the body's inputs.

        ``targets`` are names for results, which are new otherwise. Returns the name of every value of the copy.
        """
        names = dict(given)
        for node in nodes:
            proto = NodeProto()
            proto.CopyFrom(node.proto)
            proto.ClearField("name")  # another graph may use it, and names must be unique
            proto.input[:] = ["" if v is None else self.name(v, names) for v in node.inputs]
            for index, value in enumerate(node.outputs):
                if value is not None:
                    names[value] = targets.get(value) or self._draft.name(value.name)
                    proto.output[index] = names[value]
            self._draft.edits.append(AddNode(self._draft.anchor.scope, proto, self._draft.anchor))
        return names

    def name(self, value: Value, names: Mapping[Value, str]) -> str:
        """What a value of the body, or one that it captures, is called outside."""
        if value in names:
            return names[value]
        if value.scope is not self._body or value.initializer is None:
            return value.name
        if id(value) not in self._weights:
            tensor = TensorProto()
            tensor.CopyFrom(value.initializer)
            tensor.name = self._draft.name(value.name)
            self._weights[id(value)] = self._draft.tensor(tensor)
        return self._weights[id(value)]


def movable(nodes: Sequence[Node], results: Sequence[Value], body: Scope, owner: Node) -> bool:
    """Whether what the copies read is there where ``owner`` stands, and weights can be held there."""
    read = [v for node in nodes for v in node.inputs if v is not None] + list(results)
    captured = [v for v in read if v.scope is not body]
    weights = [v for v in read if v.scope is body and v.initializer is not None]
    return visible(owner, captured) and not any(
        v.sparse or v.is_input or (v.initializer is not None and tensors.is_external(v.initializer))
        for v in weights
    )


def deliver(draft: Draft, output: Value, source: str, of: Value) -> bool:
    """Let ``source``, a name where the anchor stands, take the place of the anchor's ``output``.

    ``of`` is the value that ``source`` is, for its type. Returns False where the output must keep its name and
    nothing can give it. The anchor is removed by the caller.
    """
    if output.replaceable:
        draft.replace_uses(output, source)
        return True
    if draft.anchor.scope.opset() < OPTIONAL_IDENTITY and not is_tensor(of):
        return False
    draft.add("Identity", [source], output=output.name)
    return True


def is_tensor(value: Value) -> bool:
    """Whether the value is certainly a tensor."""
    return value.scope.model.shapes.elem_type(value) is not None
