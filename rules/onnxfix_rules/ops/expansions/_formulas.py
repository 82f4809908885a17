"""Formulas of fused operators in ONNX operators, shared by the rules about ONNX Runtime's operators."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import Draft, Node, Target, Value, takes

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
Operand = Value | str


def scalar(draft: Draft, value: float, elem: int, hint: str = "const") -> str:
    """A scalar constant of an element type."""
    return draft.constant(np.array(value, helper.tensor_dtype_to_np_dtype(elem)), hint)


def gelu(draft: Draft, data: Operand, elem: int, target: Target, output: str) -> bool:
    """The exact Gelu of ``data`` as ``output``; False where the opset cannot express it."""
    opset = draft.anchor.scope.opset()
    if opset >= 20 and target.imports("Gelu"):
        draft.add("Gelu", [data], output=output)
        return True
    if not takes("Erf", opset, elem):
        return False
    scaled = draft.add("Mul", [data, scalar(draft, np.sqrt(0.5), elem)])
    shifted = draft.add("Add", [draft.add("Erf", [scaled]), scalar(draft, 1.0, elem)])
    half = draft.add("Mul", [data, scalar(draft, 0.5, elem)])
    draft.add("Mul", [half, shifted], output=output)
    return True


def tanh_gelu(draft: Draft, data: Operand, elem: int, target: Target, output: str) -> None:
    """Gelu's Tanh approximation as ``output``."""
    if draft.anchor.scope.opset() >= 20 and target.imports("Gelu"):
        draft.add("Gelu", [data], output=output, approximate="tanh")
        return
    slope = np.sqrt(2.0 / np.pi)
    square = draft.add("Mul", [data, data])
    inner = draft.add("Mul", [square, scalar(draft, 0.044715 * slope, elem)])
    factor = draft.add("Add", [inner, scalar(draft, slope, elem)])
    tanh = draft.add("Tanh", [draft.add("Mul", [data, factor])])
    shifted = draft.add("Add", [tanh, scalar(draft, 1.0, elem)])
    half = draft.add("Mul", [data, scalar(draft, 0.5, elem)])
    draft.add("Mul", [half, shifted], output=output)


def layer_normalization(
    draft: Draft,
    data: Operand,
    scale: Operand,
    bias: Operand | None,
    epsilon: float,
    elem: int,
    target: Target,
    output: str,
) -> None:
    """Layer normalization over the last axis as ``output``: LayerNormalization, or its definition in float32."""
    if draft.anchor.scope.opset() >= 17 and target.imports("LayerNormalization"):
        inputs = [data, scale] if bias is None else [data, scale, bias]
        draft.add("LayerNormalization", inputs, output=output, axis=-1, epsilon=epsilon)
        return
    wide, kind = widened(draft, data, elem)
    centered = draft.add("Sub", [wide, mean(draft, wide)])
    normed = draft.add("Div", [centered, deviation(draft, centered, epsilon, kind)])
    _scaled(draft, normed, scale, bias, (elem, kind), output)


def rms_normalization(
    draft: Draft, data: Operand, scale: Operand, epsilon: float, elem: int, target: Target, output: str
) -> None:
    """The same without the mean: RMSNormalization, or its definition in float32."""
    if draft.anchor.scope.opset() >= 23 and target.imports("RMSNormalization"):
        draft.add("RMSNormalization", [data, scale], output=output, axis=-1, epsilon=epsilon)
        return
    wide, kind = widened(draft, data, elem)
    normed = draft.add("Div", [wide, deviation(draft, wide, epsilon, kind)])
    _scaled(draft, normed, scale, None, (elem, kind), output)


def mean(draft: Draft, data: Operand, output: str = "") -> str:
    """The mean along the last axis, which is kept with length 1."""
    if draft.anchor.scope.opset() < 18:
        return draft.add("ReduceMean", [data], output=output, axes=[-1], keepdims=1)
    axes = draft.constant(np.array([-1], np.int64), "axes")
    return draft.add("ReduceMean", [data, axes], output=output, keepdims=1)


def deviation(draft: Draft, data: Operand, epsilon: float, elem: int) -> str:
    """The root of the mean square, with epsilon added to the mean square."""
    square = mean(draft, draft.add("Mul", [data, data]))
    return draft.add("Sqrt", [draft.add("Add", [square, scalar(draft, epsilon, elem, "epsilon")])])


def widened(draft: Draft, data: Operand, elem: int) -> tuple[Operand, int]:
    """``data`` in at least float32, and its type then: squares of float16 overflow."""
    if elem != TensorProto.FLOAT16:
        return data, elem
    return draft.add("Cast", [data], to=TensorProto.FLOAT), TensorProto.FLOAT


def _scaled(
    draft: Draft, data: str, scale: Operand, bias: Operand | None, kinds: tuple[int, int], output: str
) -> None:
    """Multiply by the scale, add the bias, and cast back to the type of the data, which both have."""
    elem, kind = kinds
    narrow = elem != kind

    def wide(value: Operand) -> Operand:
        return draft.add("Cast", [value], to=kind) if narrow else value

    last = draft.add("Mul", [data, wide(scale)], output="" if narrow or bias is not None else output)
    if bias is not None:
        last = draft.add("Add", [last, wide(bias)], output="" if narrow else output)
    if narrow:
        draft.add("Cast", [last], output=output, to=elem)


def known_float(node: Node, *values: Value) -> int | None:
    """The common float type of all values; None where it is another type, unknown, or they differ."""
    elems = {node.model.shapes.elem_type(value) for value in values}
    elem = elems.pop() if len(elems) == 1 else None
    return elem if elem in FLOATS else None
