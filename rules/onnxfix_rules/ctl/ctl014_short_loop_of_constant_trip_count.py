"""CTL014: short loops with a constant trip count."""
# Long because: an example of each kind of state, trip count and condition.

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

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
    Value,
    is_read,
    rule,
    takes,
)
from onnxfix_rules.ctl import _inline, _loops
from onnxfix_rules.gra import _common

MAX_NODES = 256
"""Maximum number of nodes after unrolling: more are not worth the longer build."""


@rule("CTL014", ops=["Loop"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[58])
def short_loop_of_constant_trip_count(node: Node, model: Model) -> Iterator[Match]:
    """A Loop with a small constant number of iterations, which its trip count or a counter in its condition says.

    ## Why it matters
    A loop is a barrier to TensorRT: nothing inside is fused with nodes outside, and its counter, condition and states
    are layers of their own. Measured with TensorRT-RTX 1.7.1: unrolling such a loop of a few iterations cut the network
    from 18 layers to 9 and the engine from 398 to 137 kB. Some loops do not build at all: one whose state changes its
    shape fails (CTL015), and builds when it is unrolled.

    ## Fix
    The body is copied once per iteration, with the iteration number as a constant; scan outputs are concatenated.
    Exact. A condition that compares a counter with a constant is computed here: exporters write `while i < 4` and
    torch.while_loop without a trip count. Loops and branches in the body are copied as they are. At most 256 nodes in
    all, including theirs; a body that draws random numbers is not reported.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Loop.html
    """
    body = _loops.body_of(node)
    count = None if body is None else _loops.runs(node, body, model, MAX_NODES)
    if body is None or count is None:
        return
    plan = _plan(node, body, count)
    if plan is None or not _fits(node, body, plan, model):
        return
    draft = _unrolled(node, body, plan)
    if draft is None:
        return
    reads = tuple(v for v in (*node.inputs[:2], body.outputs[0]) if v is not None)
    message = f"this Loop always runs {count} time{'' if count == 1 else 's'}"
    yield Match(message, node=node, fix=Fix("unroll it", draft.edits), reads=(*reads, *body.nodes))


def _plan(node: Node, body: Scope, count: int) -> list[list[Node]] | None:
    """The nodes that each iteration needs; None if they are too many or cannot be copied."""
    carried = len(node.inputs) - 2
    rows = [
        r for o, r in zip(node.outputs[carried:], body.outputs[1 + carried :], strict=False) if is_read(o)
    ]
    if rows and not count:
        return None
    read = [r for o, r in zip(node.outputs[:carried], body.outputs[1:], strict=False) if is_read(o)]
    plan: list[list[Node]] = []
    known: dict[frozenset[Value], list[Node] | None] = {}
    total = 0
    for _ in range(count):  # from the last iteration to the first: each must compute what the next one needs
        key = frozenset((*read, *rows))
        if key not in known:
            known[key] = _inline.needed(body, list(key))
        nodes = known[key]
        if nodes is None:
            return None
        plan.append(nodes)
        total += max(sum(1 for node in nodes for _ in _inline.inside(node)), 1)
        if total > MAX_NODES:
            return None
        inside = {v for n in nodes for v in _inline.reads(n)} | key
        read = [r for v, r in zip(body.inputs[2:], body.outputs[1:], strict=False) if v in inside]
    return plan[::-1]


def _fits(node: Node, body: Scope, plan: Sequence[Sequence[Node]], model: Model) -> bool:
    """Whether the copies compute the same as the body when placed in the graph of the Loop."""
    if any(value is None for value in node.inputs[2:]):
        return False
    nodes = {n: None for part in plan for n in part}
    if any(map(_common.draws, nodes)):
        return False
    inside = {v for n in nodes for v in _inline.reads(n)} | set(body.outputs[1:])
    counter, going = body.inputs[:2]
    count, shape = node.input(0), _loops.counter_shape(counter)
    if counter in inside and (shape is None or (shape and (count is None or model.shapes.rank(count) != 1))):
        return False
    condition = node.input(1)
    if going in inside and (
        not _loops.scalar(going) or (condition is not None and model.shapes.rank(condition) != 0)
    ):
        return False
    carried = len(node.inputs) - 2
    rows = zip(node.outputs[carried:], body.outputs[1 + carried :], strict=False)
    if not all(_stackable(row, node, model) for output, row in rows if is_read(output)):
        return False
    return _inline.movable(list(nodes), body.outputs[1:], body, node)


def _stackable(row: Value, node: Node, model: Model) -> bool:
    """Whether Unsqueeze and Concat take rows of this type, and onnx knows it once the Loop does not declare it."""
    if row.producer is not None and not row.producer.is_onnx:
        return False
    elem, opset = model.shapes.elem_type(row), node.scope.opset()
    return elem is None or all(takes(op_type, opset, elem) for op_type in ("Unsqueeze", "Concat"))


def _unrolled(node: Node, body: Scope, plan: Sequence[Sequence[Node]]) -> Draft | None:
    """The edits that copy the body once per iteration; None if an output cannot keep its name."""
    draft = Draft(node)
    draft.remove(node)
    inliner = _inline.Inliner(draft, body)
    carried = len(node.inputs) - 2
    state = [value.name for value in node.inputs[2:] if value is not None]
    of: list[Value] = [value for value in node.inputs[2:] if value is not None]
    rows: dict[int, list[str]] = {
        k: [] for k in range(carried, len(node.outputs)) if is_read(node.outputs[k])
    }
    counter, going = body.inputs[:2]
    always: dict[Value, str] = {}
    targets: dict[Value, str] = {}
    for number, nodes in enumerate(plan):
        inside = {v for n in nodes for v in _inline.reads(n)} | set(body.outputs[1:])
        if going in inside and going not in always:
            always[going] = draft.constant(np.array(True), "true")
        given = {**dict(zip(body.inputs[2:], state, strict=True)), **always}
        if counter in inside:
            iteration = np.full(_loops.counter_shape(counter) or (), number, np.int64)
            given[counter] = draft.constant(iteration, f"iteration_{number}")
        targets = _targets(node, body, nodes) if number == len(plan) - 1 else {}
        names = inliner.copy(nodes, given, targets)
        made = {v for n in nodes for v in n.outputs}
        # No later iteration reads a state that this one does not compute.
        state = [
            inliner.name(r, names) if r.scope is not body or r.producer is None or r in made else ""
            for r in body.outputs[1 : 1 + carried]
        ]
        of = body.outputs[1 : 1 + carried]
        for k, names_of_rows in rows.items():
            names_of_rows.append(inliner.name(body.outputs[1 + k], names))
    for output, source, value in zip(node.outputs, state, of, strict=False):
        if output is None or not is_read(output) or targets.get(value) == output.name:
            continue
        if not _inline.deliver(draft, output, source, value):
            return None
    for k, names_of_rows in rows.items():
        _stack(draft, node.outputs[k], names_of_rows)
    return draft


def _targets(node: Node, body: Scope, nodes: Sequence[Node]) -> dict[Value, str]:
    """Results of the last iteration, with the names of the outputs that they become."""
    made = {v for n in nodes for v in n.outputs}
    found: dict[Value, str] = {}
    for output, result in zip(node.outputs[: len(node.inputs) - 2], body.outputs[1:], strict=False):
        if output is not None and not output.replaceable and result in made:
            found.setdefault(result, output.name)
    return found


def _stack(draft: Draft, output: Value | None, rows: Sequence[str]) -> None:
    """Replace a scan output by its rows, concatenated along a new first axis."""
    assert output is not None
    opset = draft.anchor.scope.opset()
    axes = draft.integers([0], "axes") if opset >= 13 else ""
    unsqueezed = [
        draft.add("Unsqueeze", [row, axes]) if axes else draft.add("Unsqueeze", [row], axes=[0])
        for row in rows
    ]
    name = "" if output.replaceable else output.name
    stacked = draft.add("Concat", unsqueezed, output=name, axis=0)
    if not name:
        draft.replace_uses(output, stacked)


_BODY = "<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Identity(on) %s }>"
_SCAN = """<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
    more = Identity(on)  w = Add(v, v)  f = Cast<to = FLOAT>(i)  s = Mul(x, f) }>"""


short_loop_of_constant_trip_count.examples = [
    Fixed(
        "two iterations, with a condition that is true",
        before="g (float[2] x) => (float[2] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)"
        + _BODY % "w = Mul(v, x)"
        + " }",
        after="g (float[2] x) => (float[2] y) { a = Mul(x, x)  y = Mul(a, x) }",
    ),
    Fixed(
        "a counter that is a vector, as PyTorch's tensor_split has it",
        before="""g (float[4,2] x) => (float[K,2] y) <int64[1] n = {1}, bool t = {1}, float[0,2] e = {},
            int64[1] a = {0}, int64[1] o = {2}> { y = Loop(n, t, e)<body = b (int64[1] i, bool on, float[K,2] v) =>
                (bool more, float[L,2] w) { more = Identity(on)  f = Add(i, o)  s = Slice(x, i, f, a)
                w = Concat<axis = 0>(v, s) }> }""",
        after="""g (float[4,2] x) => (float[K,2] y) <float[0,2] e = {}, int64[1] a = {0}, int64[1] o = {2},
            int64[1] i = {0}> { f = Add(i, o)  s = Slice(x, i, f, a)  y = Concat<axis = 0>(e, s) }""",
    ),
    Fixed(
        "a counter in the condition, without a trip count, that is an output",
        before="""g (float[2] x) => (float[2] y, int64 o) <int64 s = {1}, int64 d = {2}, int64 n = {4}, bool t = {1}> {
            y, o = Loop("", t, x, s)<body = b (int64 i, bool on, float[2] v, int64 c) =>
                (bool more, float[2] w, int64 e) { w = Mul(v, x)  e = Add(d, c)  more = Greater(n, e) }> }""",
        after="""g (float[2] x) => (float[2] y, int64 o) <int64 s = {1}, int64 d = {2}> {
            a = Mul(x, x)  e = Add(d, s)  y = Mul(a, x)  o = Add(d, e) }""",
    ),
    Fixed(
        "a counter and a trip count that is never reached",
        before="""g (float[2] x) => (float[2] y) <int64 m = {9223372036854775807}, int64 n = {1}, bool t = {1}> {
            y = Loop(m, t, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                w = Neg(v)  l = LessOrEqual(i, n)  more = Identity(l) }> }""",
        after="g (float[2] x) => (float[2] y) { a = Neg(x)  b = Neg(a)  y = Neg(b) }",
    ),
    Silent(
        "a counter that grows by a state",
        """g (float[2] x) => (float[2] y) <int64 s = {1}, int64 n = {4}, bool t = {1}> {
            y, o = Loop("", t, x, s)<body = b (int64 i, bool on, float[2] v, int64 c) =>
                (bool more, float[2] w, int64 e) { w = Mul(v, x)  e = Add(c, c)  more = Less(e, n) }> }""",
    ),
    Silent(
        "a counter, and a trip count that is an input",
        """g (float[2] x, int64 m) => (float[2] y) <int64 n = {4}, bool t = {1}> { y = Loop(m, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { w = Neg(v)  more = Less(i, n) }> }""",
    ),
    Fixed(
        "one iteration, without a condition",
        before="g (float[2] x) => (float[2] y) <int64[1] n = {1}> { y = Loop(n, , x)"
        + _BODY % "w = Neg(v)"
        + " }",
        after="g (float[2] x) => (float[2] y) { y = Neg(x) }",
    ),
    Fixed(
        "a body that reads iteration number, condition and a weight, with a scan output",
        before="""g (float[2] x) => (float[K,2] y) <int64 n = {2}, bool t = {1}> { z, y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) <float[2] k = {1, 2}> {
                more = Identity(on)  w = Add(v, k)  f = Cast<to = FLOAT>(i)  g = Cast<to = FLOAT>(on)
                h = Mul(f, g)  s = Add(v, h) }> }""",
        after="""g (float[2] x) => (float[K,2] y)
            <float[2] k = {1, 2}, int64 i = {0}, int64 j = {1}, bool t = {1}, int64[1] a = {0}> {
            w = Add(x, k)  f = Cast<to = FLOAT>(i)  g = Cast<to = FLOAT>(t)  h = Mul(f, g)  s = Add(x, h)
            c = Cast<to = FLOAT>(j)  d = Cast<to = FLOAT>(t)  e = Mul(c, d)  q = Add(w, e)
            l = Unsqueeze(s, a)  m = Unsqueeze(q, a)  y = Concat<axis = 0>(l, m) }""",
    ),
    Fixed(
        "opset 11, and an unused state that is not computed",
        before=f"""g (float[2] x) => (float[K,2] y) <int64 n = {{2}}, bool t = {{1}}> {{
            z, y = Loop(n, t, x){_SCAN} }}""",
        after="""g (float[2] x) => (float[K,2] y) <int64 i = {0}, int64 j = {1}> {
            f = Cast<to = FLOAT>(i)  s = Mul(x, f)  g = Cast<to = FLOAT>(j)  r = Mul(x, g)
            p = Unsqueeze<axes = [0]>(s)  q = Unsqueeze<axes = [0]>(r)  y = Concat<axis = 0>(p, q) }""",
        opset=11,
    ),
    Fixed(
        "a growing state, which TensorRT refuses in a loop",
        before="""g (float[N] x) => (float[K] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[A] v) => (bool more, float[B] w) {
                more = Identity(on)  w = Concat<axis = 0>(v, x) }> }""",
        after="g (float[N] x) => (float[K] y) { a = Concat<axis = 0>(x, x)  y = Concat<axis = 0>(a, x) }",
    ),
    Fixed(
        "two states that are swapped",
        before="""g (float[2] x, float[2] q) => (float[2] y, float[2] z) <int64 n = {3}, bool t = {1}> {
            y, z = Loop(n, t, x, q)<body = b (int64 i, bool on, float[2] v, float[2] u) =>
                (bool more, float[2] u, float[2] w) { more = Identity(on)  w = Neg(v) }> }""",
        after="""g (float[2] x, float[2] q) => (float[2] y, float[2] z) {
            a = Neg(x)  b = Neg(q)  z = Neg(a)  y = Identity(b) }""",
        runs=False,  # onnx.checker refuses a body's input as its output; ONNX Runtime runs it
    ),
    Fixed(
        "no iterations",
        before="g (float[2] x) => (float[2] y) <int64 n = {0}, bool t = {1}> { y = Loop(n, t, x)"
        + _BODY % "w = Mul(v, x)"
        + " }",
        after="g (float[2] x) => (float[2] y) { y = Identity(x) }",
    ),
    Fixed(
        "inside a branch, with a static size as trip count",
        before="""g (float[2] x, bool c) => (float[2] y) <bool t = {1}> { y = If(c)<then_branch = p () => (float[2] u) {
            s = Shape(x)  u = Loop(s, t, x)"""
        + _BODY % "w = Mul(v, x)"
        + " }, else_branch = q () => (float[2] r) { r = Abs(x) }> }",
        after="""g (float[2] x, bool c) => (float[2] y) { y = If(c)<then_branch = p () => (float[2] u) {
            a = Mul(x, x)  u = Mul(a, x) }, else_branch = q () => (float[2] r) { r = Abs(x) }> }""",
    ),
    Silent(
        "too many iterations",
        "g (float[2] x) => (float[2] y) <int64 n = {257}, bool t = {1}> { y = Loop(n, t, x)"
        + _BODY % "w = Neg(v)"
        + " }",
    ),
    Silent(
        "the trip count is an input",
        "g (float[2] x, int64 n) => (float[2] y) <bool t = {1}> { y = Loop(n, t, x)"
        + _BODY % "w = Neg(v)"
        + " }",
    ),
    Silent(
        "the trip count is an input with a default",
        "g (float[2] x, int64 n) => (float[2] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)"
        + _BODY % "w = Neg(v)"
        + " }",
    ),
    Silent(
        "a condition that may end the loop early",
        """g (float[2] x) => (float[2] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Not(on)  w = Add(v, v) }> }""",
    ),
    Silent(
        "no iterations, and an empty scan output",
        f"g (float[2] x) => (float[K,2] y) <int64 n = {{0}}, bool t = {{1}}> {{ z, y = Loop(n, t, x){_SCAN} }}",
    ),
    Silent(
        "rows of float8, which no Concat takes",
        """g (float[2] x) => (float8e4m3fn[K,2] y) <int64 n = {2}, bool t = {1}> { z, y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float8e4m3fn[2] s) {
                more = Identity(on)  w = Add(v, v)  s = Cast<to = FLOAT8E4M3FN>(w) }> }""",
        opset=21,
    ),
    Silent(
        "rows of another domain's operator, whose type onnx would not know",
        """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
            g (float[2] x) => (float[K,2] y) <int64 n = {2}, bool t = {1}> { z, y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w, float[2] s) {
                more = Identity(on)  w = Add(v, v)  s = com.microsoft.Gelu(w) }> }""",
    ),
    Silent(
        "random numbers, which would be equal in all copies",
        "g (float[2] x) => (float[2] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)"
        + _BODY % "r = RandomNormalLike<seed = 1.0>(v)  w = Add(v, r)"
        + " }",
    ),
    Fixed(
        "a branch in the body that reads the state, a weight and the iteration number",
        before="""g (float[2] x, bool c) => (float[2] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) <float[2] k = {1, 2}> {
                more = Identity(on)  a = Mul(v, x)
                w = If(c)<then_branch = p () => (float[2] u) { s = Add(v, k)  u = Add(s, a) },
                          else_branch = q () => (float[2] r) { f = Cast<to = FLOAT>(i)  r = Mul(a, f) }> }> }""",
        after="""g (float[2] x, bool c) => (float[2] y) <int64 i = {0}, int64 j = {1}, float[2] k = {1, 2}> {
            a = Mul(x, x)
            w = If(c)<then_branch = p () => (float[2] u) { s = Add(x, k)  u = Add(s, a) },
                      else_branch = q () => (float[2] r) { f = Cast<to = FLOAT>(i)  r = Mul(a, f) }>
            d = Mul(w, x)
            y = If(c)<then_branch = p2 () => (float[2] u2) { s2 = Add(w, k)  u2 = Add(s2, d) },
                      else_branch = q2 () => (float[2] r2) { f2 = Cast<to = FLOAT>(j)  r2 = Mul(d, f2) }> }""",
    ),
    Fixed(
        "a loop in the body, whose trip count is an input",
        before="""g (float[2] x, int64 m) => (float[2] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Identity(on)
                w = Loop(m, t, v)<body = d (int64 j, bool go, float[2] h) => (bool further, float[2] o) {
                    further = Identity(go)  o = Add(h, v) }> }> }""",
        after="""g (float[2] x, int64 m) => (float[2] y) <bool t = {1}> {
            w = Loop(m, t, x)<body = d (int64 j, bool go, float[2] h) => (bool further, float[2] o) {
                further = Identity(go)  o = Add(h, x) }>
            y = Loop(m, t, w)<body = d2 (int64 j2, bool go2, float[2] h2) => (bool further2, float[2] o2) {
                further2 = Identity(go2)  o2 = Add(h2, w) }> }""",
    ),
    Silent(
        "random numbers, in a branch of the body",
        "g (float[2] x, bool c) => (float[2] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)"
        + _BODY
        % """w = If(c)<then_branch = p () => (float[2] u) { u = RandomNormalLike<seed = 1.0>(v) },
            else_branch = q () => (float[2] r) { r = Neg(v) }>"""
        + " }",
    ),
    Silent(
        "random numbers, in a function that the body calls",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2] x) => (float[2] y) <int64 n = {2}, bool t = {1}> { y = Loop(n, t, x)"""
        + _BODY % "w = my.F(v)"
        + """ }
            <domain: "my", opset_import: ["" : 18, "my" : 1]> F (a) => (b) { b = my.G(a) }
            <domain: "my", opset_import: ["" : 18]> G (a) => (b) {
                r = RandomNormalLike<seed = 1.0>(a)  b = Add(a, r) }""",
    ),
    Silent(
        "too many nodes, most of them in a branch",
        "g (float[2] x, bool c) => (float[2] y) <int64 n = {64}, bool t = {1}> { y = Loop(n, t, x)"
        + _BODY
        % """w = If(c)<then_branch = p () => (float[2] u) { e = Exp(v)  l = Log(e)  u = Abs(l) },
            else_branch = q () => (float[2] r) { r = Neg(v) }>"""
        + " }",
    ),
    Silent(
        "a Scan",
        """g (float[3,2] x, float[2] h) => (float[2] y, float[3,2] z) { y, z = Scan<num_scan_inputs = 1,
            scan_input_directions = [1], body = b (float[2] v, float[2] e) => (float[2] w, float[2] s) { w =
            Add(v, e) s = Neg(w) }>(h, x) }""",
    ),
    Fixed(
        "a name of the body that is in use outside",
        before="""g (float[2] x) => (float[2] y, float[2] w) <int64 n = {2}, bool t = {1}> { w = Neg(x) y = Loop(n, t,
            x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] u) { more = Identity(on) k =
            Exp(v) u = Add(k, w) }> }""",
        after="""g (float[2] x) => (float[2] y, float[2] w) { w = Neg(x)  k = Exp(x)  u = Add(k, w)  l = Exp(u)  y =
            Add(l, w) }""",
    ),
]
