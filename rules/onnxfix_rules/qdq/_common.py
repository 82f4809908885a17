"""Shared by the quantization rules: QuantizeLinear/DequantizeLinear as one record, and fixes over several nodes.

ONNX's own operators and ONNX Runtime's ``com.microsoft`` ones have the same semantics. TensorRT's parser checks only
the operator's name (measured with TensorRT-RTX 1.7.1), so the rules cover both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from onnxfix.rule import (
    INTEGERS,
    AddNode,
    Draft,
    Edit,
    Model,
    Node,
    RemoveNode,
    ReplaceUses,
    SetValueInfo,
    Severity,
    Value,
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


class Unable(Exception):
    """A fix cannot be written because a size or type is unknown."""


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


@dataclass
class Workshop:
    """The edits of one fix over several nodes, which share constants."""

    edits: list[Edit] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _constants: dict[tuple[object, ...], str] = field(default_factory=dict)

    def at(self, node: Node) -> Draft:
        """A draft that inserts new nodes before ``node`` and appends to the common edit list."""
        return Draft(node, self.edits, self._names)

    def constant(self, node: Node, array: Array, hint: str = "const") -> str:
        """The name of a constant that ``node`` can read."""
        draft = self.at(node)
        # In functions and old files constants are nodes, each inserted before its only reader.
        shared = node.scope.model.ir_version >= 4 and node.scope.kind != "function"
        place = id(node.scope) if shared and node.scope.parent is None else id(node)
        key = (place, array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = draft.constant(array, hint)
        return self._constants[key]

    def retype(self, value: Value, elem: int) -> None:
        """Set the declared element type of an internal value, if declared, to ``elem``."""
        declared = value.scope.declared_types().get(value.name)
        if declared is None or not declared.HasField("tensor_type"):
            return
        info = ValueInfoProto(name=value.name)
        info.type.CopyFrom(declared)
        info.type.tensor_type.elem_type = elem
        self.edits.append(SetValueInfo(value.scope, value.name, info))

    def put(self, node: Node, name: str) -> None:
        """Replace the single output of ``node`` by ``name`` and remove the node."""
        output = node.require_output()
        if output.replaceable:
            self.edits.append(ReplaceUses(output, name))
            self.edits.append(RemoveNode(node))
        else:
            self.edits.append(RemoveNode(node))
            self.at(node).add("Identity", [name], output=output.name)

    def like(
        self,
        node: Node,
        op_type: str,
        inputs: Sequence[Value | str | None],
        *,
        domain: str = "",
        without: Sequence[str] = (),
        before: Node | None = None,
    ) -> str:
        """Add a node with one output and the attributes of ``node``, except those in ``without``.

        It is inserted before ``before``, by default before ``node`` itself.
        """
        name = self.at(node).name(op_type.lower())
        proto = NodeProto(op_type=op_type, output=[name], domain=domain)
        proto.input.extend(v.name if isinstance(v, Value) else (v or "") for v in inputs)
        proto.attribute.extend(a for a in node.proto.attribute if a.name not in without)
        place = before or node
        if place.scope.parent is not None:  # two branches may have nodes of one name: see Draft.add
            proto.name = f"{place.scope.path}/{name}"
        self.edits.append(AddNode(place.scope, proto, place))
        return name

    def cast(self, node: Node, name: str, elem: int, hint: str = "cast") -> str:
        """Cast ``name`` to type ``elem``, before ``node``."""
        return self.at(node).add("Cast", [name], hint=hint, to=elem)


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


def rounded(shop: Workshop, node: Node, name: str) -> str:
    """Round ``name`` to integers, half to even."""
    draft = shop.at(node)
    if scope_opset(node) >= 11:
        return draft.add("Round", [name])

    def number(value: float) -> str:
        return shop.constant(node, np.array(value, dtype=np.float32), "number")

    # Opset 10, where everything is float32. The fraction above the integer below, which is exact from 0.5 on,
    # decides; at exact halves an odd integer rounds up. Next to an odd integer floats are at least 2**-23 apart, so
    # 2**-26 affects nothing but a half.
    below = draft.add("Floor", [name])
    part = draft.add("Sub", [draft.add("Sub", [name, below]), number(0.5)])
    half = draft.add("Floor", [draft.add("Mul", [below, number(0.5)])])
    odd = draft.add("Sub", [below, draft.add("Mul", [half, number(2.0)])])
    part = draft.add("Add", [part, draft.add("Mul", [odd, number(2.0**-26)])])
    up = draft.add("Cast", [draft.add("Greater", [part, number(0.0)])], to=TensorProto.FLOAT)
    return draft.add("Add", [below, up])


def behind_ones(shop: Workshop, node: Node, name: str, count: int) -> str:
    """Append ``count`` dimensions of size 1 to a vector."""
    if not count:
        return name
    axes: Sequence[int] = range(1, count + 1)
    if scope_opset(node) >= 13:
        return shop.at(node).add(
            "Unsqueeze", [name, shop.constant(node, np.array(axes, dtype=np.int64), "axes")]
        )
    return shop.at(node).add("Unsqueeze", [name], axes=list(axes))


_MIDDLE: dict[int, int] = {U8: 128, U4: 8}


def is_middle(linear: Linear) -> bool:
    """Whether this is an unsigned type with the midpoint of its range as zero point."""
    return linear.quantizes and linear.point is not None and _MIDDLE.get(linear.elem) == linear.point
