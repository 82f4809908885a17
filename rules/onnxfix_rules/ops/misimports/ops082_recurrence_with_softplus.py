"""OPS082: recurrent operators with Softplus gates."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, is_read, rule

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
