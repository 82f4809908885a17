"""Reads QuantizeLinear and DequantizeLinear as one record, and derives what quantized and float tensors can hold.

ONNX's own operators and ONNX Runtime's ``com.microsoft`` ones have the same semantics. TensorRT's parser checks only
the operator's name (measured with TensorRT-RTX 1.7.1), so the rules cover both.
"""

# Long because: the bounds of a tensor need the record, and the record is of no use without them.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    INTEGERS,
    Model,
    Node,
    Severity,
    Value,
    is_float,
    is_small,
    name_of,
    target_of,
)

Array: TypeAlias = np.ndarray[Any, Any]

MS = "com.microsoft"
QUANTIZE = ("QuantizeLinear", f"{MS}::QuantizeLinear")
DEQUANTIZE = ("DequantizeLinear", f"{MS}::DequantizeLinear")

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Float types that can be quantized and dequantized to."""

WEIGHT_LIMIT = 256 << 20
"""Largest constant that a fix rewrites, in bytes."""

U8, I8, U4, I4 = TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT4, TensorProto.INT4
U2, I2 = 25, 26  # unnamed in older onnx packages


def severity_of(model: Model) -> Severity:
    """Severity of behavior that was measured with TensorRT-RTX only, not with older parsers."""
    return Severity.ERROR if target_of(model).types_measured else Severity.WARNING


def takes_blocks(model: Model, elem: int) -> bool | None:
    """Whether the target takes several scales along an axis for integers or float8; None if it is not known."""
    target = target_of(model)
    if target.package != "tensorrt" or target.oldest >= (10, 15):
        return True
    if target.oldest < (10,) or elem == I4:
        return target.oldest >= (10,)
    return False if target.oldest < (10, 8) else None


def is_op(node: Node, op_type: str) -> bool:
    """Whether the node is this quantization operator, of ONNX's or Microsoft's domain, and not a local function."""
    if node.op_type != op_type or node.domain not in ("", MS):
        return False
    return (node.domain, op_type) not in node.model.function_names


@dataclass(frozen=True)
class Linear:
    """A QuantizeLinear or DequantizeLinear with a known quantized type.

    ``zeros`` are the stored zero points (0 without that input), None if they are not constant; ``scales`` likewise.
    ``kind`` is the granularity of the scales: ``"tensor"``, ``"axis"`` or ``"block"``, ``""`` if unknown.
    ``precision`` is the type of the division (Q) or product (DQ), 0 if unknown or not a float; ``result`` is the
    output type of a DQ.
    """

    node: Node
    data: Value
    scale: Value
    zero: Value | None
    quantizes: bool
    elem: int
    axis: int
    block: int
    kind: str
    precision: int
    result: int
    zeros: Array | None = field(compare=False)
    scales: Array | None = field(compare=False)

    @property
    def low(self) -> int:
        return INTEGERS[self.elem].low

    @property
    def high(self) -> int:
        return INTEGERS[self.elem].high

    @property
    def point(self) -> int | None:
        """The common zero point, or None if they differ or are unknown."""
        if self.zeros is None or not self.zeros.size:
            return None
        found = self.zeros.reshape(-1).astype(np.int64)
        return int(found[0]) if (found == found[0]).all() else None

    @property
    def inner(self) -> Value | None:
        """The quantized tensor."""
        return self.node.output(0) if self.quantizes else self.data


def read(node: Node, model: Model) -> Linear | None:
    """The node as a ``Linear``; None if it is another operator, lacks inputs, or has no known integer type."""
    quantizes = is_op(node, "QuantizeLinear")
    if not quantizes and not is_op(node, "DequantizeLinear"):
        return None
    data, scale, zero = node.input(0), node.input(1), node.input(2)
    if data is None or scale is None or node.output(0) is None:
        return None
    # Microsoft's have an axis and half precision, nothing newer.
    later = node.opset if node.domain == "" else 19
    if later < 10:  # ONNX had neither operator, nor what a fix puts in its place
        return None
    # Which neither has: what it means is anyone's guess.
    if later < 13 and node.attribute("axis") is not None:
        return None
    elem = _quantized_type(node, model, quantizes, data, zero, later)
    if elem not in INTEGERS or elem == TensorProto.BOOL:
        return None
    axis = int(node.attr("axis", 1))  # from opset 13 on; TensorRT goes by it in older ones as well
    block = int(node.attr("block_size", 0)) if later >= 21 else 0
    precision, result = _types(node, model, quantizes, scale, later)
    zeros = np.zeros((), dtype=np.int64) if zero is None else zero.constant()
    return Linear(
        node, data, scale, zero, quantizes, elem, axis, block, _kind(scale, model, block),
        precision, result, zeros, scale.constant(WEIGHT_LIMIT),
    )  # fmt: skip


def _quantized_type(
    node: Node, model: Model, quantizes: bool, data: Value, zero: Value | None, opset: int
) -> int | None:
    if not quantizes:
        return model.shapes.elem_type(data)
    if zero is not None:
        return model.shapes.elem_type(zero)
    named = int(node.attr("output_dtype", 0)) if opset >= 21 else 0
    return named or U8


def _types(node: Node, model: Model, quantizes: bool, scale: Value, opset: int) -> tuple[int, int]:
    """(precision, result): ONNX, QuantizeLinear ("precision") and DequantizeLinear ("output_dtype")."""
    of_scale = TensorProto.FLOAT if opset < 19 else model.shapes.elem_type(scale) or 0
    if quantizes:
        precision = int(node.attr("precision", 0)) if opset >= 23 else 0
        precision = precision or of_scale
        return (precision if precision in FLOATS else 0), 0
    result = int(node.attr("output_dtype", 0)) if opset >= 23 else 0
    result = result or of_scale
    if result not in FLOATS or of_scale not in FLOATS:
        return 0, 0
    # onnx.reference and ONNX Runtime multiply in float32 and round once.
    return (result if result == of_scale else TensorProto.FLOAT), result


def _kind(scale: Value, model: Model, block: int) -> str:
    shape = model.shapes.static_shape(scale)
    rank = model.shapes.rank(scale)
    if shape is not None and all(size == 1 for size in shape):
        return "tensor"
    if block > 0:
        return "block"
    return "axis" if rank == 1 else ""


def spread(array: Array, linear: Linear, rank: int | None, dims: Sequence[int | None] | None) -> Array | None:
    """Scales or zero points reshaped to broadcast with the data; None if that needs an unknown size.

    ``rank`` and ``dims`` describe the data, as far as known.
    """
    if array.size == 1:
        return array.reshape(())
    if linear.kind == "axis" and array.ndim == 1:
        if rank is None:
            return array if linear.axis == -1 else None
        if not -rank <= linear.axis < rank or not is_small(*[1] * rank):
            return None
        shape = [1] * rank
        shape[linear.axis] = array.size
        return array.reshape(shape)
    if linear.kind == "block" and dims is not None and array.ndim == len(dims):
        if not -array.ndim <= linear.axis < array.ndim:
            return None
        size = dims[linear.axis]
        return None if size is None else repeated(array, linear.axis % array.ndim, linear.block, size)
    return None


def repeated(array: Array, axis: int, block: int, size: int) -> Array | None:
    """Parameters of blocks along an axis of ``size`` elements, one for each element; None if the array has not one for
    each block, or is too large then."""
    blocks = array.shape[axis]
    if -(-size // block) != blocks or array.nbytes // max(blocks, 1) * size > WEIGHT_LIMIT:
        return None
    return np.repeat(array, min(block, size), axis)[(slice(None),) * axis + (slice(size),)]


def sizes(value: Value, model: Model) -> list[int | None] | None:
    """The dimensions, None for each dynamic one; None if the rank is unknown."""
    shape = model.shapes.shape(value)
    return None if shape is None else [dim.value for dim in shape]


def offsets(linear: Linear, weights: Array) -> Array | None:
    """``weights - zero point`` as int64 for constant weights; None if zero points are unknown or do not broadcast."""
    if linear.zeros is None:
        return None
    zeros = spread(linear.zeros, linear, weights.ndim, list(weights.shape))
    if zeros is None:
        return None
    found = weights.astype(np.int64) - zeros.astype(np.int64)
    return found if found.shape == weights.shape else None


def dequantized(linear: Linear, weights: Array) -> Array | None:
    """The exact DequantizeLinear result of constant weights; None if something is unknown.

    Offsets of up to 17 bits are exact in float32; int32 offsets are rounded to float32 first, as ONNX Runtime and
    onnx.reference do. The product is computed in float32 and rounded to the result's type.
    """
    shifted = offsets(linear, weights)
    if shifted is None or linear.scales is None or linear.result == 0:
        return None
    scales = spread(linear.scales, linear, weights.ndim, list(weights.shape))
    if scales is None:
        return None
    with np.errstate(all="ignore"):
        product = shifted.astype(np.float32) * scales.astype(np.float32)
        found: Array = product.astype(numpy_type(linear.result))
    return found if found.shape == weights.shape else None


def numpy_type(elem: int) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) type of an ONNX element type."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem))


def scope_opset(node: Node) -> int:
    """Opset version of the default ONNX domain in the node's scope."""
    return node.scope.opset("")


def described(linear: Linear) -> str:
    """Quantized type and zero point for messages, for example ``uint8 with zero point 128``."""
    if linear.zero is None:
        return f"{name_of(linear.elem)} without a zero point"
    point = linear.point
    if point is not None:
        return f"{name_of(linear.elem)} with zero point {point}"
    if linear.zeros is None:
        return f"{name_of(linear.elem)} with a non-constant zero point"
    found = linear.zeros.reshape(-1).astype(np.int64)
    if not found.size:
        return f"{name_of(linear.elem)} with no zero points"
    return f"{name_of(linear.elem)} with zero points between {found.min()} and {found.max()}"


_MIDDLE: dict[int, int] = {U8: 128, U4: 8}


def is_middle(linear: Linear) -> bool:
    """Whether this is an unsigned type with the midpoint of its range as zero point."""
    return linear.quantizes and linear.point is not None and _MIDDLE.get(linear.elem) == linear.point


# -- bounds of a float tensor, and whether it may hold NaN, derived from its producers


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
