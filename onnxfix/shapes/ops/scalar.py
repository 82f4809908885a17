"""Exact arithmetic on single elements, symbolic integers and IEEE floats alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.shapes.ops.base import FLOATS, INTEGERS, Call, fits, wrap
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
    "Neg": lambda a: -a,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Abs": np.abs,
}


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
