"""QDQ001: uint8 around 128, which is int8 around 0."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._common import QUANTIZE, U4, U8, Linear, described, read
from ._remedy import around, remedies

_MIDDLE: dict[int, int] = {U8: 128, U4: 8}


def is_middle(linear: Linear) -> bool:
    """Whether this is an unsigned type with the midpoint of its range as zero point."""
    return linear.quantizes and linear.point is not None and _MIDDLE.get(linear.elem) == linear.point


@rule("QDQ001", ops=QUANTIZE, safety=Safety.EXACT, severity=Severity.ERROR, hazards=[36])
def centered_unsigned_quantization(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear to uint8 with zero point 128 (or uint4 with 8), which TensorRT refuses.

    ## Why it matters
    The parser fails: `Non-zero zero point is not supported. Please set kENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA
    to enable asymmetric quantization if it is on DLA.` (measured with TensorRT-RTX 1.7.1; uint4 already fails as an
    initializer, `ONNX initializer z cannot be imported into TensorRT!`). TensorRT 8.6 and 10.x refuse it likewise.
    ONNX Runtime's quantizer writes such models by default. The parser treats the domain `com.microsoft` the same.

    ## Fix
    int8 with zero point 0 (int4 for uint4): both quantize to `clip(round(x / s), -128, 127)` steps of the scale,
    including saturation, infinities and NaN. The whole region changes at once: the QuantizeLinear, every
    DequantizeLinear, nodes that only move elements (Transpose, Reshape, Slice, Concat, Gather, MaxPool ...),
    constants among them, which are stored minus 128, and declared types.

    If a graph output must keep its type or another node reads the integers, they are written in floats instead:
    `Clip(Round(x / s) + z, 0, 255)`. The bits are the same, except that NaN stays NaN, but INT8 execution is lost, so
    this requires `--numeric-fixes`. No fix if a reader is unknown or a size is missing.

    ## References
    - NVIDIA/TensorRT issues 2774, 4698, 1749
    - https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """
    linear = read(node, model)
    if linear is None or not is_middle(linear):
        return
    region = around(linear, model)
    reason = f" ({region.problem})" if region.problem else ""
    yield Match(
        f"{described(linear)}: {target_of(model).title} supports only signed types with zero point 0, "
        f"such as int{8 if linear.elem == U8 else 4}{reason}",
        node=node,
        fix=remedies(region, model),
        reads=region.reads,
    )


_PAIR = "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)"


centered_unsigned_quantization.examples = [
    Fixed(
        "a Q/DQ pair with one scale",
        before=f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}, uint8 z = {{128}}> {{ {_PAIR} }}",
        after=f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}, int8 z = {{0}}> {{ {_PAIR} }}",
    ),
    Fixed(
        "per-channel scales, negative axis",
        before="""g (float[N,2] x) => (float[N,2] y) <float[2] s = {0.1, 0.2}, uint8[2] z = {128, 128}> {
            q = QuantizeLinear<axis = -1>(x, s, z)  y = DequantizeLinear<axis = -1>(q, s, z) }""",
        after="""g (float[N,2] x) => (float[N,2] y) <float[2] s = {0.1, 0.2}, int8[2] z = {0, 0}> {
            q = QuantizeLinear<axis = -1>(x, s, z)  y = DequantizeLinear<axis = -1>(q, s, z) }""",
    ),
    Fixed(
        "blocked quantization",
        before="""g (float[2,6] x) => (float[2,6] y) <float[2,2] s = {0.1, 0.2, 0.3, 0.4},
            uint8[2,2] z = {128, 128, 128, 128}> { q = QuantizeLinear<axis = 1, block_size = 3>(x, s, z)
            y = DequantizeLinear<axis = 1, block_size = 3>(q, s, z) }""",
        after="""g (float[2,6] x) => (float[2,6] y) <float[2,2] s = {0.1, 0.2, 0.3, 0.4},
            int8[2,2] z = {0, 0, 0, 0}> { q = QuantizeLinear<axis = 1, block_size = 3>(x, s, z)
            y = DequantizeLinear<axis = 1, block_size = 3>(q, s, z) }""",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "several readers with data movement and a constant in between",
        before="""g (float[2,2] x) => (float[4] y, float[2,2] v) <float s = {0.1}, uint8 z = {128},
            uint8[2,2] c = {0, 127, 128, 255}, int64[1] r = {-1}> {
            q = QuantizeLinear(x, s, z)  t = Transpose(q)  b = Concat<axis = 0>(t, c)  u = Reshape(b, r)
            o, p = Split<axis = 0, num_outputs = 2>(u)
            y = DequantizeLinear(o, s, z)  v = DequantizeLinear(q, s, z) }""",
        after="""g (float[2,2] x) => (float[4] y, float[2,2] v) <float s = {0.1}, int8 z = {0},
            int8[2,2] c = {-128, -1, 0, 127}, int64[1] r = {-1}> {
            q = QuantizeLinear(x, s, z)  t = Transpose(q)  b = Concat<axis = 0>(t, c)  u = Reshape(b, r)
            o, p = Split<axis = 0, num_outputs = 2>(u)
            y = DequantizeLinear(o, s, z)  v = DequantizeLinear(q, s, z) }""",
    ),
    Fixed(
        "connected tensors change together, with their declared types",
        before="""g (float[N,2] x, float[N,2] w) => (float[N,4] y) <float s = {0.1}, float r = {0.2}, uint8 z = {128},
            uint8[N,2] q> { q = QuantizeLinear(x, s, z)  p = QuantizeLinear(w, r, z)  b = Concat<axis = 1>(q, p)
            y = DequantizeLinear(b, s, z) }""",
        after="""g (float[N,2] x, float[N,2] w) => (float[N,4] y) <float s = {0.1}, float r = {0.2}, int8 z = {0},
            int8[N,2] q> { q = QuantizeLinear(x, s, z)  p = QuantizeLinear(w, r, z)  b = Concat<axis = 1>(q, p)
            y = DequantizeLinear(b, s, z) }""",
    ),
    Fixed(
        "a reader inside a branch",
        before="""g (float[N,2] x, bool c) => (float[N,2] y) <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear(x, s, z)
            y = If(c)<then_branch = t () => (float[N,2] u) { u = DequantizeLinear(q, s, z) },
                      else_branch = e () => (float[N,2] v) { v = Neg(x) }> }""",
        after="""g (float[N,2] x, bool c) => (float[N,2] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)
            y = If(c)<then_branch = t () => (float[N,2] u) <int8 o = {0}> { u = DequantizeLinear(q, s, o) },
                      else_branch = e () => (float[N,2] v) { v = Neg(x) }> }""",
    ),
    Fixed(
        "opset 10, before the axis attribute, and IR version 3",
        before=f"""g (float[2,2] x) => (float[2,2] y) {{ s = Constant<value = float {{0.1}}>()
            z = Constant<value = uint8 {{128}}>()  {_PAIR} }}""",
        after="""g (float[2,2] x) => (float[2,2] y) { s = Constant<value = float {0.1}>()
            z = Constant<value = int8 {0}>()  q = QuantizeLinear(x, s, z)
            w = Constant<value = int8 {0}>()  y = DequantizeLinear(q, s, w) }""",
        opset=10,
        ir_version=3,
    ),
    Fixed(
        "ONNX Runtime's own domain",
        before="""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}> {
            q = com.microsoft.QuantizeLinear(x, s, z)  y = com.microsoft.DequantizeLinear(q, s, z) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {0}> {
            q = com.microsoft.QuantizeLinear(x, s, z)  y = com.microsoft.DequantizeLinear(q, s, z) }""",
    ),
    Fixed(
        "output_dtype names the output type as well",
        before="""g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear<output_dtype = 2>(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after=f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}, int8 z = {{0}}> {{ {_PAIR} }}",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "a graph output keeps its type: only floats are possible",
        before=f"g (float[N,4] x) => (float[N,4] y, uint8[N,4] q) <float s = {{0.1}}, uint8 z = {{128}}> {{ {_PAIR} }}",
        after="""g (float[N,4] x) => (float[N,4] y, uint8[N,4] q)
            <float s = {0.1}, float z = {128}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  q = Cast<to = UINT8>(c)
            b = Sub(c, z)  y = Mul(b, s) }""",
        safety=Safety.NUMERIC,
        differs={"branch": "quantized values that leave a branch are not followed"},
    ),
    Fixed(
        "an operator that uses the integer values",
        before="""g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear(x, s, z)  y = Cast<to = FLOAT>(q) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, float z = {128}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  y = Cast<to = FLOAT>(c) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "an unknown reader",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear(x, s, z)  y = my.Op(q) }""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Flagged(
        "readers with different zero points",
        """g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}, uint8 w = {127}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, w) }""",
    ),
    Silent(
        "around 127 the limits differ: QDQ003",
        f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}, uint8 z = {{127}}> {{ {_PAIR} }}",
    ),
    Silent(
        "int8 around 0",
        f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}, int8 z = {{0}}> {{ {_PAIR} }}",
    ),
    Silent(
        "the zero point may be overridden",
        f"g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {{0.1}}, uint8 z = {{128}}> {{ {_PAIR} }}",
    ),
]
