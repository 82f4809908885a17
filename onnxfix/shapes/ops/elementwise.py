"""Element-wise operators: multidirectional broadcasting, and exact arithmetic on small tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
    fits,
    small,
    transfer,
    wrap,
)
from onnxfix.shapes.symbols import (
    Answer,
    Dim,
    as_dim,
    constant,
    dim_max,
    dim_min,
    equal,
    floordiv,
    is_zero,
    less,
    mod,
    nonnegative,
    positive,
)

BOOL = TensorProto.BOOL
Item = Any
"""Dim for integers, float or None for floats."""

COMPARES = frozenset(
    "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor".split()  # noqa: SIM905
)
"""Operators whose result is boolean."""


def truth(answer: Answer) -> Dim | None:
    """A proven answer as a boolean element, or None."""
    return constant(1) if answer.yes else constant(0) if answer.no else None


def _truncated(a: Dim, b: Dim) -> Dim | None:
    """Integer division as ONNX defines it, towards zero; None if a sign is unknown or ``b`` may be 0."""
    if a.value is not None and b.value:
        return constant(
            int(math.copysign(1, a.value) * math.copysign(1, b.value)) * (abs(a.value) // abs(b.value))
        )
    if nonnegative(a).yes and positive(b).yes:
        return floordiv(a, b)
    return None


def _modulo(call: Call, a: Dim, b: Dim) -> Dim | None:
    if call.attr("fmod", 0):
        if a.value is not None and b.value:
            return (
                constant(int(math.fmod(a.value, b.value)))
                if max(abs(a.value), abs(b.value)) < 2**53
                else None
            )
        return mod(a, b) if nonnegative(a).yes and positive(b).yes else None
    return mod(a, b) if is_zero(b).no and b.is_count else None


def _power(a: Dim, b: Dim) -> Dim | None:
    if b.value is None or not 0 <= b.value <= 4:
        return None
    result = constant(1)
    for _ in range(b.value):
        result = result * a
    return result


def _int_binary(call: Call, a: Dim, b: Dim) -> Dim | None:
    match call.op:
        case "Add" | "Sum":
            return a + b
        case "Sub":
            return a - b
        case "Mul":
            return a * b
        case "Div":
            return _truncated(a, b)
        case "Mod":
            return _modulo(call, a, b)
        case "Max":
            return dim_max(a, b)
        case "Min":
            return dim_min(a, b)
        case "Pow":
            return _power(a, b)
        case "Equal":
            return truth(equal(a, b))
        case "Less":
            return truth(less(a, b))
        case "Greater":
            return truth(less(b, a))
        case "LessOrEqual":
            return truth(~less(b, a))
        case "GreaterOrEqual":
            return truth(~less(a, b))
    return None


def _bool_binary(call: Call, a: Dim, b: Dim) -> Dim | None:
    if call.op == "And":
        return truth(~is_zero(a) & ~is_zero(b))
    if call.op == "Or":
        return truth(~is_zero(a) | ~is_zero(b))
    return truth(~equal(a, b)) if call.op == "Xor" else _int_binary(call, a, b)


def _int_unary(call: Call, a: Dim) -> Dim | None:
    match call.op:
        case "Neg":
            return -a
        case "Abs":
            return a if nonnegative(a).yes else -a if nonnegative(-a).yes else None
        case "Relu":
            return dim_max(a, 0)
        case "Not":
            return truth(is_zero(a))
        case "Sign":
            return constant(1) if positive(a).yes else constant(0) if is_zero(a).yes else None
    return None


FLOAT_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": lambda a, b: a / b,
    "Equal": lambda a, b: a == b, "Less": lambda a, b: a < b, "Greater": lambda a, b: a > b,
    "LessOrEqual": lambda a, b: a <= b, "GreaterOrEqual": lambda a, b: a >= b,
}  # fmt: skip
FLOAT_UNARY: dict[str, Callable[[Any], Any]] = {
    "Neg": lambda a: -a, "Ceil": np.ceil, "Floor": np.floor, "Abs": np.abs,
}  # fmt: skip


def _float_op(
    function: Callable[..., Any] | None, elem: int, items: tuple[Item, ...], compares: bool
) -> Item:
    """One IEEE operation in the tensor's own type, with the same rounding in every backend; None if it is unknown."""
    kind = FLOATS.get(elem)
    if function is None or kind is None or any(item is None for item in items):
        return None
    with np.errstate(all="ignore"):
        result = function(*(kind(item) for item in items))
    return constant(int(result)) if compares else float(result)


def apply(call: Call, elem: int, items: tuple[Item, ...]) -> Item:
    """The operator on one group of elements of type ``elem``; None if the result is unknown."""
    if elem in FLOATS:
        table: dict[str, Callable[..., Any]] = {**FLOAT_UNARY, **FLOAT_BINARY}
        return _float_op(table.get(call.op), elem, items, call.op in COMPARES)
    if len(items) == 1:
        return _int_unary(call, items[0]) if call.op not in ("Max", "Min", "Sum") else items[0]
    result = items[0]
    for item in items[1:]:
        if result is None:
            return None
        result = (_bool_binary if elem == BOOL else _int_binary)(call, result, item)
        if result is not None and call.op not in COMPARES:
            result = settle(result, elem)
    return result


def settle(result: Dim, elem: int) -> Dim | None:
    """An arithmetic result in its type; None if it may have wrapped."""
    if result.value is not None:
        return constant(wrap(result.value, elem))
    return result if fits(result, elem) else None


def cast_item(item: Item, source: int, target: int) -> Item:
    """One element converted; None if the result is unknown, or is rounded and so not a polynomial."""
    if item is None or source == target:
        return item
    if isinstance(item, Dim):
        if target == BOOL:
            return truth(~is_zero(item))
        if target in INTEGERS:
            return settle(item, target)
        if item.value is None:
            return None
        with np.errstate(all="ignore"):
            # Through the integer type: a Python integer would be rounded to double first, and so twice.
            exact = np.array(item.value, dtype=np.uint64 if item.value >= 2**63 else np.int64)
            return float(exact.astype(FLOATS[target]))
    if target == BOOL:
        return constant(int(item != 0))
    if target in FLOATS:
        with np.errstate(all="ignore"):
            return float(FLOATS[target](item))
    lo, hi = INTEGERS[target]
    inside = math.isfinite(item) and lo <= math.trunc(item) <= hi
    return as_dim(math.trunc(item)) if inside else None  # out of range: undefined in ONNX


UNARY = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg",
    "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign",
    "Sqrt", "SwiGLU", "Swish", "Tan", "Tanh", "ThresholdedRelu",
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
