"""ONNX Runtime's quantized operators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    AddNode,
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    RemoveNode,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    takes,
)
from onnxfix_rules.ops import _bounds
from onnxfix_rules.ops._runtimes import no_importer

from ._read import WEIGHT_LIMIT
from ._rewrite import Unable, Workshop

PLAIN = {
    "QGemm": "Gemm",
    "QLinearAdd": "Add",
    "QLinearAveragePool": "AveragePool",
    "QLinearConcat": "Concat",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearMul": "Mul",
    "QLinearSigmoid": "Sigmoid",
    "QLinearSoftmax": "Softmax",
}
"""The float operator."""
_OWN = ("channels_last", "opset")
_BYTES = (TensorProto.INT8, TensorProto.UINT8)


class _Part(NamedTuple):
    """Data with its scale and zero point; data is None for the result."""

    data: Value | None
    scale: Value | None
    zero: Value | None


def _parts(node: Node) -> tuple[list[_Part], _Part]:
    """The quantized inputs and the quantization of the result."""

    def part(start: int, *, result: bool = False) -> _Part:
        if result:
            return _Part(None, node.input(start), node.input(start + 1))
        return _Part(node.input(start), node.input(start + 1), node.input(start + 2))

    if node.op_type == "QLinearConcat":
        return [part(index) for index in range(2, len(node.inputs), 3)], part(0, result=True)
    if node.op_type == "QGemm":
        return [part(0), part(3)], part(7, result=True)
    if node.op_type in ("QLinearAdd", "QLinearMul"):
        return [part(0), part(3)], part(6, result=True)
    return [part(0)], part(3, result=True)


def moved(node: Node, model: Model) -> Fix | None:
    """A Concat of inputs that are quantized like the result; None if they differ."""
    inputs, result = _parts(node)
    output = node.output()
    if node.op_type != "QLinearConcat" or output is None or node.attribute("axis") is None:
        return None
    names = [part.data for part in inputs]
    elems = {None if data is None else model.shapes.elem_type(data) for data in names}
    known = [(_bounds.number(part.scale), _bounds.number(part.zero)) for part in (*inputs, result)]
    if len(set(known)) != 1 or None in known[0] or len(elems) != 1 or not elems <= set(_BYTES):
        return None
    if not takes("Concat", node.scope.opset(), next(iter(elems)) or 0):
        return None
    shop = Workshop()
    shop.edits.append(RemoveNode(node))
    shop.at(node).add("Concat", names, output=output.name, axis=node.attr("axis"))
    return Fix("concatenate the quantized tensors", shop.edits)


def written(node: Node, model: Model) -> list[Edit]:
    """Build DequantizeLinear, the operator, QuantizeLinear.

    Raises:
        Unable: a type, scale or attribute is unknown or unsupported.
    """
    inputs, result = _parts(node)
    output, plain, shop = node.output(), PLAIN[node.op_type], Workshop()
    if output is None or not inputs or node.scope.opset() < 10 or not _plainly(node, model):
        raise Unable
    shop.edits.append(RemoveNode(node))
    draft = shop.at(node)
    elem = model.shapes.elem_type(inputs[0].data) if inputs[0].data is not None else None
    names = [_floats(shop, node, model, part, which) for which, part in enumerate(inputs)]
    if plain == "Gemm" and node.input(6) is not None:
        names.append(_bias(shop, node))
    found = shop.like(node, plain, names, without=_OWN)
    if result.scale is None:
        if plain != "Gemm":
            raise Unable
        for edit in shop.edits:
            if isinstance(edit, AddNode) and edit.proto.output[0] == found:
                edit.proto.output[0] = output.name
        return shop.edits
    ending = _ends(shop, node, model, result, elem)
    draft.add("QuantizeLinear", [found, *ending], output=output.name)
    return shop.edits


def _ends(shop: Workshop, node: Node, model: Model, part: _Part, elem: int | None) -> list[Value | str]:
    """Per-tensor scale and zero point of type ``elem``, as far as present."""
    scale, zero = part.scale, part.zero
    kind = TensorProto.UINT8 if zero is None else model.shapes.elem_type(zero)
    if scale is None or elem not in _BYTES or elem != kind:
        raise Unable
    if model.shapes.elem_type(scale) != TensorProto.FLOAT:
        raise Unable
    return [_single(shop, node, model, value) for value in (scale, zero) if value is not None]


def _plainly(node: Node, model: Model) -> bool:
    """Whether the attributes match those of the float operator."""
    if node.attr("channels_last", 0) != 0:
        return False
    if node.op_type == "QLinearSoftmax":
        axis, data = node.attr("axis", -1), node.input(0)
        rank = None if data is None else model.shapes.rank(data)
        last = axis == -1 or (rank is not None and axis == rank - 1)
        return last or (node.attr("opset", 0) >= 13 and node.scope.opset() >= 13)
    if node.op_type == "QGemm":
        alpha = node.attr("alpha", 1.0)
        return math.isfinite(alpha) and (node.input(6) is not None or node.scope.opset() >= 11)
    return True


def _floats(shop: Workshop, node: Node, model: Model, part: _Part, which: int) -> str:
    """The dequantized data of one input."""
    data, scale, zero = part
    if data is None or scale is None:
        raise Unable
    elem = model.shapes.elem_type(data)
    columns = node.op_type == "QGemm" and which == 1 and model.shapes.rank(scale) == 1
    if not columns or model.shapes.static_shape(scale) in ((), (1,)):
        return shop.at(node).add("DequantizeLinear", [data, *_ends(shop, node, model, part, elem)])
    if node.scope.opset() < 13 or zero is None or not model.shapes.same_shape(scale, zero).yes:
        raise Unable
    if elem not in _BYTES or model.shapes.elem_type(scale) != TensorProto.FLOAT:
        raise Unable
    axis = 0 if node.attr("transB", 0) else 1
    return shop.at(node).add("DequantizeLinear", [data, scale, zero], axis=axis)


def _single(shop: Workshop, node: Node, model: Model, value: Value) -> Value | str:
    """A one-element scale or zero point as a scalar, which DequantizeLinear requires for per-tensor quantization."""
    shape = model.shapes.static_shape(value)
    if shape == ():
        return value
    array = value.constant()
    if shape != (1,) or array is None:
        raise Unable
    return shop.constant(node, array.reshape(()), "scalar")


def _bias(shop: Workshop, node: Node) -> str:
    """The dequantized bias. In ONNX Runtime its scale is the product of the two scales and alpha, around 0."""
    values = [node.input(index) for index in (6, 1, 4)]
    arrays = [None if value is None else value.constant(WEIGHT_LIMIT) for value in values]
    if any(array is None for array in arrays):
        raise Unable
    numbers, first, second = (np.asarray(array, np.float32) for array in arrays)
    if first.size != 1 or (second.size != 1 and numbers.shape[-1:] != second.shape):
        raise Unable
    scales = first.reshape(()) * (second.reshape(()) if second.size == 1 else second)
    return shop.constant(
        node, np.asarray(numbers * scales * np.float32(node.attr("alpha", 1.0)), np.float32), "bias"
    )


@rule(
    "QDQ020",
    ops=[f"com.microsoft::{name}" for name in PLAIN],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[57],
)
def quantized_operator_of_onnx_runtime(node: Node, model: Model) -> Iterator[Match]:
    """A quantized operator of ONNX Runtime: QLinearAdd, QLinearSigmoid, QLinearConcat, QGemm and others.

    ## Why it matters
    `quantize_static` of ONNX Runtime writes them with `QuantFormat.QOperator`. TensorRT finds no importer: `Plugin
    not found, are the plugin name, version, and namespace correct?`, measured with TensorRT-RTX 1.7.1. QLinearConv
    and QLinearMatMul are covered by QDQ008.

    ## Fix
    The QDQ form, which TensorRT supports: DequantizeLinear of every input, the float operator, QuantizeLinear. Other
    rules then handle nonzero zero points (QDQ003) and uint8 (QDQ001). A QLinearConcat whose inputs have the scale and
    zero point of the result is a Concat: exact. Otherwise NUMERIC: a result halfway between two steps, up to
    rounding, may become the other step; ONNX Runtime's QLinearSoftmax divides integers, and is one step lower in up
    to a tenth of the elements.

    No fix for channels-last layouts, 16 bits, scales of unknown shape, and before opset 10. Better still: quantize
    with `QuantFormat.QDQ`, `ActivationSymmetric` and signed types.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QLinearAdd
    - https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    if node.function is not None or node.output() is None:
        return
    fix = moved(node, model)
    try:
        fix = fix or Fix(
            "replace by DequantizeLinear, the float operator, QuantizeLinear",
            written(node, model),
            Safety.NUMERIC,
        )
    except Unable:
        fix = None
    yield Match(
        no_importer(node),
        node=node,
        fix=fix,
        reads=tuple(value for value in node.inputs if value is not None),
    )


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_I = "g (int8[N,4,6,6] x) => (int8[N,4,6,6] y) <float s = {0.25}, int8 z = {0}, float t = {0.125}>"
_P = "g (int8[N,4,6,6] x) => (int8[N,4,3,3] y) <float s = {0.25}, int8 z = {0}>"
_TWO = "g (int8[N,4] x, int8[4] w) => (int8[N,4] y) <float s = {0.25}, int8 z = {0}, float t = {0.125}>"
_TWO_DONE = "a = DequantizeLinear(x, s, z)  b = DequantizeLinear(w, t, z)"
_GEMM = """g (int8[N,2] x) => (int8[N,2] y) <float s = {0.5}, int8 z = {0}, int8[2,2] w = {1, -2, 3, 4},
            float[2] t = {0.5, 0.25}, int8[2] v = {0, 0}, int32[2] c = {4, -8}, float u = {1}>"""


def _unary(call: str) -> str:
    return f"{_HEAD} {_I} {{ y = {call} }}"


_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)
quantized_operator_of_onnx_runtime.examples = [
    _fixed(
        "a sum of two tensors with different scales",
        before=f"{_HEAD} {_TWO} {{ y = com.microsoft.QLinearAdd(x, s, z, w, t, z, s, z) }}",
        after=f"{_HEAD} {_TWO} {{ {_TWO_DONE}  c = Add(a, b)  y = QuantizeLinear(c, s, z) }}",
    ),
    Flagged(
        "requires --numeric-fixes",
        f"{_HEAD} {_TWO} {{ y = com.microsoft.QLinearAdd(x, s, z, w, t, z, s, z) }}",
    ),
    _fixed(
        "a product without zero points: uint8 around 0",
        before=f"""{_HEAD} g (uint8[N,4] x) => (uint8[N,4] y) <float s = {{0.25}}> {{
            y = com.microsoft.QLinearMul(x, s, , x, s, , s) }}""",
        after=f"""{_HEAD} g (uint8[N,4] x) => (uint8[N,4] y) <float s = {{0.25}}> {{ a = DequantizeLinear(x, s)
            b = DequantizeLinear(x, s)  c = Mul(a, b)  y = QuantizeLinear(c, s) }}""",
        runs=False,  # ONNX Runtime's type inference refuses it
    ),
    _fixed(
        "Sigmoid",
        before=_unary("com.microsoft.QLinearSigmoid(x, s, z, t, z)"),
        after=f"{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Sigmoid(a)  y = QuantizeLinear(b, t, z) }}",
    ),
    _fixed(
        "LeakyRelu with its slope",
        before=_unary("com.microsoft.QLinearLeakyRelu<alpha = 0.5>(x, s, z, t, z)"),
        after=f"""{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = LeakyRelu<alpha = 0.5>(a)
            y = QuantizeLinear(b, t, z) }}""",
    ),
    _fixed(
        "Softmax",
        before=_unary("com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(x, s, z, t, z)"),
        after=f"""{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Softmax<axis = -1>(a)
            y = QuantizeLinear(b, t, z) }}""",
        runs=False,
    ),
    _fixed(
        "an average pool with padding",
        before=f"""{_HEAD} {_P} {{ y = com.microsoft.QLinearAveragePool<kernel_shape = [2, 2], strides = [2, 2]>
            (x, s, z, s, z) }}""",
        after=f"""{_HEAD} {_P} {{ a = DequantizeLinear(x, s, z)
            b = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(a)  y = QuantizeLinear(b, s, z) }}""",
    ),
    _fixed(
        "global average pooling",
        before=f"{_HEAD} {_P.replace('3,3', '1,1')} {{ y = com.microsoft.QLinearGlobalAveragePool(x, s, z, s, z) }}",
        after=f"""{_HEAD} {_P.replace("3,3", "1,1")} {{ a = DequantizeLinear(x, s, z)  b = GlobalAveragePool(a)
            y = QuantizeLinear(b, s, z) }}""",
    ),
    Fixed(
        "inputs with the same scale are only concatenated",
        before=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, w, s, z) }}""",
        after=f"""{_HEAD} g (int8[N,4] x, int8[N,4] w) => (int8[N,8] y) <float t = {{0.125}}> {{
            y = Concat<axis = 1>(x, w) }}""",
    ),
    _fixed(
        "inputs with different scales",
        before=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, w, t, z) }}""",
        after=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            {_TWO_DONE}  c = Concat<axis = 1>(a, b)  y = QuantizeLinear(c, s, z) }}""",
    ),
    _fixed(
        "a Gemm with bias and per-column scales",
        before=f"{_HEAD} {_GEMM} {{ y = com.microsoft.QGemm<alpha = 1.0>(x, s, z, w, t, v, c, u, z) }}",
        after=f"""{_HEAD} {_GEMM.replace("int32[2] c = {4, -8}", "float[2] d = {1, -1}")} {{
            a = DequantizeLinear(x, s, z)  b = DequantizeLinear<axis = 1>(w, t, v)  g = Gemm<alpha = 1.0>(a, b, d)
            y = QuantizeLinear(g, u, z) }}""",
    ),
    _fixed(
        "a Gemm with float output, without a bias",
        before=f"""{_HEAD} {_GEMM.replace("=> (int8", "=> (float")} {{
            y = com.microsoft.QGemm(x, s, z, w, t, v) }}""",
        after=f"""{_HEAD} {_GEMM.replace("=> (int8", "=> (float")} {{ a = DequantizeLinear(x, s, z)
            b = DequantizeLinear<axis = 1>(w, t, v)  y = Gemm(a, b) }}""",
    ),
    _flagged(
        "channels last", _unary("com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(x, s, z, s, z)")
    ),
    _flagged(
        "int8 without zero points, which defaults to uint8", _unary("com.microsoft.QLinearSigmoid(x, s, , t)")
    ),
    _fixed(
        "a scale that may be overridden stays an input",
        before=f"""{_HEAD} g (int8[N,4] x, float s) => (int8[N,4] y) <float s = {{0.5}}, int8 z = {{0}}> {{
            y = com.microsoft.QLinearSigmoid(x, s, z, s, z) }}""",
        after=f"""{_HEAD} g (int8[N,4] x, float s) => (int8[N,4] y) <float s = {{0.5}}, int8 z = {{0}}> {{
            a = DequantizeLinear(x, s, z)  b = Sigmoid(a)  y = QuantizeLinear(b, s, z) }}""",
        runs=False,
    ),
    _flagged(
        "per-channel scales, which ONNX Runtime does not support there",
        _unary("com.microsoft.QLinearSigmoid(x, f, z, t, z)").replace(
            "<float s", "<float[4] f = {1,1,1,1}, float s"
        ),
    ),
    Silent(
        "the form after the fix",
        f"{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Sigmoid(a)  y = QuantizeLinear(b, t, z) }}",
    ),
]
