"""Quantized constants stored in another way: as signed integers around 0, or as floats."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import INTEGERS, Fix, Model, Node, RemoveNode, Safety, Use, Value, name_of, target_of

from ._common import (
    I2,
    I4,
    I8,
    U2,
    U4,
    U8,
    WEIGHT_LIMIT,
    Array,
    Linear,
    Workshop,
    dequantized,
    is_op,
    numpy_type,
    offsets,
    read,
)


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
