"""OPS038: forms of convolutions, pooling and LSTM that TensorRT's layers do not support."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule

_SPATIAL = ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool")


@rule("OPS038", ops=[*_SPATIAL, "LSTM"], severity=Severity.ERROR, hazards=[74])
def layer_limit(node: Node, model: Model) -> Iterator[Match]:
    """A ConvTranspose with strides and dilations, a convolution or pooling of four dimensions, an LSTM with
    `input_forget`.

    ## Why it matters
    Measured with TensorRT-RTX 1.7.1:

    - ConvTranspose with a stride and a dilation, along the same axis or not: the build fails, `Strided & Dilated Deconv
      are currently not supported`. Either alone builds.
    - Conv and pooling with more than three spatial dimensions: `condition: (kernelSize).nbDims == 2 ||
      (kernelSize).nbDims == 3`, `The attribute kernel_shape misaligns with the shape of the input tensor.`
    - LSTM with `input_forget`: `Coupled input/forget is unsupported in the LSTM converter`

    One spatial dimension, groups, asymmetric padding, `auto_pad`, `clip` and GRU with `linear_before_reset` are
    supported.

    ## Fix
    None. The kernel of a dilated ConvTranspose can be expanded with zeros. OPS037 covers dilated pooling.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    if node.op_type == "LSTM":
        if node.attr("input_forget", 0):
            yield Match("TensorRT has no LSTM with input_forget", node=node)
        return
    data = node.input(0)
    rank = None if data is None else model.shapes.rank(data)
    if rank is not None and rank > 5:
        yield Match(
            f"TensorRT's {node.op_type} supports at most three spatial dimensions, not {rank - 2}", node=node
        )
    elif node.op_type == "ConvTranspose" and _above_one(node, "strides") and _above_one(node, "dilations"):
        yield Match("TensorRT has no ConvTranspose with strides and dilations combined", node=node)


def _above_one(node: Node, name: str) -> bool:
    return any(size > 1 for size in node.attr(name) or ())


_UP = "g (float[1,1,4,4] x, float[1,1,2,2] w) => (float[1,1,A,B] y)"
_LSTM = "g (float[T,B,2] x, float[1,16,2] w, float[1,16,4] r) => (float[T,1,B,4] y)"


layer_limit.examples = [
    Flagged(
        "strides and dilations combined",
        f"{_UP} {{ y = ConvTranspose<strides = [2,2], dilations = [2,2]>(x, w) }}",
    ),
    Flagged(
        "strides along one axis, dilations along the other",
        f"{_UP} {{ y = ConvTranspose<strides = [2,1], dilations = [1,2]>(x, w) }}",
    ),
    Flagged(
        "a Conv with four spatial dimensions",
        """g (float[1,1,4,4,4,4] x, float[1,1,2,2,2,2] w) => (float[1,1,3,3,3,3] y) { y = Conv(x, w) }""",
    ),
    Flagged(
        "pooling with four spatial dimensions",
        """g (float[1,1,4,4,4,4] x) => (float[1,1,3,3,3,3] y) {
            y = AveragePool<kernel_shape = [2,2,2,2]>(x) }""",
        runs=False,
    ),
    Flagged(
        "an LSTM with input_forget",
        f"{_LSTM} {{ y = LSTM<hidden_size = 4, input_forget = 1>(x, w, r) }}",
    ),
    Silent("strides alone", f"{_UP} {{ y = ConvTranspose<strides = [2,2], dilations = [1,1]>(x, w) }}"),
    Silent("dilations alone", f"{_UP} {{ y = ConvTranspose<dilations = [2,2]>(x, w) }}"),
    Silent(
        "strides and dilations of a Conv",
        """g (float[1,1,6,6] x, float[1,1,2,2] w) => (float[1,1,A,B] y) {
            y = Conv<strides = [2,2], dilations = [2,2]>(x, w) }""",
    ),
    Silent(
        "three spatial dimensions",
        "g (float[1,1,4,4,4] x, float[1,1,2,2,2] w) => (float[1,1,3,3,3] y) { y = Conv(x, w) }",
    ),
    Silent(
        "one spatial dimension", "g (float[1,1,4] x, float[1,1,2] w) => (float[1,1,3] y) { y = Conv(x, w) }"
    ),
    Silent("an LSTM with clip", f"{_LSTM} {{ y = LSTM<hidden_size = 4, clip = 1.0>(x, w, r) }}"),
    Silent(
        "asymmetric padding, groups and auto_pad",
        """g (float[1,1,9] x, float[1,4,4,4] u, float[4,1,2,2] w, float[4,4,2,2] v)
            => (float[1,1,9] y, float[1,2,5,5] z, float[1,4,4,4] t) {
            y = MaxPool<kernel_shape = [2], pads = [0,1]>(x)  z = ConvTranspose<group = 2>(u, w)
            t = Conv<auto_pad = "SAME_UPPER">(u, v) }""",
    ),
    Silent(
        "a GRU with linear_before_reset",
        """g (float[T,B,2] x, float[1,12,2] w, float[1,12,4] r) => (float[T,1,B,4] y) {
            y = GRU<hidden_size = 4, linear_before_reset = 1>(x, w, r) }""",
    ),
]
