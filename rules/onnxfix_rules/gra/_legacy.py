"""Converts nodes of operator sets before 7 to operator set 7: the same values, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto, defs

from onnxfix.rule import Draft, Node
from onnxfix.targets.documented import names

NEW = 7
"""The first operator set with numpy's broadcasting."""

_BINARY = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")


def blocked(node: Node) -> str:
    """Why the node cannot be converted to operator set 7; empty if it can."""
    return _converted(node, Draft(node))


def convert(node: Node, draft: Draft) -> None:
    """Convert a node that is not ``blocked`` to operator set 7."""
    _converted(node, draft)


def _converted(node: Node, draft: Draft) -> str:
    if node.domain:
        return ""
    old, new = _since(node, node.opset), _since(node, NEW)
    if old is None or new is None:
        return f"{node.op_type} is unknown"
    if old == new:
        return ""
    handler = _HANDLERS.get(node.op_type)
    if handler is None:
        if node.op_type not in _RENAMED_ONLY:
            return f"{node.op_type}-{old} has another form in operator set {NEW}"
        handler = _plain
    found = handler(node, draft)
    if not found and node.attr("consumed_inputs") is not None:
        draft.set_attr(node, "consumed_inputs", None)
    return found


def _since(node: Node, version: int) -> int | None:
    try:
        return int(defs.get_schema(node.op_type, version, "").since_version)
    except defs.SchemaError:
        return None


_RENAMED_ONLY = names(
    "Abs Ceil Clip Elu Exp Floor HardSigmoid InstanceNormalization LeakyRelu Log Max Mean Min Neg Reciprocal "
    "Relu Sigmoid Sqrt Sum Tanh AveragePool"
)
"""Operators whose newer version only adds types, or an attribute whose default is the old behavior."""


def _plain(node: Node, draft: Draft) -> str:
    return ""


def _drop(node: Node, draft: Draft, *names: str) -> None:
    for name in names:
        if node.attr(name) is not None:
            draft.set_attr(node, name, None)


def _binary(node: Node, draft: Draft) -> str:
    """Aligns the second operand with the axes of the first from ``axis`` on, by default with the last ones."""
    axis = node.attr("axis")
    if axis is not None and node.attr("broadcast", 0):
        first, second = (
            node.model.shapes.rank(value) if value is not None else None for value in node.inputs[:2]
        )
        if first is None or second is None:
            return f"{node.op_type} has axis = {axis}, and the ranks of its operands are unknown"
        place = axis + first if axis < 0 else axis
        behind = first - place - second
        if (place < 0 or behind < 0) and second > 0:
            return f"axis = {axis} is invalid for the operands of {node.op_type}"
        if behind > 0 and second > 0:
            axes = list(range(second, second + behind))
            draft.set_input(node, 1, draft.add("Unsqueeze", [node.inputs[1]], axes=axes))
    _drop(node, draft, "axis", "broadcast")
    return ""


def _gemm(node: Node, draft: Draft) -> str:
    _drop(node, draft, "broadcast")
    return ""


def _prelu(node: Node, draft: Draft) -> str:
    """A slope of rank 1 has one element per channel."""
    data, slope = node.inputs[:2]
    if data is None or slope is None:
        return "a PRelu has no operand"
    shape, rank = node.model.shapes.shape(slope), node.model.shapes.rank(data)
    if shape is None or rank is None or len(shape) != 1:
        return "the shapes of PRelu's operands are unknown"
    if shape[0].value != 1 and rank > 2:
        draft.set_input(node, 1, draft.add("Unsqueeze", [slope], axes=list(range(1, rank - 1))))
    return "" if rank > 1 or shape[0].value == 1 else "PRelu has no channels"


def _batch_norm(node: Node, draft: Draft) -> str:
    if not node.attr("is_test", 0):
        return "BatchNormalization is in training mode (is_test = 0)"
    if len(node.outputs) > 1:
        return "BatchNormalization has more than one output"
    _drop(node, draft, "is_test")
    return ""


def _dropout(node: Node, draft: Draft) -> str:
    if not node.attr("is_test", 0):
        return "Dropout is in training mode (is_test = 0)"
    if len(node.outputs) > 1:
        return "Dropout has a mask output"
    _drop(node, draft, "is_test")
    return ""


def _upsample(node: Node, draft: Draft) -> str:
    height, width = node.attr("height_scale"), node.attr("width_scale")
    modes = {"nearest": "nearest", "bilinear": "linear"}
    mode = modes.get(node.attr("mode", "nearest"))
    if height is None or width is None or mode is None:
        return "Upsample has no scales or an unknown mode"
    _drop(node, draft, "height_scale", "width_scale")
    draft.set_attr(node, "scales", [1.0, 1.0, float(height), float(width)])
    if mode != node.attr("mode", "nearest"):
        draft.set_attr(node, "mode", mode)
    return ""


def _cast(node: Node, draft: Draft) -> str:
    name = node.attr("to")
    if not isinstance(name, str) or name not in set(TensorProto.DataType.keys()):
        return "Cast has no valid type"
    draft.set_attr(node, "to", int(TensorProto.DataType.Value(name)))
    return ""


def _concat(node: Node, draft: Draft) -> str:
    if node.attr("axis") is None:
        draft.set_attr(node, "axis", 1)
    return ""


def _selu(node: Node, draft: Draft) -> str:
    """Operator set 6 changed the defaults to more digits."""
    for name, default in (("alpha", 1.6732), ("gamma", 1.0507)):
        if node.attr(name) is None:
            draft.set_attr(node, name, default)
    return ""


_HANDLERS: dict[str, Callable[[Node, Draft], str]] = {
    **dict.fromkeys(_BINARY, _binary),
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Concat": _concat,
    "Dropout": _dropout,
    "Gemm": _gemm,
    "PRelu": _prelu,
    "Selu": _selu,
    "Upsample": _upsample,
}
