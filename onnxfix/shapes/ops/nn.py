"""Normalizations, recurrent networks, attention, quantization: operators whose shapes follow their inputs' axes; and
operators of com.microsoft whose shapes are certain."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxfix.shapes.ops.base import Call, Info, Shape, agree, axis_of, broadcast_shapes, transfer, with_shape
from onnxfix.shapes.ops.linalg import matmul_shape
from onnxfix.shapes.symbols import Dim, constant, divide, floordiv

FLOAT = TensorProto.FLOAT


MS = "com.microsoft"


@transfer(
    "GroupNormalization", "InstanceNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization",
    "RMSNormalization", "RotaryEmbedding", "ReverseSequence", "Trilu", "CumSum", "CumProd", "Hardmax", "Softmax",
    "LogSoftmax", *(f"{MS}::{op}" for op in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding")),
    *(f"{MS}::{op}" for op in ("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")),
)  # fmt: skip
def _same(call: Call) -> Info:
    return with_shape(call.info(0), call.info(0).shape)


@transfer("LayerNormalization", "SimplifiedLayerNormalization")  # no release of ONNX has the latter
def _layer_normalization(call: Call) -> Sequence[Info]:
    data = call.info(0)
    kind = call.attr("stash_type", FLOAT)
    if data.shape is None:
        return [Info(data.elem), Info(kind), Info(kind)][: len(call.outputs)]
    axis = axis_of(call.attr("axis", -1), len(data.shape))
    stats = data.shape[:axis] + tuple(constant(1) for _ in data.shape[axis:])
    return [with_shape(data, data.shape), Info(kind, stats), Info(kind, stats)][: len(call.outputs)]


@transfer("BatchNormalization")
def _batch_normalization(call: Call) -> Sequence[Info]:
    data = call.info(0)
    mean = call.info(3)
    channels = data.shape[1] if data.shape is not None and len(data.shape) > 1 else None
    stats: Shape | None = mean.shape
    if stats is None and channels is not None:
        stats = (channels,)
    elem = mean.elem if call.opset >= 14 else data.elem
    return [with_shape(data, data.shape)] + [Info(elem, stats)] * (len(call.outputs) - 1)


@transfer("RNN", "GRU", "LSTM")
def _recurrent(call: Call) -> Sequence[Info]:
    data, weight = call.info(0), call.info(2)
    batch_first = bool(call.attr("layout", 0))
    length: Dim | None = None
    batch: Dim | None = None
    if data.shape is not None and len(data.shape) == 3:
        length, batch = data.shape[1 if batch_first else 0], data.shape[0 if batch_first else 1]
    directions = constant(2 if call.attr("direction", "forward") == "bidirectional" else 1)
    hidden: Dim | None = weight.shape[2] if weight.shape is not None and len(weight.shape) == 3 else None
    if hidden is None and call.attr("hidden_size") is not None:
        hidden = constant(call.attr("hidden_size"))
    all_dims = [batch, length, directions, hidden] if batch_first else [length, directions, batch, hidden]
    last_dims = [batch, directions, hidden] if batch_first else [directions, batch, hidden]
    infos = []
    for k in range(len(call.outputs)):
        dims = all_dims if k == 0 else last_dims
        infos.append(Info(data.elem, tuple(call.fresh(k, i) if d is None else d for i, d in enumerate(dims))))
    return infos


@transfer("Attention")
def _attention(call: Call) -> Sequence[Info]:
    query, key, value = call.info(0), call.info(1), call.info(2)
    elems = [query.elem, key.elem, value.elem, query.elem][: len(call.outputs)]
    if query.shape is None or key.shape is None or value.shape is None:
        rank = None if query.shape is None else len(query.shape)
        return [Info(e, call.fresh_shape(k, 4 if k or rank is None else rank)) for k, e in enumerate(elems)]
    q = _heads(query.shape, call.attr("q_num_heads"))
    k = _heads(key.shape, call.attr("kv_num_heads"))
    v = _heads(value.shape, call.attr("kv_num_heads"))
    past = call.info(4).shape
    whole = k[2]
    if call.has(4):
        whole = whole + past[2] if past is not None and len(past) == 4 else call.fresh(0, 900)
    result = (q[0], q[1], q[2], v[3]) if len(query.shape) == 4 else (q[0], q[2], q[1] * v[3])
    shapes = [result, (k[0], k[1], whole, k[3]), (v[0], v[1], whole, v[3]), (q[0], q[1], q[2], whole)]
    return [Info(e, s) for e, s in zip(elems, shapes, strict=False)]


def _heads(shape: Shape, heads: int | None) -> Shape:
    """(batch, heads, length, size) of a query, key or value that may have its heads packed into the last axis."""
    if len(shape) == 4:
        return shape
    batch, length, hidden = shape
    return (batch, constant(heads or 1), length, divide(hidden, heads or 1))


@transfer("QuantizeLinear", f"{MS}::QuantizeLinear")
def _quantize(call: Call) -> Info:
    elem = call.attr("output_dtype", 0)
    if not elem:
        elem = call.info(2).elem if call.has(2) else TensorProto.UINT8
    return Info(elem, call.info(0).shape)


@transfer("DequantizeLinear")
def _dequantize(call: Call) -> Info:
    elem = call.attr("output_dtype", 0) or (call.info(1).elem if call.opset >= 19 else FLOAT)
    return Info(elem, call.info(0).shape)


@transfer("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call) -> Sequence[Info]:
    infos = [Info(TensorProto.UINT8, call.info(0).shape), Info(FLOAT, ()), Info(TensorProto.UINT8, ())]
    return infos[: len(call.outputs)]


@transfer("GridSample")
def _grid_sample(call: Call) -> Info:
    data, grid = call.info(0), call.info(1)
    if data.shape is None or grid.shape is None:
        known = data.shape or grid.shape
        return Info(data.elem, None if known is None else call.fresh_shape(0, len(known)))
    return Info(data.elem, (agree((data.shape[0], grid.shape[0])), data.shape[1], *grid.shape[1:-1]))


@transfer("AffineGrid")
def _affine_grid(call: Call) -> Info:
    size = call.ints(1)
    if size is None:
        length = call.length(1)
        return Info(call.info(0).elem, None if length is None else call.fresh_shape(0, length))
    return Info(call.info(0).elem, (size[0], *size[2:], constant(len(size) - 2)))


@transfer("DFT")
def _dft(call: Call) -> Info:
    dims = list(call.shape(0))
    rank, elem = len(dims), call.info(0).elem
    if call.opset < 20:
        found: list[int] | None = [call.attr("axis", 1)]
    else:
        found = call.static_ints(2) if call.has(2) else [-2]
    if not found:
        return Info(elem, call.fresh_shape(0, rank))
    axis = axis_of(found[0], rank)
    one_sided, inverse = call.attr("onesided", 0), call.attr("inverse", 0)
    length: Dim | None = dims[axis]
    if call.has(1):
        given = call.ints(1)
        length = given[0] if given else None
    if length is None or (one_sided and inverse):
        length = call.fresh(0, axis) if length is None or not call.has(1) else length
    elif one_sided:
        length = floordiv(length, 2) + 1
    dims[axis] = length
    dims[-1] = constant(1 if one_sided and inverse else 2)
    return Info(elem, tuple(dims))


@transfer("STFT")
def _stft(call: Call) -> Info:
    data = call.info(0)
    dims = list(call.fresh_shape(0, 4))
    dims[3] = constant(2)
    step = call.static_ints(1)
    frame: Dim | None = None
    given = call.ints(3)
    if given:
        frame = given[0]
    elif not call.has(3) and call.info(2).shape:
        frame = call.shape(2)[0]
    if data.shape is not None:
        dims[0] = data.shape[0]
        if step and step[0] > 0 and frame is not None:
            dims[1] = floordiv(data.shape[1] - frame, step[0]) + 1
    if frame is not None:
        dims[2] = floordiv(frame, 2) + 1 if call.attr("onesided", 1) else frame
    return Info(data.elem, tuple(dims))


@transfer("FusedMatMul", domain=MS)
def _fused_matmul(call: Call) -> Info:
    a, b = call.info(0), call.info(1)
    if a.shape is None or b.shape is None or call.attr("transBatchA", 0) or call.attr("transBatchB", 0):
        return Info(a.elem)
    left, right = a.shape, b.shape
    if call.attr("transA", 0) and len(left) > 1:
        left = (*left[:-2], left[-1], left[-2])
    if call.attr("transB", 0) and len(right) > 1:
        right = (*right[:-2], right[-1], right[-2])
    return Info(a.elem, matmul_shape(left, right))


@transfer("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MS)
def _skip_layer_normalization(call: Call) -> Sequence[Info]:
    data = call.info(0)
    full = with_shape(data, data.shape)
    stats = Info(TensorProto.FLOAT, None if data.shape is None else (*data.shape[:-1], constant(1)))
    return [full, stats, stats, full][: len(call.outputs)]


@transfer("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=MS)
def _product_of_integers(call: Call) -> Info:
    a, b = call.info(0), call.info(1)
    scale = call.info(2)  # that of the first factor or, if that is a float, of the second
    return Info(scale.elem, None if a.shape is None or b.shape is None else matmul_shape(a.shape, b.shape))


@transfer("QLinearConcat", "QLinearAveragePool", "QLinearGlobalAveragePool", "QGemm", domain=MS)
def _quantized_type(call: Call) -> Info:
    """The quantized type of the result; a QGemm without a scale for it returns floats."""
    index = {"QLinearConcat": 2, "QGemm": 0}.get(call.op, 0)
    if call.op == "QGemm" and not call.has(7):
        return Info(call.info(1).elem)
    return Info(call.info(index).elem)


@transfer("DequantizeLinear", domain=MS)
def _dequantize_contrib(call: Call) -> Info:
    return Info(call.info(1).elem, call.info(0).shape)


@transfer("QLinearAdd", "QLinearMul", domain=MS)
def _qlinear_binary(call: Call) -> Info:
    a, b = call.info(0), call.info(3)
    if a.shape is None or b.shape is None:
        return Info(a.elem)
    return Info(a.elem, broadcast_shapes([a.shape, b.shape]))
