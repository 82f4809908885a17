"""Windows that slide over spatial axes (convolutions, pooling and their relatives), and Pad, Resize and cropping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.shapes.ops.base import Call, Elements, Info, Shape, Unknown, axes_of, elements, small, transfer
from onnxfix.shapes.symbols import DIM_MAX, Dim, ceildiv, constant, divide, floordiv, product

INT32 = TensorProto.INT32


class Window(NamedTuple):
    """How a window slides along each spatial axis. ``kernel`` may be symbolic, as a weight's dimension may be."""

    kernel: Sequence[Dim]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]
    auto_pad: str

    def span(self, axis: int) -> Dim:
        """Elements from the window's first to its last along a spatial axis."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    @property
    def ambiguous(self) -> bool:
        """Whether ``auto_pad`` and ``pads`` contradict each other, which ONNX forbids: its shape inference and TensorRT
        count the pads, ONNX Runtime ignores them or rejects the node."""
        return self.auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID") and any(self.pads)


def window(call: Call, kernel: Sequence[Dim]) -> Window:
    """The attributes that all sliding operators share, with their defaults."""
    count = len(kernel)
    strides = list(call.attr("strides") or [1] * count)
    dilations = list(call.attr("dilations") or [1] * count)
    pads = list(call.attr("pads") or [0] * (2 * count))
    if (
        len(strides) != count
        or len(dilations) != count
        or len(pads) != 2 * count
        or min(strides, default=1) < 1
    ):
        raise Unknown
    auto_pad = call.attr("auto_pad", "NOTSET") or "NOTSET"
    return Window(kernel, strides, dilations, pads, auto_pad)


def slid(size: Dim, axis: int, win: Window, ceil_mode: bool = False, *, drops: bool = True) -> Dim | None:
    """Number of positions of the window along an axis; None if backends differ, or the rounding is unknown.

    ``drops``: all drop a last window that would start in the end padding; before opset 22 ONNX's shape inference
    keeps it.

    An execution in which the window does not fit counts as invalid, although some backends return a size.
    """
    stride = win.strides[axis]
    if win.ambiguous:
        return None
    if win.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return ceildiv(size, stride)
    count = len(win.kernel)
    head, tail = (0, 0) if win.auto_pad == "VALID" else (win.pads[axis], win.pads[axis + count])
    span = win.span(axis)
    room = size + (head + tail) - span
    if room.hi < 0:
        return None
    if not ceil_mode:
        return floordiv(room, stride) + 1
    rounded = ceildiv(room, stride) + 1
    # A last window that would start in the end padding is dropped; check whether there can be one.
    if tail + stride - 1 < span.lo:
        return rounded
    if size.value is None or rounded.value is None:
        return None
    if (rounded.value - 1) * stride < size.value + head:
        return rounded
    return rounded - 1 if drops else None


def _kernel(call: Call, weight: Shape | None) -> list[Dim] | None:
    """The kernel's extent: that of the weight if it is known, since the attribute may only repeat it."""
    if weight is not None and len(weight) > 2:
        return list(weight[2:])
    given = call.attr("kernel_shape")
    return None if given is None else [constant(k) for k in given]


@transfer("Conv", "DeformConv", "ConvInteger", "QLinearConv", "com.microsoft::FusedConv")
def _conv(call: Call) -> Info:
    types = {"ConvInteger": INT32, "QLinearConv": call.info(7).elem}
    shape, weight = call.info(0).shape, call.info(3 if call.op == "QLinearConv" else 1)
    elem = types.get(call.op, call.info(0).elem)
    kernel = _kernel(call, weight.shape)
    if shape is None or len(shape) < 3:
        return Info(
            elem, call.fresh_shape(0, 2 + len(kernel)) if kernel is not None and shape is None else None
        )
    channels = weight.shape[0] if weight.shape else call.fresh(0, 1)
    if kernel is None or len(kernel) != len(shape) - 2:
        return Info(elem, (shape[0], channels, *(call.fresh(0, i) for i in range(2, len(shape)))))
    win = window(call, kernel)
    dims = (slid(d, i, win) for i, d in enumerate(shape[2:]))
    return Info(elem, (shape[0], channels, *call.named(dims, 2)))


@transfer("ConvTranspose")
def _conv_transpose(call: Call) -> Info:
    data, weight = call.info(0), call.info(1)
    shape = data.shape
    kernel = _kernel(call, weight.shape)
    if shape is None or kernel is None or len(kernel) != len(shape) - 2:
        return Info(data.elem, None if shape is None else call.fresh_shape(0, len(shape)))
    win = window(call, kernel)
    group = call.attr("group", 1)
    channels = weight.shape[1] * group if weight.shape is not None else call.fresh(0, 1)
    wanted = list(call.attr("output_shape") or [])
    extra = list(call.attr("output_padding") or [0] * len(kernel))
    if wanted:
        spatial = tuple(constant(d) for d in wanted[-len(kernel) :])
    else:
        spatial = call.named((_grown(d, i, win, extra[i]) for i, d in enumerate(shape[2:])), 2)
    return Info(data.elem, (shape[0], channels, *spatial))


def _grown(size: Dim, axis: int, win: Window, extra: int) -> Dim | None:
    """Extent of a transposed convolution along an axis (ONNX, ConvTranspose); None if backends differ."""
    stride = win.strides[axis]
    if win.ambiguous:
        return None
    if win.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        # ONNX defines size * stride; ONNX Runtime computes less if the window is shorter than the stride.
        return size * stride if win.span(axis).lo + extra >= stride else None
    padding = 0 if win.auto_pad == "VALID" else win.pads[axis] + win.pads[axis + len(win.kernel)]
    return (size - 1) * stride + extra + win.span(axis) - padding


@transfer("MaxPool", "AveragePool", "LpPool")
def _pool(call: Call) -> Sequence[Info]:
    data = call.info(0)
    kernel = [constant(k) for k in call.attr("kernel_shape", [])]
    shape = data.shape
    if shape is None or len(shape) != len(kernel) + 2:
        rank = len(kernel) + 2 if kernel else 0
        shape = call.fresh_shape(0, rank) if rank and shape is None else None
    else:
        win = window(call, kernel)
        ceil_mode = bool(call.attr("ceil_mode", 0))
        drops = call.opset >= 22
        dims = [slid(d, i, win, ceil_mode, drops=drops) for i, d in enumerate(shape[2:])]
        shape = (*shape[:2], *call.named(dims, 2))
    return [Info(data.elem, shape), Info(TensorProto.INT64, shape)][: len(call.outputs)]


@transfer("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call) -> Info:
    shape = call.shape(0)
    return Info(call.info(0).elem, (*shape[:2], *(constant(1) for _ in shape[2:])))


@transfer("MaxUnpool")
def _max_unpool(call: Call) -> Info:
    data = call.info(0)
    if call.has(2):
        wanted = call.ints(2)
        length = call.length(2)
        rank = len(data.shape) if data.shape is not None else length
        shape = tuple(wanted) if wanted is not None else None if rank is None else call.fresh_shape(0, rank)
        return Info(data.elem, shape)
    source = call.shape(0)
    kernel = [constant(k) for k in call.attr("kernel_shape", [])]
    win = window(call, kernel)
    if len(kernel) != len(source) - 2:
        raise Unknown
    found = (_grown(d, i, win, 0) for i, d in enumerate(source[2:]))
    return Info(data.elem, (*source[:2], *call.named(found, 2)))


@transfer("MaxRoiPool", "RoiAlign")
def _pool_regions(call: Call) -> Info:
    data, rois = call.info(0), call.info(1)
    count = rois.shape[0] if rois.shape else call.fresh(0, 0)
    channels = data.shape[1] if data.shape is not None and len(data.shape) > 1 else call.fresh(0, 1)
    sizes = call.attr("output_height", 1), call.attr("output_width", 1)
    sizes = sizes if call.op == "RoiAlign" else call.attr("pooled_shape", [])
    return Info(data.elem, (count, channels, *map(constant, sizes)))


@transfer("Col2Im")
def _col2im(call: Call) -> Info:
    data = call.info(0)
    image, block = call.ints(1), call.ints(2)
    count = call.length(1) if call.length(1) is not None else call.length(2)
    if data.shape is None or len(data.shape) != 3 or count is None:
        return Info(data.elem, None if count is None else call.fresh_shape(0, count + 2))
    channels = call.fresh(0, 1) if block is None else divide(data.shape[1], product(block))
    spatial = image if image is not None else [call.fresh(0, i + 2) for i in range(count)]
    return Info(data.elem, (data.shape[0], channels, *spatial))


EXACT_SCALE = 1 << 12
"""Resize scales with numerator and denominator (a power of 2) below this are exact in single precision."""


@transfer("Pad")
def _pad(call: Call) -> Info:
    data, source = call.info(0), call.shape(0)
    rank = len(source)
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
        touched = range(rank) if axes is None else axes
        return Info(data.elem, call.named(None if i in touched else d for i, d in enumerate(source)))
    if len(amounts) != 2 * len(axes):
        raise Unknown
    dims = list(source)
    for i, axis in enumerate(axes):
        dims[axis] = dims[axis] + amounts[i] + amounts[i + len(axes)]
    return Info(data.elem, tuple(dims), _padded_value(call, data, axes, amounts, tuple(dims)))


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
    dims: list[Dim | None] = list(call.shape(0))
    axes = axes_of(call.attr("axes") or range(len(dims)), len(dims))
    scales, sizes = _resize_inputs(call)
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
            found = _scaled(call.shape(0)[axis], scales[i])
        dims[axis] = found
    return Info(call.info(0).elem, call.named(dims))


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
