"""Operators of com.microsoft whose shapes are certain."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxfix.shapes.ops.base import Call, Info, broadcast_shapes, transfer, with_shape
from onnxfix.shapes.ops.linalg import matmul_shape
from onnxfix.shapes.symbols import constant

MS = "com.microsoft"


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
def _dequantize(call: Call) -> Info:
    return Info(call.info(1).elem, call.info(0).shape)


@transfer("QLinearAdd", "QLinearMul", domain=MS)
def _qlinear_binary(call: Call) -> Info:
    a, b = call.info(0), call.info(3)
    if a.shape is None or b.shape is None:
        return Info(a.elem)
    return Info(a.elem, broadcast_shapes([a.shape, b.shape]))
