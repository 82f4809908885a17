"""Shift a region of quantized tensors so that its zero point becomes 0 in the signed type of the same width.

With ``q' = q - zero point`` DequantizeLinear returns the same bits, and nodes that only move elements commute with
the shift. Only the saturation of QuantizeLinear can differ: ``[0, 255] - zero point`` before, ``[-128, 127]`` after.
For uint8 around 128 both intervals are equal; otherwise the range of the data must prove that the limits are not
reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onnxfix.rule import INTEGERS, Edit, Model, Safety, Value, name_of

from ._common import I4, I8, U4, U8, WEIGHT_LIMIT, Array, Linear, Workshop, numpy_type
from ._range import bounds_of, quotients
from ._region import Region

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
