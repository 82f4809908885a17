"""OPS023: Softmax, ArgMax and similar operators on a vector."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops import _rewrite as rw

_ARG = ("ArgMax", "ArgMin")


@rule(
    "OPS023",
    ops=["ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[44],
)
def softmax_of_vector(node: Node, model: Model) -> Iterator[Match]:
    """A Softmax, LogSoftmax, Hardmax, ArgMax or ArgMin of a vector: TensorRT requires rank 2 or more.

    ## Why it matters
    The parser stops: `ITensor::getDimensions: Error Code 3: API Usage Error (…: at least 2 dimensions are required for
    input.`, measured with TensorRT-RTX 1.7.1. Softmax, LogSoftmax and Hardmax before opset 13 are flattened to a matrix
    and are accepted; TopK is always accepted.

    ## Fix
    Unsqueeze a leading axis, shift the axis attribute, and squeeze the result. Exact: the same elements are processed
    in the same order.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Softmax.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    data, output = node.require(0), node.require_output()
    if model.shapes.rank(data) != 1:
        return
    arg = node.op_type in _ARG
    if not arg and node.opset < 13:
        return
    axis = node.attr("axis", 0 if arg else -1)
    if axis not in (0, -1):
        return
    draft = Draft(node)
    proto = rw.copy_of(node)
    proto.input[0] = draft.unsqueeze(data, [0])
    proto.output[0] = draft.name(f"{node.op_type.lower()}_of_row")
    if axis == 0:
        rw.set_attribute(proto, "axis", 1)
    rw.replace(draft, node, proto)
    draft.squeeze(proto.output[0], [0], output=output.name)
    yield Match(
        f"{node.op_type} of a vector: TensorRT requires rank 2 or more",
        node=node,
        fix=Fix("unsqueeze a leading axis, and squeeze the result", draft.edits),
    )


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
        "inside a branch, of a captured vector; IR version 3 has no plain initializers",
        before="""g (float[3] x, bool c) => (float[3] y) {
            y = If(c)<then_branch = p () => (float[3] u) { u = Softmax(x) },
                      else_branch = q () => (float[3] v) { v = Neg(x) }> }""",
        after="""g (float[3] x, bool c) => (float[3] y) {
            y = If(c)<then_branch = p () => (float[3] u) { a = Constant<value = int64[1] {0}>()
                          b = Constant<value = int64[1] {0}>()
                          w = Unsqueeze(x, a)  s = Softmax(w)  u = Squeeze(s, b) },
                      else_branch = q () => (float[3] v) { v = Neg(x) }> }""",
        opset=13,
        ir_version=3,
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
