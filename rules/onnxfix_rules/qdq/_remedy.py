"""Fixes of quantization: a shift to a zero point of 0, another constant, or floats."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import INTEGERS, Edit, Fix, Model, Node, Safety, Value, name_of

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
    numpy_type,
    offsets,
    read,
)
from ._float import in_floats
from ._range import bounds_of, quotients
from ._region import Region, region_of

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

    EXACT if they cannot change, NUMERIC if only NaN would be quantized to a different integer.

    Raises:
        UnknownAttribute: it depends on an attribute of the surrounding function.
    """
    if region.problem or region.sources or region.outputs or region.dynamic or region.entries:
        return None
    if region.products or region.casts or not region.quantizers:
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
    for node in region.moves:
        for index, value in enumerate(node.inputs):
            if value is not None and value in region.constants:
                shifted = shift(value, point, signed)
                if shifted is None:
                    return None
                shop.at(node).set_input(node, index, shop.constant(node, shifted, "shifted"))
    for value in region.values:
        shop.retype(value, signed)
    return shop.edits


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
    return None if shifted is None else narrowed(linear.elem, shifted)


def narrowed(elem: int, numbers: Array) -> Array | None:
    """Numbers of a constant of type ``elem`` in the narrowest signed type that TensorRT supports, None if none fits."""
    for narrow in _CANDIDATES.get(elem, ()):
        if narrow == I4 and numbers.size % 2:
            continue  # two int4 values share a byte, and TensorRT requires whole bytes
        found = fitted(numbers, narrow)
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
    kind = name_of(elem_of(signed))
    return Fix(f"store {linear.data.name!r} as {kind} with zero point 0", shop.edits)


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


IN_FLOATS = "quantize in floats, which loses INT8 execution"


def remedies(region: Region, model: Model) -> Fix | None:
    """Shift to a signed type around 0 if no value can change, else write the same integers in floats."""
    if "" not in region.fixes:
        shifted = recentered(region, model)
        region.fixes[""] = (
            floats(region, model) if shifted is None else Fix(shifted.text, shifted.edits, shifted.safety)
        )
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
    """Whether the fix preserves all values except NaN and keeps quantized execution."""
    return fix is not None and fix.title != IN_FLOATS and fix.safety <= Safety.NUMERIC
