"""Store the constant input of a DequantizeLinear in a form that TensorRT supports."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import Fix, Model, Node, Safety, Value, name_of

from ._common import I2, I4, I8, U2, U4, U8, WEIGHT_LIMIT, Array, Linear, Workshop, dequantized, offsets, read
from ._recentre import fitted

WIDE = (TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32)
"""Quantized types that TensorRT does not support at all, so that storing floats loses nothing."""

_CANDIDATES: dict[int, tuple[int, ...]] = {
    U8: (I8,),
    I8: (I8,),
    U4: (I4, I8),
    I4: (I4, I8),
    I2: (I4,),
    U2: (I4,),
    TensorProto.INT16: (I8,),
    TensorProto.UINT16: (I8,),
}

MAX_SHARERS = 64
"""Most readers of one constant that share a fix; beyond it each gets its own."""


def as_signed(linear: Linear, weights: Array) -> Array | None:
    """``weights - zero point`` in the narrowest signed type that TensorRT supports, None if none fits."""
    shifted = offsets(linear, weights)
    if shifted is None:
        return None
    for elem in _CANDIDATES.get(linear.elem, ()):
        if elem == I4 and weights.size % 2:
            continue  # two int4 values share a byte, and TensorRT requires whole bytes
        found = fitted(shifted, elem)
        if found is not None:
            return found
    return None


def stored_otherwise(linear: Linear, model: Model) -> Fix | None:
    """Store the constant of ``linear`` as signed integers around 0, else as floats; None if neither is possible.

    Raises:
        UnknownAttribute: something depends on an attribute of the surrounding function.
    """
    weights = linear.data.constant(WEIGHT_LIMIT)
    if weights is None or linear.data.pinned:
        return None
    signed = as_signed(linear, weights) if weights.ndim else None
    if signed is not None:
        return _as_integers(linear, signed, model)
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
    kind = name_of(_elem(signed))
    return Fix(f"store {linear.data.name!r} as {kind} with zero point 0", shop.edits)


def _elem(array: Array) -> int:
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
