"""CTL010: If nodes with a constant condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial

from onnxfix.rule import (
    Draft,
    Edit,
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
)
from onnxfix_rules.ctl import _inline


@rule("CTL010", ops=["If"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[39])
def if_of_known_condition(node: Node, model: Model) -> Iterator[Match]:
    """An If whose condition is the same for every input: only one branch ever runs.

    ## Why it matters
    Exporters leave such branches behind, most often torch's guard of `squeeze(d)`, which tests whether the size is 1.
    If the condition is a weight, TensorRT imports only the branch that runs. If nodes compute it, TensorRT-RTX 1.7.1
    imports both, measured: an unsupported operator (`Det`) fails the model although it never runs, and the If and its
    branches stay in the network (`CONDITION`, `CONDITIONAL_INPUT`, `CONDITIONAL_OUTPUT`) until the builder folds them.
    TensorRT 8 also refuses branches of different shape.

    - **warning**: the condition is computed, so the branch that never runs may still fail the model.
    - **information**: the condition is a weight.

    ## Fix
    The nodes of the branch that runs replace the If, under new names; captured values keep theirs. Exact. An output
    that the branch returns unchanged gets an Identity if its name must be kept. Loops and other branches inside it are
    copied, with new names inside. Branches with sparse weights or weights in external files are only reported.

    ## References
    - https://onnx.ai/onnx/operators/onnx__If.html
    - https://github.com/NVIDIA/TensorRT/issues/2846
    - https://github.com/NVIDIA/TensorRT/issues/1650
    """
    condition = node.require(0)
    outcome = _inline.known(condition, model)
    branch = next(
        (s for s in node.subgraphs if s.attr == ("then_branch" if outcome else "else_branch")), None
    )
    if outcome is None or branch is None or len(branch.outputs) < len(node.outputs) or branch.inputs:
        return
    yield Match(
        f"the condition {condition.name!r} is always {str(outcome).lower()}: only the "
        f"{'then' if outcome else 'else'} branch runs",
        node=node,
        severity=Severity.INFO if condition.is_constant else Severity.WARNING,
        fix=_inlined(node, branch),
        reads=(condition, *branch.nodes),
    )


def _inlined(node: Node, branch: Scope) -> Fix | None:
    """A fix that replaces the If by the branch's nodes; None if that is not possible."""
    pairs = [
        (o, r) for o, r in zip(node.outputs, branch.outputs, strict=False) if o is not None and is_read(o)
    ]
    results = [result for _, result in pairs]
    nodes = _inline.needed(branch, results)
    if nodes is None or not _inline.movable(nodes, results, branch, node):
        return None
    kept = {output for output, _ in pairs if not output.replaceable}
    targets: dict[Value, str] = {}
    for output, result in pairs:
        if output in kept and result.producer is not None and result.scope is branch:
            targets.setdefault(result, output.name)
    renamed = [result for output, result in pairs if output in kept and targets.get(result) != output.name]
    if not all(_inline.may_keep_name(node, result) for result in renamed):
        return None
    title = f"replace the If by its {branch.attr.split('_')[0]} branch"
    # A fix of an outer If copies the inner ones too, so the copy is made only when the fix is applied.
    return Fix(title, partial(_inlining_edits, nodes, branch, pairs, kept, targets), replaces=node)


def _inlining_edits(
    nodes: Sequence[Node],
    branch: Scope,
    pairs: Sequence[tuple[Value, Value]],
    kept: Set[Value],
    targets: Mapping[Value, str],
) -> list[Edit]:
    """The edits that replace the If by ``nodes`` of the branch.

    ``pairs`` are the outputs of the If with the branch's results; ``kept`` are outputs that keep their names, and
    ``targets`` maps results to such names.
    """
    node = branch.owner
    assert node is not None
    draft = Draft(node)
    draft.remove(node)
    # TensorRT names a node without a name by its output, and two branches may have the same one: it then refuses some.
    inliner = _inline.Inliner(draft, branch, named=True)
    names = inliner.copy(nodes, {}, targets)
    for output, result in pairs:
        source = inliner.name(result, names)
        if output not in kept:
            draft.replace_uses(output, source)
        elif targets.get(result) != output.name:
            draft.add("Identity", [source], output=output.name)
    return draft.edits


_TWO = """<then_branch = p () => (float[2] u) { u = Neg(x) }, else_branch = q () => (float[2] v) { v = Abs(x) }>"""
_GUARD = """s = Shape(x)  d = Gather(s, z)  c = Equal(d, o)  y = If(c)
    <then_branch = p () => (float[K] u) { u = Squeeze(x, a) },
     else_branch = q () => (float[A,B] v) { v = Identity(x) }>"""
_GUARDED = "<int64[1] a = {0}, int64 z = {0}, int64 o = {1}>"

_CONTRIB = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1, "my" : 1]>'
_FUNCTIONS = """<domain: "my", opset_import: ["" : 18, "com.microsoft" : 1]> G (a) => (b) {
        b = com.microsoft.MultiHeadAttention<num_heads = 2>(a, a, a) }
    <domain: "my", opset_import: ["" : 18]> F (a, d) => (b) { b = If(d)<
        then_branch = p () => (float[N,5,4] u) <int64[1] s = {5}> { u = Resize<axes = [1]>(a, , , s) },
        else_branch = q () => (float[N,5,4] v) <int64[1] s = {5}> { w = Neg(a)  v = Resize<axes = [1]>(w, , , s) }> }"""


if_of_known_condition.examples = [
    Fixed(
        "an initializer: true",
        before=f"g (float[2] x) => (float[2] y) <bool c = {{1}}> {{ y = If(c){_TWO} }}",
        after="g (float[2] x) => (float[2] y) { y = Neg(x) }",
    ),
    Fixed(
        "a Constant: false",
        before=f"g (float[2] x) => (float[2] y) {{ c = Constant<value = bool {{0}}>()  y = If(c){_TWO} }}",
        after="g (float[2] x) => (float[2] y) { y = Abs(x) }",
        opset=11,
    ),
    Fixed(
        "a condition of shape [1]",
        before=f"g (float[2] x) => (float[2] y) <bool[1] c = {{0}}> {{ y = If(c){_TWO} }}",
        after="g (float[2] x) => (float[2] y) { y = Abs(x) }",
    ),
    Fixed(
        "torch's squeeze(0): branches of different rank, and a static size of 1",
        before=f"g (float[1,N] x) => (float[N] y) {_GUARDED} {{ {_GUARD} }}",
        after="g (float[1,N] x) => (float[N] y) <int64[1] a = {0}> { y = Squeeze(x, a) }",
    ),
    Fixed(
        "torch's squeeze(0): a static size other than 1",
        before=f"g (float[3,N] x) => (float[3,N] y) {_GUARDED} {{ {_GUARD} }}",
        after="g (float[3,N] x) => (float[3,N] y) { y = Identity(x) }",
    ),
    Fixed(
        "weights, outer names that are in use, and captured values",
        before="""g (float[2] x) => (float[2] y, float[2] z) <bool c = {1}, float[2] w = {5, 6}> {
            a = Neg(x)  t = If(c)<then_branch = p () => (float[2] u) <float[2] k = {1, 2}> {
                b = Add(a, k)  e = Mul(b, w)  u = Sub(e, x) }, else_branch = q () => (float[2] v) { v = Exp(x) }>
            y = Abs(t)  z = Exp(a) }""",
        after="""g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {5, 6}, float[2] k = {1, 2}> {
            a = Neg(x)  b = Add(a, k)  e = Mul(b, w)  u = Sub(e, x)  y = Abs(u)  z = Exp(a) }""",
    ),
    Fixed(
        "several outputs: the same twice, a weight, and a captured value",
        before="""g (float[2] x) => (float[2] p, float[2] q, float[2] r, float[2] s) <bool c = {1}> {
            p, q, r, s = If(c)<
            then_branch = t () => (float[2] u, float[2] u, float[2] k, float[2] x) <float[2] k = {1, 2}> { u = Neg(x) },
            else_branch = e () => (float[2] v, float[2] v, float[2] v, float[2] v) { v = Abs(x) }> }""",
        after="""g (float[2] x) => (float[2] p, float[2] q, float[2] r, float[2] s) <float[2] k = {1, 2}> {
            p = Neg(x)  q = Identity(p)  r = Identity(k)  s = Identity(x) }""",
    ),
    Fixed(
        "an unused output, and the nodes that compute it",
        before="""g (float[2] x) => (float[2] y) <bool c = {1}> { y, n = If(c)<
            then_branch = t () => (float[2] u, float[2] w) { u = Neg(x)  w = Exp(x) },
            else_branch = e () => (float[2] v, float[2] o) { v = Abs(x)  o = Log(x) }> }""",
        after="g (float[2] x) => (float[2] y) { y = Neg(x) }",
    ),
    Fixed(
        "nested Ifs",
        before=f"""g (float[2] x, bool k) => (float[2] y) <bool c = {{1}}> {{ y = If(c)<
            then_branch = t () => (float[2] r) {{ w = If(c){_TWO}  r = Exp(w) }},
            else_branch = e () => (float[2] s) {{ s = If(k){_TWO} }}> }}""",
        after="g (float[2] x, bool k) => (float[2] y) { w = Neg(x)  y = Exp(w) }",
    ),
    Fixed(
        "a branch with a Loop without a condition",
        before="""g (float[2] x, int64 n) => (float[N,2] y) <bool c = {1}> { y = If(c)<
            then_branch = t () => (float[A,2] u) { u = Loop(n, "")<body = b (int64 i, bool on)
                => (bool more, float[2] w) { more = Identity(on)  w = Neg(x) }> },
            else_branch = e () => (float[1,2] v) <int64[1] k = {0}> { v = Unsqueeze(x, k) }> }""",
        after="""g (float[2] x, int64 n) => (float[N,2] y) {
            y = Loop(n, "")<body = b (int64 i, bool on) => (bool more, float[2] w) {
                more = Identity(on)  w = Neg(x) }> }""",
    ),
    Fixed(
        "inside a loop body",
        before=f"""g (float[2] x, int64 n) => (float[2] y) <bool c = {{1}}> {{
            y = Loop(n, , x)<body = b (int64 i, bool on, float[2] h) => (bool more, float[2] w) {{
                more = Constant<value = bool {{1}}>()  r = If(c){_TWO}  w = Add(h, r) }}> }}""",
        after="""g (float[2] x, int64 n) => (float[2] y) {
            y = Loop(n, , x)<body = b (int64 i, bool on, float[2] h) => (bool more, float[2] w) {
                more = Constant<value = bool {1}>()  r = Neg(x)  w = Add(h, r) }> }""",
    ),
    Fixed(
        "inside a local function, with its attribute",
        before="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2] x) => (float[2] y) { y = my.F<alpha = 0.5>(x) }
            <domain: "my", opset_import: ["" : 18]> F <alpha> (a) => (b) { c = Constant<value = bool {1}>()
            b = If(c)<then_branch = t () => (float[2] u) { u = LeakyRelu<alpha: float = @alpha>(a) },
                      else_branch = e () => (float[2] v) { v = Abs(a) }> }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2] x) => (float[2] y) { y = my.F<alpha = 0.5>(x) }
            <domain: "my", opset_import: ["" : 18]> F <alpha> (a) => (b) {
            b = LeakyRelu<alpha: float = @alpha>(a) }""",
    ),
    Fixed(
        "a branch with a Loop that captures its values and a weight",
        before="""g (float[2] x, int64 n) => (float[2] y) <bool c = {1}> { y = If(c)<
            then_branch = t () => (float[2] u) <float[2] k = {1, 2}> { a = Exp(x)  m = Mul(a, k)
                u = Loop(n, c, m)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                    more = Identity(on)  q = Add(v, a)  w = Sub(q, k) }> },
            else_branch = e () => (float[2] s) { s = Abs(x) }> }""",
        after="""g (float[2] x, int64 n) => (float[2] y) <bool c = {1}, float[2] k = {1, 2}> {
            a = Exp(x)  m = Mul(a, k)
            y = Loop(n, c, m)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                more = Identity(on)  q = Add(v, a)  w = Sub(q, k) }> }""",
    ),
    Fixed(
        "a branch with Ifs nested two levels deep",
        before="""g (float[2] x, bool d) => (float[2] y, float[2] z) <bool c = {1}> { z = Neg(x)  t = If(c)<
            then_branch = p () => (float[2] r) { a = Exp(x)
                r = If(d)<then_branch = p1 () => (float[2] u) { e = Add(a, x)  u = If(d)<
                            then_branch = p2 () => (float[2] f) { f = Sub(e, a) },
                            else_branch = q2 () => (float[2] h) <float[2] w = {3, 4}> { h = Mul(w, a) }> },
                          else_branch = q1 () => (float[2] v) { v = Abs(a) }> },
            else_branch = q () => (float[2] s) { s = Abs(x) }>  y = Neg(t) }""",
        after="""g (float[2] x, bool d) => (float[2] y, float[2] z) { z = Neg(x)  a = Exp(x)
            t = If(d)<then_branch = p1 () => (float[2] u) { e = Add(a, x)  u = If(d)<
                        then_branch = p2 () => (float[2] f) { f = Sub(e, a) },
                        else_branch = q2 () => (float[2] h) <float[2] w = {3, 4}> { h = Mul(w, a) }> },
                      else_branch = q1 () => (float[2] v) { v = Abs(a) }>  y = Neg(t) }""",
    ),
    Silent("the condition is an input", f"g (float[2] x, bool c) => (float[2] y) {{ y = If(c){_TWO} }}"),
    Silent(
        "the condition is an input with a default",
        f"g (float[2] x, bool c) => (float[2] y) <bool c = {{1}}> {{ y = If(c){_TWO} }}",
    ),
    Silent(
        "the size is dynamic",
        f"""g (float[M,N] x) => (float y) {_GUARDED} {{
            {_GUARD.replace("y =", "t =")}  y = ReduceMax<keepdims = 0>(t) }}""",
    ),
    Fixed(
        "both branches use the same inner names",
        before="""g (float[2] x) => (float[2] y) <bool c = {1}> { y = If(c)<then_branch = p () => (float[2] u) { a =
            Neg(x) u = Exp(a) }, else_branch = q () => (float[2] u) { a = Abs(x) u = Exp(a) }> }""",
        after="g (float[2] x) => (float[2] y) { a = Neg(x)  y = Exp(a) }",
    ),
    Fixed(
        "the type of what a function of ONNX Runtime's operators returns, which onnx.checker needs for the Resize",
        before=f"""{_CONTRIB} g (float[N,2,4] x, bool d) => (float[N,5,4] y) <bool c = {{1}}> {{
            h = If(c)<then_branch = p () => (float[N,2,4] u) {{ u = my.G(x) }},
                      else_branch = q () => (float[N,2,4] v) {{ v = Neg(x) }}>
            y = my.F(h, d) }} {_FUNCTIONS}""",
        after=f"""{_CONTRIB} g (float[N,2,4] x, bool d) => (float[N,5,4] y) <float[] u> {{
            u = my.G(x)  y = my.F(u, d) }} {_FUNCTIONS}""",
    ),
]
