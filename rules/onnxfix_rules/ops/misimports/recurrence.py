"""GRU, LSTM and RNN with a layout or an activation that TensorRT reads in another way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import ModelProto, TensorProto, helper

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
    Value,
    is_read,
    rule,
)

_OUTPUTS = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
"""Permutations that turn the time-first layout of Y, Y_h and Y_c into the batch-first one."""

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@rule("OPS011", ops=sorted(_GATES), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[2])
def batch_first_recurrence(node: Node, model: Model) -> Iterator[Match]:
    """A GRU, LSTM or RNN with `layout = 1` (batch first): TensorRT treats the batch axis as time.

    ## Why it matters
    TensorRT does not read the attribute. Its loop runs along axis 0 of X, so the samples of a batch become the steps of
    one sequence. Measured with TensorRT-RTX 1.7.1 by reading the imported network, for all three operators, forward,
    reverse and bidirectional, in opsets 14 and 22:

    - Without initial states it parses and builds without a warning. For X of [2, 3, 5] it computes Y_h as [1, 3, 4],
      where ONNX has [2, 1, 4], and Y as [2, 1, 3, 4] instead of [2, 3, 1, 4].
    - With initial states and static sizes the build fails: `IRecurrenceLayer must have inputs with same shape. First
      input h0 has shape [2,1,4] and second input … has shape [2,3,4]`. With dynamic sizes it builds.
    - With sequence lengths the parser rejects sizes that do not happen to match (`broadcast dimensions must be
      conformable`).

    ## Fix
    Time first: a Transpose before X and the initial states, one after each output, and no `layout`. Exact, since only
    the order of the elements changes. ONNX Runtime does not run `layout = 1` (`Batchwise recurrent operations (layout
    == 1) are not supported`), but it runs the result.

    ## References
    - https://onnx.ai/onnx/operators/onnx__LSTM.html, attribute layout, since opset 14
    """
    data = node.require(0)
    if node.opset < 14 or node.attr("layout", 0) != 1:
        return
    shape = model.shapes.static_shape(data)
    if shape is not None and shape[:2] == (1, 1) and node.attr("direction", "forward") != "bidirectional":
        return
    if not any(is_read(value) for value in node.outputs):
        return
    yield Match(
        f"{node.op_type} with layout=1 (batch first): TensorRT ignores it and treats the batch axis as time",
        node=node,
        fix=Fix("convert to time first with Transposes", _time_first(node).edits),
    )


def _time_first(node: Node) -> Draft:
    draft = Draft(node)
    inputs: list[Value | str | None] = list(node.inputs)
    for index in (0, 5, 6):  # X, initial_h, initial_c
        value = node.input(index)
        if value is not None:
            inputs[index] = draft.add("Transpose", [value], hint=f"time_first_{index}", perm=[1, 0, 2])
    names, back = [], []
    for output, name, permutation in zip(node.outputs, node.proto.output, _OUTPUTS, strict=False):
        names.append(draft.name(f"time_first_{name}") if is_read(output) else "")
        if names[-1]:
            back.append((names[-1], name, permutation))
    while not names[-1]:
        names.pop()
    draft.replace_node(node, "", inputs, names, layout=None)
    for source, name, permutation in back:
        draft.add("Transpose", [source], output=name, perm=permutation)
    return draft


def _with_lengths(op_type: str, layout: int) -> ModelProto:
    """A model with sequence lengths; its output is declared with the operator's own shape."""
    gates = _GATES[op_type] * 3
    shapes: dict[str, Any] = {"x": ["B", "T", 2], "w": [1, gates, 2], "r": [1, gates, 3]}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    infos.append(helper.make_tensor_value_info("l", TensorProto.INT32, ["B"]))
    node = helper.make_node(op_type, ["x", "w", "r", "", "l"], ["y"], hidden_size=3, layout=layout)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "T", 1, 3])
    graph = helper.make_graph([node], "g", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=9)


batch_first_recurrence.examples = [
    Fixed(
        "the last state of a GRU",
        before="""g (float[B,T,2] x, float[1,12,2] w, float[1,12,4] r) => (float[B,1,4] h) {
            , h = GRU<hidden_size = 4, layout = 1>(x, w, r) }""",
        after="""g (float[B,T,2] x, float[1,12,2] w, float[1,12,4] r) => (float[B,1,4] h) {
            t = Transpose<perm = [1,0,2]>(x)  , u = GRU<hidden_size = 4>(t, w, r)
            h = Transpose<perm = [1,0,2]>(u) }""",
    ),
    Fixed(
        "all outputs of an LSTM with initial states, in the newest opset",
        before="""g (float[2,3,2] x, float[1,16,2] w, float[1,16,4] r, float[1,32] b, float[2,1,4] i, float[2,1,4] j)
            => (float[2,3,1,4] y, float[2,1,4] h, float[2,1,4] c) {
            y, h, c = LSTM<hidden_size = 4, layout = 1>(x, w, r, b, , i, j) }""",
        after="""g (float[2,3,2] x, float[1,16,2] w, float[1,16,4] r, float[1,32] b, float[2,1,4] i, float[2,1,4] j)
            => (float[2,3,1,4] y, float[2,1,4] h, float[2,1,4] c) {
            t = Transpose<perm = [1,0,2]>(x)  i0 = Transpose<perm = [1,0,2]>(i)  j0 = Transpose<perm = [1,0,2]>(j)
            y0, h0, c0 = LSTM<hidden_size = 4>(t, w, r, b, , i0, j0)
            y = Transpose<perm = [2,0,1,3]>(y0)  h = Transpose<perm = [1,0,2]>(h0)  c = Transpose<perm = [1,0,2]>(c0)
            }""",
        opset=22,
    ),
    Fixed(
        "a bidirectional RNN; one output is unused",
        before="""g (float[B,T,2] x, float[2,3,2] w, float[2,3,3] r) => (float[B,T,2,3] y) {
            y, dead = RNN<hidden_size = 3, layout = 1, direction = "bidirectional">(x, w, r) }""",
        after="""g (float[B,T,2] x, float[2,3,2] w, float[2,3,3] r) => (float[B,T,2,3] y) {
            t = Transpose<perm = [1,0,2]>(x)
            y0 = RNN<hidden_size = 3, direction = "bidirectional">(t, w, r)
            y = Transpose<perm = [2,0,1,3]>(y0) }""",
        opset=14,
    ),
    Fixed(
        "sequences of different lengths",
        before=lambda: _with_lengths("GRU", 1),
        after="""<ir_version: 9, opset_import: ["" : 22]>
            g (float[B,T,2] x, float[1,9,2] w, float[1,9,3] r, int32[B] l) => (float[B,T,1,3] y) {
            t = Transpose<perm = [1,0,2]>(x)  y0 = GRU<hidden_size = 3>(t, w, r, , l)
            y = Transpose<perm = [2,0,1,3]>(y0) }""",
    ),
    Fixed(
        "a batch of one sequence",
        before="""g (float[1,3,2] x, float[1,3,2] w, float[1,3,3] r) => (float[1,1,3] h) {
            , h = RNN<hidden_size = 3, layout = 1>(x, w, r) }""",
        after="""g (float[1,3,2] x, float[1,3,2] w, float[1,3,3] r) => (float[1,1,3] h) {
            t = Transpose<perm = [1,0,2]>(x)  , u = RNN<hidden_size = 3>(t, w, r)
            h = Transpose<perm = [1,0,2]>(u) }""",
    ),
    Silent(
        "time first by default",
        """g (float[T,B,2] x, float[1,12,2] w, float[1,12,4] r) => (float[1,B,4] h) {
            , h = GRU<hidden_size = 4>(x, w, r) }""",
    ),
    Silent(
        "explicit layout = 0",
        """g (float[T,B,2] x, float[1,16,2] w, float[1,16,4] r) => (float[T,1,B,4] y) {
            y = LSTM<hidden_size = 4, layout = 0>(x, w, r) }""",
    ),
    Silent(
        "one step of one sequence: both axes have length 1, so their order does not matter",
        """g (float[1,1,2] x, float[1,3,2] w, float[1,3,3] r) => (float[1,1,3] h) {
            , h = RNN<hidden_size = 3, layout = 1>(x, w, r) }""",
    ),
]


_ACTIVATIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
"""The number of activations per direction."""


@rule("OPS082", ops=sorted(_ACTIVATIONS), severity=Severity.ERROR, hazards=[24])
def recurrence_with_softplus(node: Node, model: Model) -> Iterator[Match]:
    """A GRU, LSTM or RNN with the activation `Softplus`: TensorRT computes 0 for it.

    ## Why it matters
    TensorRT's activation is alpha * log(exp(beta * x) + 1), and the parser sets both of them to 0, whatever
    `activation_alpha` and `activation_beta` are: the gate is 0 for every input. The output of an RNN is then all zeros.
    It parses and builds without a warning. Measured with TensorRT-RTX 1.7.1 by reading the imported network, for all
    three operators and for every position in `activations`, forward, reverse and bidirectional, in opsets 7 to 22.

    Imported correctly, with and without an alpha and a beta, are LeakyRelu, HardSigmoid and Elu, and so are Relu, Tanh,
    Sigmoid and Softsign. ONNX gives no default for ScaledTanh, where TensorRT uses 1 and ONNX Runtime 0; for
    ThresholdedRelu ONNX Runtime uses another default than the operator's 1, which TensorRT uses. With explicit
    attributes both are correct. Affine is rejected, and so are directions whose activations differ.

    ## Fix
    None: the recurrence would have to be decomposed step by step. If you can change the model, write the cell with the
    operator Softplus in a Scan or Loop, or use another activation.

    ## References
    - https://onnx.ai/onnx/operators/onnx__RNN.html, attribute activations
    - TensorRT's Python API, ActivationType.SOFTPLUS: "f(x) = alpha * log(exp(beta * x) + 1)"
    """
    if not any(is_read(value) for value in node.outputs):
        return
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    names = [_text(name) for name in node.attr("activations", ())][: directions * _ACTIVATIONS[node.op_type]]
    positions = [number for number, name in enumerate(names) if name == "Softplus"]
    if positions:
        yield Match(
            f"{node.op_type} with the activation Softplus ({', '.join(names)}): TensorRT computes 0 for it",
            node=node,
        )


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


_RNN = "float[3,2,2] x, float[1,4,2] w, float[1,4,4] r"


recurrence_with_softplus.examples = [
    Flagged(
        "an RNN",
        f"""g ({_RNN}) => (float[1,2,4] h) {{
            , h = RNN<hidden_size = 4, activations = ["Softplus"]>(x, w, r) }}""",
    ),
    Flagged(
        "alpha and beta, which TensorRT ignores; reverse",
        f"""g ({_RNN}) => (float[3,1,2,4] y) {{
            y = RNN<hidden_size = 4, direction = "reverse", activations = ["Softplus"], activation_alpha = [1.0],
                    activation_beta = [1.0]>(x, w, r) }}""",
        opset=22,
    ),
    Flagged(
        "the hidden gate of a GRU, of dynamic sizes",
        """g (float[T,B,2] x, float[1,12,2] w, float[1,12,4] r) => (float[1,B,4] h) {
            , h = GRU<hidden_size = 4, activations = ["Sigmoid", "Softplus"]>(x, w, r) }""",
        opset=7,
    ),
    Flagged(
        "the cell of an LSTM",
        """g (float[3,2,2] x, float[1,16,2] w, float[1,16,4] r) => (float[1,2,4] h) {
            , h = LSTM<hidden_size = 4, activations = ["Sigmoid", "Softplus", "Tanh"]>(x, w, r) }""",
    ),
    Flagged(
        "bidirectional",
        """g (float[3,2,2] x, float[2,4,2] w, float[2,4,4] r) => (float[2,2,4] h) {
            , h = RNN<hidden_size = 4, direction = "bidirectional", activations = ["Softplus", "Softplus"]>(x, w, r)
            }""",
    ),
    Flagged(
        "in the second direction alone: TensorRT rejects directions that differ",
        """g (float[3,2,2] x, float[2,4,2] w, float[2,4,4] r) => (float[2,2,4] h) {
            , h = RNN<hidden_size = 4, direction = "bidirectional", activations = ["Tanh", "Softplus"]>(x, w, r) }""",
    ),
    *(
        Silent(
            f"{name}, with its own alpha and beta",
            f"""g ({_RNN}) => (float[1,2,4] h) {{
                , h = RNN<hidden_size = 4, activations = ["{name}"]>(x, w, r) }}""",
        )
        for name in ("Relu", "Sigmoid", "Softsign", "LeakyRelu", "HardSigmoid", "Elu")
    ),
    Silent(
        "default activations",
        """g (float[3,2,2] x, float[1,16,2] w, float[1,16,4] r) => (float[1,2,4] h) {
            , h = LSTM<hidden_size = 4>(x, w, r) }""",
    ),
    Silent("the operator Softplus", "g (float[3,2] x) => (float[3,2] y) { y = Softplus(x) }"),
]
