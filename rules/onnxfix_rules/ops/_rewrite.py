"""Replace a node by a changed copy, and add or remove axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import AttributeProto, NodeProto, helper

from onnxfix.rule import AddNode, Draft, Node, Value


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


def unsqueeze(draft: Draft, value: Value | str, axes: Sequence[int], *, output: str = "") -> str:
    """Add axes of length 1, in the opset's form."""
    return _with_axes(draft, "Unsqueeze", value, axes, output)


def squeeze(draft: Draft, value: Value | str, axes: Sequence[int], *, output: str = "") -> str:
    """Remove axes of length 1, in the opset's form."""
    return _with_axes(draft, "Squeeze", value, axes, output)


def _with_axes(draft: Draft, op_type: str, value: Value | str, axes: Sequence[int], output: str) -> str:
    if draft.anchor.scope.opset() < 13:
        return draft.add(op_type, [value], output=output, axes=list(axes))
    constant = draft.constant(np.array(list(axes), np.int64), "axes")
    return draft.add(op_type, [value, constant], output=output)
