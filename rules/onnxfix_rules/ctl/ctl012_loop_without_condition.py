"""CTL012: a Loop's body that reads a condition which the Loop does not give."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ctl import _loops


@rule("CTL012", ops=["Loop"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[28])
def loop_without_condition(node: Node, model: Model) -> Iterator[Match]:
    """A Loop without a condition whose body reads one.

    ## Why it matters
    In ONNX a Loop without a condition runs as often as its trip count says, and its body reads true. TensorRT gives the
    body no condition then and refuses whatever reads it: `Assertion failed: (ctx->tensors().count(inputName)): Node
    input was not registered.`, measured with TensorRT-RTX 1.7.1. `more = Identity(on)` is enough, which is what the
    usual `for i in range(n)` has as the body's first output.

    ## Fix
    What reads the condition in the body reads a constant true. Exact. There is no fix where the body's own result may
    be false: ONNX says that it is ignored, ONNX Runtime ends the loop by it. Nor where the body also returns
    its condition without a node in between, which by itself TensorRT takes.

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
        f"the body reads its condition {inner.name!r}, and this Loop gives it none",
        node=node,
        fix=Fix("let the body read true", edits) if edits else None,
        reads=(inner, body.outputs[0]),
    )


_BODY = "<body = b (int64 i, bool on, float[2] v) => (bool %s, float[2] w)"
_START = "g (float[2] x, int64 n) => (float[2] y)"


loop_without_condition.examples = [
    Fixed(
        "handed on",
        before=f"{_START} {{ y = Loop(n, , x){_BODY % 'more'} {{ more = Identity(on)  w = Add(v, v) }}> }}",
        after=f"""{_START} {{ y = Loop(n, , x){_BODY % "more"} <bool t = {{1}}> {{
            more = Identity(t)  w = Add(v, v) }}> }}""",
    ),
    Fixed(
        "read by another node, with scan outputs, and handed on twice",
        before="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) { y, z = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                a = Identity(on)  more = And(a, on)  w = Where(on, v, x)  s = Neg(v) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) { y, z = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) <bool t = {1}> {
                a = Identity(t)  more = And(a, t)  w = Where(t, v, x)  s = Neg(v) }> }""",
    ),
    Fixed(
        "captured by a branch in the body, in a local function",
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
        "the body makes another one of it, which ONNX ignores and ONNX Runtime obeys",
        f"{_START} {{ y = Loop(n, , x){_BODY % 'more'} {{ more = Not(on)  w = Add(v, v) }}> }}",
    ),
    Flagged(
        "handed back as it is, and read by a node too: there is none that could make another",
        f"{_START} {{ y = Loop(n, , x){_BODY % 'on'} {{ w = Where(on, v, x) }}> }}",
    ),
    Silent(
        "handed back as it is: TensorRT takes it",
        f"{_START} {{ y = Loop(n, , x){_BODY % 'on'} {{ w = Add(v, v) }}> }}",
    ),
    Silent(
        "not read",
        f"""{_START} {{ y = Loop(n, , x){_BODY % "more"} {{
            more = Constant<value = bool {{1}}>()  w = Add(v, v) }}> }}""",
    ),
    Silent(
        "given",
        "g (float[2] x, int64 n, bool c) => (float[2] y) { d = Not(c)  y = Loop(n, d, x)"
        + _BODY % "more"
        + " { more = Identity(on)  w = Add(v, v) }> }",
    ),
    Flagged(
        "a body that takes its condition for a number, which no true can replace",
        """g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x)<body = b (int64 i, float on, float[2] v)
            => (float more, float[2] w) { more = Identity(on)  w = Add(v, v) }> }""",
        runs=False,
    ),
]
