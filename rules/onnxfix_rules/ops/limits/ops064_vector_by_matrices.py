"""OPS064: MatMul of a vector and a batch of matrices."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule, target_of


@rule("OPS064", ops=["MatMul"], safety=Safety.NUMERIC, severity=Severity.ERROR)
def vector_by_matrices(node: Node, model: Model) -> Iterator[Match]:
    """A MatMul of a vector and a batch of matrices.

    ## Why it matters
    The parser turns the vector into a one-row matrix, and then removes the first axis of the product instead of the
    second to last: `reshape changes volume to multiple of original non-zero volume. Reshaping [2,1,3] to [1,3].`,
    measured with TensorRT-RTX 1.7.1. With a dynamic first axis it parses, and fails for any size but 1. A single
    matrix, or the vector as second operand, works.

    ## Fix
    Unsqueeze the vector to a one-row matrix, and squeeze that axis of the product. Products and sums are the same, but
    backends may choose another kernel, so it requires `--numeric-fixes`.

    TensorRT layers: 6.

    ## References
    - https://onnx.ai/onnx/operators/onnx__MatMul.html
    """
    first, second = node.require(0), node.require(1)
    if model.shapes.rank(first) != 1:
        return
    shape = model.shapes.shape(second)
    if shape is None or len(shape) < 3 or not target_of(model).types_measured:
        return
    if len(shape) == 3 and shape[0].value == 1:
        return
    draft = Draft(node)
    row = draft.unsqueeze(first, [0])
    draft.replace_output(node, draft.squeeze(draft.add("MatMul", [row, second]), [len(shape) - 2]))
    yield Match(
        "TensorRT does not support MatMul of a vector and a batch of matrices",
        node=node,
        fix=Fix("unsqueeze the vector to a one-row matrix", draft.edits, Safety.NUMERIC),
    )


vector_by_matrices.examples = [
    Fixed(
        "two matrices",
        before="g (float[4] x, float[2,4,3] w) => (float[2,3] y) { y = MatMul(x, w) }",
        after="""g (float[4] x, float[2,4,3] w) => (float[2,3] y) <int64[1] a = {0}, int64[1] b = {1}> {
            r = Unsqueeze(x, a)  m = MatMul(r, w)  y = Squeeze(m, b) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a dynamic number of one-column matrices; opset 11",
        before="g (float[4] x, float[N,M,4,1] w) => (float[N,M,1] y) { y = MatMul(x, w) }",
        after="""g (float[4] x, float[N,M,4,1] w) => (float[N,M,1] y) {
            r = Unsqueeze<axes = [0]>(x)  m = MatMul(r, w)  y = Squeeze<axes = [2]>(m) }""",
        opset=11,
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "before opset 11, which has no negative axes",
        before="g (float[4] x, float[N,4,3] w) => (float[N,3] y) { y = MatMul(x, w) }",
        after="""g (float[4] x, float[N,4,3] w) => (float[N,3] y) {
            r = Unsqueeze<axes = [0]>(x)  m = MatMul(r, w)  y = Squeeze<axes = [1]>(m) }""",
        opset=7,
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a batch of one: removing the wrong axis gives the same result",
        "g (float[4] x, float[1,4,3] w) => (float[1,3] y) { y = MatMul(x, w) }",
    ),
    Silent(
        "TensorRT 10 was not measured",
        "g (float[4] x, float[2,4,3] w) => (float[2,3] y) { y = MatMul(x, w) }",
        target="trt10",
    ),
    Silent("one matrix", "g (float[4] x, float[4,3] w) => (float[3] y) { y = MatMul(x, w) }"),
    Silent(
        "a batch of matrices and a vector",
        "g (float[2,3,4] w, float[4] x) => (float[2,3] y) { y = MatMul(w, x) }",
    ),
    Silent("two vectors", "g (float[4] x, float[4] w) => (float y) { y = MatMul(x, w) }"),
]
