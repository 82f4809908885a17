"""Loops: their condition, and a state that changes its shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.rule import (
    Dim,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    SetInput,
    Severity,
    Silent,
    equal,
    is_read,
    rule,
)
from onnxfix.shapes.symbols import substitute, symbol
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
_COUNTED = "g (float[2] x, int64 n) => (float[2] y)"


loop_without_condition.examples = [
    Fixed(
        "condition passed on",
        before=f"{_COUNTED} {{ y = Loop(n, , x){_BODY % 'more'} {{ more = Identity(on)  w = Add(v, v) }}> }}",
        after=f"""{_COUNTED} {{ y = Loop(n, , x){_BODY % "more"} <bool t = {{1}}> {{
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
        before=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_COUNTED} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 18]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                more = Constant<value = bool {{1}}>()
                w = If(on)<then_branch = p () => (float[2] c) {{ c = Neg(v) }},
                           else_branch = q () => (float[2] d) {{ d = Abs(v) }}> }}> }}""",
        after=f"""<ir_version: 9, opset_import: ["" : 18, "my" : 1]> {_COUNTED} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 18]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                t = Constant<value = bool {{1}}>()  more = Constant<value = bool {{1}}>()
                w = If(t)<then_branch = p () => (float[2] c) {{ c = Neg(v) }},
                          else_branch = q () => (float[2] d) {{ d = Abs(v) }}> }}> }}""",
        opset=18,
    ),
    Flagged(
        "condition negated, which ONNX ignores and ONNX Runtime obeys",
        f"{_COUNTED} {{ y = Loop(n, , x){_BODY % 'more'} {{ more = Not(on)  w = Add(v, v) }}> }}",
    ),
    Flagged(
        "condition returned directly, and read by a node too",
        f"{_COUNTED} {{ y = Loop(n, , x){_BODY % 'on'} {{ w = Where(on, v, x) }}> }}",
    ),
    Flagged(
        "inside a local function before opset 9, where no Constant is boolean",
        f"""<ir_version: 9, opset_import: ["" : 8, "my" : 1]> {_COUNTED} {{ y = my.F(x, n) }}
            <domain: "my", opset_import: ["" : 8]> F (a, m) => (r) {{ r = Loop(m, , a){_BODY % "more"} {{
                more = Identity(on)  w = Add(v, v) }}> }}""",
    ),
    Silent(
        "condition returned directly, which TensorRT accepts",
        f"{_COUNTED} {{ y = Loop(n, , x){_BODY % 'on'} {{ w = Add(v, v) }}> }}",
    ),
    Silent(
        "condition not read",
        f"""{_COUNTED} {{ y = Loop(n, , x){_BODY % "more"} {{
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


@rule("CTL015", ops=["Loop"], severity=Severity.ERROR, hazards=[58])
def loop_state_that_changes_its_shape(node: Node, model: Model) -> Iterator[Match]:
    """A loop-carried value changes its shape in an iteration.

    ## Why it matters
    ONNX allows a state to grow. A TensorRT recurrence has one shape, and the builder refuses another one, measured with
    TensorRT-RTX 1.7.1: `IRecurrenceLayer must have inputs with same shape. First input x has shape [2] and second input
    w has shape [4]`, or, with dynamic sizes, `kOPT values for profile 0 violate shape constraints: … inputs to
    IRecurrenceLayer have different shapes`. It does so even for a loop that runs once or never. Such loops come from
    Python lists that are appended to by `torch.cat`. Sizes that only may differ are not reported: they build, and are
    correct as long as they are equal.

    ## Fix
    None here. CTL014 unrolls a short loop of constant trip count. Otherwise collect rows as a scan output, which may
    have any number of them, or write into a tensor of full size by ScatterND.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    body = _loops.body_of(node)
    if body is None:
        return
    shape = model.shapes.shape
    triples = [
        (inner, shape(start), shape(inner), shape(end))
        for start, inner, end in zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False)
        if start is not None
    ]
    first: dict[str, Dim] = {}
    for _, before, inside, _ in triples:
        if before is not None and inside is not None and len(before) == len(inside):
            first.update(_named(inside, before))
    for inner, before, _, result in triples:
        if before is None or result is None:
            continue
        try:
            after = [substitute(dim, first) for dim in result]
        except ZeroDivisionError:
            continue
        if _differs(after, before, model):
            yield Match(
                f"the state {inner.name!r} changes from {_text(before)} to {_text(after)} in the first iteration",
                node=node,
            )
            return


def _named(inside: Sequence[Dim], before: Sequence[Dim]) -> Iterator[tuple[str, Dim]]:
    """The sizes in the first iteration of the dimensions that may change between iterations."""
    for dim, start in zip(inside, before, strict=True):
        names = list(dim.symbols)
        if len(names) == 1 and dim is symbol(names[0]):
            yield names[0], start


def _differs(first: Sequence[Dim], second: Sequence[Dim], model: Model) -> bool:
    """Whether two shapes certainly differ if no size of a graph input is 0; no profile allows only 0."""
    if len(first) != len(second):
        return True
    for one, other in zip(first, second, strict=True):
        sizes = {
            name: symbol(name) + 1 for name in one.symbols | other.symbols if name in model.shapes.symbols
        }
        try:
            if equal(substitute(one, sizes), substitute(other, sizes)).no:
                return True
        except ZeroDivisionError:
            continue
    return False


def _text(shape: Sequence[Dim]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _growing(inputs: str, body: str, weights: str = "", start: str = "x") -> str:
    return f"""g ({inputs}, int64 n) => (float y) {weights} {{ z = Loop(n, , {start})
        <body = b (int64 i, bool on, float[A] v) => (bool more, float[B] w) {{
            more = Constant<value = bool {{1}}>()  {body} }}>  y = ReduceMax<keepdims = 0>(z) }}"""


loop_state_that_changes_its_shape.examples = [
    Flagged("a state that grows", _growing("float[2] x", "w = Concat<axis = 0>(v, x)")),
    Flagged("a state of dynamic size that grows", _growing("float[N] x", "w = Concat<axis = 0>(v, x)")),
    Flagged(
        "an empty initial state that grows",
        _growing("float[2] x", "w = Concat<axis = 0>(v, x)", "<float[0] e = {}>", "e"),
    ),
    Flagged(
        "a state that is reduced to size 1",
        _growing("float[4] x", "w = ReduceSum<keepdims = 1>(v, a)", "<int64[1] a = {0}>"),
    ),
    Flagged("a state that is broadcast", _growing("float[1] x, float[4] q", "w = Add(v, q)")),
    Flagged(
        "two states of different size that are swapped",
        """g (float[2] x, float[3] q, int64 n) => (float[K] y, float[J] z) { y, z = Loop(n, , x, q)
            <body = b (int64 i, bool on, float[A] v, float[B] w) => (bool more, float[B] r, float[A] s) {
                more = Constant<value = bool {1}>()  r = Neg(w)  s = Neg(v) }> }""",
    ),
    Silent("a state that keeps its shape", _growing("float[N] x", "w = Add(v, x)")),
    Silent("sizes that may be equal", _growing("float[N] x, float[M] q", "w = Add(v, q)")),
    Silent(
        "a size that may already be 1",
        _growing("float[N] x", "w = ReduceSum<keepdims = 1>(v, a)", "<int64[1] a = {0}>"),
    ),
    Silent(
        "rows collected in a scan output",
        """g (float[2] x, int64 n) => (float[K,2] y) { z, y = Loop(n, , x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Constant<value = bool {1}>()  w = Neg(v)  s = Abs(v) }> }""",
    ),
]
