"""Layers that quantize and dequantize.

NvInfer.h, IQuantizeLayer: ``output = clamp(round(input / scale) + zeroPt)``, rounded to the nearest, ties to even,
clamped to [-128, 127] for INT8, [-8, 7] for INT4, [-448, 448] for FP8; the guide's page on quantization schemes adds
that FP8 is cast with ties to even after clamping. IDequantizeLayer: ``output = (input - zeroPt) * scale``. So ONNX
defines QuantizeLinear and DequantizeLinear, with which these layers are written. What differs is the parser's choice,
and shows in the layer: the type (INT8 for ONNX's uint8), the size of the blocks, zero points.

The precision of the division is nowhere documented but in a warning of the parser: TensorRT "does not support setting
quantization precision, the precision will be set to" the scale's type, which is ONNX's default. The type of the output
is the precision of the product, in both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onnxfix.tensorrt.lift.emit import Emit, lifts
from onnxfix.tensorrt.lift.network import Layer, Unliftable
from onnxfix.tensorrt.lift.records import ONNX_TYPES

_NATIVE = ("FLOAT", "HALF")  # ONNX Runtime's CPU provider quantizes neither from nor to BFLOAT16


@dataclass(frozen=True)
class _Grain:
    """Which elements share a scale: those along ``axis`` (None: all), in blocks of ``block`` (0: one scale each).
    ``spread`` are further axes with blocks, and how long those are; None: as long as the axis."""

    axis: int | None = None
    block: int = 0
    spread: tuple[tuple[int, int | None], ...] = ()


@lifts("QUANTIZE")
def _quantize(e: Emit, layer: Layer) -> str:
    """QuantizeLinear. INT8 where the parser reads uint8 (hazard 37), without ONNX's ``saturate=0``."""
    data, scale, made = layer.need(0), layer.need(1), layer.outputs[0].dtype
    grain = _grain(layer)
    precision = "FLOAT" if scale.dtype == "E8M0" else scale.dtype  # dividing by powers of two is exact
    zero = _zero(e, layer, grain, made)
    e.uses(made)
    output = None if zero else ONNX_TYPES[made]
    if precision not in _NATIVE:
        if zero:
            raise Unliftable(f"{precision} with a zero point that is not a constant of zeros")
        ratio = _ratio(e, layer, grain, precision)
        return e.op("QuantizeLinear", ratio, e.const(1.0, "FLOAT"), output_dtype=output)
    return e.op(
        "QuantizeLinear",
        e.as_type(data, precision),
        _over(e, e.as_type(scale, precision), layer, grain),
        zero,
        axis=grain.axis,
        block_size=grain.block or None,
        output_dtype=output,
    )


def _ratio(e: Emit, layer: Layer, grain: _Grain, precision: str) -> str:
    """The data over their scales as BF16 has it, in FLOAT: a quotient that is rounded to FLOAT before BF16 has the same
    bits, since FLOAT has more than twice the digits."""
    data, scale = layer.need(0), layer.need(1)
    if grain.axis is not None and grain.block:
        grain = replace(grain, spread=(*grain.spread, (grain.axis, grain.block)))
    divisor = _over(e, e.as_type(scale, "FLOAT"), layer, grain)
    behind = 0 if grain.axis is None or grain.block else data.rank - grain.axis - 1
    if behind:
        divisor = e.op("Unsqueeze", divisor, e.ints(range(1, behind + 1)))
    value = e.cast(e.as_type(data, precision), "FLOAT")
    return e.cast(e.cast(e.op("Div", value, divisor), precision), "FLOAT")


@lifts("DEQUANTIZE")
def _dequantize(e: Emit, layer: Layer) -> str:
    """DequantizeLinear. The product of two values in FLOAT, rounded to the type of the output once."""
    data, scale, made = layer.need(0), layer.need(1), layer.outputs[0].dtype
    grain = _grain(layer)
    inner = made if made == scale.dtype and made in _NATIVE else "FLOAT"
    value = e.op(
        "DequantizeLinear",
        e.of(data),
        _over(e, e.as_type(scale, inner), layer, grain),
        _zero(e, layer, grain, data.dtype),
        axis=grain.axis,
        block_size=grain.block or None,
    )
    return e.turn(value, inner, made)


def _zero(e: Emit, layer: Layer, grain: _Grain, dtype: str) -> str:
    """The zero point in the quantized type; "" for none. The parser makes one of zeros in FLOAT from ONNX's constant;
    one that is computed stays as it is.

    Raises:
        Unliftable: it is of another type.
    """
    zero, scale = layer.input(2), layer.need(1)
    if zero is None:
        return ""
    known = e.known(zero)
    if known is None and e.is_weight(e.of(zero)):
        return ""  # too large to look at; a constant "must only contain zero-valued coefficients" (NvInfer.h)
    if known is not None and not known.astype(np.float32).any():
        return ""
    if zero.dtype not in ("FLOAT", dtype):  # NvInfer.h: "Its data type must match the output data type"
        raise Unliftable(f"a zero point of {zero.dtype} for {dtype}, which TensorRT does not define")
    value = e.as_type(zero, dtype)
    if zero.shape != scale.shape:  # a scalar and a vector of one element, which the parser takes for equal
        value = e.op("Reshape", value, e.op("Shape", e.of(scale)))
    return _over(e, value, layer, grain)


# -- scales


def _grain(layer: Layer) -> _Grain:
    """How the scales lie over the data. NvInfer.h, IQuantizeLayer: a scalar for all, a vector along the axis, or of the
    data's rank, each dimension divided by the size of a block. The parser gives no size of blocks (it drops ONNX's
    ``block_size``); TensorRT's own operators do, which no runtime executes.

    Raises:
        Unliftable: the sizes do not fit, or are not known.
    """
    data, scale = layer.need(0), layer.need(1)
    sizes = scale.shape if scale.rank else ()
    axis = int(layer.native.axis)
    if all(size == 1 for size in sizes or ()):
        return _Grain()
    if scale.rank == 1:
        if not 0 <= axis < data.rank:
            raise Unliftable(f"a scale for each channel along axis {axis} of {data.rank}")
        return _Grain(axis)
    if scale.rank != data.rank:
        raise Unliftable(f"scales of rank {scale.rank} for data of rank {data.rank}")
    return _in_blocks(layer, axis)


def _in_blocks(layer: Layer, main: int) -> _Grain:
    """Blocks: those along one axis are ONNX's, scales of any further ones are repeated before."""
    if layer.dims("block_shape"):
        raise Unliftable("blocks whose size TensorRT's own operator gives")
    blocks: dict[int, int | None] = {}
    pairs = zip(layer.need(0).shape or (), layer.need(1).shape or (), strict=True)
    for axis, (size, scales) in enumerate(pairs):
        if -1 in (size, scales) and axis == main and scales != 1:
            raise Unliftable(f"blocks along axis {axis}, whose size is not known")
        else:
            block = _inferred(axis, size, scales)
        if block != 1:
            blocks[axis] = block
    counted = [axis for axis, block in blocks.items() if block is not None]
    first = counted[-1] if counted else 0
    spread = tuple((axis, block) for axis, block in blocks.items() if axis != first or block is None)
    return _Grain(first, blocks.get(first) or 1, spread)


def _inferred(axis: int, size: int, scales: int) -> int | None:
    """The size of the blocks along an axis, from the data's size and the number of scales; None for the whole axis."""
    if -1 in (size, scales):
        return None if scales == 1 else 1
    if not scales or size % scales:
        raise Unliftable(f"{scales} scales for {size} elements along axis {axis}")
    return size // scales


def _over(e: Emit, value: str, layer: Layer, grain: _Grain) -> str:
    """Scales or zero points in the shape that ONNX's operators want: a scalar, a vector, or blocks along one axis."""
    if grain.axis is None:
        return value if layer.need(1).shape == () else e.op("Reshape", value, e.ints([]))
    for axis, block in grain.spread:
        length = e.size(e.of(layer.need(0)), axis)
        places = e.range(length)
        number = length if block is None else e.const(np.int64(block))
        value = e.op("Gather", value, e.op("Div", places, number), axis=axis)
    return value
