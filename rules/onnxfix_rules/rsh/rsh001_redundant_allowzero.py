"""RSH001."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule, symbols
from onnxfix_rules.rsh import _common as c


@rule("RSH001", ops=["Reshape"], safety=Safety.EXACT, severity=Severity.INFO, hazards=[35])
def redundant_allowzero(node: Node, model: Model) -> Iterator[Match]:
    """A Reshape with ``allowzero=1`` whose shape never contains a 0.

    ## Why it matters
    The attribute defines the meaning of a 0 in the shape; without a 0 it has no effect. PyTorch's dynamo exporter
    writes it anyway. Current TensorRT handles such a Reshape correctly, other tools do not: ONNX Runtime used to
    reject every ``allowzero=1`` together with a -1 and its ReshapeFusion drops the attribute, tract and MIGraphX
    ignore it or fail.

    ## Fix
    Remove the attribute (its default is 0); for TensorRT 8.0 to 8.4.1, which fails without it, write 0. Exact: every
    element of the shape is a nonzero constant, or proven to be at least 1 for all sizes of the inputs, 0 included.
    Not reported if an element may be 0.

    ## References
    ONNX, Reshape-14. onnxruntime #10664, #28348; tract #2698; AMDMIGraphX #2766; onnxscript PR #2346.
    """
    if not c.keeps_zero(node):
        return
    dims = c.requested(node, model)
    if dims is None or not all(symbols.is_zero(d).no for d in dims):
        return
    draft = Draft(node)
    c.let_zero_copy(draft, node, model)
    yield Match(
        f"allowzero=1 has no effect: the shape {c.text(dims)} contains no 0",
        node=node,
        fix=Fix("write allowzero=0" if model.target.requires_allowzero else "drop allowzero", draft.edits),
    )


_GROWN = """g (float[N,2] x, float[1,2] t) => (float[A,B] y)
    <int64[1] i = {0}, int64[1] one = {1}, int64[1] m = {-1}> {
    d = Shape(x) n = Gather(d, i) k = Add(n, one) s = Concat<axis=0>(k, m)
    p = Concat<axis=0>(x, t) y = Reshape%s(p, s) }"""


redundant_allowzero.examples = [
    Fixed(
        "no 0 in an initializer",
        before="g (float[N,12] x) => (float[M,6] y) <int64[2] s = {-1, 6}> { y = Reshape<allowzero=1>(x, s) }",
        after="g (float[N,12] x) => (float[M,6] y) <int64[2] s = {-1, 6}> { y = Reshape(x, s) }",
    ),
    Fixed(
        "no 0 in a Constant node's value",
        before="""g (float[3,4] x) => (float[12] y) {
            s = Constant<value = int64[1] {12}>() y = Reshape<allowzero=1>(x, s) }""",
        after="""g (float[3,4] x) => (float[12] y) {
            s = Constant<value = int64[1] {12}>() y = Reshape(x, s) }""",
    ),
    Fixed(
        "no 0 in a Constant node's value_ints",
        before="""g (float[3,4] x) => (float[2,6] y) {
            s = Constant<value_ints = [2, 6]>() y = Reshape<allowzero=1>(x, s) }""",
        after="""g (float[3,4] x) => (float[2,6] y) {
            s = Constant<value_ints = [2, 6]>() y = Reshape(x, s) }""",
    ),
    Fixed(
        "a computed shape proven to contain no 0",
        before="""g (float[3,4] x) => (float[4,3] y) <int64[2] i = {1, 0}> {
            d = Shape(x) s = Gather(d, i) y = Reshape<allowzero=1>(x, s) }""",
        after="""g (float[3,4] x) => (float[4,3] y) <int64[2] i = {1, 0}> {
            d = Shape(x) s = Gather(d, i) y = Reshape(x, s) }""",
    ),
    Fixed(
        "proven to be at least 1 although it depends on N", before=_GROWN % "<allowzero=1>", after=_GROWN % ""
    ),
    Fixed(
        "an empty shape: the result is a scalar",
        before="g (float[1] x) => (float y) <int64[0] s = {}> { y = Reshape<allowzero=1>(x, s) }",
        after="g (float[1] x) => (float y) <int64[0] s = {}> { y = Reshape(x, s) }",
    ),
    Fixed(
        "one of two Reshapes that share the shape",
        before="""g (float[N,12] x) => (float[M,6] y, float[M,6] z) <int64[2] s = {-1, 6}> {
            y = Reshape<allowzero=1>(x, s) z = Reshape(x, s) }""",
        after="""g (float[N,12] x) => (float[M,6] y, float[M,6] z) <int64[2] s = {-1, 6}> {
            y = Reshape(x, s) z = Reshape(x, s) }""",
    ),
    Fixed(
        "TensorRT 8.4 requires the attribute: it becomes 0",
        before="g (float[N,12] x) => (float[M,6] y) <int64[2] s = {-1, 6}> { y = Reshape<allowzero=1>(x, s) }",
        after="g (float[N,12] x) => (float[M,6] y) <int64[2] s = {-1, 6}> { y = Reshape<allowzero=0>(x, s) }",
        target="trt8.4",
    ),
    Silent(
        "with a 0 in the shape the attribute has an effect",
        "g (float[0,4] x) => (float[4,0] y) <int64[2] s = {4, 0}> { y = Reshape<allowzero=1>(x, s) }",
    ),
    Silent(
        "N may be 0: then a 0 in the shape would copy the 4",
        """g (float[N,4] x) => (float[4,N] y) <int64[2] i = {1, 0}> {
            d = Shape(x) s = Gather(d, i) y = Reshape<allowzero=1>(x, s) }""",
    ),
    Silent(
        "the shape is an overridable initializer, which may contain a 0",
        "g (float[N,12] x, int64[2] s = {-1, 6}) => (float[M,K] y) { y = Reshape<allowzero=1>(x, s) }",
    ),
    Silent(
        "the shape is a graph input",
        "g (float[N] x, int64[2] s) => (float[M,K] y) { y = Reshape<allowzero=1>(x, s) }",
    ),
    Silent(
        "the shape is a scalar: the model is invalid",
        "g (float[4] x) => (float[A] y) <int64 s = {4}> { y = Reshape<allowzero=1>(x, s) }",
    ),
    Silent(
        "allowzero=0",
        "g (float[N,12] x) => (float[M,6] y) <int64[2] s = {-1, 6}> { y = Reshape<allowzero=0>(x, s) }",
    ),
    Silent(
        "the attribute depends on the function's caller",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[N,4] x) => (float[M] y) { y = my.flat<z=1>(x) }
            <domain: "my", opset_import: ["" : 18]> flat<z>(a) => (b) {
                s = Constant<value = int64[1] {-1}>() b = Reshape<allowzero: int = @z>(a, s) }""",
    ),
]
