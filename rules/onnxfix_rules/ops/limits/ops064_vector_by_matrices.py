"""OPS064: a vector times a stack of matrices."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule, target_of
from onnxfix_rules.ops import _rewrite as rw
from onnxfix_rules.ops._result import put


@rule("OPS064", ops=["MatMul"], safety=Safety.NUMERIC, severity=Severity.ERROR)
def vector_by_matrices(node: Node, model: Model) -> Iterator[Match]:
    """A MatMul of a vector with a stack of matrices.

    ## Why it matters
    The parser makes a matrix of one row of the vector, and takes the first axis of the product away instead of the last
    but one: `reshape changes volume to multiple of original non-zero volume. Reshaping [2,1,3] to [1,3].`, measured
    with TensorRT-RTX 1.7.1. With a dynamic first axis it parses, and fails for any size but 1. By a single matrix, and
    the other way round, it works.

    ## Fix
    A matrix of one row, by an Unsqueeze and a Squeeze of that axis. The same products and sums; backends may take
    another kernel for it, and so it takes `--numeric-fixes`.

    TensorRT layers: 6.

    ## References
    - https://onnx.ai/onnx/operators/onnx__MatMul.html
    """
    first, second, output = node.require(0), node.require(1), node.require_output()
    if model.shapes.rank(first) != 1:
        return
    shape = model.shapes.shape(second)
    if shape is None or len(shape) < 3 or not target_of(model).types_measured:
        return
    if len(shape) == 3 and shape[0].value == 1:
        return
    draft = Draft(node)
    row = rw.unsqueeze(draft, first, [0])
    put(draft, rw.squeeze(draft, draft.add("MatMul", [row, second]), [len(shape) - 2]), output)
    yield Match(
        "TensorRT multiplies no vector by a stack of matrices",
        node=node,
        fix=Fix("make a matrix of one row of the vector", draft.edits, Safety.NUMERIC),
    )


vector_by_matrices.examples = [
    Fixed(
        "by two matrices",
        before="g (float[4] x, float[2,4,3] w) => (float[2,3] y) { y = MatMul(x, w) }",
        after="""g (float[4] x, float[2,4,3] w) => (float[2,3] y) <int64[1] a = {0}, int64[1] b = {1}> {
            r = Unsqueeze(x, a)  m = MatMul(r, w)  y = Squeeze(m, b) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "as many as there are, each with one column; opset 11",
        before="g (float[4] x, float[N,M,4,1] w) => (float[N,M,1] y) { y = MatMul(x, w) }",
        after="""g (float[4] x, float[N,M,4,1] w) => (float[N,M,1] y) {
            r = Unsqueeze<axes = [0]>(x)  m = MatMul(r, w)  y = Squeeze<axes = [2]>(m) }""",
        opset=11,
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "before opset 11 no axis counts from the end",
        before="g (float[4] x, float[N,4,3] w) => (float[N,3] y) { y = MatMul(x, w) }",
        after="""g (float[4] x, float[N,4,3] w) => (float[N,3] y) {
            r = Unsqueeze<axes = [0]>(x)  m = MatMul(r, w)  y = Squeeze<axes = [1]>(m) }""",
        opset=7,
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a stack of one: its axis is taken away instead of the row's, and nobody can tell",
        "g (float[4] x, float[1,4,3] w) => (float[1,3] y) { y = MatMul(x, w) }",
    ),
    Silent(
        "nobody has measured what TensorRT 10 does",
        "g (float[4] x, float[2,4,3] w) => (float[2,3] y) { y = MatMul(x, w) }",
        target="trt10",
    ),
    Silent("by one matrix", "g (float[4] x, float[4,3] w) => (float[3] y) { y = MatMul(x, w) }"),
    Silent("matrices by a vector", "g (float[2,3,4] w, float[4] x) => (float[2,3] y) { y = MatMul(w, x) }"),
    Silent("two vectors", "g (float[4] x, float[4] w) => (float y) { y = MatMul(x, w) }"),
]
