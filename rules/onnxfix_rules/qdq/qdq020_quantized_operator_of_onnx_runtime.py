"""QDQ020: QLinearAdd and other quantized operators of ONNX Runtime's domain."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of
from onnxfix_rules.ops._runtimes import origin

from ._common import Unable
from ._contrib import PLAIN, moved, written


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
        f"{target_of(model).title} has no importer for {node.domain}.{node.op_type}; {origin(node)}",
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


def _unary(call: str, head: str = _HEAD) -> str:
    return f"{head} {_I} {{ y = {call} }}"


quantized_operator_of_onnx_runtime.examples = [
    Fixed(
        "a sum of two tensors with different scales",
        before=f"{_HEAD} {_TWO} {{ y = com.microsoft.QLinearAdd(x, s, z, w, t, z, s, z) }}",
        after=f"{_HEAD} {_TWO} {{ {_TWO_DONE}  c = Add(a, b)  y = QuantizeLinear(c, s, z) }}",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "requires --numeric-fixes",
        f"{_HEAD} {_TWO} {{ y = com.microsoft.QLinearAdd(x, s, z, w, t, z, s, z) }}",
    ),
    Fixed(
        "a product without zero points: uint8 around 0",
        before=f"""{_HEAD} g (uint8[N,4] x) => (uint8[N,4] y) <float s = {{0.25}}> {{
            y = com.microsoft.QLinearMul(x, s, , x, s, , s) }}""",
        after=f"""{_HEAD} g (uint8[N,4] x) => (uint8[N,4] y) <float s = {{0.25}}> {{ a = DequantizeLinear(x, s)
            b = DequantizeLinear(x, s)  c = Mul(a, b)  y = QuantizeLinear(c, s) }}""",
        safety=Safety.NUMERIC,
        runs=False,  # ONNX Runtime's type inference refuses it
    ),
    Fixed(
        "Sigmoid",
        before=_unary("com.microsoft.QLinearSigmoid(x, s, z, t, z)"),
        after=f"{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Sigmoid(a)  y = QuantizeLinear(b, t, z) }}",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "LeakyRelu with its slope",
        before=_unary("com.microsoft.QLinearLeakyRelu<alpha = 0.5>(x, s, z, t, z)"),
        after=f"""{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = LeakyRelu<alpha = 0.5>(a)
            y = QuantizeLinear(b, t, z) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "Softmax",
        before=_unary("com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(x, s, z, t, z)"),
        after=f"""{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Softmax<axis = -1>(a)
            y = QuantizeLinear(b, t, z) }}""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Fixed(
        "an average pool with padding",
        before=f"""{_HEAD} {_P} {{ y = com.microsoft.QLinearAveragePool<kernel_shape = [2, 2], strides = [2, 2]>
            (x, s, z, s, z) }}""",
        after=f"""{_HEAD} {_P} {{ a = DequantizeLinear(x, s, z)
            b = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(a)  y = QuantizeLinear(b, s, z) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "global average pooling",
        before=f"{_HEAD} {_P.replace('3,3', '1,1')} {{ y = com.microsoft.QLinearGlobalAveragePool(x, s, z, s, z) }}",
        after=f"""{_HEAD} {_P.replace("3,3", "1,1")} {{ a = DequantizeLinear(x, s, z)  b = GlobalAveragePool(a)
            y = QuantizeLinear(b, s, z) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "inputs with the same scale are only concatenated",
        before=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, w, s, z) }}""",
        after=f"""{_HEAD} g (int8[N,4] x, int8[N,4] w) => (int8[N,8] y) <float t = {{0.125}}> {{
            y = Concat<axis = 1>(x, w) }}""",
    ),
    Fixed(
        "inputs with different scales",
        before=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, w, t, z) }}""",
        after=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            {_TWO_DONE}  c = Concat<axis = 1>(a, b)  y = QuantizeLinear(c, s, z) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a Gemm with bias and per-column scales",
        before=f"{_HEAD} {_GEMM} {{ y = com.microsoft.QGemm<alpha = 1.0>(x, s, z, w, t, v, c, u, z) }}",
        after=f"""{_HEAD} {_GEMM.replace("int32[2] c = {4, -8}", "float[2] d = {1, -1}")} {{
            a = DequantizeLinear(x, s, z)  b = DequantizeLinear<axis = 1>(w, t, v)  g = Gemm<alpha = 1.0>(a, b, d)
            y = QuantizeLinear(g, u, z) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a Gemm with float output, without a bias",
        before=f"""{_HEAD} {_GEMM.replace("=> (int8", "=> (float")} {{
            y = com.microsoft.QGemm(x, s, z, w, t, v) }}""",
        after=f"""{_HEAD} {_GEMM.replace("=> (int8", "=> (float")} {{ a = DequantizeLinear(x, s, z)
            b = DequantizeLinear<axis = 1>(w, t, v)  y = Gemm(a, b) }}""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "channels last",
        _unary("com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(x, s, z, s, z)"),
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Flagged(
        "int8 without zero points, which defaults to uint8",
        _unary("com.microsoft.QLinearSigmoid(x, s, , t)"),
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Fixed(
        "a scale that may be overridden stays an input",
        before=f"""{_HEAD} g (int8[N,4] x, float s) => (int8[N,4] y) <float s = {{0.5}}, int8 z = {{0}}> {{
            y = com.microsoft.QLinearSigmoid(x, s, z, s, z) }}""",
        after=f"""{_HEAD} g (int8[N,4] x, float s) => (int8[N,4] y) <float s = {{0.5}}, int8 z = {{0}}> {{
            a = DequantizeLinear(x, s, z)  b = Sigmoid(a)  y = QuantizeLinear(b, s, z) }}""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Flagged(
        "per-channel scales, which ONNX Runtime does not support there",
        _unary("com.microsoft.QLinearSigmoid(x, f, z, t, z)").replace(
            "<float s", "<float[4] f = {1,1,1,1}, float s"
        ),
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Silent(
        "the form after the fix",
        f"{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Sigmoid(a)  y = QuantizeLinear(b, t, z) }}",
    ),
]
