"""What a constant operand shows about the other one: a comparison, 1 - p before a logarithm, pixels divided by 255."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import onnx

from onnxfix.files import tensors

#: Operators that compare their two operands.
COMPARES = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
#: Those whose constant operand shows something about the other.
BESIDE = frozenset((*COMPARES, "Div", "Mul", "Sub"))
_PIXELS = 255.0  # the greatest value of a pixel
_SMALL = 64  # bytes of a number


def meaning(op_type: str, index: int, number: float, users: Collection[str]) -> str | None:
    """What the operand at ``index`` is to an operator with a ``number`` beside it, whose result goes to ``users``."""
    if op_type == "Sub" and index == 1 and number == 1 and "Log" in users:
        return "probability"
    if op_type == "Div" and index == 0 and number == _PIXELS:
        return "pixel"
    if op_type == "Mul" and math.isclose(number, 1 / _PIXELS, rel_tol=1e-3):
        return "pixel"
    return None


def number_of(
    name: str, initializers: Mapping[str, onnx.TensorProto], makers: Mapping[str, onnx.NodeProto]
) -> float | None:
    """The one finite number that a constant holds; None for what is none."""
    tensor, maker = initializers.get(name), makers.get(name)
    if maker is not None and maker.op_type == "Constant" and maker.attribute:
        first = maker.attribute[0]
        if first.name in ("value_float", "value_int"):
            return float(first.f if first.name == "value_float" else first.i)
        tensor = first.t if first.HasField("t") else None
    if tensor is None or math.prod(tensor.dims) != 1:
        return None
    array = tensors.to_array(tensor, None, _SMALL)
    if array is None or array.dtype.kind not in "biuf":
        return None
    number = float(array.reshape(-1)[0])
    return number if math.isfinite(number) else None
