"""Vectors where TensorRT requires matrices."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule, target_of

_ARG = ("ArgMax", "ArgMin")


@rule(
    "OPS023",
    ops=["ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[44],
)
def softmax_of_vector(node: Node, model: Model) -> Iterator[Match]:
    """A Softmax, LogSoftmax, Hardmax, ArgMax or ArgMin of a vector or scalar: TensorRT requires rank 2 or more.

    ## Why it matters
    The parser stops: `ITensor::getDimensions: Error Code 3: API Usage Error (…: at least 2 dimensions are required for
    input.`, measured with TensorRT-RTX 1.7.1. Softmax, LogSoftmax and Hardmax before opset 13 are flattened to a matrix
    and are accepted; TopK is always accepted. ONNX forbids a scalar, and ONNX Runtime refuses it (`Input rank must be
    >= 1 for Softmax`); ONNX's reference computes 1 for a Softmax, and NaN for NaN and the infinities.

    ## Fix
    Unsqueeze a leading axis (two for a scalar), shift the axis attribute, and squeeze the result. Exact: the same
    elements are processed in the same order. An ArgMax or ArgMin of a scalar is left.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Softmax.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    data, output = node.require(0), node.require_output()
    rank, arg = model.shapes.rank(data), node.op_type in _ARG
    if rank not in ((1,) if arg else (0, 1)) or (not arg and node.opset < 13):
        return
    axis = node.attr("axis", 0 if arg else -1)
    if axis not in (0, -1):
        return
    draft = Draft(node)
    new = [0] if rank else [0, 1]
    row, name = draft.unsqueeze(data, new), draft.name(f"{node.op_type.lower()}_of_row")
    result = draft.replace_node(
        node, "", [row, *node.inputs[1:]], [name], **({"axis": 1} if axis == 0 else {})
    )
    draft.squeeze(result, new, output=output.name)
    message = f"{node.op_type} of a {'vector' if rank else 'scalar'}: TensorRT requires rank 2 or more"
    yield Match(message, node=node, fix=Fix("unsqueeze a leading axis, and squeeze the result", draft.edits))


_AXES = "int64[1] a = {0}, int64[1] b = {0}"


softmax_of_vector.examples = [
    Fixed(
        "a Softmax",
        before="g (float[N] x) => (float[N] y) { y = Softmax(x) }",
        after=f"""g (float[N] x) => (float[N] y) <{_AXES}> {{
            u = Unsqueeze(x, a)  s = Softmax(u)  y = Squeeze(s, b) }}""",
    ),
    Fixed(
        "along axis 0, which becomes axis 1",
        before="g (float[8] x) => (float[8] y) { s = LogSoftmax<axis = 0>(x)  y = Neg(s) }",
        after=f"""g (float[8] x) => (float[8] y) <{_AXES}> {{
            u = Unsqueeze(x, a)  s = LogSoftmax<axis = 1>(u)  t = Squeeze(s, b)  y = Neg(t) }}""",
        opset=13,
    ),
    Fixed(
        "a Hardmax",
        before="g (float[8] x) => (float[8] y) { y = Hardmax<axis = -1>(x) }",
        after=f"""g (float[8] x) => (float[8] y) <{_AXES}> {{
            u = Unsqueeze(x, a)  s = Hardmax<axis = -1>(u)  y = Squeeze(s, b) }}""",
    ),
    Fixed(
        "an ArgMax with keepdims: only the new axis is removed",
        before="g (float[8] x) => (int64[1] y) { y = ArgMax(x) }",
        after=f"""g (float[8] x) => (int64[1] y) <{_AXES}> {{
            u = Unsqueeze(x, a)  s = ArgMax<axis = 1>(u)  y = Squeeze(s, b) }}""",
    ),
    Fixed(
        "an ArgMin without keepdims",
        before="g (float[8] x) => (int64 y) { y = ArgMin<axis = -1, keepdims = 0, select_last_index = 1>(x) }",
        after=f"""g (float[8] x) => (int64 y) <{_AXES}> {{
            u = Unsqueeze(x, a)  s = ArgMin<axis = -1, keepdims = 0, select_last_index = 1>(u)  y = Squeeze(s, b) }}""",
    ),
    Fixed(
        "before opset 13 the axes of Unsqueeze and Squeeze are attributes",
        before="g (float[8] x) => (int64[1] y) { y = ArgMax<axis = 0>(x) }",
        after="""g (float[8] x) => (int64[1] y) {
            u = Unsqueeze<axes = [0]>(x)  s = ArgMax<axis = 1>(u)  y = Squeeze<axes = [0]>(s) }""",
        opset=11,
    ),
    Fixed(
        "a Softmax of a scalar",
        before="g (float x) => (float y) { y = Softmax<axis = 0>(x) }",
        after="""g (float x) => (float y) <int64[2] a = {0, 1}, int64[2] b = {0, 1}> {
            u = Unsqueeze(x, a)  s = Softmax<axis = 1>(u)  y = Squeeze(s, b) }""",
    ),
    Silent("of rank 2", "g (float[1,8] x) => (float[1,8] y) { y = Softmax(x) }"),
    Silent(
        "before opset 13 TensorRT flattens it to a matrix",
        "g (float[8] x) => (float[8] y) { y = Softmax<axis = 0>(x) }",
        opset=12,
    ),
    Silent(
        "of unknown rank",
        """g (float[A,B] x, int64[K] h) => (float[C,D] y) {
            r = Reshape(x, h)  s = Softmax(r)  y = Reshape(s, h) }""",
        runs=False,
    ),
    Silent(
        "a TopK of a vector, which TensorRT supports",
        "g (float[8] x) => (float[2] y, int64[2] i) <int64[1] k = {2}> { y, i = TopK(x, k) }",
    ),
]


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
        "TensorRT 8.6 was not measured",
        "g (float[4] x, float[2,4,3] w) => (float[2,3] y) { y = MatMul(x, w) }",
        target="trt8.6",
    ),
    Silent("one matrix", "g (float[4] x, float[4,3] w) => (float[3] y) { y = MatMul(x, w) }"),
    Silent(
        "a batch of matrices and a vector",
        "g (float[2,3,4] w, float[4] x) => (float[2,3] y) { y = MatMul(w, x) }",
    ),
    Silent("two vectors", "g (float[4] x, float[4] w) => (float y) { y = MatMul(x, w) }"),
]
