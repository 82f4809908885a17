"""Element-wise operators: multidirectional broadcasting, and exact arithmetic on small integer tensors."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxfix.shapes.ops.base import (
    FLOATS,
    INTEGERS,
    Call,
    Elements,
    Info,
    broadcast_shapes,
    elements,
    small,
    transfer,
)
from onnxfix.shapes.ops.scalar import BOOL, COMPARES, Item, apply, cast_item, settle
from onnxfix.shapes.symbols import Dim, constant, is_zero

UNARY = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg",
    "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign",
    "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
]  # fmt: skip
DATA_TYPES = frozenset(TensorProto.DataType.keys())
BINARY = [
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Xor",
]  # fmt: skip


def _values(call: Call, shape: tuple[Dim, ...] | None) -> Elements | None:
    sizes = small(shape)
    elem = call.info(0).elem
    if sizes is None or elem is None or not (elem in INTEGERS or elem in FLOATS):
        return None
    operands = [info.value for info in call.inputs if info.value is not None]
    if len(operands) != len(call.inputs) or (len(operands) > 2 and elem in FLOATS):
        return None
    if call.op == "Pow" and call.info(1).elem not in INTEGERS:
        return None
    try:
        spread = [np.broadcast_to(item, sizes).reshape(-1) for item in operands]
    except ValueError:
        return None  # the call is invalid
    items = []
    for group in zip(*spread, strict=True):
        result = apply(call, elem, group)
        if result is not None and len(group) == 1 and isinstance(result, Dim) and call.op not in COMPARES:
            result = settle(result, elem)
        items.append(result)
    return elements(items, sizes)


@transfer(*UNARY)
def _unary(call: Call) -> Info:
    shape = call.info(0).shape
    return Info(BOOL if call.op in COMPARES else call.info(0).elem, shape, _values(call, shape))


@transfer("Clip")
def _clip(call: Call) -> Info:
    return Info(call.info(0).elem, call.info(0).shape)


@transfer(*BINARY)
def _binary(call: Call) -> Info:
    """Operators that broadcast all their inputs against each other."""
    elem = BOOL if call.op in COMPARES else next((i.elem for i in call.inputs if i.elem is not None), None)
    if call.op in ("Pow", "PRelu", "BitShift"):
        elem = call.info(0).elem
    if call.op == "PRelu" or (call.opset < 7 and call.op not in ("Max", "Min", "Sum", "Mean")):
        return Info(elem, call.info(0).shape)  # the second operand is broadcast to the first, one way
    if any(info.shape is None for info in call.inputs):
        return Info(elem)
    shape = broadcast_shapes([call.shape(i) for i in range(len(call.inputs))])
    return Info(elem, shape, _values(call, shape))


@transfer("Where")
def _where(call: Call) -> Info:
    condition, yes, no = call.info(0), call.info(1), call.info(2)
    elem = yes.elem or no.elem
    if condition.shape is None or yes.shape is None or no.shape is None:
        return Info(elem)
    shape = broadcast_shapes([condition.shape, yes.shape, no.shape])
    sizes = small(shape)
    if sizes is None or condition.value is None or yes.value is None or no.value is None:
        return Info(elem, shape)
    try:
        spread = [np.broadcast_to(v, sizes).reshape(-1) for v in (condition.value, yes.value, no.value)]
    except ValueError:
        return Info(elem, shape)
    return Info(elem, shape, elements([_pick(*items) for items in zip(*spread, strict=True)], sizes))


def _pick(condition: Item, yes: Item, no: Item) -> Item:
    same = yes is no if isinstance(yes, Dim) else yes is not None and yes == no and yes != 0
    if same:
        return yes
    answer = is_zero(condition)
    return no if answer.yes else yes if answer.no else None


@transfer("Cast", "CastLike", "BitCast")
def _cast(call: Call) -> Info:
    source = call.info(0)
    target = call.info(1).elem if call.op == "CastLike" else call.attr("to")
    if isinstance(target, str):  # opset 1-5 spell the type out
        target = int(TensorProto.DataType.Value(target)) if target in DATA_TYPES else None
    shape = source.shape
    if call.op == "BitCast":
        return Info(target, shape)
    value = None
    if source.value is not None and source.elem is not None and (target in INTEGERS or target in FLOATS):
        items = [cast_item(item, source.elem, target) for item in source.value.reshape(-1)]
        value = elements(items, source.value.shape)
    fill = None
    if source.fill is not None and source.elem is not None and (target in INTEGERS or target in FLOATS):
        first = constant(int(source.fill)) if source.elem in INTEGERS else float(source.fill)
        converted = cast_item(first, source.elem, target)
        fill = converted.value if isinstance(converted, Dim) else converted
    return Info(target, shape, value, fill)
