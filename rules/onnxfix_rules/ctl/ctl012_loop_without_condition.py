"""CTL012: Loop bodies that read a condition that the Loop does not have."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ctl import _loops


@rule("CTL012", ops=["Loop"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[58])
def loop_without_condition(node: Node, model: Model) -> Iterator[Match]:
    """A Loop without a condition whose body reads one.

    ## Why it matters
    In ONNX a Loop without a condition runs as often as its trip count says, and its body reads true. TensorRT then does
    not define the body's condition and refuses every node that reads it: `Assertion failed:
    (ctx->tensors().count(inputName)): Node input was not registered.`, measured with TensorRT-RTX 1.7.1. `more =
    Identity(on)` is enough, the usual first output of a body for `for i in range(n)`.

    ## Fix
    Readers of the condition in the body read a constant true. Exact. There is no fix if the body's own result may be
    false: by ONNX it is ignored, but ONNX Runtime ends the loop. Nor if the body also returns its condition without a
    node in between, which TensorRT accepts on its own.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html: `input ("trip_count", "")`
    """
    body = _loops.body_of(node)
    if body is None or node.input(0) is None or node.input(1) is not None:
        return
    inner = body.inputs[1]
    if not inner.use_count:
        return
    edits = _loops.true_inside(body) if _loops.goes_on(body, model) else None
    yield Match(
        f"the body reads its condition {inner.name!r}, but this Loop has no condition",
        node=node,
        fix=Fix("replace the condition in the body by true", edits) if edits else None,
        reads=(inner, body.outputs[0]),
    )


_BODY = "<body = b (int64 i, bool on, float[2] v) => (bool %s, float[2] w)"
_START = "g (float[2] x, int64 n) => (float[2] y)"


loop_without_condition.examples = [
    Fixed(
        "condition passed on",
        before=f"{_START} {{ y = Loop(n, , x){_BODY % 'more'} {{ more = Identity(on)  w = Add(v, v) }}> }}",
        after=f"""{_START} {{ y = Loop(n, , x){_BODY % "more"} <bool t = {{1}}> {{
            more = Identity(t)  w = Add(v, v) }}> }}""",
    ),
    Fixed(
        "condition passed on by And and read by another node, with scan outputs",
        before="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) { y, z = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                a = Identity(on)  more = And(a, on)  w = Where(on, v, x)  s = Neg(v) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) { y, z = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) <bool t = {1}> {
                a = Identity(t)  more = And(a, t)  w = Where(t, v, x)  s = Neg(v) }> }""",
    ),
    Fixed(
        "condition captured by a branch, inside a local function",
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_START} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 18]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                more = Constant<value = bool {{1}}>()
                w = If(on)<then_branch = p () => (float[2] c) {{ c = Neg(v) }},
                           else_branch = q () => (float[2] d) {{ d = Abs(v) }}> }}> }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_START} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 18]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                t = Constant<value = bool {{1}}>()  more = Constant<value = bool {{1}}>()
                w = If(t)<then_branch = p () => (float[2] c) {{ c = Neg(v) }},
                          else_branch = q () => (float[2] d) {{ d = Abs(v) }}> }}> }}""",
        opset=18,
    ),
    Flagged(
        "condition negated, which ONNX ignores and ONNX Runtime obeys",
        f"{_START} {{ y = Loop(n, , x){_BODY % 'more'} {{ more = Not(on)  w = Add(v, v) }}> }}",
    ),
    Flagged(
        "condition returned directly, and read by a node too",
        f"{_START} {{ y = Loop(n, , x){_BODY % 'on'} {{ w = Where(on, v, x) }}> }}",
    ),
    Flagged(
        "inside a local function before opset 9, where no Constant is boolean",
        f"""<ir_version: 9, opset_import: ["" : 8, "my" : 1]> {_START} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 8]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                more = Identity(on)  w = Add(v, v) }}> }}""",
    ),
    Silent(
        "condition returned directly, which TensorRT accepts",
        f"{_START} {{ y = Loop(n, , x){_BODY % 'on'} {{ w = Add(v, v) }}> }}",
    ),
    Silent(
        "condition not read",
        f"""{_START} {{ y = Loop(n, , x){_BODY % "more"} {{
            more = Constant<value = bool {{1}}>()  w = Add(v, v) }}> }}""",
    ),
    Silent(
        "a Loop with a condition",
        "g (float[2] x, int64 n, bool c) => (float[2] y) { d = Not(c)  y = Loop(n, d, x)"
        + _BODY % "more"
        + " { more = Identity(on)  w = Add(v, v) }> }",
    ),
    Flagged(
        "condition declared as float, which cannot be replaced by true",
        """g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x)<body = b (int64 i, float on, float[2] v)
            => (float more, float[2] w) { more = Identity(on)  w = Add(v, v) }> }""",
        runs=False,
    ),
]
