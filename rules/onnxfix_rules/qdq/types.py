"""Quantization to types that TensorRT reads otherwise or refuses (QDQ004, QDQ006, QDQ014)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnx import TensorProto

from onnxfix.rule import (
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    name_of,
    rule,
    target_of,
)

from ._read import DEQUANTIZE, I2, QUANTIZE, U2, U4, U8, described, is_middle, read
from ._rewrite import around, fixed, floats, lossless, remedies

MISSING = (TensorProto.INT16, TensorProto.UINT16, U4, I2, U2)


@rule("QDQ006", ops=QUANTIZE, safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[57])
def quantization_to_unsupported_type(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear to a type that TensorRT does not support: int16, uint16, uint4, int2 or uint2.

    ## Why it matters
    The parser fails. Measured with TensorRT-RTX 1.7.1: `Failed to import initializer` at the zero point (`Found
    unsupported datatype (5) when importing initializer: z` for int16, `ONNX initializer z cannot be imported into
    TensorRT!` for uint4), and `TensorRT only allows FP8, INT8, INT4, and FP4 quantization` or `Attribute output_dtype
    specifies an unsupported data type` if an attribute names the type.

    ## Fix
    The integers are written in floats, float32 for 16 bits: `Clip(Round(x / s) + z, least, largest)` and `(q - z) *
    s`. Bit-identical to ONNX Runtime and the ONNX reference, except for NaN. Requires `--numeric-fixes`: 16 bits
    mostly mark tensors whose accuracy matters, which TensorRT need not quantize at all, so removing the quantization
    is better still. uint4 becomes int4 around 0 if the data cannot reach the limits.

    No fix if a size or a reader is unknown.

    ## References
    - https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    linear = read(node, model)
    if linear is None or not linear.quantizes or linear.elem not in MISSING or is_middle(linear):
        return
    region = around(linear, model)
    yield Match(
        f"{target_of(model).title} does not support quantization to {name_of(linear.elem)}{region.reason}",
        node=node,
        fix=remedies(region, model),
        reads=region.reads,
    )


_PAIR = "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)"
_fixed = partial(Fixed, ir_version=10, opset=21, safety=Safety.NUMERIC)
_silent = partial(Silent, ir_version=10, opset=21)


def _dequantize_linear(elem: str, z: str, s: str = "0.1") -> str:
    return (
        f"g (float[N,4] x) => (float[N,4] y) <float s = {{{s}}}, {elem} z = {{{z}}}> {{ "
        f"q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }}"
    )


quantization_to_unsupported_type.examples = [
    _fixed(
        "int16",
        before=_dequantize_linear("int16", "0"),
        after="""g (float[N,4] x) => (float[N,4] y)
            <float s = {0.1}, float z = {0}, float l = {-32768}, float h = {32767}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  y = Mul(c, s) }""",
    ),
    _fixed(
        "uint16 by output_dtype alone, in half precision: the integers need float32",
        before="""g (float16[N,4] x, float16 s) => (float16[N,4] y) {
            q = QuantizeLinear<output_dtype = 4>(x, s)  y = DequantizeLinear(q, s) }""",
        after="""g (float16[N,4] x, float16 s) => (float16[N,4] y) <float l = {0}, float h = {65535}> {
            d = Div(x, s)  w = Cast<to = FLOAT>(d)  r = Round(w)  a = Add(r, l)  c = Clip(a, l, h)
            n = Cast<to = FLOAT16>(c)  y = Mul(n, s) }""",
        runs=False,
    ),
    Flagged("requires --numeric-fixes", _dequantize_linear("int16", "0"), opset=21, ir_version=10),
    _fixed(
        "uint4 around 3",
        before=_dequantize_linear("uint4", "3", s="0.5"),
        after="""g (float[N,4] x) => (float[N,4] y)
            <float s = {0.5}, float z = {3}, float l = {0}, float h = {15}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  b = Sub(c, z)  y = Mul(b, s) }""",
    ),
    Fixed(
        "Microsoft's domain, which supported it before ONNX",
        before="""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint16 z = {32768}> {
            q = com.microsoft.QuantizeLinear(x, s, z)  y = com.microsoft.DequantizeLinear(q, s, z) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float[N,4] x) => (float[N,4] y)
            <float s = {0.1}, float z = {32768}, float l = {0}, float h = {65535}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  b = Sub(c, z)  y = Mul(b, s) }""",
        safety=Safety.NUMERIC,
    ),
    _silent("uint4 around 8 is covered by QDQ001", _dequantize_linear("uint4", "8", s="0.5")),
    _silent(
        "int8 and int4",
        """g (float[N,4] x) => (float[N,4] y) <float s = {0.5}, int8 z = {0}, int4 w = {0}> {
            q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
            p = QuantizeLinear(d, s, w)  y = DequantizeLinear(p, s, w) }""",
    ),
    Silent(
        "a 16-bit zero point at a DequantizeLinear",
        """g (int16[N,4] x) => (float[N,4] y) <float s = {0.1}, int16 z = {3}> { y = DequantizeLinear(x, s, z)
            }""",
        opset=21,
    ),
    Flagged(
        "bfloat16 in opset 12, which has no operators for it",
        """<ir_version: 8, opset_import: ["" : 12, "com.microsoft" : 1]>
            g (bfloat16[N] x) => (bfloat16[N] y) <bfloat16 s = {bf16(0.5)}, uint16 z = {7}> {
            q = com.microsoft.QuantizeLinear(x, s, z)  y = com.microsoft.DequantizeLinear(q, s, z) }""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
]


@rule("QDQ014", ops=DEQUANTIZE, safety=Safety.EXACT, severity=Severity.ERROR, hazards=[49, 36])
def quantized_graph_input(node: Node, model: Model) -> Iterator[Match]:
    """A DequantizeLinear of uint8 that is not quantized in the graph: a graph input, directly or moved.

    ## Why it matters
    The parser fails: `Found unsupported input type of UINT8` (measured with TensorRT-RTX 1.7.1, with and without a
    zero point). A network input may be uint8, but the only operation on it is a Cast.

    ## Fix
    `Mul(Sub(Cast(x), zero point), scale)`, with the Cast before any nodes that move the integers. Exact: the
    differences are integers of at most 9 bits, and the product equals that of DequantizeLinear.

    No fix if another node reads or produces the moved integers, or if a rank or size is unknown.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    """
    linear = read(node, model)
    if linear is None or linear.quantizes or linear.elem != U8 or fixed(linear.data):
        return
    region = around(linear, model)
    if not region.sources or region.quantizers or region.dynamic or region.entries or region.products:
        return
    given = all(value.is_input and value.producer is None for value in region.sources)
    yield Match(
        f"{described(linear)} is dequantized, but not quantized by the graph: {target_of(model).title} "
        f"only casts uint8{region.reason}",
        node=node,
        fix=floats(region, model, "replace by Mul(Sub(Cast(x), zero point), scale)") if given else None,
        reads=region.reads,
    )


quantized_graph_input.examples = [
    Fixed(
        "an image with a zero point",
        before="""g (uint8[N,4] x) => (float[N,4] y) <float s = {0.02}, uint8 z = {114}> {
            y = DequantizeLinear(x, s, z) }""",
        after="""g (uint8[N,4] x) => (float[N,4] y) <float s = {0.02}, float z = {114}> {
            f = Cast<to = FLOAT>(x)  d = Sub(f, z)  y = Mul(d, s) }""",
    ),
    Fixed(
        "without a zero point",
        before="g (uint8[N,4] x) => (float[N,4] y) <float s = {0.02}> { y = DequantizeLinear(x, s) }",
        after="g (uint8[N,4] x) => (float[N,4] y) <float s = {0.02}> { f = Cast<to = FLOAT>(x)  y = Mul(f, s) }",
    ),
    Fixed(
        "a Transpose before it",
        before="""g (uint8[N,4] x) => (float[4,N] y) <float s = {0.02}, uint8[4,N] t> {
            t = Transpose(x)  y = DequantizeLinear(t, s) }""",
        after="""g (uint8[N,4] x) => (float[4,N] y) <float s = {0.02}, float[4,N] t> {
            f = Cast<to = FLOAT>(x)  t = Transpose(f)  y = Mul(t, s) }""",
    ),
    Fixed(
        "per-channel scales, opset 13",
        before="""g (uint8[N,2,3] x) => (float[N,2,3] y) <float[2] s = {0.02, 0.03}, uint8[2] z = {3, 4}> {
            y = DequantizeLinear(x, s, z) }""",
        after="""g (uint8[N,2,3] x) => (float[N,2,3] y) <float[1,2,1] s = {0.02, 0.03}, float[1,2,1] z = {3, 4}> {
            f = Cast<to = FLOAT>(x)  d = Sub(f, z)  y = Mul(d, s) }""",
        opset=13,
    ),
    Fixed(
        "two readers with different scales",
        before="""g (uint8[N,4] x) => (float[N,4] y, float[N,4] v) <float s = {0.02}, float t = {0.03}> {
            y = DequantizeLinear(x, s)  v = DequantizeLinear(x, t) }""",
        after="""g (uint8[N,4] x) => (float[N,4] y, float[N,4] v) <float s = {0.02}, float t = {0.03}> {
            f = Cast<to = FLOAT>(x)  y = Mul(f, s)  g = Cast<to = FLOAT>(x)  v = Mul(g, t) }""",
    ),
    Fixed(
        "opset 10",
        before="""g (uint8[2,4] x) => (float[2,4] y) <float s = {0.02}, uint8 z = {114}> {
            y = DequantizeLinear(x, s, z) }""",
        after="""g (uint8[2,4] x) => (float[2,4] y) <float s = {0.02}, float z = {114}> {
            f = Cast<to = FLOAT>(x)  d = Sub(f, z)  y = Mul(d, s) }""",
        opset=10,
    ),
    Flagged(
        "another reader of the transposed integers",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (uint8[N,4] x) => (float[4,N] y, float[4,N] v) <float s = {0.02}> {
            t = Transpose(x)  y = DequantizeLinear(t, s)  v = my.Op(t) }""",
        runs=False,
    ),
    Flagged(
        "the output of another operator, which may be quantized differently",
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (uint8[N,4] x) => (float[N,4] y) <float s = {0.02}, uint8 z = {3}> {
            a = com.microsoft.QLinearAdd(x, s, z, x, s, z, s, z)  y = DequantizeLinear(a, s, z) }""",
    ),
    Silent(
        "int8 around 0", "g (int8[N,4] x) => (float[N,4] y) <float s = {0.02}> { y = DequantizeLinear(x, s) }"
    ),
    Silent(
        "a Cast and Mul instead of DequantizeLinear",
        "g (uint8[N,4] x) => (float[N,4] y) <float s = {0.02}> { f = Cast<to = FLOAT>(x)  y = Mul(f, s) }",
    ),
    Silent(
        "quantized in the graph: covered by QDQ004",
        """g (float[N,4] x) => (float[N,4] y) <float s = {0.02}> {
            q = QuantizeLinear(x, s)  y = DequantizeLinear(q, s) }""",
    ),
    Silent(
        "weights are covered by QDQ002",
        """g (float[N,2] x) => (float[N,2] y) <uint8[2] w = {0, 255}, float s = {0.02}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
    ),
]


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
    - A product with quantized constants stays in INT8, as QDQ003 says. Requires `--numeric-fixes`.
    - Otherwise the integers are written in floats, `Clip(Round(x / s), 0, 255) * s`. Bit-identical to ONNX Runtime
      and the ONNX reference, except for NaN, but without INT8 execution. Requires `--numeric-fixes`.

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
    how = "which the data's range allows"
    if not lossless(fix):
        how = f"which saturates at -128 and 127 scales{region.reason}"
    message = f"{described(linear)}: {target_of(model).title} imports it as int8, {how}"
    yield Match(
        message, node=node, fix=fix, severity=Severity.INFO if lossless(fix) else None, reads=region.reads
    )


_BARE = "q = QuantizeLinear(x, s)  y = DequantizeLinear(q, s)"
_FLOATS = """<float s = {0.1}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, l)  c = Clip(a, l, h)  y = Mul(c, s) }"""
_NORMAL = "f = Cast<to = FLOAT>(x)  n = Div(f, k)"
_numeric = partial(Fixed, safety=Safety.NUMERIC)


uint8_read_as_int8.examples = [
    _numeric(
        "a product with quantized constants stays in INT8",
        before=f"""g (float[N,2] x) => (float[N] y) <float s = {{0.5}}, int8[2] w = {{1, 2}}, float t = {{2}}> {{
            {_BARE.replace("y", "d")}  v = DequantizeLinear(w, t)  y = MatMul(d, v) }}""",
        after="""g (float[N,2] x) => (float[N] y) <float s = {0.5}, float c = {-128}, float o = {1}, int8 z = {0},
            int8[2] w = {1, 2}, float t = {2}, float m = {-384}> { f = Div(x, s)  r = Round(f)  a = Add(r, c)
            q = QuantizeLinear(a, o, z)  d = DequantizeLinear(q, s, z)  v = DequantizeLinear(w, t)
            p = MatMul(d, v)  y = Sub(p, m) }""",
    ),
    _numeric(
        "zero point 0",
        before=_dequantize_linear("uint8", "0"),
        after=f"g (float[N,4] x) => (float[N,4] y) {_FLOATS}",
    ),
    _numeric(
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
    _numeric(
        "a Sigmoid in 7 bits: equivalent except for NaN",
        before="""g (float[N,4] x) => (float[N,4] y) <float s = {0.00787402}, uint8 z = {0}> {
            n = Sigmoid(x)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <float s = {0.00787402}, int8 z = {0}> {
            n = Sigmoid(x)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
    _numeric(
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
    _numeric(
        "a quantized graph output: TensorRT would return int8",
        before="g (float[N,4] x) => (uint8[N,4] y) <float s = {0.1}> { y = QuantizeLinear(x, s) }",
        after="""g (float[N,4] x) => (uint8[N,4] y) <float s = {0.1}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, l)  c = Clip(a, l, h)  y = Cast<to = UINT8>(c) }""",
        differs={"branch": "quantized values that leave a branch are not followed"},
    ),
    _numeric(
        "per-channel zero points, all 0",
        before="""g (float[N,2] x) => (float[N,2] y) <float[2] s = {0.1, 0.2}, uint8[2] z = {0, 0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,2] x) => (float[N,2] y)
            <float[1,2] s = {0.1, 0.2}, float[1,2] z = {0, 0}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  y = Mul(c, s) }""",
    ),
    _numeric(
        "half precision, with the division in half precision",
        before="""g (float16[N,4] x, float16 s) => (float16[N,4] y) <uint8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float16[N,4] x, float16 s) => (float16[N,4] y) <float16 l = {f16(0.0)}, float16 h = {f16(255.0)}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, l)  c = Clip(a, l, h)  y = Mul(c, s) }""",
        opset=19,
    ),
    _numeric(
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
    Silent("other zero points are refused, not misread", _dequantize_linear("uint8", "37")),
    Flagged(
        "output_dtype UINT8 without a zero point",
        f"g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}> {{ {_BARE.replace('(x', '<output_dtype = 2>(x')} }}",
        opset=21,
    ),
]
