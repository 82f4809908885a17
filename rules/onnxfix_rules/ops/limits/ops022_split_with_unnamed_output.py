"""OPS022: a Split with an unnamed output."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops import _rewrite as rw


@rule("OPS022", ops=["Split"], safety=Safety.EXACT, severity=Severity.ERROR)
def split_with_unnamed_output(node: Node, model: Model) -> Iterator[Match]:
    """A Split that omits the name of an unused output.

    ## Why it matters
    ONNX's checker accepts it, and the reference runs it; ONNX Runtime 1.31.1 loads it and crashes when it runs.
    TensorRT counts the names: `Assertion failed: nonEmptyOutputs == static_cast<int32_t>(outputs.size()): Node has more
    output tensors than TRT expected, expected output size is 2, actual output size is 1.`, measured with TensorRT-RTX
    1.7.1 for opsets 13 and 20.

    ## Fix
    Name the output. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Split.html
    """
    if all(node.outputs):
        return
    draft = Draft(node)
    proto = rw.copy_of(node)
    for index, name in enumerate(proto.output):
        if not name:
            proto.output[index] = draft.name(f"part_{index}")
    rw.replace(draft, node, proto)
    yield Match(
        "Split has an unnamed output; TensorRT requires a name for each",
        node=node,
        fix=Fix("name every output", draft.edits),
    )


split_with_unnamed_output.examples = [
    Fixed(
        "only the second output is named",
        before="g (float[N,4] x) => (float[N,2] y) { , y = Split<axis = 1>(x) }",
        after="g (float[N,4] x) => (float[N,2] y) { u, y = Split<axis = 1>(x) }",
        opset=13,
    ),
    Fixed(
        "one of three outputs, with given sizes",
        before="g (float[6] x) => (float[3] y, float[1] z) <int64[3] s = {1, 2, 3}> { z, , y = Split(x, s) }",
        after="g (float[6] x) => (float[3] y, float[1] z) <int64[3] s = {1, 2, 3}> { z, m, y = Split(x, s) }",
    ),
    Fixed(
        "inside a branch, in an opset with the sizes as an attribute",
        before="""g (float[3] x, bool c) => (float[K] y) {
            y = If(c)<then_branch = p () => (float[K] u) { , u = Split<split = [1,2]>(x) },
                      else_branch = q () => (float[K] v) { v = Neg(x) }> }""",
        after="""g (float[3] x, bool c) => (float[K] y) {
            y = If(c)<then_branch = p () => (float[K] u) { d, u = Split<split = [1,2]>(x) },
                      else_branch = q () => (float[K] v) { v = Neg(x) }> }""",
        opset=11,
    ),
    Silent("every output has a name", "g (float[4] x) => (float[2] y) { u, y = Split<num_outputs = 2>(x) }"),
    Silent(
        "an LSTM's first output, which may be omitted",
        """g (float[T,B,2] x, float[1,16,2] w, float[1,16,4] r) => (float[1,B,4] h) {
            , h = LSTM<hidden_size = 4>(x, w, r) }""",
    ),
]
