"""OPS034: Clip whose lower bound is above the upper one."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops import _bounds

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
    data, output = node.require(0), node.require_output()
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
        draft.remove(node)
        raised = draft.add("Max", [data, node.inputs[1]])
        draft.add("Min", [raised, node.inputs[2]], output=output.name)
        fix = Fix("replace by Max and Min", draft.edits)
    yield Match(
        f"the minimum {low:g} is above the maximum {high:g}: ONNX gives {high:g} everywhere, TensorRT {low:g}",
        node=node,
        fix=fix,
        reads=tuple(v for v in node.inputs[1:3] if v is not None),
    )


_BOUNDS = "<float a = {5}, float b = {1}>"


clip_with_crossed_bounds.examples = [
    Fixed(
        "crossed: ONNX gives the maximum everywhere",
        before=f"g (float[N,3] x) => (float[N,3] y) {_BOUNDS} {{ y = Clip(x, a, b) }}",
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
        "half precision, in a branch",
        before="""g (float16[3] x, bool c) => (float16[3] y) {
            y = If(c)<then_branch = p () => (float16[3] u) {
                          a = Constant<value = float16 {f16(3.0)}>()  b = Constant<value = float16 {f16(1.0)}>()
                          u = Clip(x, a, b) },
                      else_branch = q () => (float16[3] v) { v = Neg(x) }> }""",
        after="""g (float16[3] x, bool c) => (float16[3] y) {
            y = If(c)<then_branch = p () => (float16[3] u) {
                          a = Constant<value = float16 {f16(3.0)}>()  b = Constant<value = float16 {f16(1.0)}>()
                          m = Max(x, a)  u = Min(m, b) },
                      else_branch = q () => (float16[3] v) { v = Neg(x) }> }""",
        opset=13,
    ),
    Flagged(
        "bounds as attributes: ONNX Runtime rejects it",
        "g (float[3] x) => (float[3] y) { y = Clip<min = 5.0, max = 1.0>(x) }",
        opset=10,
        runs=False,
    ),
    Silent(
        "bounds in order",
        "g (float[3] x) => (float[3] y) <float a = {1}, float b = {5}> { y = Clip(x, a, b) }",
    ),
    Silent(
        "equal bounds",
        "g (float[3] x) => (float[3] y) <float a = {5}, float b = {5}> { y = Clip(x, a, b) }",
    ),
    Silent(
        "integers, which TensorRT clips correctly",
        "g (int32[3] x) => (int32[3] y) <int32 a = {5}, int32 b = {1}> { y = Clip(x, a, b) }",
    ),
    Silent(
        "a bound that is a graph input",
        "g (float[3] x, float a) => (float[3] y) <float b = {1}> { y = Clip(x, a, b) }",
    ),
    Silent("only one bound", "g (float[3] x) => (float[3] y) <float a = {5}> { y = Clip(x, a) }"),
]
