"""CTL016: loop bodies that read the result of another loop or conditional."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Scope,
    Severity,
    Silent,
    Use,
    Value,
    rule,
)
from onnxfix_rules.ctl import _inline
from onnxfix_rules.gra import _common


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
