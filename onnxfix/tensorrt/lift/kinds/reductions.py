"""Layers that compute from many elements at once: sums, products of matrices, the largest, the places of some, and
normalization, Y = (X - mean) / sqrt(variance + epsilon) * scale + bias.

Sources of the latter: NvInfer.h and the Python documentation of INormalizationLayer, TensorRT's page "Normalization".
Mean and variance are those over ``axes``, and where ``num_groups`` is not 1 also over the channels of a group. So one
group over the spatial axes is an InstanceNormalization: an ONNX GroupNormalization of one group, which means all
channels together, is imported as that very layer.

ONNX's own node is written where it is the same function of the same operands, so that a model is compared with its
reading kernel by kernel. HALF and BF16 are computed in FLOAT and rounded once, at the end: that was the default of
``setComputePrecision`` for as long as the layer had one, and is ONNX's stash_type.
"""

from __future__ import annotations

from onnxfix.tensorrt.lift.emit import Emit, lifts
from onnxfix.tensorrt.lift.kinds.arithmetic import bits, compute, runs_in
from onnxfix.tensorrt.lift.network import Layer, Tensor, Unliftable
from onnxfix.tensorrt.lift.records import INTEGERS

_REDUCE = {
    "SUM": "ReduceSum", "PROD": "ReduceProd", "MAX": "ReduceMax", "MIN": "ReduceMin", "AVG": "ReduceMean",
}  # fmt: skip


@lifts("REDUCE")
def _reduce(e: Emit, layer: Layer) -> str:
    """NvInfer.h, IReduceLayer. TensorRT refuses a mask without an axis, and the operation NONE."""
    tensor, kind = layer.need(0), layer.word("op")
    axes, keep = bits(int(layer.native.axes), tensor.rank), int(layer.native.keep_dims)
    if kind not in _REDUCE or not axes:
        raise Unliftable(f"a reduction {kind} over {len(axes)} axes")
    if kind == "AVG" and tensor.dtype in INTEGERS:
        return _mean(e, tensor, axes, keep)
    wide = runs_in(_REDUCE[kind], tensor.dtype)
    value = e.as_type(tensor, wide)
    return e.turn(e.op(_REDUCE[kind], value, e.ints(axes), keepdims=keep), wide, tensor.dtype)


def _mean(e: Emit, tensor: Tensor, axes: tuple[int, ...], keep: int) -> str:
    """The sum by the number of elements, cut off (folding: the mean of 1 and -2 is 0, that of 3 and 4 is 3)."""
    wide = runs_in("ReduceSum", tensor.dtype)
    value = e.as_type(tensor, wide)
    total = e.op("ReduceSum", value, e.ints(axes), keepdims=keep)
    sizes = e.op("Gather", e.op("Shape", value), e.ints(axes))
    count = e.cast(e.op("ReduceProd", sizes, keepdims=0), wide)
    return e.turn(e.op("Div", total, count), wide, tensor.dtype)


def _axis(mask: int, rank: int) -> int:
    axes = bits(mask, rank)
    if len(axes) != 1:
        raise Unliftable(f"needs one axis, has {len(axes)}")
    return axes[0]


@lifts("SOFTMAX")
def _softmax(e: Emit, layer: Layer) -> str:
    tensor = layer.need(0)
    axis = _axis(int(layer.native.axes), tensor.rank)
    return compute(e, "Softmax", tensor.dtype, e.of(tensor), axis=axis)


@lifts("TOPK")
def _topk(e: Emit, layer: Layer) -> tuple[str, str]:
    """Sorted, the best first (NvInfer.h, addTopK); the order of equal elements is not documented. Input 1 is k."""
    tensor, given, kind = layer.need(0), layer.input(1), layer.word("op")
    if kind not in ("MAX", "MIN"):
        raise Unliftable(f"the operation {kind} is not known")
    axis = _axis(int(layer.native.axes), tensor.rank)
    count = (
        e.ints([int(layer.native.k)])
        if given is None
        else e.op("Reshape", e.as_type(given, "INT64"), e.ints([1]))
    )
    wide = runs_in("TopK", tensor.dtype)
    value = e.as_type(tensor, wide)
    best, places = e.ops("TopK", value, count, outputs=2, axis=axis, largest=int(kind == "MAX"), sorted=1)
    return e.turn(best, wide, tensor.dtype), e.turn(places, "INT64", layer.outputs[1].dtype)


@lifts("CUMULATIVE")
def _cumulative(e: Emit, layer: Layer) -> str:
    """Sums of what lies before, or behind where it is reversed; input 1 is the axis, a scalar."""
    tensor, kind = layer.need(0), layer.word("op")
    if kind != "SUM":
        raise Unliftable(f"the operation {kind} is not known")
    wide = runs_in("CumSum", tensor.dtype)
    made = e.op(
        "CumSum",
        e.as_type(tensor, wide),
        e.as_type(layer.need(1), "INT64"),
        exclusive=int(layer.native.exclusive),
        reverse=int(layer.native.reverse),
    )
    return e.turn(made, wide, tensor.dtype)


@lifts("MATRIX_MULTIPLY")
def _matrix_multiply(e: Emit, layer: Layer) -> str:
    """NvInfer.h, MatrixOperation: VECTOR takes the last axis for a row on the left and for a column on the right."""
    first, second = layer.need(0), layer.need(1)
    wide = runs_in("MatMul", first.dtype)
    ops = layer.word("op0"), layer.word("op1")
    sides = [
        _side(e, e.as_type(tensor, wide), tensor.rank, op, axis)
        for tensor, op, axis in zip((first, second), ops, (-2, -1), strict=True)
    ]
    made = e.op("MatMul", *sides)
    removed = [axis for axis, op in zip((-2, -1), ops, strict=True) if op == "VECTOR"]
    if removed:
        made = e.op("Squeeze", made, e.ints(removed))
    return e.turn(made, wide, first.dtype)


def _side(e: Emit, value: str, rank: int, op: str, axis: int) -> str:
    if op == "VECTOR":
        return e.op("Unsqueeze", value, e.ints([axis]))
    if op == "TRANSPOSE":
        return e.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])
    if op != "NONE":
        raise Unliftable(f"the operation {op} is not known")
    return value


@lifts("EINSUM")
def _einsum(e: Emit, layer: Layer) -> str:
    """Lower-case letters, no ellipsis: a part of ONNX's equations, with the same meaning."""
    tensors = [layer.need(place) for place in range(len(layer.inputs))]
    dtype = tensors[0].dtype
    return compute(
        e, "Einsum", dtype, *(e.of(tensor) for tensor in tensors), equation=str(layer.native.equation)
    )


@lifts("LRN")
def _lrn(e: Emit, layer: Layer) -> str:
    """Across the third axis from the end. The operator's page leaves out that alpha is divided by the window's size: it
    is in Caffe and in ONNX, whose two numbers NVIDIA's parsers hand over as they are."""
    tensor = layer.need(0)
    window = int(layer.native.window_size)
    alpha, beta, bias = (float(getattr(layer.native, name)) for name in ("alpha", "beta", "k"))
    wide = runs_in("LRN", tensor.dtype)
    value = e.as_type(tensor, wide)
    if tensor.rank < 4:
        raise Unliftable(f"normalizes a tensor of {tensor.rank} dimensions")
    shape = ""
    if tensor.rank > 4:  # ONNX counts its channels from the front
        shape = e.op("Shape", value)
        last = e.op("Shape", value, start=-3)
        value = e.op("Reshape", value, e.op("Concat", e.ints([-1]), last, axis=0))
    made = e.op("LRN", value, size=window, alpha=alpha, beta=beta, bias=bias)
    return e.turn(e.op("Reshape", made, shape) if shape else made, wide, tensor.dtype)


@lifts("ONE_HOT")
def _one_hot(e: Emit, layer: Layer) -> str:
    """Inputs: indices, [off, on], depth. Negative indices count from the end, those beyond are off (folding)."""
    indices, values, depth = (layer.need(place) for place in range(3))
    wide = runs_in("OneHot", values.dtype)
    pair = e.as_type(values, wide)
    made = e.op(
        "OneHot", e.as_type(indices, "INT64"), e.as_type(depth, "INT64"), pair, axis=int(layer.native.axis)
    )
    return e.turn(made, wide, values.dtype)


@lifts("NON_ZERO")
def _non_zero(e: Emit, layer: Layer) -> str:
    """Shape [rank, number], in row-major order (NvInfer.h, INonZeroLayer): ONNX's."""
    tensor = layer.need(0)
    found = compute(e, "NonZero", tensor.dtype, e.of(tensor), result="INT64")
    return e.turn(found, "INT64", layer.outputs[0].dtype)


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
    if layer.native.is_v2 or {scale.shape, bias.shape} != {(1, groups, *(1,) * (data.rank - 2))}:
        raise Unliftable(
            f"normalization of {groups} groups with a scale of {scale.shape} and a bias of {bias.shape}"
        )
    rows = e.op("Reshape", wide, e.ints([0, groups, -1]))
    return e.op("Reshape", _flat(e, "InstanceNormalization", layer, rows), e.op("Shape", wide))


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
