"""Fixes of quantization: a shift to a zero point of 0, another constant, or floats."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxfix.rule import INTEGERS, Edit, Fix, Model, Node, RemoveNode, Safety, Value, name_of

from ._common import (
    I4,
    I8,
    U4,
    U8,
    WEIGHT_LIMIT,
    Array,
    Linear,
    Workshop,
    dequantized,
    numpy_type,
    read,
    scope_opset,
)
from ._float import in_floats
from ._range import bounds_of, quotients
from ._region import Region, region_of
from ._stored import as_signed, fixed, halved, shift

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
        sums = _sums(use.node, use.index, output, region, model) if use.node.scope is node.scope else None
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


def _sums(node: Node, index: int, data: Value, region: Region, model: Model) -> Array | None:
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
