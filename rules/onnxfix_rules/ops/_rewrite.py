"""Replace a node by a changed copy."""

from __future__ import annotations

from onnx import AttributeProto, NodeProto, helper

from onnxfix.rule import AddNode, Draft, Node


def copy_of(node: Node) -> NodeProto:
    """A copy of the node's protobuf, to be changed and passed to ``replace``."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    return proto


def set_attribute(proto: NodeProto, name: str, value: object) -> None:
    """Set an attribute of a copied node; ``None`` removes it."""
    kept: list[AttributeProto] = [a for a in proto.attribute if a.name != name]
    if value is not None:
        kept.append(helper.make_attribute(name, value))
    del proto.attribute[:]
    proto.attribute.extend(kept)


def replace(draft: Draft, node: Node, proto: NodeProto) -> None:
    """Replace ``node`` by ``proto``; outputs with the same names keep their uses."""
    draft.remove(node)
    draft.edits.append(AddNode(node.scope, proto, node))
