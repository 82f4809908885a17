"""CTL013: Loop conditions that are always true."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Match, Model, Node, Safety, SetInput, Severity, Silent, is_read, rule
from onnxfix_rules.ctl import _loops


@rule("CTL013", ops=["Loop"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[58])
def loop_condition_always_true(node: Node, model: Model) -> Iterator[Match]:
    """A Loop with a trip count, a condition that is always true, and no used scan outputs.

    ## Why it matters
    Exporters write such loops for `for i in range(n)`. TensorRT imports the condition as a second loop limit and
    carries it from one iteration to the next: measured with TensorRT-RTX 1.7.1, 2 TRIP_LIMIT layers instead of 1, and 3
    RECURRENCE layers instead of 2. The result is correct. With scan outputs TensorRT also warns, and they may be wrong:
    see CTL001.

    ## Fix
    The Loop's condition is removed, and its readers in the body read a constant true. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    body = _loops.body_of(node)
    condition = node.require(1)
    if body is None or node.input(0) is None or len(node.inputs) < 3:
        return
    if any(is_read(value) for value in node.outputs[len(node.inputs) - 2 :]):
        return
    if not _loops.begins(node, model) or not _loops.goes_on(body, model):
        return
    edits = (
        _loops.true_inside(body)
        if model.shapes.rank(condition) == 0 or not body.inputs[1].use_count
        else None
    )
    yield Match(
        "Loop with a trip count and a condition that is always true",
        node=node,
        fix=None if edits is None else Fix("remove the condition", [SetInput(node, 1, ""), *edits]),
        reads=(condition, body.outputs[0]),
    )


_START = "g (float[2] x, bool c, int64 n) => (float[2] y)"


def _loop(more: str, call: str = "n, t, x", *, true: str = "<bool t = {1}>", head: str = "") -> str:
    return f"""{_START} {true} {{ y = Loop({call})
        <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {head} {{ {more}  w = Add(v, v) }}> }}"""


loop_condition_always_true.examples = [
    Fixed(
        "initially true, and passed on",
        before=_loop("more = Identity(on)"),
        after=_loop("more = Identity(d)", "n, , x", true="", head="<bool d = {1}>"),
    ),
    Fixed(
        "always true in the body",
        before=_loop("more = Constant<value = bool {1}>()"),
        after=_loop("more = Constant<value = bool {1}>()", "n, , x", true=""),
    ),
    Fixed(
        "unused scan output",
        before="""g (float[2] x, int64 n) => (float[2] y) <bool t = {1}> { y, z = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y) { y, z = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) <bool t = {1}> {
                more = Identity(t)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Silent(
        "a used scan output, which CTL001 reports",
        """g (float[2] x, int64 n) => (float[K,2] z) <bool t = {1}> {
        y, z = Loop(n, t, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
            more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Silent("a condition that may end the loop", _loop("more = Not(on)")),
    Silent("the initial condition is an input", _loop("more = Identity(t)", "n, c, x")),
    Silent(
        "the initial condition is an input with a default",
        f"{_START} <bool c = {{1}}> {{ y = Loop(n, c, x)"
        "<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Identity(on)  w = Add(v, v) }> }",
    ),
    Silent("no trip count", _loop("more = Identity(on)", ", t, x")),
    Silent("no condition", _loop("more = Identity(t)", "n, , x")),
]
