"""QDQ007: MatMulInteger and ConvInteger."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._region import region_of
from ._remedy import floats


@rule(
    "QDQ007", ops=("MatMulInteger", "ConvInteger"), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[57]
)
def integer_matmul_or_conv(node: Node, model: Model) -> Iterator[Match]:
    """A MatMulInteger or ConvInteger, for which TensorRT has no importer.

    ## Why it matters
    The parser fails: `UNSUPPORTED_NODE`, measured with TensorRT-RTX 1.7.1; NVIDIA's operator lists for TensorRT 8 to
    11 contain neither. ONNX Runtime's dynamic quantization writes such models: DynamicQuantizeLinear, MatMulInteger,
    Cast and Mul.

    ## Fix
    A MatMul or Conv of float32 tensors that hold the integers minus their zero points, and a Cast of the result to
    int32. Exact if no sum, in any order, can reach 2**24: known from the constant weights (the largest sum of their
    magnitudes in a column or filter), or from the static number of terms. Otherwise sums are rounded to 24 bits,
    which is within tolerance if they are scaled afterwards; this requires `--numeric-fixes`. The rest of the
    quantized region, such as a DynamicQuantizeLinear before it, is written in floats as well (see QDQ009).

    The result runs in float32, with weights four times as large. For INT8 execution use static quantization.

    No fix if a zero point's shape is unknown.

    ## References
    - https://onnx.ai/onnx/operators/onnx__MatMulInteger.html
    - NVIDIA/TensorRT issue 4698
    """
    if node.input(0) is None or node.input(1) is None:
        return
    region = region_of([node], model)
    reason = f" ({region.problem})" if region.problem else ""
    yield Match(
        f"{target_of(model).title} does not import {node.op_type}{reason}",
        node=node,
        fix=floats(region, model, "multiply in float32"),
        reads=region.reads,
    )


integer_matmul_or_conv.examples = [
    Fixed(
        "constant weights: no sum reaches 2**24",
        before="""g (uint8[N,2] x) => (int32[N,2] y) <int8[2,2] w = {1, -2, 3, 4}> { y = MatMulInteger(x, w) }""",
        after="""g (uint8[N,2] x) => (int32[N,2] y) <float[2,2] w = {1, -2, 3, 4}> {
            f = Cast<to = FLOAT>(x)  p = MatMul(f, w)  y = Cast<to = INT32>(p) }""",
    ),
    Fixed(
        "zero points of the data and of each weight column",
        before="""g (uint8[N,2] x) => (int32[N,2] y) <int8[2,2] w = {1, -2, 3, 4}, uint8 a = {7}, int8[2] b = {1, -1}> {
            y = MatMulInteger(x, w, a, b) }""",
        after="""g (uint8[N,2] x) => (int32[N,2] y) <float[2,2] w = {0, -1, 2, 5}, float a = {7}> {
            f = Cast<to = FLOAT>(x)  d = Sub(f, a)  p = MatMul(d, w)  y = Cast<to = INT32>(p) }""",
    ),
    Fixed(
        "both factors not constant",
        before="g (uint8[M,3] x, int8[3,N] w) => (int32[M,N] y) { y = MatMulInteger(x, w) }",
        after="""g (uint8[M,3] x, int8[3,N] w) => (int32[M,N] y) {
            f = Cast<to = FLOAT>(x)  g = Cast<to = FLOAT>(w)  p = MatMul(f, g)  y = Cast<to = INT32>(p) }""",
    ),
    Fixed(
        "600 terms: sums may reach 2**24",
        before="g (uint8[M,600] x, int8[600,2] w) => (int32[M,2] y) { y = MatMulInteger(x, w) }",
        after="""g (uint8[M,600] x, int8[600,2] w) => (int32[M,2] y) {
            f = Cast<to = FLOAT>(x)  g = Cast<to = FLOAT>(w)  p = MatMul(f, g)  y = Cast<to = INT32>(p) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "514 terms stay below: 514 * 255 * 128 is 16,776,960",
        before="g (uint8[M,514] x, int8[514,2] w) => (int32[M,2] y) { y = MatMulInteger(x, w) }",
        after="""g (uint8[M,514] x, int8[514,2] w) => (int32[M,2] y) {
            f = Cast<to = FLOAT>(x)  g = Cast<to = FLOAT>(w)  p = MatMul(f, g)  y = Cast<to = INT32>(p) }""",
    ),
    Flagged(
        "515 terms may exceed it",
        "g (uint8[M,515] x, int8[515,2] w) => (int32[M,2] y) { y = MatMulInteger(x, w) }",
    ),
    Flagged(
        "an unknown number of terms requires --numeric-fixes",
        "g (uint8[M,K] x, int8[K,N] w) => (int32[M,N] y) { y = MatMulInteger(x, w) }",
    ),
    Fixed(
        "a convolution, padded with the zero point",
        before="""g (uint8[N,1,4,4] x) => (int32[N,1,4,4] y) <uint8[1,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9},
            uint8 a = {3}, uint8[1] b = {2}> { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, a, b) }""",
        after="""g (uint8[N,1,4,4] x) => (int32[N,1,4,4] y)
            <float[1,1,3,3] w = {-1, 0, 1, 2, 3, 4, 5, 6, 7}, float a = {3}> {
            f = Cast<to = FLOAT>(x)  d = Sub(f, a)  p = Conv<pads = [1, 1, 1, 1]>(d, w)  y = Cast<to = INT32>(p) }""",
    ),
    Fixed(
        "the output of DynamicQuantizeLinear",
        before="""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {1, -2, 3, 4}> {
            q, s, z = DynamicQuantizeLinear(x)  i = MatMulInteger(q, w, z)  f = Cast<to = FLOAT>(i)  y = Mul(f, s) }""",
        after="""g (float[N,2] x) => (float[N,2] y)
            <float[2,2] w = {1, -2, 3, 4}, float o = {0}, float t = {255}, float k = {1}> {
            a = ReduceMin<keepdims = 0>(x)  b = Min(a, o)  c = ReduceMax<keepdims = 0>(x)  d = Max(c, o)
            e = Sub(d, b)  r = Div(e, t)  n = Equal(e, o)  s = Where(n, k, r)
            i0 = Div(b, s)  i1 = Sub(o, i0)  i2 = Clip(i1, o, t)  z = Round(i2)
            q0 = Div(x, s)  q1 = Round(q0)  q2 = Add(q1, z)  q = Clip(q2, o, t)
            v = Sub(q, z)  p = MatMul(v, w)  i = Cast<to = INT32>(p)  f = Cast<to = FLOAT>(i)  y = Mul(f, s) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "zero points per row of the data, which ONNX Runtime refuses",
        before="""g (uint8[2,2] x) => (int32[2,2] y) <int8[2,2] w = {1, -2, 3, 4}, uint8[2] a = {7, 8}> {
            y = MatMulInteger(x, w, a) }""",
        after="""g (uint8[2,2] x) => (int32[2,2] y) <float[2,2] w = {1, -2, 3, 4}, float[2,1] a = {7, 8}> {
            f = Cast<to = FLOAT>(x)  d = Sub(f, a)  p = MatMul(d, w)  y = Cast<to = INT32>(p) }""",
        runs=False,
    ),
    Fixed(
        "opset 10",
        before="""g (uint8[2,2] x) => (int32[2,2] y) <int8[2,2] w = {1, -2, 3, 4}> { y = MatMulInteger(x, w) }""",
        after="""g (uint8[2,2] x) => (int32[2,2] y) <float[2,2] w = {1, -2, 3, 4}> {
            f = Cast<to = FLOAT>(x)  p = MatMul(f, w)  y = Cast<to = INT32>(p) }""",
        opset=10,
    ),
    Silent("floats", "g (float[M,K] x, float[K,N] w) => (float[M,N] y) { y = MatMul(x, w) }"),
]
