"""QDQ021: MatMulIntegerToFloat and DynamicQuantizeMatMul of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator

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
from onnxfix_rules.ops._runtimes import origin


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
    yield Match(
        f"{target_of(model).title} has no importer for {node.domain}.{node.op_type}; {origin(node)}",
        node=node,
        fix=_fix(node, output, model),
    )


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
    Fixed(
        "an integer product with scales",
        before=f"{_HEAD} {_G}> {{ y = com.microsoft.MatMulIntegerToFloat(x, w, s, t) }}",
        after=f"""{_HEAD} {_G}> {{ m = MatMulInteger(x, w)  f = Cast<to = FLOAT>(m)  k = Mul(s, t)
            y = Mul(f, k) }}""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "requires --numeric-fixes", f"{_HEAD} {_G}> {{ y = com.microsoft.MatMulIntegerToFloat(x, w, s, t) }}"
    ),
    Fixed(
        "with zero points and a bias",
        before=f"""{_HEAD} {_G}, int8 z = {{3}}, int8[2] v = {{0, 1}}, float[2] b = {{1, 2}}> {{
            y = com.microsoft.MatMulIntegerToFloat(x, w, s, t, z, v, b) }}""",
        after=f"""{_HEAD} {_G}, int8 z = {{3}}, int8[2] v = {{0, 1}}, float[2] b = {{1, 2}}> {{
            m = MatMulInteger(x, w, z, v)  f = Cast<to = FLOAT>(m)  k = Mul(s, t)  p = Mul(f, k)  y = Add(p, b) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "without the first zero point",
        before=f"""{_HEAD} {_G}, int8[2] v = {{0, 1}}> {{ y = com.microsoft.MatMulIntegerToFloat(x, w, s, t, , v) }}""",
        after=f"""{_HEAD} {_G}, int8[2] v = {{0, 1}}> {{
            m = MatMulInteger(x, w, , v)  f = Cast<to = FLOAT>(m)  k = Mul(s, t)  y = Mul(f, k) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "dynamically quantized data",
        before=f"{_HEAD} {_D}> {{ y = com.microsoft.DynamicQuantizeMatMul(x, w, t, v) }}",
        after=f"""{_HEAD} {_D}> {{ q, s, z = DynamicQuantizeLinear(x)  m = MatMulInteger(q, w, z, v)
            f = Cast<to = FLOAT>(m)  k = Mul(s, t)  y = Mul(f, k) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "dynamically quantized data with a bias",
        before=f"""{_HEAD} {_D}, float[2] b = {{1, 2}}> {{
            y = com.microsoft.DynamicQuantizeMatMul(x, w, t, , b) }}""".replace(", uint8 v = {2}", ""),
        after=f"""{_HEAD} {_D}, float[2] b = {{1, 2}}> {{ q, s, z = DynamicQuantizeLinear(x)
            m = MatMulInteger(q, w, z)  f = Cast<to = FLOAT>(m)  k = Mul(s, t)  p = Mul(f, k)
            y = Add(p, b) }}""".replace(", uint8 v = {2}", ""),
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "half precision",
        f"""{_HEAD} g (int8[N,2] x, float16 s, int8[2,2] w, float16 t) => (float16[N,2] y) {{
            y = com.microsoft.MatMulIntegerToFloat(x, w, s, t) }}""",
        safety=Safety.NUMERIC,
        runs=False,
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
