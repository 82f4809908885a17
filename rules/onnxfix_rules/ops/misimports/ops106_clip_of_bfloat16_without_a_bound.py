"""OPS106: Clip of bfloat16 without one of its bounds, for which TensorRT takes 0."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule, target_of
from onnxfix_rules.ops import _bounds


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
    if (
        None not in (low, high)
        or places == 1
        or target_of(model).accepts("Clip", TensorProto.BFLOAT16) is not True
    ):
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
        "a maximum of 0, in a branch: the sign of a zero may change",
        before="""g (bfloat16[3] x, bool c) => (bfloat16[3] y) <bfloat16 a = {bf16(0.0)}> {
            y = If(c)<then_branch = p () => (bfloat16[3] u) { u = Clip(x, , a) },
                      else_branch = q () => (bfloat16[3] v) { v = Neg(x) }> }""",
        after="""g (bfloat16[3] x, bool c) => (bfloat16[3] y) <bfloat16 a = {bf16(0.0)}> {
            y = If(c)<then_branch = p () => (bfloat16[3] u) { u = Min(x, a) },
                      else_branch = q () => (bfloat16[3] v) { v = Neg(x) }> }""",
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
