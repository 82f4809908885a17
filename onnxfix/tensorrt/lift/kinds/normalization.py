"""Normalization: Y = (X - mean) / sqrt(variance + epsilon) * scale + bias.

Sources: NvInfer.h and the Python documentation of INormalizationLayer, TensorRT's page "Normalization". Mean and
variance are those over ``axes``, and where ``num_groups`` is not 1 also over the channels of a group. So one group
over the spatial axes is an InstanceNormalization: an ONNX GroupNormalization of one group, which means all channels
together, is imported as that very layer.

ONNX's own node is written where it is the same function of the same operands, so that a model is compared with its
reading kernel by kernel. HALF and BF16 are computed in FLOAT and rounded once, at the end: that was the default of
``setComputePrecision`` for as long as the layer had one, and is ONNX's stash_type.
"""

from __future__ import annotations

import numpy as np

from onnxfix.tensorrt.lift.emit import Emit
from onnxfix.tensorrt.lift.kinds import lifts
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable


@lifts("NORMALIZATION")
def _normalization(e: Emit, layer: Layer) -> str:
    data, scale, bias = (layer.need(place) for place in range(3))
    if layer.outputs[0].shape is None or data.shape is None:
        raise Unliftable("TensorRT finds no shape for the output: the inputs do not fit together")
    mask = int(layer.native.axes)
    axes = [axis for axis in range(len(data.shape)) if mask >> axis & 1]
    if not axes or mask >> len(data.shape):
        raise Unliftable(f"normalization over axes {mask:#b} of {len(data.shape)} dimensions")
    spatial = axes == list(range(2, len(data.shape)))
    if int(layer.native.num_groups) != 1:
        if not spatial:
            raise Unliftable(f"normalization of {layer.native.num_groups} groups over axes {axes}")
        result = _groups(e, layer)
    elif spatial and _of_channels(scale, data) and _of_channels(bias, data):
        result = _flat(e, "InstanceNormalization", layer, e.as_float(data))
    elif axes[-1] == len(data.shape) - 1 == axes[0] + len(axes) - 1 and _trailing(scale, data, axes[0]):
        result = _layer_normalization(e, layer, axes[0])
    else:
        result = _plain(e, layer, axes)
    return e.turn(result, "FLOAT", layer.outputs[0].dtype)


def _groups(e: Emit, layer: Layer) -> str:
    """Groups of channels. A layer of version 2 has a scale and a bias for each channel, one of version 1 for each
    group."""
    data, scale, bias = (layer.need(place) for place in range(3))
    groups, wide = int(layer.native.num_groups), e.as_float(data)
    if layer.native.is_v2 and _of_channels(scale, data) and _of_channels(bias, data):
        return _flat(e, "GroupNormalization", layer, wide, num_groups=groups)
    rows, shape = e.op("Reshape", wide, e.ints([0, groups, -1])), e.op("Shape", wide)
    if layer.native.is_v2:  # any that can be broadcast
        epsilon = float(layer.native.epsilon)
        same = (e.const(np.full(groups, value, np.float32)) for value in (1, 0))
        result = e.op("Reshape", e.op("InstanceNormalization", rows, *same, epsilon=epsilon), shape)
        return e.op("Add", e.op("Mul", result, e.as_float(scale)), e.as_float(bias))
    if {scale.shape, bias.shape} != {(1, groups, *(1,) * (data.rank - 2))}:
        raise Unliftable(
            f"normalization of {groups} groups with a scale of {scale.shape} and a bias of {bias.shape}"
        )
    return e.op("Reshape", _flat(e, "InstanceNormalization", layer, rows), shape)


def _flat(e: Emit, op_type: str, layer: Layer, data: str, num_groups: int | None = None) -> str:
    """One of ONNX's nodes that take scale and bias as vectors."""
    operands = (e.op("Reshape", e.as_float(layer.need(place)), e.ints([-1])) for place in (1, 2))
    return e.op(op_type, data, *operands, epsilon=float(layer.native.epsilon), num_groups=num_groups)


def _layer_normalization(e: Emit, layer: Layer, axis: int) -> str:
    """ONNX's LayerNormalization over the axes from ``axis`` on. Its bias is of the scale's shape; another is added."""
    data, scale, bias = (layer.need(place) for place in range(3))
    cut = e.ints(range(axis))
    operands = [e.as_float(one) for one in ([scale, bias] if _trailing(bias, data, axis) else [scale])]
    operands = [e.op("Squeeze", one, cut) if axis else one for one in operands]
    result = e.op(
        "LayerNormalization", e.as_float(data), *operands, axis=axis, epsilon=float(layer.native.epsilon)
    )
    return result if len(operands) == 2 else e.op("Add", result, e.as_float(bias))


def _plain(e: Emit, layer: Layer, axes: list[int]) -> str:
    """The formula as it stands."""
    data, scale, bias = (e.as_float(layer.need(place)) for place in range(3))
    over = e.ints(axes)
    off = e.op("Sub", data, e.op("ReduceMean", data, over))
    variance = e.op("ReduceMean", e.op("Mul", off, off), over)
    below = e.op("Sqrt", e.op("Add", variance, e.const(float(layer.native.epsilon), "FLOAT")))
    return e.op("Add", e.op("Mul", e.op("Div", off, below), scale), bias)


def _of_channels(tensor: Tensor, data: Tensor) -> bool:
    """Whether a scale or bias has one element for each channel, and nothing but 1 in all other dimensions."""
    if data.shape is None or len(data.shape) < 2 or data.shape[1] < 0:
        return False
    return tensor.shape == (1, data.shape[1], *(1,) * (len(data.shape) - 2))


def _trailing(tensor: Tensor, data: Tensor, axis: int) -> bool:
    """Whether a scale or bias has the shape of the data from ``axis`` on, and nothing but 1 before."""
    if data.shape is None or tensor.shape is None:
        return False
    return min(data.shape[axis:]) >= 0 and tensor.shape == (1,) * axis + data.shape[axis:]
