"""What rules need that put another node in the place of one: a changed copy, and axes added or taken away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import AttributeProto, NodeProto, helper

from onnxfix.rule import AddNode, Draft, Node, Value


def copy_of(node: Node) -> NodeProto:
    """The node's protobuf, to be changed and put in its place by ``replace``."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    return proto


def set_attribute(proto: NodeProto, name: str, value: object) -> None:
    """Set an attribute of a copied node; ``None`` drops it."""
    kept: list[AttributeProto] = [a for a in proto.attribute if a.name != name]
    if value is not None:
        kept.append(helper.make_attribute(name, value))
    del proto.attribute[:]
    proto.attribute.extend(kept)


def replace(draft: Draft, node: Node, proto: NodeProto) -> None:
    """Put ``proto`` where ``node`` is; names of outputs that both have stay."""
    draft.remove(node)
    draft.edits.append(AddNode(node.scope, proto, node))


def unsqueeze(draft: Draft, value: Value | str, axes: Sequence[int], *, output: str = "") -> str:
    """Add axes of length 1, in the form that the opset has."""
    return _with_axes(draft, "Unsqueeze", value, axes, output)


def squeeze(draft: Draft, value: Value | str, axes: Sequence[int], *, output: str = "") -> str:
    """Remove axes of length 1, in the form that the opset has."""
    return _with_axes(draft, "Squeeze", value, axes, output)


def _with_axes(draft: Draft, op_type: str, value: Value | str, axes: Sequence[int], output: str) -> str:
    if draft.anchor.scope.opset() < 13:
        return draft.add(op_type, [value], output=output, axes=list(axes))
    constant = draft.constant(np.array(list(axes), np.int64), "axes")
    return draft.add(op_type, [value, constant], output=output)
