"""Pad, Resize and cropping: operators that change the extent of axes."""

from __future__ import annotations

import numpy as np

from onnxfix.shapes.ops.base import Call, Elements, Info, Shape, Unknown, axes_of, elements, small, transfer
from onnxfix.shapes.symbols import DIM_MAX, Dim, constant, floordiv

EXACT_SCALE = 1 << 12
"""Resize scales with numerator and denominator (a power of 2) below this are exact in single precision."""


@transfer("Pad")
def _pad(call: Call) -> Info:
    data = call.info(0)
    if data.shape is None:
        return Info(data.elem)
    rank = len(data.shape)
    axes: list[int] | None = list(range(rank))
    if call.opset < 11:
        pads = call.attr("pads", call.attr("paddings"))
        amounts: list[Dim] | None = None if pads is None else [constant(p) for p in pads]
    else:
        amounts = call.ints(1)
        if call.has(3):
            axes = call.static_ints(3)
            axes = None if axes is None else axes_of(axes, rank)
    if amounts is None or axes is None:
        return Info(data.elem, _padded_unknown(call, data.shape, axes))
    if len(amounts) != 2 * len(axes):
        raise Unknown
    dims = list(data.shape)
    for i, axis in enumerate(axes):
        dims[axis] = dims[axis] + amounts[i] + amounts[i + len(axes)]
    return Info(data.elem, tuple(dims), _padded_value(call, data, axes, amounts, tuple(dims)))


def _padded_unknown(call: Call, shape: Shape, axes: list[int] | None) -> Shape:
    touched = set(range(len(shape)) if axes is None else axes)
    return tuple(call.fresh(0, i) if i in touched else d for i, d in enumerate(shape))


def _padded_value(
    call: Call, data: Info, axes: list[int], amounts: list[Dim], shape: Shape
) -> Elements | None:
    """Constant padding of a small vector of integers, as exporters write shape arithmetic."""
    sizes = small(shape)
    fill = call.info(2).value
    counts = [a.value for a in amounts]
    if (
        data.value is None
        or data.value.ndim != 1
        or sizes is None
        or fill is None
        or call.attr("mode", "constant") != "constant"
    ):
        return None
    before, after = counts[0], counts[1]
    if before is None or after is None or before < 0 or after < 0 or len(axes) != 1:
        return None
    items = list(data.value)
    return elements([*[fill.reshape(-1)[0]] * before, *items, *[fill.reshape(-1)[0]] * after])


@transfer("Resize", "Upsample")
def _resize(call: Call) -> Info:
    data = call.info(0)
    if data.shape is None:
        return Info(data.elem)
    rank = len(data.shape)
    axes = axes_of(call.attr("axes") or range(rank), rank)
    scales, sizes = _resize_inputs(call)
    dims = list(data.shape)
    for i, axis in enumerate(axes):
        found: Dim | None = None
        if sizes is not None:
            keeps = call.attr("keep_aspect_ratio_policy", "stretch") == "stretch"
            found = sizes[i] if keeps and i < len(sizes) else None
        elif (
            scales is not None
            and i < len(scales)
            and call.attr("coordinate_transformation_mode") != "tf_crop_and_resize"
        ):
            found = _scaled(dims[axis], scales[i])
        dims[axis] = call.fresh(0, axis) if found is None else found
    return Info(data.elem, tuple(dims))


def _resize_inputs(call: Call) -> tuple[list[float | None] | None, list[Dim] | None]:
    """The scales or the sizes of a call; (None, None) if they are unknown."""
    if call.op == "Upsample" and call.opset < 9:
        scales = call.attr("scales")
        if scales is None:
            scales = [1.0, 1.0, call.attr("height_scale", 1.0), call.attr("width_scale", 1.0)]
        return list(scales), None
    at = 1 if call.op == "Upsample" or call.opset < 11 else 2
    if call.has(3) and call.length(3) != 0:
        # In opset 11, an empty `scales` beside `sizes` means that it is omitted.
        if call.has(at) and call.length(at) != 0:
            return None, None
        return None, call.ints(3)
    value = call.info(at).value
    return (None if value is None else list(value.reshape(-1))), None


def _scaled(size: Dim, scale: float | None) -> Dim | None:
    """``floor(size * scale)``, if single precision and exact arithmetic agree on it, else None."""
    if scale is None or not np.isfinite(scale) or scale <= 0:
        return None
    numerator, denominator = float(scale).as_integer_ratio()
    if size.value is not None:
        single = np.float32(size.value) * np.float32(scale)
        floor = size.value * numerator // denominator
        return constant(floor) if floor == int(np.floor(single)) and floor < DIM_MAX else None
    if numerator < EXACT_SCALE and denominator < EXACT_SCALE:
        return floordiv(size * numerator, denominator)
    return None


@transfer("CenterCropPad")
def _center_crop_pad(call: Call) -> Info:
    data = call.info(0)
    if data.shape is None:
        return Info(data.elem)
    rank = len(data.shape)
    axes = axes_of(call.attr("axes") or range(rank), rank)
    wanted = call.ints(1)
    dims = list(data.shape)
    for i, axis in enumerate(axes):
        dims[axis] = call.fresh(0, axis) if wanted is None or i >= len(wanted) else wanted[i]
    return Info(data.elem, tuple(dims))
