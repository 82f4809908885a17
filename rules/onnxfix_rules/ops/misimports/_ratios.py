"""Floats computed from sizes and constants, as fractions: how models compute the scales of a Resize."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Dim, Model, Node, Value, equal
from onnxfix.shapes.symbols import Answer, as_dim, divide

_MAX_DEPTH = 24
"""Maximum number of nodes between the scales and their sources."""
_PASS_THROUGH = ("Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Ratio:
    """``factor * top / bottom``. ``value`` is the resulting float32, where the sizes are known."""

    top: Dim
    bottom: Dim
    factor: Fraction
    value: np.float32 | None

    @property
    def constant(self) -> Fraction | None:
        """The value, where it is the same for all sizes."""
        if self.top is self.bottom:
            return self.factor
        return None if self.value is None else Fraction(float(self.value))

    def is_whole(self, size: Dim) -> Answer:
        """Whether ``size`` times this is an integer: in float32 where it is known, else proven for all sizes."""
        if self.value is not None and size.value is not None:
            product = np.float32(size.value) * self.value
            return equal(int(product == np.floor(product)), 1)
        exact = self.constant
        top, bottom = (self.top, self.bottom) if exact is None else (as_dim(1), as_dim(1))
        factor = self.factor if exact is None else exact
        numerator, denominator = top * size * factor.numerator, bottom * factor.denominator
        return equal(divide(numerator, denominator) * denominator, numerator)


def ratios(value: Value, model: Model) -> tuple[Ratio, ...] | None:
    """The elements of a float32 vector or scalar; None where they are computed otherwise or one is not finite."""
    with np.errstate(all="ignore"):
        found = _of(value, model, 0)
    if found is None or any(
        element.value is not None and not np.isfinite(element.value) for element in found
    ):
        return None
    return found


def _of(value: Value, model: Model, depth: int) -> tuple[Ratio, ...] | None:
    array = value.constant()
    if array is not None:
        return _constants(array.reshape(-1)) if array.dtype == np.float32 and array.size <= 64 else None
    producer = value.producer
    if producer is None or not producer.is_onnx or depth > _MAX_DEPTH:
        return None
    if producer.op_type == "Cast":
        return _cast(producer, model)
    if producer.op_type not in (*_PASS_THROUGH, "Concat", "Div", "Mul"):
        return None
    read = producer.inputs[:1] if producer.op_type in _PASS_THROUGH else producer.inputs
    parts = [None if source is None else _of(source, model, depth + 1) for source in read]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if producer.op_type == "Concat":
        return tuple(element for part in known for element in part)
    return known[0] if producer.op_type in _PASS_THROUGH else _arithmetic(producer.op_type, *known)


def _constants(array: np.ndarray[Any, Any]) -> tuple[Ratio, ...] | None:
    if not np.isfinite(array).all():
        return None
    one = as_dim(1)
    return tuple(Ratio(one, one, Fraction(float(number)), np.float32(number)) for number in array)


def _cast(node: Node, model: Model) -> tuple[Ratio, ...] | None:
    """Sizes, or constants of double precision, cast to float32."""
    source = node.input(0)
    if source is None or node.attr("to") != TensorProto.FLOAT:
        return None
    array, found = source.constant(), model.shapes.value(source)
    if array is not None and array.dtype == np.float64 and array.size <= 64:
        return _constants(array.reshape(-1).astype(np.float32))
    if found is None:
        return None
    one = as_dim(1)
    return tuple(
        Ratio(dim, one, Fraction(1), None if dim.value is None else np.float32(dim.value))
        for dim in found.data
    )


def _arithmetic(op_type: str, left: tuple[Ratio, ...], right: tuple[Ratio, ...]) -> tuple[Ratio, ...] | None:
    count = max(len(left), len(right))
    if {len(left), len(right)} - {1, count} or not count:
        return None
    left, right = (part * count if len(part) == 1 else part for part in (left, right))
    divided = op_type == "Div"
    if divided and any(element.factor == 0 or element.top.value == 0 for element in right):
        return None
    return tuple(_combined(a, b, divided) for a, b in zip(left, right, strict=True))


def _combined(a: Ratio, b: Ratio, divided: bool) -> Ratio:
    value = None
    if a.value is not None and b.value is not None:
        value = a.value / b.value if divided else a.value * b.value
    top, bottom = (b.bottom, b.top) if divided else (b.top, b.bottom)
    factor = a.factor / b.factor if divided else a.factor * b.factor
    return Ratio(a.top * top, a.bottom * bottom, factor, value)
