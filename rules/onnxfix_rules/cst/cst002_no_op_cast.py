"""CST002: a Cast to its input's type."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, dtypes, rule
from onnxfix_rules.cst import _common as cst


@rule("CST002", ops=cst.CASTS, safety=Safety.EXACT, severity=Severity.INFO, hazards=[32])
def no_op_cast(node: Node, model: Model) -> Iterator[Match]:
    """A Cast to the type that its input already has.

    ## Why it matters
    Exporters leave them behind (`x.float()` of a float). TensorRT imports each as a layer and folds it during the
    build; until then it breaks pattern matching (a Cast between a MatMul and its bias, between Q and DQ), and a Cast
    from uint8 to uint8 between two nodes is refused (`TensorRT does not support UINT8 types for intermediate
    tensors`, TensorRT-RTX 1.7.1).

    ## Fix
    Its readers use its input instead; if its result is a graph output, the producer of the input gets that name.
    Exact: a Cast to the same type preserves every value. The exceptions are not removed: float8e5m2, whose infinities
    a Cast makes finite unless `saturate` is 0, and float8e8m0, whose smallest value the ONNX reference doubles.

    The input's type must be proven from the graph: declared types of internal values may be wrong. Not reported if
    only an Identity could replace the Cast, as between a graph input and a graph output.

    ## References
    - ONNX, operator Cast: https://onnx.ai/onnx/operators/onnx__Cast.html
    """
    source = node.require(0)
    given, target = cst.types_at(node, model)
    if target is None or given != target or target not in cst.NUMBERS:
        return
    if not cst.keeps_values(node, target) or not cst.removable(node, source):
        return
    draft = Draft(node)
    draft.bypass(node, source)
    name = dtypes.name_of(target)
    yield Match(
        f"{node.op_type} of {name} to {name} does nothing",
        node=node,
        fix=Fix("remove it", draft.edits),
    )


no_op_cast.examples = [
    Fixed(
        "float to float",
        before="g (float[N] x) => (float[N] y) { a = Cast<to=FLOAT>(x)  y = Neg(a) }",
        after="g (float[N] x) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "the result is a graph output: the producer gets its name",
        before="g (float[N] x) => (float[N] y) { a = Neg(x)  b = Abs(a)  y = Cast<to=FLOAT>(b) }",
        after="g (float[N] x) => (float[N] y) { a = Neg(x)  y = Abs(a) }",
    ),
    Fixed(
        "the same Cast twice",
        before="g (float[N] x) => (float16[N] y) { a = Cast<to=10>(x)  b = Cast<to=10>(a)  y = Cast<to=10>(b) }",
        after="g (float[N] x) => (float16[N] y) { y = Cast<to=FLOAT16>(x) }",
    ),
    Fixed(
        "CastLike to the same type",
        before="g (float[N] x, float[1] t) => (float[N] y) { a = CastLike(x, t)  y = Neg(a) }",
        after="g (float[N] x, float[1] t) => (float[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "a constant of that type",
        before="g (float[N,2] x) => (float[N,2] y) <float[2] c = {1, 2}> { a = Cast<to=FLOAT>(c)  y = Add(x, a) }",
        after="g (float[N,2] x) => (float[N,2] y) <float[2] c = {1, 2}> { y = Add(x, c) }",
    ),
    Fixed(
        "the output of Shape is always int64",
        before="g (float[N] x) => (float[M] y) { s = Shape(x)  a = Cast<to=INT64>(s)  y = Reshape(x, a) }",
        after="g (float[N] x) => (float[M] y) { s = Shape(x)  y = Reshape(x, s) }",
    ),
    Fixed(
        "in a subgraph, of a captured value, with a reader in another subgraph",
        before="""g (float[2] x, bool k) => (float[2] y) { a = Cast<to=FLOAT>(x)
            y = If(k)<then_branch = t () => (float[2] p) { b = Cast<to=FLOAT>(a)  p = Neg(b) },
                      else_branch = e () => (float[2] q) { q = Abs(a) }> }""",
        after="""g (float[2] x, bool k) => (float[2] y) {
            y = If(k)<then_branch = t () => (float[2] p) { p = Neg(x) },
                      else_branch = e () => (float[2] q) { q = Abs(x) }> }""",
    ),
    Fixed(
        "float8e5m2 without saturation keeps infinities",
        before="g (float8e5m2[N] x) => (float[N] y) { a = Cast<to=FLOAT8E5M2, saturate=0>(x)  y = Cast<to=FLOAT>(a) }",
        after="g (float8e5m2[N] x) => (float[N] y) { y = Cast<to=FLOAT>(x) }",
        opset=19,
    ),
    Silent(
        "a Cast to float8e5m2 that saturates makes infinities finite",
        "g (float8e5m2[N] x) => (float[N] y) { a = Cast<to=FLOAT8E5M2>(x)  y = Cast<to=FLOAT>(a) }",
        opset=19,
    ),
    Silent(
        "float8e8m0 does not keep 2**-127",
        "g (float8e8m0[N] x) => (float[N] y) { a = Cast<to=FLOAT8E8M0>(x)  y = Cast<to=FLOAT>(a) }",
        opset=24,
    ),
    Silent(
        "between a graph input and a graph output only an Identity is possible",
        "g (float[N] x) => (float[N] y) { y = Cast<to=FLOAT>(x) }",
    ),
    Silent(
        "both ends are graph outputs",
        "g (float[N] x) => (float[N] a, float[N] y) { a = Neg(x)  y = Cast<to=FLOAT>(a) }",
    ),
    Silent(
        "a branch returns the captured value under its own name",
        """g (float[2] x, bool k) => (float[2] y) { a = Neg(x)
            y = If(k)<then_branch = t () => (float[2] p) { p = Cast<to=FLOAT>(a) },
                      else_branch = e () => (float[2] q) { q = Abs(a) }> }""",
    ),
    Silent("a different type", "g (float[N] x) => (float16[N] y) { a = Cast<to=FLOAT16>(x)  y = Neg(a) }"),
    Silent(
        "the declared type of an internal value may be wrong",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[N] x) => (float[N] y) <float[N] u>
            { u = d.Unknown(x)  a = Cast<to=FLOAT>(u)  y = Neg(a) }""",
        runs=False,
    ),
    Silent(
        "the type depends on the function's caller",
        """<ir_version: 9, opset_import: ["" : 18, "d" : 1]>
            g (float[N] x) => (float16[N] y) { y = d.f<t=10>(x) }
            <domain: "d", opset_import: ["" : 18]> f <t> (u) => (w)
            { v = Cast<to=FLOAT>(u)  a = Cast<to: int = @t>(v)  w = Neg(a) }""",
    ),
]
