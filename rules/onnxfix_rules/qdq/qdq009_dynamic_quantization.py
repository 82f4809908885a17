"""QDQ009: DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._region import region_of
from ._remedy import floats


@rule("QDQ009", ops=("DynamicQuantizeLinear",), safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[57])
def dynamic_quantization(node: Node, model: Model) -> Iterator[Match]:
    """A DynamicQuantizeLinear, for which TensorRT has no importer.

    ## Why it matters
    The parser fails: `UNSUPPORTED_NODE`, measured with TensorRT-RTX 1.7.1; NVIDIA's operator lists for TensorRT 8 to
    11 do not contain it, and TensorRT refuses non-constant zero points anyway.

    ## Fix
    Its definition, in floats that hold the integers: minimum and maximum of the data, extended to 0; scale and zero
    point from them; `Clip(Round(x / s) + z, 0, 255)`. The readers of the integers change with it: DequantizeLinear
    becomes `(q - z) * s`, MatMulInteger and ConvInteger products of floats (QDQ007); nodes that move elements stay.
    Bit-identical to ONNX Runtime, except for NaN. Requires `--numeric-fixes`: it adds some twenty layers and two
    reductions over the data, whereas removing the quantization altogether costs nothing.

    For all-zero data the scale is 1, as in ONNX Runtime; the ONNX reference returns 1/255, ONNX's function body 0.
    The integers are 0 in any case.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html
    - NVIDIA/TensorRT issue 4698
    """
    if node.input(0) is None:
        return
    quantized = [value for value in (node.output(0), node.output(2)) if value is not None]
    region = region_of(quantized, model)
    reason = f" ({region.problem})" if region.problem else ""
    yield Match(
        f"{target_of(model).title} does not import {node.op_type}{reason}",
        node=node,
        fix=floats(region, model, "decompose it in floats"),
        reads=region.reads,
    )


_BODY = """a = ReduceMin<keepdims = 0>(x)  b = Min(a, o)  c = ReduceMax<keepdims = 0>(x)  d = Max(c, o)
            e = Sub(d, b)  r = Div(e, t)  n = Equal(e, o)  s = Where(n, k, r)
            i0 = Div(b, s)  i1 = Sub(o, i0)  i2 = Clip(i1, o, t)  i3 = Round(i2)
            q0 = Div(x, s)  q1 = Round(q0)  q2 = Add(q1, i3)  q3 = Clip(q2, o, t)"""
_PAIR = "q, s, z = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s, z)"
_NUMBERS = "float o = {0}, float t = {255}, float k = {1}"


dynamic_quantization.examples = [
    Fixed(
        "the result is dequantized",
        before=f"g (float[N,2] x) => (float[N,2] y) {{ {_PAIR} }}",
        after=f"g (float[N,2] x) => (float[N,2] y) <{_NUMBERS}> {{ {_BODY}  v = Sub(q3, i3)  y = Mul(v, s) }}",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "all three results are graph outputs",
        before="g (float[N,2] x) => (uint8[N,2] q, float s, uint8 z) { q, s, z = DynamicQuantizeLinear(x) }",
        after=f"""g (float[N,2] x) => (uint8[N,2] q, float s, uint8 z) <{_NUMBERS}> {{ {_BODY}
            q = Cast<to = UINT8>(q3)  z = Cast<to = UINT8>(i3) }}""",
        safety=Safety.NUMERIC,
        differs={
            "branch": "quantized values that leave a branch are not followed",
            "function": "quantized values that leave a function are not followed",
        },
    ),
    Flagged("requires --numeric-fixes", f"g (float[N,2] x) => (float[N,2] y) {{ {_PAIR} }}"),
    Flagged(
        "an unknown reader",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[N,2] x) => (float[N,2] y) {
            q, s, z = DynamicQuantizeLinear(x)  y = my.Op(q, s, z) }""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Silent(
        "a QuantizeLinear with a constant scale",
        """g (float[N,2] x) => (float[N,2] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
]
