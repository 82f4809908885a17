"""Clips that TensorRT computes with other bounds (OPS034, OPS074, OPS106)."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import (
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
from onnxfix_rules.ops import _bounds
from onnxfix_rules.ops._integers import Computer, is_only_quantized

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@rule("OPS034", ops=["Clip"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[73])
def clip_with_crossed_bounds(node: Node, model: Model) -> Iterator[Match]:
    """A Clip of floats whose minimum is larger than its maximum.

    ## Why it matters
    ONNX defines the result: the maximum, everywhere. TensorRT imports an activation layer, `ActivationType.CLIP` with
    alpha = 5.0 and beta = 1.0 for a minimum of 5 and a maximum of 1, which its documentation defines as `f(x) =
    max(alpha, min(beta, x))`: the minimum, everywhere. It builds without a warning. Measured with TensorRT-RTX 1.7.1 by
    reading the imported network; no engine was executed. It clips integers by a maximum and then a minimum, as ONNX
    does.

    ## Fix
    `Min(Max(x, min), max)`, in this order. Exact. Before opset 11, where the bounds are attributes, there is no fix:
    ONNX Runtime rejects such a model. In most cases the bounds were swapped by mistake.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Clip.html: "If 'min' is greater than 'max', the clip operator sets all the
      'input' values to the value of 'max'"
    - tensorrt.ActivationType.CLIP, in the package's own documentation
    """
    data = node.require(0)
    node.require_output()
    if model.shapes.elem_type(data) not in _FLOATS:
        return
    if node.opset < 11:
        low, high = node.attr("min"), node.attr("max")
    else:
        low, high = _bounds.number(node.input(1)), _bounds.number(node.input(2))
    if low is None or high is None or not low > high:
        return
    fix = None
    if node.opset >= 11:
        draft = Draft(node)
        raised = draft.add("Max", [data, node.inputs[1]])
        draft.replace_output(node, draft.add("Min", [raised, node.inputs[2]]))
        fix = Fix("replace by Max and Min", draft.edits)
    yield Match(
        f"the minimum {low:g} is above the maximum {high:g}: ONNX gives {high:g} everywhere, TensorRT {low:g}",
        node=node,
        fix=fix,
        reads=tuple(v for v in node.inputs[1:3] if v is not None),
    )


_BOUNDS = "<float a = {5}, float b = {1}>"


def _clip(elem: str, x: str, a: str, b: str) -> str:
    return (
        f"g ({elem}[{x}] x) => ({elem}[{x}] y) <{elem} a = {{{a}}}, {elem} b = {{{b}}}> {{ "
        f"y = Clip(x, a, b) }}"
    )


clip_with_crossed_bounds.examples = [
    Fixed(
        "crossed: ONNX gives the maximum everywhere",
        before=_clip("float", "N,3", "5", "1"),
        after=f"g (float[N,3] x) => (float[N,3] y) {_BOUNDS} {{ m = Max(x, a)  y = Min(m, b) }}",
    ),
    Fixed(
        "another Clip reads the same bounds in order",
        before=f"""g (float[N] x) => (float[N] y, float[N] z) {_BOUNDS} {{
            y = Clip(x, a, b)  z = Clip(x, b, a) }}""",
        after=f"""g (float[N] x) => (float[N] y, float[N] z) {_BOUNDS} {{
            m = Max(x, a)  y = Min(m, b)  z = Clip(x, b, a) }}""",
        opset=11,
    ),
    Fixed(
        "half precision",
        before="""g (float16[3] x) => (float16[3] y) <float16 a = {f16(3.0)}, float16 b = {f16(1.0)}> {
            y = Clip(x, a, b) }""",
        after="""g (float16[3] x) => (float16[3] y) <float16 a = {f16(3.0)}, float16 b = {f16(1.0)}> {
            m = Max(x, a)  y = Min(m, b) }""",
        opset=13,
    ),
    Flagged(
        "bounds as attributes: ONNX Runtime rejects it",
        "g (float[3] x) => (float[3] y) { y = Clip<min = 5.0, max = 1.0>(x) }",
        opset=10,
        runs=False,
    ),
    Silent("bounds in order", _clip("float", "3", "1", "5")),
    Silent("equal bounds", _clip("float", "3", "5", "5")),
    Silent("integers, which TensorRT clips correctly", _clip("int32", "3", "5", "1")),
    Silent(
        "a bound that is a graph input",
        "g (float[3] x, float a) => (float[3] y) <float b = {1}> { y = Clip(x, a, b) }",
    ),
    Silent("only one bound", "g (float[3] x) => (float[3] y) <float a = {5}> { y = Clip(x, a) }"),
]


@rule(
    "OPS074",
    ops=["Clip"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[13],
    types=[TensorProto.INT8],
)
def clip_of_int8(node: Node, model: Model) -> Iterator[Match]:
    """A Clip of int8 with constant bounds: TensorRT uses 0 for the bounds.

    ## Why it matters
    TensorRT imports an activation layer, `ActivationType.CLIP`, with alpha = 0.0 and beta = 0.0 whatever the bounds
    are, so that every element becomes 0; with a lower bound alone, negative ones do. It parses and builds without a
    warning. Measured with TensorRT-RTX 1.7.1 by reading the imported network, in opsets 12, 13 and 21, with
    initializers, Constants and defaults of graph inputs; engines for other bounds are byte for byte the same. No engine
    was executed. Floats, half precision, int32 and int64 are imported correctly, and so is int8 without bounds. An
    upper bound alone and bounds that are not constant are rejected (OPS054).

    ## Fix
    Clip in int32, between Casts. Exact. TensorRT imports it correctly, between QuantizeLinear and DequantizeLinear too.
    No fix for bounds that are defaults of graph inputs: TensorRT rejects a Cast of such an int8 (`Quantized constant
    (a) is only allowed before DQ`); make them initializers.

    TensorRT layers: 4 to 7.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Clip.html, which supports integers since opset 12
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    data, output = node.require(0), node.require_output()
    if node.opset < 12 or not _bounds.are_replaced_by_zero(node):
        return
    types = {model.shapes.elem_type(value) for value in node.inputs if value is not None}
    if TensorProto.INT8 not in types or _is_harmless(node, model, data):
        return
    only_low = node.input(2) is None
    yield Match(
        "Clip of int8: TensorRT uses 0 for the lower bound"
        if only_low
        else "Clip of int8: TensorRT uses 0 for both bounds and gives 0 everywhere",
        node=node,
        fix=_fix(node, model, output),
        reads=tuple(value for value in node.inputs if value is not None),
    )


def _fix(node: Node, model: Model, output: Value) -> Fix | None:
    if not all(value.is_constant for value in node.inputs[1:] if value is not None):
        return None
    # Between a DQ and a Q, TensorRT builds no int32.
    wide = TensorProto.FLOAT if is_only_quantized(node, model) else TensorProto.INT32
    computer = Computer(Draft(node), model, TensorProto.INT8, wide)
    operands = [computer.widened(value) for value in node.inputs if value is not None]
    computer.finish(computer.add("Clip", *operands), output)
    return Fix(f"clip in {'float' if wide == TensorProto.FLOAT else 'int32'}", computer.draft.edits)


def _is_harmless(node: Node, model: Model, data: Value) -> bool:
    """Whether bounds of 0 give the same result."""
    shape = model.shapes.shape(data)
    if shape is not None and any(dim.value == 0 for dim in shape):
        return True
    low, high = (_bounds.number(node.input(index)) for index in (1, 2))
    if node.input(2) is None:
        return low == 0
    return low is not None and high == 0 and low >= 0


_BOTH = "<int8 a = {-10}, int8 b = {20}>"
_WIDE = "<int32 a = {-10}, int32 b = {20}>"


def _cast(a: str, b: str, x: str = "7") -> str:
    return f"""g (int8[{x}] x) => (int8[{x}] y) <int32 a = {{{a}}}, int32 b = {{{b}}}> {{
        v = Cast<to = INT32>(x)  c = Clip(v, a, b)  y = Cast<to = INT8>(c) }}"""


clip_of_int8.examples = [
    Fixed("both bounds", before=_clip("int8", "N,3", "-10", "20"), after=_cast("-10", "20", x="N,3")),
    Fixed(
        "both bounds, for TensorRT 10.6, which takes int8 for a quantized type",
        before=_clip("int8", "N,3", "-10", "20"),
        after="""g (int8[N,3] x) => (int8[N,3] y) <float s = {1}, float a = {-10}, float b = {20}, int8 z = {0}> {
            v = DequantizeLinear(x, s)  c = Clip(v, a, b)  y = QuantizeLinear(c, s, z) }""",
        target="trt10.6",
    ),
    Fixed(
        "a lower bound alone, in the first opset with Clip of integers",
        before="g (int8[7] x) => (int8[7] y) <int8 a = {-10}> { y = Clip(x, a) }",
        after="""g (int8[7] x) => (int8[7] y) <int32 a = {-10}> {
            v = Cast<to = INT32>(x)  c = Clip(v, a)  y = Cast<to = INT8>(c) }""",
        opset=12,
    ),
    Fixed(
        "a lower bound alone; the upper one has an empty name",
        before="g (int8[7] x) => (int8[7] y) <int8 a = {5}> { y = Clip(x, a, ) }",
        after="""g (int8[7] x) => (int8[7] y) <int32 a = {5}> {
            v = Cast<to = INT32>(x)  c = Clip(v, a)  y = Cast<to = INT8>(c) }""",
    ),
    Flagged(
        "defaults of graph inputs, which TensorRT treats as weights",
        "g (int8[7] x, int8 a = {-10}, int8 b = {20}) => (int8[7] y) { y = Clip(x, a, b) }",
    ),
    Fixed(
        "bounds that include every int8", before=_clip("int8", "7", "-128", "127"), after=_cast("-128", "127")
    ),
    Fixed(
        "crossed bounds: ONNX gives the upper bound everywhere",
        before=_clip("int8", "7", "5", "-3"),
        after=_cast("5", "-3"),
    ),
    Silent("bounds of 0", _clip("int8", "7", "0", "0")),
    Silent(
        "a lower bound of 0, which is what TensorRT uses",
        "g (int8[7] x) => (int8[7] y) <int8 a = {0}> { y = Clip(x, a) }",
    ),
    Silent("crossed bounds that give 0 everywhere", _clip("int8", "7", "5", "0")),
    Silent("no bounds", "g (int8[7] x) => (int8[7] y) { y = Clip(x) }"),
    Silent(
        "an upper bound alone, which is rejected (OPS054)",
        "g (int8[7] x) => (int8[7] y) <int8 b = {20}> { y = Clip(x, , b) }",
    ),
    Silent(
        "a bound that is a graph input, which is rejected (OPS054)",
        "g (int8[7] x, int8 b) => (int8[7] y) <int8 a = {-10}> { y = Clip(x, a, b) }",
    ),
    Silent(
        "a bound computed by a node, which is rejected (OPS054)",
        f"g (int8[7] x) => (int8[7] y) {_BOTH} {{ m = Identity(a)  y = Clip(x, m, b) }}",
    ),
    Silent(
        "a function's input, which may be a weight at the call site",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (int8[7] x) => (int8[7] y) <int8 a = {-10}> { y = my.F(x, a) }
            <domain: "my", opset_import: ["" : 18]> F (t, u) => (r) { r = Clip(t, u) }""",
    ),
    Silent("empty tensor", _clip("int8", "0", "-10", "20")),
    Silent("opset 11 has no Clip of integers", _clip("int8", "7", "-10", "20"), opset=11),
    Silent("int32", _clip("int32", "7", "-10", "20")),
    Silent("uint8, which is rejected", _clip("uint8", "7", "1", "20")),
    Silent("floats", _clip("float", "7", "-10", "20")),
]


@rule("OPS106", ops=["Clip"], safety=Safety.NUMERIC, severity=Severity.ERROR, types=[TensorProto.BFLOAT16])
def clip_of_bfloat16_without_a_bound(node: Node, model: Model) -> Iterator[Match]:
    """A Clip of bfloat16 without a minimum or a maximum, for which TensorRT takes 0.

    ## Why it matters
    TensorRT imports it as a maximum and a minimum of tensors, and makes the missing bound a constant: the lowest or the
    highest value of C++'s `numeric_limits`, which says 0 for its class BFloat16. So negative elements become 0 under a
    maximum, and positive ones under a minimum. It parses and builds without a warning. Measured with TensorRT-RTX 1.7.1
    by reading the imported network; no engine was executed. The lines are in onnx-tensorrt 9.3, 10.0 and 10.1. Both
    bounds, float32 and half precision are imported correctly, and so is a node that lists neither bound, or a constant
    minimum alone.

    ## Fix
    `Min(x, max)` or `Max(x, min)`, which is what is left of Clip, and as `onnx.reference` computes it. Exact for a
    constant bound but 0 and NaN. NUMERIC else: a NaN, which ONNX leaves open as a bound, and the sign of a zero.
    Where both bounds are empty names, x takes the place of the output. Exact.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/10.1-GA/onnxOpImporters.cpp, lines 512 and 589
    - https://onnx.ai/onnx/operators/onnx__Clip.html
    """
    data, low, high = node.require(0), node.input(1), node.input(2)
    places, bound = len(node.proto.input), low if high is None else high
    if None not in (low, high) or places == 1:
        return
    if target_of(model).accepts("Clip", TensorProto.BFLOAT16) is not True:
        return
    if TensorProto.BFLOAT16 not in [
        model.shapes.elem_type(value) for value in (data, bound) if value is not None
    ]:
        return
    if low is not None and places == 2 and (low.is_constant or low.initializer is not None):
        return
    operator, missing = ("Max", "maximum") if bound is low else ("Min", "minimum")
    draft, number = Draft(node), _bounds.number(bound) or float("nan")
    if bound is None:
        draft.replace_output(node, data)
        fix = Fix("take the input", draft.edits)
    else:
        draft.replace_output(node, draft.add(operator, [data, bound]))
        fix = Fix(f"replace by {operator}", draft.edits, Safety.EXACT if number == number else Safety.NUMERIC)
    yield Match(
        f"Clip of bfloat16 without a {'bound' if bound is None else missing}: TensorRT takes 0 for it",
        node=node,
        fix=fix,
        reads=tuple(value for value in (data, bound) if value is not None),
    )


_SIX = "g (bfloat16[N] x) => (bfloat16[N] y) <bfloat16 a = {bf16(6.0)}>"
_RUN = "g (bfloat16[N] x, bfloat16 a) => (bfloat16[N] y)"

clip_of_bfloat16_without_a_bound.examples = [
    Fixed(
        "a constant maximum alone",
        before=f"{_SIX} {{ n = Neg(x)  c = Clip(n, , a)  y = Neg(c) }}",
        after=f"{_SIX} {{ n = Neg(x)  c = Min(n, a)  y = Neg(c) }}",
        runs=False,
    ),
    Fixed(
        "a minimum of run time alone",
        before=f"{_RUN} {{ y = Clip(x, a) }}",
        after=f"{_RUN} {{ y = Max(x, a) }}",
        opset=13,
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Fixed(
        "a maximum of 0: the sign of a zero may change",
        before="g (bfloat16[3] x) => (bfloat16[3] y) <bfloat16 a = {bf16(0.0)}> { y = Clip(x, , a) }",
        after="g (bfloat16[3] x) => (bfloat16[3] y) <bfloat16 a = {bf16(0.0)}> { y = Min(x, a) }",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Silent(
        "a constant minimum alone", f"{_RUN} <bfloat16 a = {{bf16(1.0)}}> {{ y = Clip(x, a) }}", runs=False
    ),
    Silent("both bounds", f"{_RUN} {{ y = Clip(x, a, a) }}", runs=False),
    Silent("no bound", "g (bfloat16[N] x) => (bfloat16[N] y) { y = Clip(x) }", runs=False),
    Silent("TensorRT 8.6 rejects bfloat16", f"{_RUN} {{ y = Clip(x, a) }}", target="trt8.6", runs=False),
    Silent("half precision", "g (float16[N] x, float16 a) => (float16[N] y) { y = Clip(x, , a) }"),
    Silent(
        "a function's input, which may be a weight at the call site",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (bfloat16[7] x) => (bfloat16[7] y) <bfloat16 a = {bf16(1.0)}> { y = my.F(x, a) }
            <domain: "my", opset_import: ["" : 18]> F (t, u) => (r) { r = Clip(t, u) }""",
        runs=False,
    ),
]
