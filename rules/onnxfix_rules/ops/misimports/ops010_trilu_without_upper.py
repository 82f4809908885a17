"""OPS010: a Trilu whose `upper` attribute is left to its default."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule


@rule("OPS010", ops=["Trilu"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[1])
def trilu_without_upper(node: Node, model: Model) -> Iterator[Match]:
    """A Trilu without the attribute `upper`: ONNX's default is 1, TensorRT uses 0.

    ## Why it matters
    ONNX keeps the upper triangle, TensorRT the lower one. It parses and builds without a warning, so a causal mask
    comes out transposed. Measured with TensorRT-RTX 1.7.1 by reading the imported network: it compares row and column
    indices and selects where row ≥ column (`GREATER`, `EQUAL`, `OR`, `SELECT`), as it does for `upper = 0`; with `upper
    = 1` it is `LESS`. This holds for opsets 14, 18 and 23, with and without a diagonal `k`, constant or not, and for
    float, half, int32, int64 and bool. Eight of ONNX's own test models have this form.

    ## Fix
    Add `upper = 1`. Exact: it is ONNX's default.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Trilu.html: "Default is true."
    """
    data = node.require(0)
    if node.opset < 14 or node.attribute("upper") is not None:
        return
    shape = model.shapes.static_shape(data)
    if shape is not None and (0 in shape or (shape[-2:] == (1, 1) and node.input(1) is None)):
        return  # both triangles are the same
    draft = Draft(node)
    draft.set_attr(node, "upper", 1)
    yield Match(
        "Trilu without upper: ONNX keeps the upper triangle, TensorRT the lower one",
        node=node,
        fix=Fix("add upper=1", draft.edits),
    )


trilu_without_upper.examples = [
    Fixed(
        "the upper triangle, by default",
        before="g (float[4,5] x) => (float[4,5] y) { y = Trilu(x) }",
        after="g (float[4,5] x) => (float[4,5] y) { y = Trilu<upper = 1>(x) }",
    ),
    Fixed(
        "integers with a diagonal, in the first opset that has the operator",
        before="g (int64[N,4,5] x) => (int64[N,4,5] y) <int64 k = {-1}> { y = Trilu(x, k) }",
        after="g (int64[N,4,5] x) => (int64[N,4,5] y) <int64 k = {-1}> { y = Trilu<upper = 1>(x, k) }",
        opset=14,
    ),
    Fixed(
        "a causal mask in a branch; its diagonal is a graph input",
        before="""g (float[A,B] x, int64 k, bool c) => (float[A,B] y) {
            y = If(c)<then_branch = p () => (float[A,B] u) { u = Trilu(x, k) },
                      else_branch = q () => (float[A,B] v) { v = Neg(x) }> }""",
        after="""g (float[A,B] x, int64 k, bool c) => (float[A,B] y) {
            y = If(c)<then_branch = p () => (float[A,B] u) { u = Trilu<upper = 1>(x, k) },
                      else_branch = q () => (float[A,B] v) { v = Neg(x) }> }""",
    ),
    Silent("explicit upper = 1", "g (float[4,5] x) => (float[4,5] y) { y = Trilu<upper = 1>(x) }"),
    Silent(
        "explicit upper = 0",
        "g (float[4,5] x, int64 k) => (float[4,5] y) { y = Trilu<upper = 0>(x, k) }",
    ),
    Silent(
        "any nonzero value means upper, in TensorRT too",
        "g (float[4,5] x) => (float[4,5] y) { y = Trilu<upper = 2>(x) }",
    ),
    Silent("empty tensor", "g (float[3,0] x) => (float[3,0] y) { y = Trilu(x) }"),
    Silent("a single element", "g (float[5,1,1] x) => (float[5,1,1] y) { y = Trilu(x) }"),
    Fixed(
        "a single element, with a diagonal",
        before="g (float[1,1] x, int64 k) => (float[1,1] y) { y = Trilu(x, k) }",
        after="g (float[1,1] x, int64 k) => (float[1,1] y) { y = Trilu<upper = 1>(x, k) }",
    ),
    Silent(
        "every call of the function sets it",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[3,3] x) => (float[3,3] y) { y = my.F<side = 1>(x) }
            <domain: "my", opset_import: ["" : 18]> F <side> (a) => (b) { b = Trilu<upper : int = @side>(a) }""",
    ),
]
