"""Operators of com.microsoft whose shapes are beyond doubt."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxfix.graph.shape_ops.base import Call, Info, Unknown, broadcast_shapes, transfer, with_shape
from onnxfix.graph.shape_ops.linalg import matmul_shape
from onnxfix.graph.symbols import constant

MS = "com.microsoft"


@transfer("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "BiasSplitGelu", domain=MS)
def _gelu(call: Call) -> Info:
    if call.op == "BiasSplitGelu":
        raise Unknown  # halves the last axis
    return with_shape(call.info(0), call.info(0).shape)


@transfer("FusedConv", domain=MS)
def _fused_conv(call: Call) -> Sequence[Info] | Info:
    from onnxfix.graph.shape_ops.conv import conv

    return conv(call)


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


@transfer("QuantizeLinear", domain=MS)
def _quantize(call: Call) -> Info:
    return Info(call.info(2).elem if call.has(2) else TensorProto.UINT8, call.info(0).shape)


@transfer("DequantizeLinear", domain=MS)
def _dequantize(call: Call) -> Info:
    return Info(call.info(1).elem, call.info(0).shape)


@transfer("QLinearAdd", "QLinearMul", domain=MS)
def _qlinear_binary(call: Call) -> Info:
    a, b = call.info(0), call.info(3)
    if a.shape is None or b.shape is None:
        return Info(a.elem)
    return Info(a.elem, broadcast_shapes([a.shape, b.shape]))


@transfer("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=MS)
def _qlinear_unary(call: Call) -> Info:
    return with_shape(call.info(0), call.info(0).shape)


@transfer("RotaryEmbedding", domain=MS)
def _rotary(call: Call) -> Info:
    return with_shape(call.info(0), call.info(0).shape)
