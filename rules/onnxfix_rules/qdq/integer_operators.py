"""Operators on integers: MatMulInteger, ConvInteger, dynamic quantization."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnx import TensorProto, helper

from onnxfix.rule import (
    AddNode,
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    rule,
    target_of,
)
from onnxfix_rules.ops._runtimes import no_importer

from ._region import Region, region_of
from ._rewrite import floats


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
    yield _refused(node, region_of([node], model), "multiply in float32")


_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)


def _refused(node: Node, region: Region, title: str) -> Match:
    text = f"{target_of(node.model).title} does not import {node.op_type}{region.reason}"
    return Match(text, node=node, fix=floats(region, node.model, title), reads=region.reads)


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
    _fixed(
        "600 terms: sums may reach 2**24",
        before="g (uint8[M,600] x, int8[600,2] w) => (int32[M,2] y) { y = MatMulInteger(x, w) }",
        after="""g (uint8[M,600] x, int8[600,2] w) => (int32[M,2] y) {
            f = Cast<to = FLOAT>(x)  g = Cast<to = FLOAT>(w)  p = MatMul(f, g)  y = Cast<to = INT32>(p) }""",
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
    _fixed(
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
    ),
    Fixed(
        "zero points per row of the data, which ONNX Runtime refuses",
        before="""g (uint8[2,2] x) => (int32[2,2] y) <int8[2,2] w = {1, -2, 3, 4}, uint8[2] a = {7, 8}> {
            y = MatMulInteger(x, w, a) }""",
        after="""g (uint8[2,2] x) => (int32[2,2] y) <float[2,2] w = {1, -2, 3, 4}, float[2,1] a = {7, 8}> {
            f = Cast<to = FLOAT>(x)  d = Sub(f, a)  p = MatMul(d, w)  y = Cast<to = INT32>(p) }""",
        runs=False,
    ),
    Silent("floats", "g (float[M,K] x, float[K,N] w) => (float[M,N] y) { y = MatMul(x, w) }"),
]


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
    yield _refused(node, region_of(quantized, model), "decompose it in floats")


_BODY = """a = ReduceMin<keepdims = 0>(x)  b = Min(a, o)  c = ReduceMax<keepdims = 0>(x)  d = Max(c, o)
            e = Sub(d, b)  r = Div(e, t)  n = Equal(e, o)  s = Where(n, k, r)
            i0 = Div(b, s)  i1 = Sub(o, i0)  i2 = Clip(i1, o, t)  i3 = Round(i2)
            q0 = Div(x, s)  q1 = Round(q0)  q2 = Add(q1, i3)  q3 = Clip(q2, o, t)"""
_PAIR = "q, s, z = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s, z)"
_NUMBERS = "float o = {0}, float t = {255}, float k = {1}"


dynamic_quantization.examples = [
    _fixed(
        "the result is dequantized",
        before=f"g (float[N,2] x) => (float[N,2] y) {{ {_PAIR} }}",
        after=f"g (float[N,2] x) => (float[N,2] y) <{_NUMBERS}> {{ {_BODY}  v = Sub(q3, i3)  y = Mul(v, s) }}",
    ),
    _fixed(
        "all three results are graph outputs",
        before="g (float[N,2] x) => (uint8[N,2] q, float s, uint8 z) { q, s, z = DynamicQuantizeLinear(x) }",
        after=f"""g (float[N,2] x) => (uint8[N,2] q, float s, uint8 z) <{_NUMBERS}> {{ {_BODY}
            q = Cast<to = UINT8>(q3)  z = Cast<to = UINT8>(i3) }}""",
        differs={
            "branch": "quantized values that leave a branch are not followed",
            "function": "quantized values that leave a function are not followed",
        },
    ),
    Flagged("requires --numeric-fixes", f"g (float[N,2] x) => (float[N,2] y) {{ {_PAIR} }}"),
    _flagged(
        "an unknown reader",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[N,2] x) => (float[N,2] y) {
            q, s, z = DynamicQuantizeLinear(x)  y = my.Op(q, s, z) }""",
    ),
    Silent(
        "a QuantizeLinear with a constant scale",
        """g (float[N,2] x) => (float[N,2] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
]


@rule(
    "QDQ021",
    ops=["com.microsoft::MatMulIntegerToFloat", "com.microsoft::DynamicQuantizeMatMul"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[57],
)
def fused_integer_matmul(node: Node, model: Model) -> Iterator[Match]:
    """A MatMulIntegerToFloat or DynamicQuantizeMatMul of ONNX Runtime.

    ## Why it matters
    ONNX Runtime's graph optimizer fuses them from the output of `quantize_dynamic`. TensorRT finds no importer:
    `Plugin not found, are the plugin name, version, and namespace correct?`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    The unfused form: DynamicQuantizeLinear for DynamicQuantizeMatMul, MatMulInteger, Cast, Mul with the product of
    the scales, Add of the bias. QDQ007 and QDQ009 then write these in floats, which TensorRT-RTX accepts. NUMERIC:
    ONNX Runtime scales and adds inside the kernel.

    The result runs in float32 and costs more than the float model: use that, or quantize statically with
    `QuantFormat.QDQ`. No fix for half precision, and for DynamicQuantizeMatMul before opset 11.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulIntegerToFloat
    - https://onnx.ai/onnx/operators/onnx__MatMulInteger.html
    """
    output = node.require_output()
    if node.function is not None:
        return
    yield Match(no_importer(node), node=node, fix=_fix(node, output, model))


def _fix(node: Node, output: Value, model: Model) -> Fix | None:
    dynamic = node.op_type == "DynamicQuantizeMatMul"
    order = (0, None, 1, 2, None, 3, 4) if dynamic else (0, 2, 1, 3, 4, 5, 6)
    data, scale, weights, steps, zero, point, bias = (
        None if index is None else node.input(index) for index in order
    )
    if data is None or weights is None or steps is None or (scale is None and not dynamic):
        return None
    floats = [steps, *(one for one in (scale, bias) if one is not None), *([data] if dynamic else [])]
    if any(model.shapes.elem_type(one) != TensorProto.FLOAT for one in floats):
        return None
    integers = [weights] if dynamic else [weights, data]
    if any(model.shapes.elem_type(one) not in (TensorProto.INT8, TensorProto.UINT8) for one in integers):
        return None
    opset = node.scope.opset()
    if opset < (11 if dynamic else 10):
        return None
    # Each zero point is of its operand's type; that of dynamically quantized data is made with them.
    for operand, shift in ((weights, point), *(() if dynamic else ((data, zero),))):
        if shift is not None and model.shapes.elem_type(shift) != model.shapes.elem_type(operand):
            return None
    draft = Draft(node)
    draft.remove(node)
    names = [data.name, "" if scale is None else scale.name, "" if zero is None else zero.name]
    if dynamic:
        names = _quantized(draft, node, data)
    inputs = [names[0], weights.name, names[2], "" if point is None else point.name]
    while not inputs[-1]:
        inputs.pop()
    whole = draft.add("Cast", [draft.add("MatMulInteger", inputs)], to=TensorProto.FLOAT)
    factor = draft.add("Mul", [names[1], steps])
    last = draft.add("Mul", [whole, factor], output=output.name if bias is None else "")
    if bias is not None:
        draft.add("Add", [last, bias], output=output.name)
    return Fix("replace by MatMulInteger, Cast and Mul", draft.edits, Safety.NUMERIC)


def _quantized(draft: Draft, node: Node, data: Value) -> list[str]:
    """Quantize the data dynamically; returns the names of integers, scale and zero point."""
    names = [draft.name(hint) for hint in ("quantized", "scale", "zero_point")]
    draft.edits.append(
        AddNode(node.scope, helper.make_node("DynamicQuantizeLinear", [data.name], names), node)
    )
    return names


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_G = "g (int8[N,2] x, float s) => (float[N,2] y) <int8[2,2] w = {1, -2, 3, 4}, float[2] t = {0.5, 0.25}"
_D = "g (float[N,2] x) => (float[N,2] y) <uint8[2,2] w = {1, 2, 3, 4}, float t = {0.5}, uint8 v = {2}"


fused_integer_matmul.examples = [
    _fixed(
        "an integer product with scales",
        before=f"{_HEAD} {_G}> {{ y = com.microsoft.MatMulIntegerToFloat(x, w, s, t) }}",
        after=f"""{_HEAD} {_G}> {{ m = MatMulInteger(x, w)  f = Cast<to = FLOAT>(m)  k = Mul(s, t)
            y = Mul(f, k) }}""",
    ),
    Flagged(
        "requires --numeric-fixes", f"{_HEAD} {_G}> {{ y = com.microsoft.MatMulIntegerToFloat(x, w, s, t) }}"
    ),
    _fixed(
        "with zero points and a bias",
        before=f"""{_HEAD} {_G}, int8 z = {{3}}, int8[2] v = {{0, 1}}, float[2] b = {{1, 2}}> {{
            y = com.microsoft.MatMulIntegerToFloat(x, w, s, t, z, v, b) }}""",
        after=f"""{_HEAD} {_G}, int8 z = {{3}}, int8[2] v = {{0, 1}}, float[2] b = {{1, 2}}> {{
            m = MatMulInteger(x, w, z, v)  f = Cast<to = FLOAT>(m)  k = Mul(s, t)  p = Mul(f, k)  y = Add(p, b) }}""",
    ),
    _fixed(
        "without the first zero point",
        before=f"""{_HEAD} {_G}, int8[2] v = {{0, 1}}> {{ y = com.microsoft.MatMulIntegerToFloat(x, w, s, t, , v) }}""",
        after=f"""{_HEAD} {_G}, int8[2] v = {{0, 1}}> {{
            m = MatMulInteger(x, w, , v)  f = Cast<to = FLOAT>(m)  k = Mul(s, t)  y = Mul(f, k) }}""",
    ),
    _fixed(
        "dynamically quantized data with a bias",
        before=f"""{_HEAD} {_D}, float[2] b = {{1, 2}}> {{
            y = com.microsoft.DynamicQuantizeMatMul(x, w, t, , b) }}""".replace(", uint8 v = {2}", ""),
        after=f"""{_HEAD} {_D}, float[2] b = {{1, 2}}> {{ q, s, z = DynamicQuantizeLinear(x)
            m = MatMulInteger(q, w, z)  f = Cast<to = FLOAT>(m)  k = Mul(s, t)  p = Mul(f, k)
            y = Add(p, b) }}""".replace(", uint8 v = {2}", ""),
    ),
    _flagged(
        "half precision",
        f"""{_HEAD} g (int8[N,2] x, float16 s, int8[2,2] w, float16 t) => (float16[N,2] y) {{
            y = com.microsoft.MatMulIntegerToFloat(x, w, s, t) }}""",
    ),
    Flagged(
        "opset 10 has no DynamicQuantizeLinear",
        f"{_HEAD} {_D}> {{ y = com.microsoft.DynamicQuantizeMatMul(x, w, t, v) }}".replace(
            '"" : 17', '"" : 10'
        ),
        safety=Safety.NUMERIC,
    ),
    Silent(
        "the form in floats",
        f"""{_HEAD} {_G}> {{ a = Cast<to = FLOAT>(x)  b = Cast<to = FLOAT>(w)  m = MatMul(a, b)  k = Mul(s, t)
            y = Mul(m, k) }}""",
    ),
]
