"""Zero points that TensorRT refuses or reads as 0."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._read import DEQUANTIZE, I4, I8, QUANTIZE, U8, Linear, described, is_middle, read
from ._region import Region
from ._rewrite import around, fixed, floats, remedies


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
    yield Match(
        f"{described(linear)}: {target_of(model).title} supports only signed types with zero point 0, "
        f"such as int{8 if linear.elem == U8 else 4}{region.reason}",
        node=node,
        fix=remedies(region, model),
        reads=region.reads,
    )


_PAIR = "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)"
_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)


def _quantize_linear(z: str, x: str = "N,4", elem: str = "uint8") -> str:
    return (
        f"g (float[{x}] x) => (float[{x}] y) <float s = {{0.1}}, {elem} z = {{{z}}}> {{ "
        f"q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }}"
    )


centered_unsigned_quantization.examples = [
    Fixed(
        "a Q/DQ pair with one scale", before=_quantize_linear("128"), after=_quantize_linear("0", elem="int8")
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
        after=_quantize_linear("0", elem="int8"),
        opset=21,
        ir_version=10,
    ),
    _fixed(
        "a graph output keeps its type: only floats are possible",
        before=f"g (float[N,4] x) => (float[N,4] y, uint8[N,4] q) <float s = {{0.1}}, uint8 z = {{128}}> {{ {_PAIR} }}",
        after="""g (float[N,4] x) => (float[N,4] y, uint8[N,4] q)
            <float s = {0.1}, float z = {128}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  q = Cast<to = UINT8>(c)
            b = Sub(c, z)  y = Mul(b, s) }""",
        differs={"branch": "quantized values that leave a branch are not followed"},
    ),
    _fixed(
        "an operator that uses the integer values",
        before="""g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear(x, s, z)  y = Cast<to = FLOAT>(q) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, float z = {128}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  y = Cast<to = FLOAT>(c) }""",
    ),
    _flagged(
        "an unknown reader",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear(x, s, z)  y = my.Op(q) }""",
    ),
    Flagged(
        "readers with different zero points",
        """g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, uint8 z = {128}, uint8 w = {127}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, w) }""",
    ),
    Silent("around 127 the limits differ: QDQ003", _quantize_linear("127")),
    Silent("int8 around 0", _quantize_linear("0", elem="int8")),
    Silent(
        "the zero point may be overridden",
        f"g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {{0.1}}, uint8 z = {{128}}> {{ {_PAIR} }}",
    ),
]


@rule("QDQ003", ops=(*QUANTIZE, *DEQUANTIZE), safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[36])
def nonzero_zero_point(node: Node, model: Model) -> Iterator[Match]:
    """An 8-bit QuantizeLinear or DequantizeLinear with a nonzero zero point.

    ## Why it matters
    The parser fails: `Non-zero zero point is not supported. Please set kENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA
    to enable asymmetric quantization if it is on DLA.` (measured with TensorRT-RTX 1.7.1; TensorRT 8.6 and 10.x
    likewise). One nonzero element in a vector of zero points is enough.

    ## Fix
    The best fix is to quantize again with symmetric settings (`ActivationSymmetric` of ONNX Runtime's quantizer):
    TensorRT does not support asymmetric quantization, int8 around 0 with the same scale saturates at other values, and
    with a larger scale it is coarser.

    - If the data cannot reach the limits, int8 around 0 represents the same integers and keeps INT8 execution: images
      cast from uint8, constants, results of Sigmoid, Tanh, Clip and the like with a scale that leaves room. Exact; if
      the data may be NaN it requires `--numeric-fixes`, since NaN is quantized to the type's lowest value.
    - If a MatMul, Gemm or Conv multiplies the data by quantized constants, the integers are stored as int8, for uint8
      minus 128, and the product stays in INT8: QuantizeLinear gets `Round(x / s) + z - 128` with a scale of 1, which
      keeps ties and saturation, and the product of the constant `(z - 128) * s` is subtracted behind the product. A
      Conv that pads gets a Pad in front, since 0 is another integer now. Requires `--numeric-fixes`.
    - Otherwise the integers are written in floats, `Clip(Round(x / s) + z, 0, 255)` and `(q - z) * s`. Bit-identical
      to ONNX Runtime and the ONNX reference, except for NaN, at the cost of four to six cheap layers and INT8
      execution. Requires `--numeric-fixes`.
    - A DequantizeLinear of an int8 graph input is written as Cast, Sub and Mul: exact.

    No fix if a size, rank or reader is unknown.

    ## References
    - NVIDIA/TensorRT issues 2774, 4698, 1749
    - https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """
    linear = read(node, model)
    if linear is None or linear.elem not in (I8, U8, I4) or is_middle(linear) or not _shifted(linear):
        return
    if not linear.quantizes and fixed(linear.data):
        return
    region = around(linear, model)
    if not linear.quantizes and _elsewhere(linear, region):
        return
    fix = remedies(region, model) if region.quantizers else floats(region, model, "compute in floats")
    message = f"{described(linear)}: {target_of(model).title} supports only zero point 0{region.reason}"
    yield Match(message, node=node, fix=fix, reads=region.reads)


def _shifted(linear: Linear) -> bool:
    # Of an empty one even a copy may be too large for numpy.
    return linear.zeros is not None and linear.zeros.size > 0 and bool(linear.zeros.astype(int).any())


def _elsewhere(linear: Linear, region: Region) -> bool:
    """Whether the finding belongs to another node or rule: QDQ014 for uint8 inputs, QDQ012 for moved constants."""
    if region.sources and linear.elem == U8:
        return True
    made = (region.quantizers, region.sources, region.dynamic, region.entries, region.products)
    if not any(made):
        return True
    return any(is_middle(other) or _shifted(other) for other in region.quantizers) or bool(region.dynamic)


_FLOATS = """<float s = {0.1}, float z = {37}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  b = Sub(c, z)  y = Mul(b, s) }"""


_UINT8 = "float s = {0.5}, uint8 z = {28}, int8[2,2] w = {1, -2, 3, 4}, float t = {2}"
_INT8 = _UINT8.replace("uint8 z = {28}", "float c = {-100}, float o = {1}, int8 z = {0}")
_Q, _DQ = "q = QuantizeLinear(x, s, z)", "d = DequantizeLinear(q, s, z)  v = DequantizeLinear(w, t)"
_ROUNDED, _ONE = "f = Div(x, s)  r = Round(f)  a = Add(r, c)", "q = QuantizeLinear(a, o, z)"


nonzero_zero_point.examples = [
    _fixed(
        "uint8 around 37",
        before=_quantize_linear("37"),
        after=f"g (float[N,4] x) => (float[N,4] y) {_FLOATS}",
    ),
    *(
        _fixed(
            f"a {product.partition('(')[0].partition('<')[0]} with quantized constants stays in INT8",
            before=f"g (float[N,2] x) => (float[N,2] y) <{_UINT8}> {{ {_Q}  {_DQ}  y = {product} }}",
            after=f"""g (float[N,2] x) => (float[N,2] y) <{_INT8}, float[2] m = {{{share}}}> {{
                {_ROUNDED}  {_ONE}  {_DQ}  p = {product}  y = Sub(p, m) }}""",
        )
        for product, share in {
            "MatMul(d, v)": "-400, -200",
            "Gemm<alpha = 2.0, transB = 1>(d, v)": "200, -1400",
        }.items()
    ),
    _fixed(
        "a Conv that pads: with the zero point, before the integers are stored",
        before=f"""g (float[N,1,3,3] x) => (float[N,1,3,2] y) <{_UINT8.replace("[2", "[1,1,2")}> {{
            {_Q}  {_DQ}  y = Conv<pads = [1, 0, 0, 0]>(d, v) }}""",
        after=f"""g (float[N,1,3,3] x) => (float[N,1,3,2] y) <{_INT8.replace("[2", "[1,1,2")},
            int64[8] b = {{0, 0, 1, 0, 0, 0, 0, 0}}, float[1,1,1] m = {{-600}}> {{
            {_ROUNDED}  e = Pad(a, b, c)  {_ONE.replace("(a", "(e")}  {_DQ}  p = Conv(d, v)  y = Sub(p, m) }}""",
    ),
    _fixed(
        "a Conv that pads what a MaxPool moved: floats",
        before=f"""g (float[N,1,3,3] x) => (float[N,1,3,2] y) <{_UINT8.replace("[2,2]", "[1,1,1,4]")}> {{
            {_Q}  k = MaxPool<kernel_shape = [2, 2]>(q)  {_DQ.replace("(q", "(k")}
            y = Conv<pads = [1, 2, 0, 2]>(d, v) }}""",
        after="""g (float[N,1,3,3] x) => (float[N,1,3,2] y) <int8[1,1,1,4] w = {1, -2, 3, 4}, float t = {2},
            float s = {0.5}, float z = {28}, float l = {0}, float h = {255}> { d = Div(x, s)  r = Round(d)
            a = Add(r, z)  c = Clip(a, l, h)  o = MaxPool<kernel_shape = [2, 2]>(c)  b = Sub(o, z)  u = Mul(b, s)
            v = DequantizeLinear(w, t)  y = Conv<pads = [1, 2, 0, 2]>(u, v) }""",
    ),
    _fixed(
        "constants times data behind a Transpose, and another reader; int8",
        before=f"""g (float[N,2] x) => (float[2,N] y, float[2,N] u) <
            {_UINT8.replace("uint8 z = {28", "int8 z = {-100")}> {{ {_Q}  k = Transpose(q)
            {_DQ.replace("(q", "(k")}  y = MatMul(v, d)  u = Relu(d) }}""",
        after=f"""g (float[N,2] x) => (float[2,N] y, float[2,N] u) <{_INT8},
            float[2,1] m = {{100, -700}}, float n = {{-50}}> {{ {_ROUNDED}  {_ONE}  k = Transpose(q)
            {_DQ.replace("(q", "(k")}  p = MatMul(v, d)  y = Sub(p, m)  e = Sub(d, n)  u = Relu(e) }}""",
    ),
    Flagged("losing INT8 requires --numeric-fixes", _quantize_linear("37")),
    _fixed(
        "int8 around -128: equivalent to uint8 around 0",
        before=_quantize_linear("-128", elem="int8"),
        after="""g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, float z = {-128}, float h = {127}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, z, h)  b = Sub(c, z)  y = Mul(b, s) }""",
    ),
    Fixed(
        "bounded data never saturates: an image between 0 and 1",
        before="""g (uint8[N,4] x) => (float[N,4] y) <float k = {255}, float s = {0.01}, uint8 z = {10}> {
            f = Cast<to = FLOAT>(x)  n = Div(f, k)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (uint8[N,4] x) => (float[N,4] y) <float k = {255}, float s = {0.01}, int8 z = {0}> {
            f = Cast<to = FLOAT>(x)  n = Div(f, k)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
    _fixed(
        "bounded data that may be NaN, which is quantized differently",
        before="""g (float[N,4] x) => (float[N,4] y) <float s = {0.01}, uint8 z = {10}> {
            n = Sigmoid(x)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <float s = {0.01}, int8 z = {0}> {
            n = Sigmoid(x)  q = QuantizeLinear(n, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
    Fixed(
        "a constant quantized in the graph",
        before="""g (float[N,2] x) => (float[N,2] y) <float[2] w = {-1, 1}, float s = {0.01}, uint8 z = {110}> {
            q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  y = Add(x, d) }""",
        after="""g (float[N,2] x) => (float[N,2] y) <float[2] w = {-1, 1}, float s = {0.01}, int8 z = {0}> {
            q = QuantizeLinear(w, s, z)  d = DequantizeLinear(q, s, z)  y = Add(x, d) }""",
    ),
    _fixed(
        "per-channel scales and zero points",
        before="""g (float[N,2,3] x) => (float[N,2,3] y) <float[2] s = {0.1, 0.2}, uint8[2] z = {3, 0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,2,3] x) => (float[N,2,3] y)
            <float[1,2,1] s = {0.1, 0.2}, float[1,2,1] z = {3, 0}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  b = Sub(c, z)  y = Mul(b, s) }""",
    ),
    _fixed(
        "a different scale after a Transpose",
        before="""g (float[N,4] x) => (float[4,N] y) <float s = {0.1}, float t = {0.2}, uint8 z = {37}, uint8[4,N] p> {
            q = QuantizeLinear(x, s, z)  p = Transpose(q)  y = DequantizeLinear(p, t, z) }""",
        after="""g (float[N,4] x) => (float[4,N] y)
            <float s = {0.1}, float t = {0.2}, float z = {37}, float l = {0}, float h = {255}, float[4,N] p> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  p = Transpose(c)
            b = Sub(p, z)  y = Mul(b, t) }""",
    ),
    _fixed(
        "non-constant per-channel scales",
        before="""g (float[N,2,3] x, float[2] s) => (float[N,2,3] y) <uint8[2] z = {3, 0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,2,3] x, float[2] s) => (float[N,2,3] y)
            <int64[1] e = {1}, float[1,2,1] z = {3, 0}, float l = {0}, float h = {255}> { t = Unsqueeze(s, e)
            d = Div(x, t)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  b = Sub(c, z)  u = Unsqueeze(s, e)
            y = Mul(b, u) }""",
    ),
    Fixed(
        "int8 graph input",
        before="g (int8[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {3}> { y = DequantizeLinear(x, s, z) }",
        after="""g (int8[N,4] x) => (float[N,4] y) <float s = {0.1}, float z = {3}> {
            c = Cast<to = FLOAT>(x)  b = Sub(c, z)  y = Mul(b, s) }""",
    ),
    _fixed(
        "opset 10, which has no Round",
        before=_quantize_linear("37", x="2,4"),
        after="""g (float[2,4] x) => (float[2,4] y) <float s = {0.1}, float z = {37}, float k = {0.5}, float t = {2},
            float e = {1.49011612e-8}, float o = {0}> { d = Div(x, s)
            f = Floor(d)  p0 = Sub(d, f)  p1 = Sub(p0, k)  h0 = Mul(f, k)  h1 = Floor(h0)  h2 = Mul(h1, t)
            i = Sub(f, h2)  p2 = Mul(i, e)  p3 = Add(p1, p2)  g0 = Greater(p3, o)  u = Cast<to = 1>(g0)  r = Add(f, u)
            a = Add(r, z)  c = Clip<min = 0.0, max = 255.0>(a)  b = Sub(c, z)  y = Mul(b, s) }""",
        opset=10,
    ),
    _flagged(
        "unknown rank with an axis",
        """g (float[N,2,3] w, int64[K] r) => (float[] y) <float[2] s = {0.1, 0.2}, uint8[2] z = {3, 0}> {
            x = Reshape(w, r)  q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
    Silent(
        "int8 around 0, as a scalar and as a vector",
        """g (float[N,2] x) => (float[N,2] y) <float s = {0.1}, int8 z = {0}, float[2] t = {0.1, 0.2},
            int8[2] w = {0, 0}> { q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
            p = QuantizeLinear(d, t, w)  y = DequantizeLinear(p, t, w) }""",
    ),
    Silent("uint8 around 128 is covered by QDQ001", _quantize_linear("128")),
    Silent(
        "a moved quantized constant is covered by QDQ012",
        """g (int64[N] i) => (float[N,2] y) <uint8[2,2] w = {0, 100, 3, 4}, float s = {0.1}, uint8 z = {3}> {
            t = Gather(w, i)  y = DequantizeLinear(t, s, z) }""",
    ),
    Silent(
        "a quantized constant is covered by QDQ002",
        """g (float[N,2] x) => (float[N,2] y) <int8[2] w = {0, 100}, float s = {0.1}, int8 z = {3}> {
            d = DequantizeLinear(w, s, z)  y = Add(x, d) }""",
    ),
]
