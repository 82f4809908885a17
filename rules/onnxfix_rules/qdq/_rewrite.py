"""Rewrites quantization: as a shift to a zero point of 0, as other constants, or in floats."""

# Long because: the ways to rewrite share one set of helpers, and each falls back on the next.

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from onnxfix.rule import (
    INTEGERS,
    AddNode,
    Draft,
    Edit,
    Fix,
    Model,
    Node,
    RemoveNode,
    ReplaceUses,
    Safety,
    SetValueInfo,
    Use,
    Value,
    is_small,
    name_of,
    target_of,
)
from onnxfix_rules.ops._integers import is_only_quantized

from ._read import (
    FLOATS,
    I2,
    I4,
    I8,
    U2,
    U4,
    U8,
    WEIGHT_LIMIT,
    Array,
    Linear,
    bounds_of,
    dequantized,
    is_op,
    numpy_type,
    offsets,
    quotients,
    read,
    scope_opset,
    sizes,
    spread,
)
from ._region import FACTORS, Region, moved, region_of, requantizes


class Unable(Exception):
    """A fix cannot be written because a size or type is unknown."""


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


# -- constants stored as signed integers around 0, or as floats


def shift(value: Value, point: int, signed: int) -> Array | None:
    """A constant's elements minus ``point``, None if they do not fit the signed type."""
    array = value.constant(WEIGHT_LIMIT)
    if array is None:
        return None
    return fitted(array.astype(np.int64) - point, signed)


def fitted(shifted: Array, elem: int) -> Array | None:
    """Integers as type ``elem``, None if one does not fit."""
    bounds = INTEGERS[elem]
    if shifted.size and (shifted.min() < bounds.low or shifted.max() > bounds.high):
        return None
    found: Array = shifted.astype(numpy_type(elem))
    return found


WIDE = (TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32)
"""Quantized types that TensorRT does not support at all, so that storing floats loses nothing."""

_CANDIDATES: dict[int, tuple[int, ...]] = {
    U8: (I8,),
    I8: (I8,),
    U4: (I4, I8),
    I4: (I4, I8),
    I2: (I4, I8),
    U2: (I4, I8),
    TensorProto.INT16: (I8,),
    TensorProto.UINT16: (I8,),
}

MAX_SHARERS = 64
"""Most readers of one constant that share a fix; beyond it each gets its own."""


def as_signed(linear: Linear, weights: Array) -> Array | None:
    """``weights - zero point`` in the narrowest signed type that TensorRT supports, None if none fits."""
    shifted = offsets(linear, weights)
    return None if shifted is None else narrowed(linear, shifted)


def narrowed(linear: Linear, numbers: Array) -> Array | None:
    """Numbers of its constant in the narrowest signed type that TensorRT supports, None if none fits."""
    for narrow in _CANDIDATES.get(linear.elem, ()):
        if narrow == I4 and (numbers.size % 2 or not target_of(linear.node.model).has_type(I4)):
            continue  # two int4 values share a byte, and TensorRT requires whole bytes
        found = fitted(numbers, narrow)
        if found is not None:
            return found
    return None


def stored_otherwise(linear: Linear, model: Model) -> Fix | None:
    """Store the constant of ``linear`` as signed integers around 0, else as floats; None if neither is possible."""
    weights = linear.data.constant(WEIGHT_LIMIT)
    if weights is None or linear.data.pinned:
        return None
    signed = as_signed(linear, weights) if weights.ndim else None
    if signed is not None:
        return _as_integers(linear, signed, model)
    halves = halved(linear, weights)
    if halves is not None:
        return _split(linear, *halves)
    loses = linear.elem not in WIDE and weights.ndim > 0
    return as_floats(linear, weights, Safety.NUMERIC if loses else Safety.EXACT)


def as_floats(linear: Linear, weights: Array, safety: Safety) -> Fix | None:
    """The dequantized constant itself."""
    array = dequantized(linear, weights)
    if array is None:
        return None
    shop = Workshop()
    shop.put(linear.node, shop.constant(linear.node, array, "dequantized"))
    lost = ", which loses compression and INT8 execution" if safety > Safety.EXACT else ""
    return Fix(f"store {linear.data.name!r} as {name_of(linear.result)}{lost}", shop.edits, safety)


def _as_integers(linear: Linear, signed: Array, model: Model) -> Fix:
    shop = Workshop()
    for node in sharers(linear, model):
        draft = shop.at(node)
        draft.set_input(node, 0, shop.constant(node, signed, "shifted"))
        if node.input(2) is not None:
            draft.set_input(node, 2, None)
    kind = name_of(elem_of(signed))
    return Fix(f"store {linear.data.name!r} as {kind} with zero point 0", shop.edits)


def excess(numbers: Array, axes: tuple[int, ...]) -> Array:
    """What to subtract, the same along ``axes``, so that int8 holds numbers that span at most 255; 0 if it does."""
    least, most = numbers.min(axis=axes, keepdims=True), numbers.max(axis=axes, keepdims=True)
    found: Array = np.maximum(most - 127, 0) + np.minimum(least + 128, 0)
    return found


def halved(linear: Linear, weights: Array) -> tuple[Array, Array] | None:
    """8-bit weights as int8 plus a number for each column; None unless they are only multiplied, as matrices.

    ``x @ (w + m)`` is ``x @ w`` plus the sum of ``x`` along its last axis times ``m``.
    """
    output, shifted = linear.node.require_output(), offsets(linear, weights)
    kinds = (linear.precision, linear.result)
    if linear.elem not in (U8, I8) or kinds != (TensorProto.FLOAT, TensorProto.FLOAT) or shifted is None:
        return None
    if output.is_output or output.pinned or not output.uses or linear.scales is None or not shifted.size:
        return None
    across = {_columns(use, linear, shifted.ndim) for use in output.uses}
    axis = across.pop()
    if across or axis is None:
        return None
    axes = tuple(one for one in range(shifted.ndim) if one != axis)
    if linear.kind == "tensor":
        middles = excess(shifted, (*axes, axis))
    elif linear.kind == "axis" and linear.axis % shifted.ndim == axis:
        middles = excess(shifted, axes)
    else:
        return None
    numbers = fitted(shifted - middles, I8)
    if numbers is None:
        return None
    scales = linear.scales.reshape(-1).astype(np.float32)
    return numbers, (middles.reshape(-1) * scales).astype(np.float32)


def _columns(use: Use, linear: Linear, rank: int) -> int | None:
    """The axis of a matrix along which a product with dequantized data, which is finite, does not sum; else None."""
    node, data = use.node, use.node.input(0)
    if not node.is_onnx or use.index != 1 or node.scope is not linear.node.scope or node.output(0) is None:
        return None
    if data is None or data.producer is None or not is_op(data.producer, "DequantizeLinear"):
        return None
    if node.op_type == "MatMul" and rank > 1:
        return rank - 1
    return 1 - node.attr("transB", 0) if node.op_type == "Gemm" and not node.attr("transA", 0) else None


def _split(linear: Linear, numbers: Array, shares: Array) -> Fix:
    shop = Workshop()
    shop.at(linear.node).set_input(linear.node, 0, shop.constant(linear.node, numbers, "shifted"))
    shop.at(linear.node).set_input(linear.node, 2, None)
    for node in {use.node: None for use in linear.node.require_output().uses}:
        draft = shop.at(node)
        inputs: list[Value | str | None] = [*node.inputs]
        last = shop.like(node, node.op_type, inputs)
        share = shop.constant(node, shares * np.float32(node.attr("alpha", 1.0)), "share")
        part = draft.add("Mul", [draft.sum(node.require(0), [-1], keepdims=True), share])
        shop.edits.append(RemoveNode(node))
        draft.add("Add", [last, part], output=node.require_output().name)
    text = (
        f"store {linear.data.name!r} as int8 with zero point 0, and add what does not fit behind the products"
    )
    return Fix(text, shop.edits, Safety.NUMERIC)


def elem_of(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def sharers(linear: Linear, model: Model) -> list[Node]:
    """The DequantizeLinear nodes of this scope with the same constant and zero points, this one first."""
    found = [linear.node]
    if linear.data.use_count > MAX_SHARERS:
        return found
    for use in linear.data.uses:
        if use.index or use.node in found or use.node.scope is not linear.node.scope:
            continue
        other = read(use.node, model)
        if other is not None and not other.quantizes and _same(linear, other):
            found.append(use.node)
    return found


def _same(one: Linear, other: Linear) -> bool:
    if one.zeros is None or other.zeros is None:
        return False
    # A vector of zero points also depends on its axis.
    alike = (one.kind, one.axis, one.block) == (other.kind, other.axis, other.block)
    alike = alike or one.point is not None
    return alike and one.zeros.shape == other.zeros.shape and bool(np.array_equal(one.zeros, other.zeros))


def fixed(value: Value) -> bool:
    """Whether this is a dense constant with readable values."""
    return value.is_constant and not value.sparse


# -- integer products as products of floats


F32, F16, BF16 = FLOATS
EXACT_IN_FLOAT = 2**24
"""float32 represents every integer up to this one."""


def convolves(node: Node) -> bool:
    return node.op_type.endswith(("ConvInteger", "LinearConv"))


def product(writer: Writer, node: Node) -> None:
    """Write ``Cast(MatMul(a - zero point, b - zero point))``, Conv likewise, or the scaled and quantized form of it.

    Raises:
        Unable: the shape of a zero point or scale is unknown.
    """
    output = node.output(0)
    if output is None or any(node.input(pair[0]) is None for pair in FACTORS[node.op_type]):
        raise Unable
    draft = writer.shop.at(node)
    names = [_factor(writer, node, which) for which in (0, 1)]
    if node.op_type == "QLinearConv" and node.input(8) is not None:
        names.append(_bias(writer, node))
    found = writer.shop.like(node, "Conv" if convolves(node) else "MatMul", names)
    writer.shop.edits.append(RemoveNode(node))
    if requantizes(node):
        _requantized(writer, node, output, found)
        return
    draft.add("Cast", [found], output=output.name, to=TensorProto.INT32)
    if not stays_exact(node, writer.model):
        writer.safety = max(writer.safety, Safety.NUMERIC)


def _factor(writer: Writer, node: Node, which: int) -> str:
    """The data minus its zero point, in float32."""
    value, zero = (node.input(index) for index in FACTORS[node.op_type][which])
    assert value is not None
    whole = _shifted(node, which)
    if whole is not None:
        return writer.shop.constant(node, whole.astype(np.float32), "integers")
    if writer.model.shapes.elem_type(value) not in (TensorProto.INT8, TensorProto.UINT8):
        raise Unable
    name = writer.read(value, node, F32)
    if zero is None:
        return name
    array = zero.constant()
    if array is None:
        return writer.shop.at(node).add("Sub", [name, _computed_zero(writer, node, which, value, zero)])
    if not array.size or not array.astype(np.int64).any():
        return name
    placed = _placed(node, which, array, writer.model.shapes.rank(value))
    if placed is None:
        raise Unable
    subtrahend = writer.shop.constant(node, placed.astype(np.int64).astype(np.float32), "zero_point")
    return writer.shop.at(node).add("Sub", [name, subtrahend])


def _computed_zero(writer: Writer, node: Node, which: int, value: Value, zero: Value) -> str:
    """A non-constant zero point, if its shape shows its granularity."""
    shape, rank = writer.model.shapes.static_shape(zero), writer.model.shapes.rank(value)
    if zero.is_constant or shape is None:
        raise Unable
    name = writer.read(zero, node, F32)
    if shape in ((), (1,)):
        return name
    if len(shape) != 1 or rank is None or which == 0:
        raise Unable
    # A per-filter vector belongs to the first axis, a per-column vector to the last.
    return behind_ones(writer.shop, node, name, rank - 1) if convolves(node) else name


def _placed(node: Node, which: int, array: Array, rank: int | None) -> Array | None:
    """Constant zero points or scales of a factor, reshaped to broadcast with it.

    For convolution filters that is the first axis; for the rows and columns of a matrix product the shape decides.
    """
    if array.size == 1:
        return array.reshape(())
    if convolves(node):
        if which == 0 or array.ndim != 1 or rank is None:
            return None
        return array.reshape([-1] + [1] * (rank - 1))
    if rank is None or rank < 2 or array.ndim > rank:
        return None
    if which == 0 and array.ndim == 1:
        return array.reshape(-1, 1)  # one per row
    return array


def _shifted(node: Node, which: int) -> Array | None:
    """``data - zero point`` if both are constant."""
    value, zero = (node.input(index) for index in FACTORS[node.op_type][which])
    array = None if value is None else value.constant(WEIGHT_LIMIT)
    if array is None:
        return None
    if zero is None:
        return array.astype(np.int64)
    zeros = zero.constant()
    placed = None if zeros is None else _placed(node, which, zeros, array.ndim)
    if placed is None:
        return None
    found: Array = array.astype(np.int64) - placed.astype(np.int64)
    return found if found.shape == array.shape else None


# -- scaling and quantization in QLinear operators


def _bias(writer: Writer, node: Node) -> str:
    """The int32 bias, which is already in units of the sums."""
    bias = node.require(8)
    array = bias.constant(WEIGHT_LIMIT)
    if array is None:
        if bias.is_constant:
            raise Unable
        return writer.shop.cast(node, bias.name, F32)
    return writer.shop.constant(node, array.astype(np.float32), "bias")


def _requantized(writer: Writer, node: Node, output: Value, sums: str) -> None:
    """``Clip(Round(sums * (scale * scale / scale)) + zero point, least, largest)``."""
    zero = node.input(7)
    elem = None if zero is None else writer.model.shapes.elem_type(zero)
    if zero is None or elem not in (TensorProto.INT8, TensorProto.UINT8):
        raise Unable
    if writer.model.shapes.static_shape(zero) not in ((), (1,)):
        raise Unable
    draft = writer.shop.at(node)
    steps = rounded(writer.shop, node, draft.add("Mul", [sums, ratio(writer.shop, node, writer.model)]))
    array = zero.constant()
    if array is None:
        shift = writer.read(zero, node)
    else:
        number = np.array(int(array.reshape(())), dtype=np.float32)
        shift = writer.shop.constant(node, number, "zero_point")
    writer.publish(node, output, writer.clip(node, draft.add("Add", [steps, shift]), elem), elem)


def ratio(shop: Workshop, node: Node, model: Model) -> str:
    """``scale of a * scale of b / scale of y`` in float32, in ONNX Runtime's order of multiplication.

    Half-precision scales are multiplied in half precision and then cast, as in onnx.reference. ONNX Runtime
    multiplies them in float32, also here: it runs half-precision nodes between Casts and drops two adjacent Casts.

    Raises:
        Unable: a scale's shape is unknown, or the scales have different types.
    """
    scales = [scale for scale in (node.input(index) for index in (1, 4, 6)) if scale is not None]
    kinds = {model.shapes.elem_type(scale) for scale in scales}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in FLOATS or len(scales) < 3:
        raise Unable
    arrays = _placed_scales(node, scales, model)
    if arrays is not None and kind == F32:
        one, other, last = arrays
        with np.errstate(all="ignore"):
            return shop.constant(node, one * other / last, "ratio")
    factors: list[Value | str] = [*scales]
    if arrays is not None:
        factors = [shop.constant(node, array, "scale") for array in arrays]
    elif any(model.shapes.static_shape(scale) not in ((), (1,)) for scale in scales):
        raise Unable
    draft = shop.at(node)
    found = draft.add("Div", [draft.add("Mul", factors[:2]), factors[2]])
    return found if kind == F32 else shop.cast(node, found, F32)


def _placed_scales(node: Node, scales: list[Value], model: Model) -> list[Array] | None:
    """The scales, reshaped to broadcast with the sums; None unless all are constant.

    Raises:
        Unable: they do not broadcast with the sums.
    """
    arrays = [scale.constant() for scale in scales]
    known = [array for array in arrays if array is not None]
    if len(known) < 3:
        return None
    ranks = [None if value is None else model.shapes.rank(value) for value in (node.input(0), node.input(3))]
    one, other = (_placed(node, which, known[which], ranks[which]) for which in (0, 1))
    if one is None or other is None or known[2].size != 1:
        raise Unable
    if convolves(node) and other.ndim:
        other = other.reshape(other.shape[:-1])  # the filter axis is the second axis of the result
    return [one, other, known[2].reshape(())]


# -- whether float32 is exact


def stays_exact(node: Node, model: Model) -> bool:
    """Whether every possible partial sum, in any order, stays below 2**24."""
    arrays = [_shifted(node, which) for which in (0, 1)]
    largest: Callable[[int], int] = lambda which: _largest(node, which, arrays[which], model)  # noqa: E731
    for which in (1, 0):
        sums = _sums(node, arrays[which], which)
        if sums is not None:
            return sums * largest(1 - which) < EXACT_IN_FLOAT
    terms = _terms(node, model)
    return terms is not None and terms * largest(0) * largest(1) < EXACT_IN_FLOAT


def _sums(node: Node, weights: np.ndarray[Any, Any] | None, which: int) -> int | None:
    """The largest sum of magnitudes in one result, from constant weights."""
    if weights is None or weights.ndim < 1 or (convolves(node) and which == 0):
        return None
    if not weights.size:
        return 0
    magnitudes = np.abs(weights)
    if convolves(node):
        return int(magnitudes.sum(axis=tuple(range(1, weights.ndim))).max())
    axis = -1 if which == 0 or weights.ndim == 1 else -2
    return int(magnitudes.sum(axis=axis).max())


def _largest(node: Node, which: int, shifted: Array | None, model: Model) -> int:
    """The largest magnitude of ``data - zero point``."""
    if shifted is not None:
        return int(np.abs(shifted).max()) if shifted.size else 0
    value, zero = (node.input(index) for index in FACTORS[node.op_type][which])
    elem = None if value is None else model.shapes.elem_type(value)
    if elem not in INTEGERS:
        return EXACT_IN_FLOAT
    low, high = INTEGERS[elem].low, INTEGERS[elem].high
    zeros = np.zeros(1, dtype=np.int64) if zero is None else zero.constant()
    if zeros is None or not zeros.size:
        return high - low
    known = zeros.astype(np.int64)
    return int(max(high - known.min(), known.max() - low))


def _terms(node: Node, model: Model) -> int | None:
    """How many products one result sums, if static."""
    left, right = (node.input(pair[0]) for pair in FACTORS[node.op_type])
    if left is None or right is None:
        return None
    if convolves(node):
        shape = model.shapes.static_shape(right)
        return None if shape is None or len(shape) < 3 else int(np.prod(shape[1:], dtype=np.int64))
    for value, axis in ((left, -1), (right, -2)):
        dims = model.shapes.shape(value)
        if dims:
            size = dims[axis if len(dims) > 1 else -1].value
            if size is not None:
                return size
    return None


# -- what QuantizeLinear and DequantizeLinear compute, in floats


def dynamic(shop: Workshop, node: Node) -> tuple[str, str]:
    """The float forms of (quantized data, zero point); the scale keeps its name.

    ONNX divides the range of the data, extended to 0, by 255. For all-zero data the range is empty: ONNX Runtime then
    uses scale 1, and so does this code; ONNX's function body divides by 0.
    """
    draft = shop.at(node)
    data, scale = node.require(0), node.output(1)

    def number(value: float) -> str:
        return shop.constant(node, np.array(value, dtype=np.float32), "number")

    least = draft.add("Min", [draft.add("ReduceMin", [data], keepdims=0), number(0.0)])
    most = draft.add("Max", [draft.add("ReduceMax", [data], keepdims=0), number(0.0)])
    span = draft.add("Sub", [most, least])
    ratio = draft.add("Div", [span, number(255.0)])
    empty = draft.add("Equal", [span, number(0.0)])
    step = draft.add("Where", [empty, number(1.0), ratio], output=scale.name if scale is not None else "")
    start = draft.add("Sub", [number(0.0), draft.add("Div", [least, step])])
    zero = draft.add("Round", [draft.add("Clip", [start, number(0.0), number(255.0)])], hint="zero_point")
    quantized = draft.add("Add", [draft.add("Round", [draft.add("Div", [data, step])]), zero])
    name = draft.add("Clip", [quantized, number(0.0), number(255.0)], hint="quantized")
    return name, zero


def in_floats(region: Region, model: Model) -> tuple[tuple[Edit, ...], Safety] | None:
    """The edits and their safety, or None if the region cannot be rewritten.

    EXACT if every value enters as an integer, from outside or from a constant; NUMERIC if floats are quantized."""
    if region.problem:
        return None
    try:
        writer = Writer(region, model)
        return writer.run()
    except Unable:
        return None


class Writer:
    def __init__(self, region: Region, model: Model) -> None:
        self.region, self.model = region, model
        self.shop = Workshop()
        self.names: dict[int, str] = {}
        self.sources = {id(value) for value in region.sources}
        self.carrier = self._carrier()
        self.safety = Safety.NUMERIC if self._quantizes() else Safety.EXACT

    def _quantizes(self) -> bool:
        region = self.region
        return bool(
            region.quantizers
            or region.dynamic
            or region.entries
            or any(requantizes(node) for node in region.products)
        )

    def _carrier(self) -> int:
        """The float type that carries the integers between the nodes.

        It is the type of the surrounding floats if that holds all of them (8 bits), else float32.
        """
        region = self.region
        linears = (*region.quantizers, *region.dequantizers)
        kinds = {linear.precision for linear in linears}
        narrow = all(linear.low >= -128 and linear.high <= 255 for linear in linears)
        others = (region.products, region.dynamic, region.entries, region.casts)
        if len(kinds) != 1 or not narrow or any(others):
            return F32
        (kind,) = kinds
        rounds = all(scope_opset(linear.node) >= 22 for linear in linears)  # Round supports bfloat16
        return F32 if kind == BF16 and not rounds else kind

    def run(self) -> tuple[tuple[Edit, ...], Safety]:
        linears = (*self.region.quantizers, *self.region.dequantizers)
        if any(linear.precision == BF16 and scope_opset(linear.node) < 13 for linear in linears):
            raise Unable  # no opset below computes or casts bfloat16; Microsoft's operators accept it
        write = self._writers()
        for node in self._ordered(list(write)):
            write[node]()
        return tuple(self.shop.edits), self.safety

    def _writers(self) -> dict[Node, Callable[[], None]]:
        """Rewrites each node of the region."""
        region = self.region
        found: dict[Node, Callable[[], None]] = {}
        for linear in region.quantizers:
            found[linear.node] = partial(self.quantize, linear)
        for linear in region.dequantizers:
            found[linear.node] = partial(self.dequantize, linear)
        found.update({node: partial(self.dynamic, node) for node in region.dynamic})
        found.update({node: partial(self.enter, node) for node in region.entries})
        found.update({node: partial(self.move, node) for node in region.moves})
        found.update({node: partial(product, self, node) for node in region.products})
        found.update({node: partial(self.follow, node) for node in (*region.casts, *region.shapes)})
        return found

    def _ordered(self, nodes: list[Node]) -> list[Node]:
        """Sort producers before readers: a new name must exist before it is used."""
        made = {id(value): node for node in nodes for value in node.outputs if value is not None}
        inputs = {
            node: [made[id(v)] for v in node.inputs if v is not None and id(v) in made] for node in nodes
        }
        order: dict[Node, None] = {}
        stack = [iter(nodes)]
        open_nodes: list[Node] = []
        while stack:
            node = next((n for n in stack[-1] if n not in order and n not in open_nodes), None)
            if node is not None:
                open_nodes.append(node)
                stack.append(iter(inputs[node]))
                continue
            stack.pop()
            if open_nodes:
                order[open_nodes.pop()] = None
        return list(order)

    # -- quantized values as floats

    def read(self, value: Value, node: Node, elem: int = 0) -> str:
        """A quantized value as a float that ``node`` may read, in type ``elem`` (default: the carrier's)."""
        elem = elem or self.carrier
        array = value.constant(WEIGHT_LIMIT) if value.is_constant else None
        if array is not None:
            return self.shop.constant(node, array.astype(np.int64).astype(numpy_type(elem)), "integers")
        if value.is_constant:
            raise Unable
        name = self.names.get(id(value), value.name)
        if id(value) in self.sources:
            if self.model.shapes.elem_type(value) == TensorProto.INT8 and is_only_quantized(node, self.model):
                found = self.shop.at(node).add(
                    "DequantizeLinear",
                    [name, self.shop.constant(node, np.ones((), np.float32))],
                    hint="integers",
                )
                return found if elem == F32 else self.shop.cast(node, found, elem)
            return self.shop.cast(node, name, elem, "integers")
        return name if elem == self.carrier else self.shop.cast(node, name, elem)

    def move(self, node: Node) -> None:
        """The node itself on floats; a second node if its output must keep its name and type."""
        if any(output is not None and output.is_output for output in node.outputs):
            self.replaced(node)
            return
        draft = self.shop.at(node)
        for index in moved(node):
            data = node.input(index)
            if data is not None:
                draft.set_input(node, index, self.read(data, node))
        for output in node.outputs:
            if output is not None:
                self.shop.retype(output, self.carrier)

    def replaced(self, node: Node) -> None:
        output = node.output(0)
        elem = None if output is None else self.model.shapes.elem_type(output)
        if len(node.outputs) != 1 or elem is None:
            raise Unable
        inputs: list[Value | str | None] = list(node.inputs)
        for index in moved(node):
            data = node.input(index)
            inputs[index] = None if data is None else self.read(data, node)
        self.shop.edits.append(RemoveNode(node))
        name = self.shop.like(node, node.op_type, inputs)
        self.publish(node, output, name, elem)

    def publish(self, node: Node, value: Value | None, name: str, elem: int) -> None:
        """Convert the float form ``name`` of ``value`` back for a graph output that keeps its integer type."""
        if value is None:
            return
        self.names[id(value)] = name
        if value.is_output and elem == TensorProto.INT8 and is_only_quantized(node, self.model):
            real = name if self.carrier == F32 else self.shop.cast(node, name, F32)
            parts = [
                self.shop.constant(node, one) for one in (np.ones((), np.float32), np.zeros((), np.int8))
            ]
            self.shop.at(node).add("QuantizeLinear", [real, *parts], output=value.name)
        elif value.is_output:
            self.shop.at(node).add("Cast", [name], output=value.name, to=elem)

    # -- nodes

    def follow(self, node: Node) -> None:
        """Rewrite a node that moves integers: the same operator on floats."""
        data = node.require(0)
        self.shop.at(node).set_input(node, 0, self.read(data, node))

    def quantize(self, linear: Linear) -> None:
        """``Clip(Round(x / scale) + zero point, least, largest)``."""
        node, kind = linear.node, linear.precision
        draft = self.shop.at(node)
        self.shop.edits.append(RemoveNode(node))
        found = self.model.shapes.elem_type(linear.data)
        if kind == 0 or found is None or (found not in FLOATS and found != TensorProto.INT32):
            raise Unable
        data = linear.data.name if found == kind else self.shop.cast(node, linear.data.name, kind)
        ratio = draft.add("Div", [data, self.scale(linear, kind)])
        if kind != self.carrier:
            ratio = self.shop.cast(node, ratio, self.carrier)
        number = draft.add("Add", [rounded(self.shop, node, ratio), self.zero(linear)])
        name = self.clip(node, number, linear.elem)
        self.publish(node, node.output(0), name, linear.elem)

    def clip(self, node: Node, name: str, elem: int) -> str:
        """Clip ``name`` to the range of an integer type."""
        if scope_opset(node) < 11:
            low, high = float(INTEGERS[elem].low), float(INTEGERS[elem].high)
            return self.shop.at(node).add("Clip", [name], hint="quantized", min=low, max=high)
        kind = numpy_type(self.carrier)
        ends = [np.array(end, dtype=kind) for end in (INTEGERS[elem].low, INTEGERS[elem].high)]
        bounds = [self.shop.constant(node, end, "end") for end in ends]
        return self.shop.at(node).add("Clip", [name, *bounds], hint="quantized")

    def dequantize(self, linear: Linear) -> None:
        """``(q - zero point) * scale``."""
        node, kind = linear.node, linear.precision
        output = node.output(0)
        if kind == 0 or output is None:
            raise Unable
        draft = self.shop.at(node)
        name = self.read(linear.data, node)
        if linear.point != 0:
            name = draft.add("Sub", [name, self.zero(linear)])
        if kind != self.carrier:
            name = self.shop.cast(node, name, kind)
        scale = self.scale(linear, kind)
        self.shop.edits.append(RemoveNode(node))
        if linear.result == kind:
            draft.add("Mul", [name, scale], output=output.name)
        else:
            draft.add("Cast", [draft.add("Mul", [name, scale])], output=output.name, to=linear.result)

    def enter(self, node: Node) -> None:
        """Rewrite a Cast of integers that are now floats; -0.0 becomes 0.0."""
        source, output = node.input(0), node.output(0)
        found = None if source is None else self.model.shapes.elem_type(source)
        elem = None if output is None else self.model.shapes.elem_type(output)
        if source is None or output is None or elem is None or found not in FLOATS:
            raise Unable
        self.shop.edits.append(RemoveNode(node))
        name = source.name if found == self.carrier else self.shop.cast(node, source.name, self.carrier)
        zero = self.shop.constant(node, np.zeros((), dtype=numpy_type(self.carrier)), "zero")
        self.publish(node, output, self.shop.at(node).add("Add", [name, zero]), elem)

    def dynamic(self, node: Node) -> None:
        """Decompose DynamicQuantizeLinear by its definition."""
        self.shop.edits.append(RemoveNode(node))
        quantized, zero = dynamic(self.shop, node)
        self.publish(node, node.output(0), quantized, TensorProto.UINT8)
        self.publish(node, node.output(2), zero, TensorProto.UINT8)

    # -- operands

    def scale(self, linear: Linear, kind: int) -> str:
        return self.operand(linear, linear.scale, linear.scales, kind)

    def zero(self, linear: Linear) -> str:
        """The zero point in the carrier's type; if it is computed, its float form."""
        if linear.zeros is not None:
            return self.constant_operand(linear, linear.zeros.astype(np.int64), self.carrier)
        assert linear.zero is not None
        return self.placed(linear, self.read(linear.zero, linear.node), linear.zero)

    def operand(self, linear: Linear, value: Value, array: Array | None, kind: int) -> str:
        if array is not None:
            return self.constant_operand(linear, array, kind)
        if value.is_constant:
            raise Unable
        found = self.model.shapes.elem_type(value)
        if found not in FLOATS:
            raise Unable
        name = value.name if found == kind else self.shop.cast(linear.node, value.name, kind)
        return self.placed(linear, name, value)

    def constant_operand(self, linear: Linear, array: Array, kind: int) -> str:
        found = spread(array, linear, self.model.shapes.rank(linear.data), sizes(linear.data, self.model))
        if found is None:
            raise Unable
        return self.shop.constant(linear.node, found.astype(numpy_type(kind)), "parameter")

    def placed(self, linear: Linear, name: str, value: Value) -> str:
        """A non-constant scale or zero point with trailing dimensions of 1 up to the data's rank."""
        rank, own = self.model.shapes.rank(linear.data), self.model.shapes.rank(value)
        if linear.kind == "block":
            return self.repeated(linear, name, value)
        if own == 0:
            return name
        if own != 1 or rank is None or not -rank <= linear.axis < rank:
            raise Unable
        # A one-element vector applies to the whole tensor and broadcasts in any position.
        behind = 0 if linear.kind == "tensor" else rank - 1 - linear.axis % rank
        return behind_ones(self.shop, linear.node, name, behind)

    def repeated(self, linear: Linear, name: str, value: Value) -> str:
        """Repeat a per-block parameter to one value per element along the axis."""
        dims, own = sizes(linear.data, self.model), self.model.shapes.rank(value)
        if dims is None or own != len(dims) or not -own <= linear.axis < own:
            raise Unable
        size = dims[linear.axis]
        if size is None or not is_small(size):
            raise Unable
        blocks = self.shop.constant(linear.node, np.arange(size, dtype=np.int64) // linear.block, "blocks")
        return self.shop.at(linear.node).add("Gather", [name, blocks], axis=linear.axis)


# -- which of them a region gets


SIGNED: dict[int, int] = {U8: I8, I8: I8, U4: I4, I4: I4}
"""The type that holds the shifted values."""


@dataclass(frozen=True)
class Shift:
    """A shift of a region: ``point`` is subtracted from every element, which then has type ``elem``."""

    edits: tuple[Edit, ...]
    elem: int
    point: int
    safety: Safety

    @property
    def text(self) -> str:
        return f"quantize to {name_of(self.elem)} with zero point 0"


def recentered(region: Region, model: Model) -> Shift | None:
    """The shift of a region, or None if its values might change.

    EXACT if they cannot change, NUMERIC if only NaN would be quantized to a different integer."""
    if not region.closed:
        return None
    points = {linear.point for linear in (*region.quantizers, *region.dequantizers)}
    elems = {linear.elem for linear in (*region.quantizers, *region.dequantizers)}
    if len(points) != 1 or len(elems) != 1:
        return None
    (point,), (elem,) = points, elems
    signed = SIGNED.get(elem)
    if point is None or signed is None or (signed == elem and point == 0):
        return None
    safety = max((_safety(linear, point, signed, model) for linear in region.quantizers), default=None)
    if safety is None or safety > Safety.NUMERIC:
        return None
    edits = _edits(region, point, signed, model)
    return None if edits is None else Shift(tuple(edits), signed, point, safety)


def _safety(linear: Linear, point: int, signed: int, model: Model) -> Safety:
    """UNSAFE if a value may saturate differently, NUMERIC if only NaN may change."""
    low, high = linear.low - point, linear.high - point
    new = INTEGERS[signed]
    if (low, high) == (new.low, new.high):
        return Safety.EXACT
    if linear.scales is None or linear.precision == 0:
        return Safety.UNSAFE
    found = quotients(linear.scales, bounds_of(linear.data, model), linear.precision)
    same_low = low == new.low or found.low >= max(low, new.low)
    same_high = high == new.high or found.high <= min(high, new.high)
    if not same_low or not same_high:
        return Safety.UNSAFE
    return Safety.NUMERIC if found.nan else Safety.EXACT


_MOST_AXES = 32
"""More than any tensor needs; numpy has no arrays of more than 64."""
_MOST_SCALES = 1 << 26
"""More than any quantizer has; the dimensions of a damaged file may say 2**60."""


def _edits(region: Region, point: int, signed: int, model: Model) -> list[Edit] | None:
    shop = Workshop()
    kind = numpy_type(signed)
    for linear in (*region.quantizers, *region.dequantizers):
        node, draft = linear.node, shop.at(linear.node)
        if linear.zero is None and not linear.quantizes:
            continue  # 0 of the data's own type
        shape = model.shapes.static_shape(linear.scale)
        if shape is None or len(shape) > _MOST_AXES or math.prod(shape) > _MOST_SCALES:
            return None
        draft.set_input(node, 2, shop.constant(node, np.zeros(shape, dtype=kind), "zero_point"))
        if node.attribute("output_dtype") is not None and linear.quantizes:
            draft.set_attr(node, "output_dtype", None)  # the zero point's type decides
    return shop.edits if _moved(shop, region, point, signed) else None


def _moved(shop: Workshop, region: Region, point: int, signed: int) -> bool:
    """Subtract ``point`` from the constants that the region moves, and declare its type; whether they all fit."""
    for node in region.moves:
        for index, value in enumerate(node.inputs):
            if value is not None and value in region.constants:
                shifted = shift(value, point, signed)
                if shifted is None:
                    return False
                shop.at(node).set_input(node, index, shop.constant(node, shifted, "shifted"))
    for value in region.values:
        shop.retype(value, signed)
    return True


def corrected(region: Region, model: Model) -> list[Edit] | None:
    """The region as int8 around 0 with the same integers, minus 128 for uint8; None if no product gains by that.

    A product of ``s * (q - z)`` is the product of ``s * q`` minus that of the constant ``s * z``.
    """
    linears = (*region.quantizers, *region.dequantizers)
    elems = {linear.elem for linear in linears}
    if not region.closed or len(elems) != 1 or not elems <= {U8, I8}:
        return None
    if any(model.shapes.elem_type(linear.data) != TensorProto.FLOAT for linear in region.quantizers):
        return None
    middle = 128 if elems == {U8} else 0
    constants = {
        linear.node: found for linear in linears if (found := _constants(linear, middle)) is not None
    }
    if len(constants) < len(linears):
        return None
    shop, sources = Workshop(), dict[Node, str]()
    for linear in region.quantizers:
        sources[linear.node] = _round(shop, linear, *constants[linear.node])
    gains = [
        _correct(shop, linear, *constants[linear.node], sources, region, model)
        for linear in region.dequantizers
    ]
    return shop.edits if any(gains) and _moved(shop, region, middle, I8) else None


def _constants(linear: Linear, middle: int) -> tuple[np.float32, int] | None:
    """Scale, and zero point minus ``middle``; None unless both are one constant and the node computes in float32."""
    kinds = {linear.precision, linear.result or TensorProto.FLOAT}
    if linear.point is None or linear.scales is None or linear.scales.size != 1 or linear.block:
        return None
    if kinds != {TensorProto.FLOAT} or scope_opset(linear.node) < 11:
        return None
    return np.float32(linear.scales.reshape(())), linear.point - middle


def _round(shop: Workshop, linear: Linear, scale: np.float32, point: int) -> str:
    """Round before the zero point is added, which keeps ties; returns the floats that the node then stores as int8."""
    node, draft = linear.node, shop.at(linear.node)
    number = draft.add("Round", [draft.add("Div", [linear.data, _number(shop, node, scale)])])
    number = draft.add("Add", [number, _number(shop, node, point)])
    for index, operand in enumerate([number, *_one_and_zero(shop, node)]):
        draft.set_input(node, index, operand)
    draft.set_attr(node, "output_dtype", None)
    return number


def _number(shop: Workshop, node: Node, number: float | np.float32) -> str:
    return shop.constant(node, np.array(number, np.float32), "number")


def _one_and_zero(shop: Workshop, node: Node) -> list[str]:
    return [_number(shop, node, 1), shop.constant(node, np.zeros((), np.int8), "zero_point")]


def _correct(
    shop: Workshop,
    linear: Linear,
    scale: np.float32,
    point: int,
    sources: dict[Node, str],
    region: Region,
    model: Model,
) -> bool:
    """Rewrite a DequantizeLinear and its products; returns whether one of them then runs in INT8.

    ``sources``: the floats that each QuantizeLinear stores.
    """
    node, output, source = linear.node, linear.node.require_output(), linear.data.producer
    left, floats = output.is_output, ""

    def dequantize(name: Value | str, before: Node) -> str:
        inputs = [name, _number(shop, before, scale), _one_and_zero(shop, before)[1]]
        return shop.like(node, "DequantizeLinear", inputs, domain=node.domain, before=before)

    found: list[tuple[Node, int, Array, list[int]]] = []
    for use in output.uses:
        sums = (
            _share_of_ones(use.node, use.index, output, region, model)
            if use.node.scope is node.scope
            else None
        )
        pads = [int(pad) for pad in use.node.attr("pads", [])] if sums is not None else []
        if sums is None or (any(pads) and (source not in sources or source.scope is not node.scope)):
            left = True
        else:
            found.append((use.node, use.index, sums, pads))
    shop.edits.append(RemoveNode(node))
    if left or not all(any(pads) for *_, pads in found):
        floats = dequantize(linear.data, node)
    for product, index, sums, pads in found:
        name, draft, half = floats, shop.at(product), len(pads) // 2
        if any(pads) and source is not None:
            widths = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
            ends = [shop.constant(product, widths, "pads"), _number(shop, product, point)]
            padded = draft.add("Pad", [sources[source], *ends])
            name = dequantize(draft.add("QuantizeLinear", [padded, *_one_and_zero(shop, product)]), product)
        operands: list[Value | str | None] = [*product.inputs]
        operands[index] = name
        last = shop.like(product, product.op_type, operands, without=("pads",))
        shift = shop.constant(product, (sums * (float(scale) * point)).astype(np.float32), "shift")
        shop.edits.append(RemoveNode(product))
        draft.add("Sub", [last, shift], output=product.require_output().name)
    if left:
        shop.at(node).add("Sub", [floats, _number(shop, node, scale * np.float32(point))], output=output.name)
    return bool(found)


def _share_of_ones(node: Node, index: int, data: Value, region: Region, model: Model) -> Array | None:
    """What a product of ones by the weights is, in the form of the result; None unless the weights are int8."""
    which = {"Conv": (0,), "Gemm": (0,), "MatMul": (0, 1)}.get(node.op_type, ()) if node.is_onnx else ()
    if (
        index not in which
        or node.output(0) is None
        or node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    ):
        return None
    value, rank = node.require(1 - index), model.shapes.rank(data)
    linear = None if value.producer is None else read(value.producer, model)
    weights = linear.data.constant(WEIGHT_LIMIT) if linear is not None and fixed(linear.data) else None
    if linear is None or linear.quantizes or weights is None or weights.ndim < 1 or not rank:
        return None
    keeps = as_signed(linear, weights) is not None or halved(linear, weights) is not None
    found = dequantized(linear, weights) if keeps else None
    if found is None or found.dtype != np.float32 or not np.isfinite(found).all():
        return None
    region.weights += [linear.data, value]
    exact: Array = found.astype(np.float64)
    if node.op_type == "Conv":
        exact = exact.sum(axis=tuple(range(1, exact.ndim))).reshape(-1, *[1] * (exact.ndim - 2))
    elif node.op_type == "Gemm":
        exact = exact.sum(axis=1 if node.attr("transB", 0) else 0) * float(node.attr("alpha", 1.0))
    elif exact.ndim == 1:
        exact = np.asarray(exact.sum())
    elif rank < 2 and (index or exact.ndim > 2):
        return None
    else:
        exact = exact.sum(axis=-1 if index else -2, keepdims=bool(index) or exact.ndim > 2)
    return exact


IN_FLOATS = "quantize in floats, which loses INT8 execution"
BEHIND = "quantize to int8 with zero point 0, and subtract the zero point's share behind the products"


def remedies(region: Region, model: Model) -> Fix | None:
    """Shift to a signed type around 0 if no value can change, else correct products, else write floats."""
    if "" not in region.fixes:
        shifted = recentered(region, model)
        edits = corrected(region, model) if shifted is None else None
        if shifted is not None:
            region.fixes[""] = Fix(shifted.text, shifted.edits, shifted.safety)
        elif edits is not None:
            region.fixes[""] = Fix(BEHIND, edits, Safety.NUMERIC)
        else:
            region.fixes[""] = floats(region, model)
    return region.fixes[""]


def floats(region: Region, model: Model, title: str = IN_FLOATS) -> Fix | None:
    """The region in floats, None if that is not possible."""
    if title not in region.fixes:
        found = in_floats(region, model)
        region.fixes[title] = None if found is None else Fix(title, *found)
    return region.fixes[title]


def around(linear: Linear, model: Model) -> Region:
    """The region of a QuantizeLinear's output, or around a DequantizeLinear."""
    start: Iterable[Value | Node] = [linear.node]
    if linear.quantizes:
        start = [value for value in (linear.inner,) if value is not None]
    return region_of(start, model)


def lossless(fix: Fix | None) -> bool:
    """Whether the fix preserves all values except NaN by a change of the type alone."""
    return fix is not None and fix.title not in (IN_FLOATS, BEHIND) and fix.safety <= Safety.NUMERIC
