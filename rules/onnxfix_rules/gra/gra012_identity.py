"""GRA012: redundant Identity nodes."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, Value, rule
from onnxfix_rules.gra._common import is_handed_in


@rule("GRA012", ops=["Identity"], safety=Safety.EXACT, severity=Severity.INFO)
def identity(node: Node, model: Model) -> Iterator[Match]:
    """An Identity that can be removed without changing a required name.

    ## Why it matters
    It only separates nodes that belong together: rules, and TensorRT's importer when it requires a constant or a pair
    of nodes, look at the adjacent node. TensorRT's builder removes such layers itself.

    ## Fix
    Its readers read the input of the Identity. Before a graph output, the node that computes the value takes over the
    output's name. Exact. An Identity is kept if it returns an input, a weight, or a value that is already an output; if
    it reads a weight (GRA010) or a function's input, which may be one; between an input and the Loop whose condition it
    is (OPS017); and between the result of a loop or an If and the loop whose body reads it (CTL016).

    ## References
    - https://onnx.ai/onnx/operators/onnx__Identity.html
    """
    source, output = node.require(0), node.require_output()
    if source.is_constant:
        return
    if source.is_input and source.scope.kind == "function":
        return
    if not (_readers_may_move(source, output) if output.replaceable else _name_may_move(source, output)):
        return
    draft = Draft(node)
    draft.bypass(node, source)
    yield Match("this Identity is redundant", node=node, fix=Fix("remove it", draft.edits))


def _readers_may_move(source: Value, output: Value) -> bool:
    return all(
        use.node.scope.lookup(source.name) is source
        and not (source.producer is None and use.node.op_type == "Loop" and use.index == 1)
        and not is_handed_in(source, use.node)
        for use in output.uses
    )


def _name_may_move(source: Value, output: Value) -> bool:
    """Whether ``source`` can be renamed to ``output``."""
    return (
        source.producer is not None
        and source.scope is output.scope
        and source.replaceable
        and not output.pinned
        and all(use.node.scope.lookup(output.name) is output for use in source.uses)
    )


_PAIR = "g (float[N,2] x) => (float[N,2] y)"
_BRANCHES = (
    """<then_branch = p () => (float[2] u) {{ {} }}, else_branch = q () => (float[2] v) {{ v = Exp(x) }}>"""
)


identity.examples = [
    Fixed(
        "between two nodes",
        before=f"{_PAIR} {{ a = Exp(x)  i = Identity(a)  y = Neg(i) }}",
        after=f"{_PAIR} {{ a = Exp(x)  y = Neg(a) }}",
    ),
    Fixed(
        "a chain after an input, with several readers",
        before=f"{_PAIR} {{ i = Identity(x)  j = Identity(i)  k = Identity(j)  a = Neg(k)  y = Add(a, j) }}",
        after=f"{_PAIR} {{ a = Neg(x)  y = Add(a, x) }}",
        differs={"function": "an input of a function may be a weight, which an Identity keeps"},
    ),
    Fixed(
        "before a graph output, which keeps its name",
        before=f"{_PAIR} {{ a = Exp(x)  b = Neg(a)  y = Identity(a)  c = Abs(b) }}",
        after=f"{_PAIR} {{ y = Exp(x)  b = Neg(y)  c = Abs(b) }}",
    ),
    Fixed(
        "before and inside a branch, which then captures the outer value",
        before=f"""g (float[2] x, bool c) => (float[2] y) {{ a = Abs(x)  i = Identity(a)
            y = If(c){_BRANCHES.format("j = Identity(i)  k = Neg(j)  u = Identity(k)")} }}""",
        after=f"""g (float[2] x, bool c) => (float[2] y) {{ a = Abs(x)
            y = If(c){_BRANCHES.format("u = Neg(a)")} }}""",
    ),
    Fixed(
        "a sequence",
        before="""g (float[2] x) => (float[2] y) <int64 k = {0}> {
            s = SequenceConstruct(x, x)  t = Identity(s)  y = SequenceAt(t, k) }""",
        after="""g (float[2] x) => (float[2] y) <int64 k = {0}> {
            s = SequenceConstruct(x, x)  y = SequenceAt(s, k) }""",
    ),
    Silent(
        "an input, a weight or another output as graph output",
        """g (float[2] x) => (float[2] y, float[2] z, float[2] a, float[2] b) <float[2] w = {1, 2}> {
            y = Identity(x)  z = Identity(w)  a = Exp(x)  b = Identity(a) }""",
        differs={"function": "an input keeps its name"},
    ),
    Silent(
        "a branch or a body that returns an outer value or its own input",
        f"""g (float[2] x, bool c, int64 n) => (float[2] y) {{ a = Abs(x)
            b = If(c){_BRANCHES.format("u = Identity(a)")}
            y = Loop(n, , b)<body = l (int64 i, bool on, float[2] h) => (bool more, float[2] w) {{
                more = Identity(on)  w = Identity(h) }}> }}""",
    ),
    Silent(
        "a weight, which GRA010 covers",
        f"{_PAIR} <float[2,2] w = {{1, 2, 3, 4}}> {{ i = Identity(w)  y = MatMul(x, i) }}",
    ),
    Silent(
        "a function's input, which may be a weight in a call",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = my.F(x, w) }
            <domain: "my", opset_import: ["" : 18]> F (a, w) => (b) { c = Identity(w)  b = Mul(a, c) }""",
    ),
    Silent(
        "between an input and the loop whose condition it is, added by OPS017",
        """g (float[2] x, bool c, int64 n) => (float[2] y) { k = Identity(c)  y = Loop(n, k, x)
            <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) { more = Not(on)  w = Neg(v) }> }""",
    ),
    Silent(
        "between two loops, added by CTL016",
        """g (float[2] x, int64 n) => (float[2] y) { w = Loop(n, , x)
            <body = a (int64 i, bool on, float[2] v) => (bool more, float[2] u) { more = Identity(on)  u = Neg(v) }>
            k = Identity(w)  y = Loop(n, , x)<body = b (int64 j, bool go, float[2] h) => (bool further, float[2] o) {
            further = Identity(go)  p = Add(h, k)  q = Identity(w)  o = Add(p, q) }> }""",
    ),
]
