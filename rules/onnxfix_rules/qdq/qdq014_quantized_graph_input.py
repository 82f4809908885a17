"""QDQ014: dequantized unsigned integers from outside the graph."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._common import DEQUANTIZE, U8, described, read
from ._constants import fixed
from ._remedy import around, floats


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
    reason = f" ({region.problem})" if region.problem else ""
    given = all(value.is_input and value.producer is None for value in region.sources)
    yield Match(
        f"{described(linear)} is dequantized, but not quantized by the graph: {target_of(model).title} "
        f"only casts uint8{reason}",
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
