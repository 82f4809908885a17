"""Quantized scalars, and whether the dimension that TensorRT adds is visible."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfix.rule import Model, Node, Value, is_read
from onnxfix.targets.documented import names

from ._common import is_op, read

MOST_STEPS = 64
"""Most values that are followed from one scalar."""

_ALONE = names(
    "Abs Cast Ceil Clip Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Mish Neg Not Reciprocal "
    "Relu Round Selu Sigmoid Sign Softplus Softsign Sqrt Tanh ThresholdedRelu"
)
"""Operators whose result has the shape of their first input."""

_TOGETHER = names(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor"
)
"""Operators whose inputs broadcast (ONNX, Multidirectional Broadcasting)."""


@dataclass(frozen=True)
class ScalarRegion:
    """A scalar, its quantizing node and the nodes that dequantize the result, or a single dequantizing node."""

    first: Node
    data: Value
    readers: tuple[Node, ...]

    @property
    def results(self) -> list[Value]:
        """The values that leave the region."""
        found = [node.output(0) for node in self.readers or (self.first,)]
        return [value for value in found if value is not None]

    @property
    def open(self) -> bool:
        """Whether another node reads the quantized value."""
        inner = self.first.output(0)
        return inner is not None and (not inner.replaceable or inner.use_count > len(self.readers))


def region_at(node: Node, model: Model) -> ScalarRegion | None:
    """The region that starts at this node; None if none does, or if its data is not a scalar."""
    data = node.input(0)
    if data is None or not is_read(node.output(0)) or model.shapes.rank(data) != 0:
        return None
    if is_op(node, "QuantizeLinear"):
        inner = node.require_output()
        uses = inner.uses if inner.use_count <= MOST_STEPS else []
        return ScalarRegion(
            node, data, tuple(use.node for use in uses if _dequantizes(use.node, use.index, node))
        )
    if not is_op(node, "DequantizeLinear"):
        return None
    maker = data.producer
    if maker is not None and is_op(maker, "QuantizeLinear") and _dequantizes(node, 0, maker):
        return None if maker.require_output().use_count <= MOST_STEPS else ScalarRegion(node, data, ())
    linear = read(node, model)
    if linear is not None and data.is_constant:
        return None  # covered by QDQ002 and QDQ005
    return ScalarRegion(node, data, ())


def _dequantizes(node: Node, index: int, maker: Node) -> bool:
    return index == 0 and is_op(node, "DequantizeLinear") and node.scope is maker.scope


def shows(values: list[Value], region: ScalarRegion, model: Model) -> bool | None:
    """Whether the caller can see an extra dimension in these values; None if unknown."""
    pending, seen, sure = list(values), set(values), True
    while pending:
        value = pending.pop()
        if value.is_output and value.scope is model.main:
            return True
        if not value.replaceable or value.use_count + len(seen) > MOST_STEPS:
            sure = False
            continue
        for use in value.uses:
            if use.node in region.readers:
                continue
            goes_on = _passes(use.node, use.index, value, model)
            sure = sure and goes_on is not None
            output = use.node.output(0)
            if goes_on and output is not None and output not in seen:
                seen.add(output)
                pending.append(output)
    return False if sure else None


def _passes(node: Node, index: int, value: Value, model: Model) -> bool | None:
    """Whether an extra dimension of this input adds one to the node's result; None if unknown."""
    if is_op(node, "QuantizeLinear") or is_op(node, "DequantizeLinear"):
        return index == 0  # a one-element scale applies to the whole tensor
    if not node.is_onnx:
        return None
    if node.op_type in _ALONE or (node.op_type == "Unsqueeze" and index == 0):
        return True if index == 0 else None
    if node.op_type == "Reshape" and index == 0:
        return False
    rank = model.shapes.rank(value)
    if node.op_type not in _TOGETHER or rank is None:
        return None
    ranks = [model.shapes.rank(one) for one in node.inputs if one is not None and one is not value]
    if any(one is not None and one > rank for one in ranks):
        return False
    return None if None in ranks else True
