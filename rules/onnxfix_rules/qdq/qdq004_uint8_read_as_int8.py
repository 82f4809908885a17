"""QDQ004: quantization to uint8 around 0, which TensorRT imports as int8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._common import QUANTIZE, U8, described, read
from ._remedy import around, lossless, remedies


@rule("QDQ004", ops=QUANTIZE, safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[37])
def uint8_read_as_int8(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear to uint8 around 0 (also the default without a zero point), which TensorRT imports as int8.

    ## Why it matters
    The build succeeds but results differ. ONNX: no zero point means uint8 with zero point 0, range 0 to 255.
    TensorRT-RTX 1.7.1 imports a QUANTIZE layer with output type INT8 (read from the network's layers; no engine was
    executed), range -128 to 127: with a scale of 0.05, -1.0 becomes -1.0 instead of 0.0 and 7.0 becomes 6.35. With a
    zero point it warns `TensorRT supports QuantizeLinear/DequantizeLinear with UINT8 zero_point only on DLA (version
    >= 3.16). Defaulting to INT8 instead.`; without one it does not warn. With `output_dtype` UINT8 it refuses the
    model. A quantized graph output changes its type, too.

    It is harmless only if the data lies between 0 and 127 scales. If that is proven, the finding is a remark.

    ## Fix
    - Proven range: int8 with zero point 0, as TensorRT imports it anyway. Exact; if the data may be NaN it requires
      `--numeric-fixes`, since int8 quantizes NaN to -128.
    - Otherwise the integers are written in floats, `Clip(Round(x / s), 0, 255) * s`. Bit-identical to ONNX Runtime
      and the ONNX reference, except for NaN, but without INT8 execution. Requires `--numeric-fixes`. To keep INT8,
      quantize again with signed activations, or in 7 bits (`reduce_range` of ONNX Runtime's quantizer).

    No fix if a size or a reader is unknown.

    ## References
    - https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    - leimao/PyTorch-Eager-Mode-Quantization issue 1, which considers it harmless
    """
    linear = read(node, model)
    if linear is None or not linear.quantizes or linear.elem != U8 or linear.point != 0:
        return
    region = around(linear, model)
    fix = remedies(region, model)
    title = target_of(model).title
    reason = f" ({region.problem})" if region.problem else ""
    if lossless(fix):
        yield Match(
            f"{described(linear)}: {title} imports it as int8, which the data's range allows",
            node=node,
            fix=fix,
            severity=Severity.INFO,
            reads=region.reads,
        )
        return
    yield Match(
        f"{described(linear)}: {title} imports it as int8, which saturates at -128 and 127 scales{reason}",
        node=node,
        fix=fix,
        reads=region.reads,
    )


_PAIR = "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)"
_BARE = "q = QuantizeLinear(x, s)  y = DequantizeLinear(q, s)"
_FLOATS = """<float s = {0.1}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, l)  c = Clip(a, l, h)  y = Mul(c, s) }"""
_NORMAL = "f = Cast<to = FLOAT>(x)  n = Div(f, k)"
_fixed = partial(Fixed, safety=Safety.NUMERIC)


uint8_read_as_int8.examples = [
    _fixed(
        "zero point 0",
        before=f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}, uint8 z = {{0}}> {{ {_PAIR} }}",
        after=f"g (float[N,4] x) => (float[N,4] y) {_FLOATS}",
    ),
    _fixed(
        "without a zero point: uint8 by default",
        before=f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}> {{ {_BARE} }}",
        after=f"g (float[N,4] x) => (float[N,4] y) {_FLOATS}",
    ),
    Flagged(
        "losing INT8 requires --numeric-fixes",
        f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}> {{ {_BARE} }}",
    ),
    Flagged(
        "opset 10 and IR version 3",
        f"g (float[2,4] x) => (float[2,4] y) {{ s = Constant<value = float {{0.1}}>()  {_BARE} }}",
        opset=10,
        ir_version=3,
    ),
    Fixed(
        "data below 128 scales: int8 is equivalent",
        before=f"""g (uint8[N,4] x) => (float[N,4] y) <float k = {{255}}, float s = {{0.01}}> {{
            {_NORMAL}  q = QuantizeLinear(n, s)  y = DequantizeLinear(q, s) }}""",
        after=f"""g (uint8[N,4] x) => (float[N,4] y) <float k = {{255}}, float s = {{0.01}}, int8 z = {{0}}> {{
            {_NORMAL}  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s) }}""",
    ),
    _fixed(
        "a Sigmoid in 7 bits: equivalent except for NaN",
        before="""g (float[N,4] x) => (float[N,4] y) <float s = {0.00787402}, uint8 z = {0}> {
            n = Sigmoid(x)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <float s = {0.00787402}, int8 z = {0}> {
            n = Sigmoid(x)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
    _fixed(
        "a Sigmoid in 8 bits does not fit",
        before="""g (float[N,4] x) => (float[N,4] y) <float s = {0.00392157}, uint8 z = {0}> {
            n = Sigmoid(x)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <float s = {0.00392157}, float l = {0}, float h = {255}> {
            n = Sigmoid(x)  d = Div(n, s)  r = Round(d)  a = Add(r, l)  c = Clip(a, l, h)  y = Mul(c, s) }""",
    ),
    Flagged(
        "a Relu has no upper bound",
        f"g (float[N,4] w) => (float[N,4] y) <float s = {{0.1}}> {{ x = Relu(w)  {_BARE} }}",
    ),
    _fixed(
        "a quantized graph output: TensorRT would return int8",
        before="g (float[N,4] x) => (uint8[N,4] y) <float s = {0.1}> { y = QuantizeLinear(x, s) }",
        after="""g (float[N,4] x) => (uint8[N,4] y) <float s = {0.1}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, l)  c = Clip(a, l, h)  y = Cast<to = UINT8>(c) }""",
        differs={"branch": "quantized values that leave a branch are not followed"},
    ),
    _fixed(
        "per-channel zero points, all 0",
        before="""g (float[N,2] x) => (float[N,2] y) <float[2] s = {0.1, 0.2}, uint8[2] z = {0, 0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,2] x) => (float[N,2] y)
            <float[1,2] s = {0.1, 0.2}, float[1,2] z = {0, 0}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  y = Mul(c, s) }""",
    ),
    _fixed(
        "half precision, with the division in half precision",
        before="""g (float16[N,4] x, float16 s) => (float16[N,4] y) <uint8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float16[N,4] x, float16 s) => (float16[N,4] y) <float16 l = {f16(0.0)}, float16 h = {f16(255.0)}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, l)  c = Clip(a, l, h)  y = Mul(c, s) }""",
        opset=19,
    ),
    _fixed(
        "opset 23: the division uses the scale's type, the result has its own",
        before="""g (float16[N,4] x) => (float16[N,4] y) <float s = {0.1}> {
            q = QuantizeLinear(x, s)  y = DequantizeLinear<output_dtype = 10>(q, s) }""",
        after="""g (float16[N,4] x) => (float16[N,4] y) <float s = {0.1}, float l = {0}, float h = {255}> {
            w = Cast<to = FLOAT>(x)  d = Div(w, s)  r = Round(d)  a = Add(r, l)  c = Clip(a, l, h)
            m = Mul(c, s)  y = Cast<to = FLOAT16>(m) }""",
        opset=23,
        ir_version=11,
    ),
    Silent(
        "int8, by zero point or by output_dtype",
        """g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
            p = QuantizeLinear<output_dtype = 3>(d, s)  y = DequantizeLinear(p, s) }""",
        opset=21,
        ir_version=10,
    ),
    Silent(
        "other zero points are refused, not misread",
        f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}, uint8 z = {{37}}> {{ {_PAIR} }}",
    ),
    Silent(
        "output_dtype INT8 without a zero point",
        """g (float[N,4] x) => (float[N,4] y) <float s = {0.1}> { q = QuantizeLinear<output_dtype = 3>(x, s) y
            = DequantizeLinear(q, s) }""",
        opset=21,
    ),
    Flagged(
        "output_dtype UINT8 without a zero point",
        """g (float[N,4] x) => (float[N,4] y) <float s = {0.1}> { q = QuantizeLinear<output_dtype = 2>(x, s) y
            = DequantizeLinear(q, s) }""",
        opset=21,
    ),
]
