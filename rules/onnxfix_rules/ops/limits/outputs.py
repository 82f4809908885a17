"""Outputs that TensorRT refuses or renames (OPS021, OPS022, OPS085)."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    dtypes,
    is_read,
    rule,
)


@rule(
    "OPS021",
    ops=["Attention", "LayerNormalization", "MaxPool"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[52],
)
def unused_extra_output(node: Node, model: Model) -> Iterator[Match]:
    """A LayerNormalization, MaxPool or Attention with more than one output, which TensorRT does not support.

    ## Why it matters
    The parser stops, even if the outputs are unused: `This version of TensorRT doesn't support mode than 1 outputs for
    LayerNormalization nodes!`, the same for MaxPool, and `TensorRT only supports Attention nodes with one output.`,
    measured with TensorRT-RTX 1.7.1. Exporters and training scripts leave such outputs behind. The parser accepts
    outputs omitted by an empty name, the mask of a Dropout, and the states of LSTM, GRU and RNN.

    ## Fix
    Drop the unused outputs. Exact, except for a MaxPool of floats: ONNX Runtime uses another kernel for a MaxPool with
    indices, and where the maximum of a window is zero the two differ in its sign, which ONNX leaves open. That fix
    requires `--numeric-fixes`. If such an output is used, there is no fix: ONNX defines LayerNormalization and
    Attention by other operators, into which they can be decomposed. An Attention with a past also keeps its outputs:
    ONNX requires the present with it.

    ## References
    - https://onnx.ai/onnx/operators/onnx__LayerNormalization.html, onnx__MaxPool.html, onnx__Attention.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md, MaxPool
    """
    extra = [value for value in node.outputs[1:] if value is not None]
    if not extra:
        return
    read = [value.name for value in extra if is_read(value)]
    past = node.op_type == "Attention" and (node.input(4) is not None or node.input(5) is not None)
    if node.outputs[0] is None or read or past:
        why = (
            f"{', '.join(read)} is used"
            if read
            else "it has a past"
            if node.outputs[0]
            else "the first is unused"
        )
        yield Match(f"TensorRT supports only one output of {node.op_type}, and {why}", node=node)
        return
    draft = Draft(node)
    draft.replace_node(node, outputs=node.proto.output[:1])
    yield Match(
        f"TensorRT supports only one output of {node.op_type}; unused: {', '.join(v.name for v in extra)}",
        node=node,
        fix=Fix("drop the unused outputs", draft.edits, _safety(node, model)),
    )


def _safety(node: Node, model: Model) -> Safety:
    data = node.input(0)
    elem = None if data is None else model.shapes.elem_type(data)
    integer = elem is not None and dtypes.is_integer(elem)
    return Safety.EXACT if node.op_type != "MaxPool" or integer else Safety.NUMERIC


_POOL = "MaxPool<kernel_shape = [2,2], strides = [2,2]>"
_QKV = "float[1,2,N,8] q, float[1,2,N,8] k, float[1,2,N,8] v"


unused_extra_output.examples = [
    Fixed(
        "the indices of a MaxPool",
        before=f"g (float[N,1,4,4] x) => (float[N,1,2,2] y) {{ y, i = {_POOL}(x) }}",
        after=f"g (float[N,1,4,4] x) => (float[N,1,2,2] y) {{ y = {_POOL}(x) }}",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "not by default: in ONNX Runtime a maximum of -0.0 becomes 0.0",
        f"g (float[N,1,4,4] x) => (float[N,1,2,2] y) {{ y, i = {_POOL}(x) }}",
    ),
    Fixed(
        "integers have no -0.0",
        before=f"g (uint8[N,1,4,4] x) => (uint8[N,1,2,2] y) {{ y, i = {_POOL}(x) }}",
        after=f"g (uint8[N,1,4,4] x) => (uint8[N,1,2,2] y) {{ y = {_POOL}(x) }}",
    ),
    Fixed(
        "mean and deviation of a LayerNormalization",
        before="""g (float[N,4] x, float[4] s) => (float[N,4] z) {
            y, m, d = LayerNormalization<epsilon = 0.001>(x, s)  z = Neg(y) }""",
        after="""g (float[N,4] x, float[4] s) => (float[N,4] z) {
            y = LayerNormalization<epsilon = 0.001>(x, s)  z = Neg(y) }""",
    ),
    Fixed(
        "one omitted, one named",
        before="g (float[N,4] x, float[4] s) => (float[N,4] y) { y, , d = LayerNormalization(x, s) }",
        after="g (float[N,4] x, float[4] s) => (float[N,4] y) { y = LayerNormalization(x, s) }",
    ),
    Fixed(
        "present key, present value and QK product of an Attention without a past",
        before=f"""g ({_QKV}) => (float[1,2,N,8] y) {{
            y, a, b, c = Attention<qk_matmul_output_mode = 1>(q, k, v) }}""",
        after=f"g ({_QKV}) => (float[1,2,N,8] y) {{ y = Attention<qk_matmul_output_mode = 1>(q, k, v) }}",
        opset=23,
    ),
    Fixed(
        "in a local function with the axis from its caller",
        before="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,4] x, float[4] s) => (float[2,4] y) { y = my.F<axis = 1>(x, s) }
            <domain: "my", opset_import: ["" : 18]> F <axis> (a, s) => (b) {
                b, m = LayerNormalization<axis : int = @axis>(a, s) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,4] x, float[4] s) => (float[2,4] y) { y = my.F<axis = 1>(x, s) }
            <domain: "my", opset_import: ["" : 18]> F <axis> (a, s) => (b) {
                b = LayerNormalization<axis : int = @axis>(a, s) }""",
    ),
    Flagged(
        "the indices are a graph output",
        f"g (float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i) {{ y, i = {_POOL}(x) }}",
    ),
    Flagged(
        "an Attention with a past needs its present outputs",
        f"""g ({_QKV}, float[1,2,P,8] a, float[1,2,P,8] b) => (float[1,2,N,8] y) {{
            y, c, d = Attention(q, k, v, , a, b) }}""",
        opset=23,
    ),
    Silent("a single output", f"g (float[1,1,4,4] x) => (float[1,1,2,2] y) {{ y = {_POOL}(x) }}"),
    Silent(
        "the others are omitted",
        "g (float[N,4] x, float[4] s) => (float[N,4] y) { y, , = LayerNormalization(x, s) }",
    ),
    Silent(
        "the mask of a Dropout, which TensorRT supports",
        "g (float[2,3] x) => (float[2,3] y) { y, m = Dropout(x) }",
    ),
    Silent(
        "the last states of an LSTM, which TensorRT supports",
        """g (float[T,B,2] x, float[1,16,2] w, float[1,16,4] r) => (float[T,1,B,4] y) {
            y, h, c = LSTM<hidden_size = 4>(x, w, r) }""",
    ),
]


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
    names = enumerate(node.proto.output)
    draft.replace_node(node, outputs=[name or draft.name(f"part_{index}") for index, name in names])
    message = "Split has an unnamed output; TensorRT requires a name for each"
    yield Match(message, node=node, fix=Fix("name every output", draft.edits))


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
        "in an opset with the sizes as an attribute",
        before="g (float[3] x) => (float[2] y) { , y = Split<split = [1,2]>(x) }",
        after="g (float[3] x) => (float[2] y) { d, y = Split<split = [1,2]>(x) }",
        opset=11,
    ),
    Silent("every output has a name", "g (float[4] x) => (float[2] y) { u, y = Split<num_outputs = 2>(x) }"),
    Silent(
        "an LSTM's first output, which may be omitted",
        """g (float[T,B,2] x, float[1,16,2] w, float[1,16,4] r) => (float[1,B,4] h) {
            , h = LSTM<hidden_size = 4>(x, w, r) }""",
    ),
]


@rule(
    "OPS085",
    per="model",
    severity=Severity.ERROR,
    hazards=[27],
    differs={"branch": "about inputs that the main graph returns"},
)
def input_that_is_an_output(model: Model) -> Iterator[Match]:
    """A graph input that is also an output of the graph: TensorRT renames the network's input.

    ## Why it matters
    Two tensors of a network cannot share a name, and the output keeps it: the input `x` becomes `__x`. A caller who
    binds the input by the model's name finds an output there. Measured with TensorRT-RTX 1.7.1, for every type, for
    used and unused inputs. There is no warning, and the engine builds. Where the name `__x` is taken, the input keeps
    its name and the output gets another one (`ONNXTRT_identity_output`).

    ## Fix
    None: in ONNX the two are one value, and either name is part of the model's interface. Drop the output, since the
    caller already has its value; give it its own name after an Identity; or bind the input as `__x`.

    ## References
    - onnx/onnx-tensorrt: `ONNXTRT_identity`, the layer that the parser inserts between such an input and its output
    """
    inputs = {value.name for value in model.main.inputs}
    for value in model.main.inputs:
        if not value.is_output or value.initializer is not None or value.sparse:
            continue
        other = f"__{value.name}"
        renamed = "its output" if other in inputs else f"the network's input, to {other!r}"
        yield Match(
            f"the graph input {value.name!r} is also an output: TensorRT renames {renamed}", value=value
        )


input_that_is_an_output.examples = [
    Flagged(
        "passed through, next to another output",
        "g (float[2] x, float[2] z) => (float[2] y, float[2] x) { y = Add(x, z) }",
    ),
    Flagged("no node reads it", "g (float[N] x, int64[2] n) => (float[N] y, int64[2] n) { y = Neg(x) }"),
    Flagged(
        "the condition of a Loop",
        """g (float[2] x, bool c, int64 n) => (float[2] y, bool c) {
            y = Loop(n, c, x)<body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
                more = Identity(on)  w = Neg(v) }> }""",
    ),
    Flagged(
        "another input has the name that TensorRT gives",
        "g (float[2] x, float[2] __x) => (float[2] y, float[2] x) { y = Add(x, __x) }",
    ),
    Silent(
        "an Identity between them",
        "g (float[2] x) => (float[2] y, float[2] k) { k = Identity(x)  y = Neg(x) }",
    ),
    Silent(
        "an initializer that is an output",
        "g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add(x, w) }",
    ),
    Silent(
        "an input with a default, which TensorRT treats as a constant",
        "g (float[2] x, float[2] w) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add(x, w) }",
    ),
    Silent(
        "a local function that returns its input",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2] x) => (float[2] y, float[2] k) { y, k = my.F(x) }
            <domain: "my", opset_import: ["" : 18]> F (a) => (b, d) { b = Neg(a)  d = Identity(a) }""",
    ),
]
