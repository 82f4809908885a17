"""CTL001 and CTL016: results of loops, and results that loops read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import (
    Draft,
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    SetInput,
    Severity,
    Silent,
    Use,
    Value,
    is_read,
    rule,
)
from onnxfix_rules.ctl import _inline, _loops
from onnxfix_rules.gra import _common


@rule("CTL001", ops=["Loop"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[8, 58])
def loop_that_may_end_early(node: Node, model: Model) -> Iterator[Match]:
    """A Loop with a trip count, a condition and scan outputs: TensorRT returns as many rows as the trip count says.

    ## Why it matters
    In ONNX a scan output has one row per iteration that ran. In TensorRT its length is the trip count; if the condition
    ends the loop earlier, the other rows are undefined. Measured with TensorRT-RTX 1.7.1: a loop of at most 6
    iterations has an output of shape [6, 2], whatever the condition says. It builds, with a warning: `both a trip limit
    and a loop termination condition was set! If the number of iterations of the loop is less than the trip limit during
    runtime, scan output … may have the wrong shape. For consistent results it's recommended to export loops with only a
    trip limit`. The loop-carried outputs are correct.

    - **error**: the condition may become false before the trip count is reached, or is not proven to stay true.
    - **warning**: it is always true, or is so unless a caller overrides a default. Exporters write such loops for `for
      i in range(n)`. The rows are correct, and the condition is superfluous.

    ## Fix
    If the initial condition is true (or false only because there are no iterations) and the body keeps it true, the
    Loop's condition is removed; its readers in the body read a constant true. Exact. Removing only the input is not
    enough: TensorRT refuses the body (`Node input was not registered`). There is no fix if the loop may really end
    early: compute a fixed number of iterations, or read only as many rows as a counter in the loop says.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    count, condition = node.require(0), node.require(1)
    if len(node.subgraphs) != 1:
        return
    body = node.subgraphs[0]
    carried = len(node.inputs) - 2
    if len(body.inputs) != carried + 2 or not body.outputs:
        return
    if not any(is_read(value) for value in node.outputs[carried:]):
        return
    same_source = _is_any(condition, count)
    if (same_source or _loops.always_true(condition, None, model, defaults=True)) and _loops.always_true(
        body.outputs[0], body.inputs[1], model, defaults=True
    ):
        certain = (same_source or _loops.always_true(condition, None, model)) and _loops.always_true(
            body.outputs[0], body.inputs[1], model
        )
        unless = "" if certain else ", unless a default is overridden"
        yield Match(
            f"Loop with a trip count and a condition that is always true{unless}: TensorRT warns of wrong scan outputs",
            node=node,
            severity=Severity.WARNING,
            fix=_without_condition(node, body, model) if certain else None,
            reads=(condition, body.outputs[0]),
        )
        return
    yield Match(
        "Loop with a trip count and a condition that may end it earlier: TensorRT's scan outputs have as many rows as "
        "the trip count",
        node=node,
    )


def _is_any(condition: Value, count: Value) -> bool:
    """Whether both are casts of one value, so that the condition is false only for 0 iterations."""
    first, second = condition.producer, count.producer
    return (
        first is not None
        and second is not None
        and first.op_type == second.op_type == "Cast"
        and first.is_onnx
        and second.is_onnx
        and first.input(0) is second.input(0)
    )


def _without_condition(node: Node, body: Scope, model: Model) -> Fix | None:
    """Remove the condition's input, and replace it by true inside the body; None if that is not possible."""
    inner = body.inputs[1]
    edits: list[Edit] = [SetInput(node, 1, "")]
    if len(node.inputs) < 3:
        return None  # a Loop has at least two inputs, and an empty last one is dropped
    if not inner.replaceable:
        return None
    if inner.use_count:
        condition = node.input(1)
        if (
            condition is None
            or model.shapes.rank(condition) != 0
            or model.shapes.rank(body.outputs[0]) not in (0, None)
        ):
            return None  # readers of the condition may see another shape
        draft = Draft(body.nodes[0])
        draft.replace_uses(inner, draft.constant(np.array(True), "true"))
        edits += draft.edits
    return Fix("remove the condition", edits)


_START = "g (float[2] x, bool c, int64 n, float l) => (float[2] y, float[K,2] z)"
_IN = "(int64 i, bool on, float[2] v)"
_OUT = "(bool more, float[2] w, float[2] s)"


def _loop(
    more: str, call: str = "n, t, x", *, before: str = "", true: str = "<bool t = {1}>", head: str = ""
) -> str:
    """A model whose loop has a scan output; ``more`` computes the body's condition."""
    return f"""{_START} {true} {{ {before} y, z = Loop({call})<body = b {_IN} => {_OUT} {head} {{
        {more}  w = Add(v, v)  s = Neg(v) }}> }}"""


# Fixed models do not run here: onnx.reference interprets a missing condition as false. The tests use ONNX Runtime.
loop_that_may_end_early.examples = [
    Fixed(
        "initially true, and passed on",
        before=_loop("more = Identity(on)"),
        after=_loop("more = Identity(d)", "n, , x", true="", head="<bool d = {1}>"),
    ),
    Fixed(
        "always true in the body",
        before=_loop("more = Constant<value = bool {1}>()"),
        after=_loop("more = Constant<value = bool {1}>()", "n, , x", true=""),
        opset=13,
    ),
    Fixed(
        "true by And; another node reads the condition",
        before="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) <bool t = {1}> {
            y, z = Loop(n, t, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                e = Identity(on)  more = And(e, t)  w = Where(on, v, x)  s = Neg(v) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y, float[K,2] z) <bool t = {1}> {
            y, z = Loop(n, , x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s)
                <bool d = {1}> { e = Identity(d)  more = And(e, t)  w = Where(d, v, x)  s = Neg(v) }> }""",
    ),
    Fixed(
        "trip count and condition cast from the same value, as in ONNX's expansion of Range",
        before="""g (float[2] x, int32 n) => (float[2] y, float[K,2] z) { c = Cast<to = 9>(n)  m = Cast<to = 7>(n)
            y, z = Loop(m, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
        after="""g (float[2] x, int32 n) => (float[2] y, float[K,2] z) { m = Cast<to = INT64>(n)
            y, z = Loop(m, , x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s)
                <bool d = {1}> { more = Identity(d)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Flagged(
        "trip count and condition cast from different values",
        """g (float[2] x, int32 n, int32 k) => (float[2] y, float[K,2] z) {
            c = Cast<to = BOOL>(k)  m = Cast<to = INT64>(n)
            y, z = Loop(m, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Flagged("the condition depends on the state", _loop("m = ReduceMax<keepdims = 0>(v)  more = Less(m, l)")),
    Flagged("the initial condition is an input", _loop("more = Identity(t)", "n, c, x")),
    Flagged("the initial condition is false", _loop("more = Identity(f)", "n, f, x", before="f = Not(t)")),
    Flagged(
        "the initial condition is true by default (a warning)",
        """g (float[2] x, bool t, int64 n) => (float[2] y, float[K,2] z) <bool t = {1}> {
            y, z = Loop(n, t, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Flagged(
        "the body returns its condition directly, so no node can be rewired",
        """g (float[2] x, int64 n) => (float[2] y, float[K,2] z) <bool t = {1}> {
            y, z = Loop(n, t, x)<body = b (int64 i, bool on, float[2] v) => (bool on, float[2] w, float[2] s) {
                w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Silent("a trip count without a condition", _loop("more = Identity(t)", "n, , x")),
    Silent(
        "a condition and no scan output, which TensorRT imports correctly",
        """g (float[2] x, bool c, int64 n) => (float[2] y) {
            y = Loop(n, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                more = Not(on)  w = Add(v, v) }> }""",
    ),
    Silent(
        "unused scan output",
        """g (float[2] x, bool c, int64 n) => (float[2] y) {
            y, z = Loop(n, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Not(on)  w = Add(v, v)  s = Neg(v) }> }""",
    ),
    Silent(
        "a Scan",
        """g (float[3,2] x, float[2] h) => (float[2] y, float[3,2] z) {
            y, z = Scan<num_scan_inputs = 1, body = b (float[2] v, float[2] e) => (float[2] w, float[2] s) {
                w = Add(v, e)  s = Neg(w) }>(h, x) }""",
    ),
]


@rule(
    "CTL016",
    ops=["Loop", "Scan"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[58],
    differs={"branch": "found in the main graph alone, for inside a branch an Identity does not help"},
)
def loop_reads_result_of_control_flow(node: Node, model: Model) -> Iterator[Match]:
    """A node in a loop body reads the result of another loop or conditional after a value of its own loop.

    ## Why it matters
    TensorRT's builder fails without naming a node: `Internal Error (No nesting relationship. In deeperScope at
    …/graphScope.cpp:232)`, measured with TensorRT-RTX 1.7.1. A direct result of a Loop, Scan, If, LSTM, GRU or RNN
    counts as part of it, and the order of operands decides: `Add(state, result)` is refused, `Add(result, state)` is
    not. Any node between the two is enough. Consecutive loops are written like this by hand or by CTL014.

    ## Fix
    An Identity between the result and the loop. Exact. It costs a layer, which the builder removes; GRA012 keeps it.

    Not reported in cases that build: in a branch inside the body, as the initial state of an inner loop, if both loops
    depend on a third one around them, and if the condition of the If is constant. Nor if an Identity does not help:
    inside a branch, and if the first loop computes the same in each iteration of a third one around both.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    if node.scope.parent is not None:
        return
    found: dict[Value, list[Use]] = {}
    varying: set[Value] = set()
    bodies = list(node.subgraphs)
    while bodies:
        bodies += _look(bodies.pop(0), node, model, varying, found)
    if not found:
        return
    draft = Draft(node)
    for value, uses in found.items():
        name = draft.add("Identity", [value], hint="result")
        for use in uses:
            draft.set_input(use.node, use.index, name)
    first = next(iter(found))
    assert first.producer is not None
    yield Match(
        f"this loop reads {first.name!r}, a result of {first.producer.op_type}, after a value of its own",
        node=node,
        fix=Fix("insert an Identity between them", draft.edits),
        reads=(*found, *(use.node for uses in found.values() for use in uses)),
    )


def _look(
    body: Scope, loop: Node, model: Model, varying: set[Value], found: dict[Value, list[Use]]
) -> list[Scope]:
    """Collect the results that ``body`` reads after a value that varies in ``loop``; returns bodies of inner loops."""
    inside: list[Scope] = []
    varying.update(body.inputs)
    for node in model.orders[body]:
        own, mixes = False, not (node.is_onnx and node.op_type in _common.CONTROL)
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            own = own or value in varying
            if own and mixes and value.scope is loop.scope and _counts(value):
                found.setdefault(value, []).append(Use(node, index))
        if any(value in varying for value in _inline.reads(node)):
            varying.update(value for value in node.outputs if value is not None)
        if node.is_onnx and node.op_type in _common.LOOPS:
            inside += node.subgraphs
    return inside


def _counts(value: Value) -> bool:
    if not _common.is_result(value) or value.producer is None:
        return False
    condition = value.producer.input(0)
    return value.producer.op_type != "If" or condition is None or not condition.is_constant


_IO = "g (float[2] x, int64 n) => (float[2] y) <bool t = {1}>"
_FIRST = """w = Loop(n, t, x)<body = a (int64 ai, bool ag, float[2] ah) => (bool af, float[2] ao) {
            af = Identity(ag)  ao = Add(ah, x) }>"""
_BRANCHES = """<then_branch = p () => (float[2] pu) { pu = Neg(x) }, else_branch = q () => (float[2] qu) {
            qu = Exp(x) }>"""


def _second(step: str) -> str:
    return f"""y = Loop(n, t, x)<body = b (int64 bi, bool bg, float[2] bh) => (bool bf, float[2] bo) {{
            bf = Identity(bg)  {step} }}>"""


_INNER = """bo, bp = Loop(n, t, bh, w)
            <body = c (int64 ci, bool cg, float[2] ch, float[2] ck) => (bool cf, float[2] co, float[2] cp) {{
            cf = Identity(cg)  co = Add(ch, {})  cp = Neg(ck) }}>"""

_LSTM = """g (float[2,1,2] x, int64 n) => (float[2,1,1,2] y)
            <bool t = {1}, float[1,8,2] k = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}>"""


loop_reads_result_of_control_flow.examples = [
    Fixed(
        "two consecutive loops",
        before=f"{_IO} {{ {_FIRST} {_second('bo = Add(bh, w)')} }}",
        after=f"{_IO} {{ {_FIRST} r = Identity(w)  {_second('bo = Add(bh, r)')} }}",
    ),
    Fixed(
        "after the loop counter, as third operand",
        before=f"{_IO} {{ {_FIRST} {_second('bk = Cast<to = FLOAT>(bi)  bo = Sum(x, bk, w)')} }}",
        after=f"{_IO} {{ {_FIRST} r = Identity(w)  {_second('bk = Cast<to = FLOAT>(bi)  bo = Sum(x, bk, r)')} }}",
    ),
    Fixed(
        "the result of an If, read twice",
        before=f"""g (float[2] x, int64 n, bool c) => (float[2] y) <bool t = {{1}}> {{ w = If(c){_BRANCHES}
            {_second("bk = Mul(bh, w)  bo = Where(bg, bk, w)")} }}""",
        after=f"""g (float[2] x, int64 n, bool c) => (float[2] y) <bool t = {{1}}> {{ w = If(c){_BRANCHES}
            r = Identity(w)  {_second("bk = Mul(bh, r)  bo = Where(bg, bk, r)")} }}""",
    ),
    Fixed(
        "the result of an LSTM",
        before=f"""{_LSTM} {{ w = LSTM<hidden_size = 2>(x, k, k)
            y = Loop(n, t, w)<body = b (int64 bi, bool bg, float[2,1,1,2] bh) => (bool bf, float[2,1,1,2] bo) {{
            bf = Identity(bg)  bo = Sub(bh, w) }}> }}""",
        after=f"""{_LSTM} {{ w = LSTM<hidden_size = 2>(x, k, k)  r = Identity(w)
            y = Loop(n, t, w)<body = b (int64 bi, bool bg, float[2,1,1,2] bh) => (bool bf, float[2,1,1,2] bo) {{
            bf = Identity(bg)  bo = Sub(bh, r) }}> }}""",
    ),
    Fixed(
        "read by a Scan",
        before=f"""g (float[2] x, int64 n, float[3,2] s) => (float[2] y, float[3,2] z) <bool t = {{1}}> {{ {_FIRST}
            y, z = Scan<num_scan_inputs = 1, body = b (float[2] bh, float[2] bi) => (float[2] bo, float[2] bu) {{
            bv = Mul(bh, bi)  bo = Add(bv, w)  bu = Neg(bh) }}>(x, s) }}""",
        after=f"""g (float[2] x, int64 n, float[3,2] s) => (float[2] y, float[3,2] z) <bool t = {{1}}> {{ {_FIRST}
            r = Identity(w)
            y, z = Scan<num_scan_inputs = 1, body = b (float[2] bh, float[2] bi) => (float[2] bo, float[2] bu) {{
            bv = Mul(bh, bi)  bo = Add(bv, r)  bu = Neg(bh) }}>(x, s) }}""",
    ),
    Fixed(
        "read by an inner loop, and as its initial state, which builds",
        before=f"{_IO} {{ {_FIRST} {_second(_INNER.format('w'))} }}",
        after=f"{_IO} {{ {_FIRST} r = Identity(w)  {_second(_INNER.format('r'))} }}",
    ),
    Silent(
        "read before any value that varies in the loop",
        f"{_IO} {{ {_FIRST} {_second('bk = Neg(x)  bl = Mul(bk, w)  bo = Add(w, bh)  bm = Add(bl, bo)')} }}",
    ),
    Silent(
        "a node in between, inside or outside the loop",
        f"{_IO} {{ {_FIRST} r = Identity(w)  {_second('bk = Abs(w)  bl = Add(bh, bk)  bo = Add(bl, r)')} }}",
    ),
    Silent(
        "as initial state",
        f"""{_IO} {{ {_FIRST} y = Loop(n, t, w)
            <body = b (int64 bi, bool bg, float[2] bh) => (bool bf, float[2] bo) {{
            bf = Identity(bg)  bo = Add(bh, x) }}> }}""",
    ),
    Silent(
        "read by a branch in the body",
        f"""{_IO} {{ {_FIRST} {
            _second('''bo = If(bg)<then_branch = p () => (float[2] pu) { pu = Add(bh, w) },
            else_branch = q () => (float[2] qu) { qu = Neg(bh) }>''')
        } }}""",
    ),
    Silent(
        "two loops in the body of a third one, both dependent on its state",
        f"""{_IO} {{ y = Loop(n, t, x)<body = o (int64 oi, bool og, float[2] oh) => (bool of, float[2] oo) {{
            of = Identity(og)  {_FIRST.replace("t, x", "t, oh")}
            oo = Loop(n, t, oh)<body = b (int64 bi, bool bg, float[2] bh) => (bool bf, float[2] bo) {{
            bf = Identity(bg)  bo = Add(bh, w) }}> }}> }}""",
    ),
    Silent(
        "an If with a constant condition",
        f"""g (float[2] x, int64 n) => (float[2] y) <bool t = {{1}}, bool c = {{1}}> {{ w = If(c){_BRANCHES}
            {_second("bo = Mul(bh, w)")} }}""",
    ),
]
