"""Provable bounds of a float tensor, and whether it may hold NaN, derived from its producers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from onnxfix.rule import INTEGERS, Model, Node, Value, is_float

from ._common import FLOATS, Array, read

DEPTH = 12
"""How many producers are followed along one path. The budget is divided where paths branch, to bound the work."""

_MARGIN = 2.0**-7
"""Relative error of one operation in any type (bfloat16 has 8 bits)."""


@dataclass(frozen=True)
class Bounds:
    """Every element except NaN lies in ``[low, high]``; ``nan`` says whether NaN is possible."""

    low: float = -math.inf
    high: float = math.inf
    nan: bool = True

    @property
    def finite(self) -> bool:
        return not self.nan and math.isfinite(self.low) and math.isfinite(self.high)


ANY = Bounds()


def bounds_of(value: Value | None, model: Model, depth: int = DEPTH) -> Bounds:
    """The bounds of a float or integer tensor; ``ANY`` if nothing is known."""
    if value is None or depth <= 0:
        return ANY
    array = value.constant()
    if array is not None:
        return _of_array(array)
    node = value.producer
    elem = model.shapes.elem_type(value)
    if elem in INTEGERS:
        return _of_integers(elem)
    if node is None or not (node.is_onnx or node.domain == "com.microsoft"):
        return ANY
    known = _TABLE.get(node.op_type) if node.is_onnx or node.op_type == "DequantizeLinear" else None
    return ANY if known is None else known(node, model, depth - 1)


def _of_array(array: Array) -> Bounds:
    if not array.size:
        return Bounds(0.0, 0.0, False)
    try:
        wide = array.astype(np.float64)
    except (TypeError, ValueError):
        return ANY
    if np.isnan(wide).all():
        return Bounds(0.0, 0.0, True)
    return Bounds(float(np.nanmin(wide)), float(np.nanmax(wide)), bool(np.isnan(wide).any()))


def _of_integers(elem: int) -> Bounds:
    return Bounds(float(INTEGERS[elem].low), float(INTEGERS[elem].high), False)


def _first(node: Node, model: Model, depth: int) -> Bounds:
    return bounds_of(node.input(0), model, depth)


def _max_pool(node: Node, model: Model, depth: int) -> Bounds:
    """Bounds of a MaxPool. A window of padding only, possible with ceil_mode, gives the lowest value of the type."""
    return ANY if node.attr("ceil_mode", 0) else _first(node, model, depth)


def _cast(node: Node, model: Model, depth: int) -> Bounds:
    """Bounds of a Cast: a float type keeps values in its range; int64 to float16 may overflow."""
    source = _first(node, model, depth)
    output = node.output(0)
    elem = None if output is None else model.shapes.elem_type(output)
    if elem is None or not is_float(elem):
        return ANY
    if not source.finite or max(-source.low, source.high) > 60000.0:
        return Bounds(nan=source.nan)
    return _wider(source)


def _wider(found: Bounds) -> Bounds:
    """Widen the bounds by one rounding error."""
    low = found.low * (1 + _MARGIN if found.low < 0 else 1 - _MARGIN)
    high = found.high * (1 + _MARGIN if found.high > 0 else 1 - _MARGIN)
    return replace(found, low=low, high=high)


def _exact_cast(node: Node, model: Model, depth: int) -> Bounds:
    """Bounds of an integer: up to 8 bits are exact in every float type that occurs here."""
    source = node.input(0)
    elem = None if source is None else model.shapes.elem_type(source)
    if elem in INTEGERS and INTEGERS[elem].low >= -256 and INTEGERS[elem].high <= 256:
        output = node.output(0)
        target = None if output is None else model.shapes.elem_type(output)
        return _of_integers(elem) if target in (*FLOATS, TensorProto.DOUBLE) else ANY
    return _cast(node, model, depth)


def _relu(node: Node, model: Model, depth: int) -> Bounds:
    source = _first(node, model, depth)
    return Bounds(max(source.low, 0.0), max(source.high, 0.0), source.nan)


def _clip(node: Node, model: Model, depth: int) -> Bounds:
    source = _first(node, model, depth)
    low, high = -math.inf, math.inf
    if node.opset >= 11:
        for index in (1, 2):
            bound = node.input(index)
            if bound is None:
                continue
            array = bound.constant()
            if array is None or array.size != 1 or math.isnan(float(array.reshape(()))):
                return Bounds(nan=source.nan)
            low, high = (float(array.reshape(())), high) if index == 1 else (low, float(array.reshape(())))
    else:
        low, high = float(node.attr("min", -math.inf)), float(node.attr("max", math.inf))
    if low > high:
        return Bounds(nan=source.nan)
    return Bounds(min(max(source.low, low), high), max(min(source.high, high), low), source.nan)


def _within(low: float, high: float, *, needs_finite: bool = False) -> Callable[[Node, Model, int], Bounds]:
    """Bounds of an operator with a fixed output interval; some return NaN for an infinite input."""

    def rule(node: Node, model: Model, depth: int) -> Bounds:
        source = _first(node, model, depth)
        return Bounds(low, high, source.nan or (needs_finite and not source.finite))

    return rule


def _abs(node: Node, model: Model, depth: int) -> Bounds:
    source = _first(node, model, depth)
    low = max(source.low, -source.high, 0.0)
    return Bounds(low, max(abs(source.low), abs(source.high)), source.nan)


def _neg(node: Node, model: Model, depth: int) -> Bounds:
    source = _first(node, model, depth)
    return Bounds(-source.high, -source.low, source.nan)


def _whole_numbers(node: Node, model: Model, depth: int) -> Bounds:
    source = _first(node, model, depth)
    low = float(math.floor(source.low)) if math.isfinite(source.low) else source.low
    high = float(math.ceil(source.high)) if math.isfinite(source.high) else source.high
    return Bounds(low, high, source.nan)


def _hull(found: Sequence[Bounds]) -> Bounds:
    if not found:
        return ANY
    return Bounds(min(b.low for b in found), max(b.high for b in found), any(b.nan for b in found))


def _joined(node: Node, model: Model, depth: int) -> Bounds:
    if len(node.inputs) > 8:
        return ANY
    return _hull([bounds_of(value, model, depth - len(node.inputs)) for value in node.inputs])


def _where(node: Node, model: Model, depth: int) -> Bounds:
    return _hull([bounds_of(value, model, depth - 2) for value in node.inputs[1:3]])


def _arithmetic(node: Node, model: Model, depth: int) -> Bounds:
    """Sum, difference, product or quotient of finite intervals, widened for rounding."""
    if len(node.inputs) != 2 or node.opset < 7:
        return ANY
    a, b = (bounds_of(value, model, depth - 2) for value in node.inputs)
    if not a.finite or not b.finite or (node.op_type == "Div" and b.low <= 0.0 <= b.high):
        return ANY
    operation: Callable[[float, float], float] = {
        "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y, "Div": lambda x, y: x / y,
    }[node.op_type]  # fmt: skip
    corners = [operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    found = Bounds(min(corners), max(corners), False)
    # Values beyond float16's range may become infinite.
    return _wider(found) if max(-found.low, found.high) < 60000.0 else ANY


def _dequantized(node: Node, model: Model, depth: int) -> Bounds:
    linear = read(node, model)
    if linear is None or linear.zeros is None or linear.scales is None or not linear.scales.size:
        return ANY
    zeros = linear.zeros.astype(np.float64)
    scales = linear.scales.astype(np.float64)
    if zeros.size != 1:
        zeros = np.array([zeros.min(), zeros.max()]) if zeros.size else np.zeros(1)
    with np.errstate(all="ignore"):  # a scale may be infinite
        corners = [(q - z) * s for q in (linear.low, linear.high) for z in zeros.reshape(-1)
                   for s in (scales.min(), scales.max())]  # fmt: skip
    if not all(map(math.isfinite, corners)) or max(map(abs, corners)) > 60000.0:
        return ANY
    return _wider(Bounds(min(corners), max(corners), False))


_UNIT = _within(0.0, 1.0 + 2.0**-20)

_TABLE: dict[str, Callable[[Node, Model, int], Bounds]] = {
    "Relu": _relu,
    "Clip": _clip,
    "Sigmoid": _UNIT,
    "HardSigmoid": _UNIT,
    "Tanh": _within(-1.0 - 2.0**-20, 1.0 + 2.0**-20),
    "Softmax": _within(0.0, 1.0 + 2.0**-20, needs_finite=True),
    "Abs": _abs,
    "Neg": _neg,
    **dict.fromkeys(("Round", "Floor", "Ceil"), _whole_numbers),
    "Cast": _exact_cast,
    "DequantizeLinear": _dequantized,
    "Concat": _joined,
    "Where": _where,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _arithmetic),
    "MaxPool": _max_pool,
    # No operator below creates new values.
    **dict.fromkeys(
        ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather",
         "GatherElements", "GatherND", "Expand", "Tile", "DepthToSpace", "SpaceToDepth"),
        _first,
    ),
}  # fmt: skip


def integral(value: Value, elem: int, model: Model) -> bool:
    """Whether every non-NaN element of a float tensor is an integer within the range of type ``elem``."""
    whole = value
    for _ in range(DEPTH):
        node = whole.producer
        if node is None or not node.is_onnx:
            return False
        if node.op_type in ("Round", "Floor", "Ceil"):
            break
        ends = [end.constant() for end in node.inputs[1:3] if end is not None]
        if node.op_type != "Clip" or node.opset < 11 or any(not _whole(end) for end in ends):
            return False
        source = node.input(0)
        if source is None:
            return False
        whole = source
    else:
        return False
    found = bounds_of(value, model)
    return INTEGERS[elem].low <= found.low and found.high <= INTEGERS[elem].high


def _whole(array: Array | None) -> bool:
    return array is not None and bool((array.astype(np.float64) == np.rint(array.astype(np.float64))).all())


_ROOM: dict[int, float] = {TensorProto.FLOAT: 2.0**-22, TensorProto.FLOAT16: 2.0**-10}


def quotients(scales: Array, found: Bounds, precision: int) -> Bounds:
    """Bounds of ``round(x / scale)`` over all scales; unbounded if one is not positive.

    ``precision`` is the type of the division; its rounding error is included.
    """
    wide = scales.astype(np.float64).reshape(-1)
    if not wide.size or not (np.isfinite(wide) & (wide > 0)).all():
        return Bounds(nan=True)
    corners = [edge / float(scale) for edge in (found.low, found.high) for scale in (wide.min(), wide.max())]
    room = _ROOM.get(precision, 2.0**-7)
    return Bounds(_rounded(min(corners), -room), _rounded(max(corners), room), found.nan)


def _rounded(number: float, room: float) -> float:
    """The outermost integer that a quotient near ``number`` can round to."""
    return float(round(number + abs(number) * room)) if math.isfinite(number) else number
