"""OPS124: what the sources of a target's facts restrict."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule, target_of
from onnxfix_rules.ops.limits._restrictions import RESTRICTIONS


@rule(
    "OPS124",
    ops=sorted(RESTRICTIONS),
    severity=Severity.ERROR,
    general=True,
    differs={"function": "an input of a function may be a constant where it is called"},
)
def restricted_form(node: Node, model: Model) -> Iterator[Match]:
    """A form of an operator that the target's operator list, changelog or parser excludes.

    ## Why it matters
    The parser stops at the node, or the builder does. The message quotes the restriction, which holds for the target's
    release: NVIDIA's list states it, or the changelog names the release that lifts it. The parser's source (TensorRT
    8.4 to 10.1) and measurements count more than a list:

    - 8.4 and 8.5: `The scale tensor is required to be an initializer.`, `This version of TensorRT only supports input K
      as an initializer.`, `This version of TensorRT does not support dynamic ReverseSequence lengths!` (if both the
      lengths and the batch are dynamic), `Trilu input must have 2 or 3 input dimensions!`, `This version of TensorRT
      does not support INT32 ArgMin/ArgMax input data.`
    - 8.4 to 9.3: Pad refuses `axes`, even constant ones: `TensorRT does not support dynamic axes for pad!` (8.4 ignores
      them), and the mode wrap: `Unsupported pad mode`.
    - to 10.11: diagonals in Einsum (refused by 8.6.1 and 10.6.0). Ellipses are taken from 9.0 on.
    - to 10.10: `The input tensor cannot be an initializer.` for RandomNormalLike and RandomUniformLike
    - GRU, LSTM and RNN: `The parser does not currently support cases where activations for the reverse pass of the GRU
      do not match the forward pass.`; Hardmax: `Depth input of IOneHotLayer must be a build time constant`;
      TensorScatter: `Sequence dimension must be -2, got -3`; STFT: `TensorRT only supports STFT on real-valued
      signals!`; GridSample of six dimensions. These are measured with TensorRT-RTX 1.7.1.

    A warning for NonMaxSuppression of TensorRT 8.4, a plugin whose result has a fixed shape. A note for three
    restrictions that do not stop every import: before 9.3 integers of ArgMax are compared as float32, before 10.7 data
    and scale of BatchNormalization need one type if the network is strongly typed, before 10.4 a computed kernel of
    Conv needs the attribute kernel_shape. And a note if it is not known whether a node complies, for instance because
    a rank is unknown.

    Other rules report other restrictions: OPS021, OPS031, OPS037 to OPS046, OPS066, OPS067, OPS099 and more.

    ## Fix
    None. Export for the later release's form, or make the input constant.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md
    """
    target = target_of(model)
    support = target.operator(node.op_type)
    if support is None:
        return
    unknown = ""
    for severity, words, predicate in RESTRICTIONS[node.op_type]:
        how = predicate(node, model) if words in support.notes else ""
        if how:
            message = f"{target.title} restricts {node.op_type}: {words}. Here {how}"
            yield Match(message, node=node, severity=severity)
            return
        if how is None and not unknown:
            unknown = (
                f"{target.title} restricts {node.op_type}: {words}. Whether this node complies is not known"
            )
    if unknown:
        yield Match(unknown, node=node, severity=Severity.INFO)


_E = "y = Einsum<equation ="
_flagged = partial(Flagged, runs=False)
_silent = partial(Silent, runs=False)
_NORM = "g (float[2,3,4] x, float[3] a) => (float[2,3,4] y)"
_GRU = "g (float[5,1,2] x, float[2,12,2] w, float[2,12,4] r) => (float[5,2,1,4] y) { y = GRU<hidden_size = 4,"
_BOTH = 'direction = "bidirectional", activations ='
_DFT = "g (TYPE[1,6,2] x) => (TYPE[1,N,M] y) <int64 n = {8}> { y = DFT<axis = 1"


def _einsum(z: str, y: str, attributes: str) -> str:
    return f"g (float[{z}] z) => (float[{y}] y) {{ y = Einsum<{attributes}>(z) }}"


def _reverse_sequence(x: str, lengths: str) -> str:
    return f"g (float[{x}] x, int64[{lengths}] l) => (float[{x}] y) {{ y = ReverseSequence(x, l) }}"


def _trilu(x: str) -> str:
    return f"g (float[{x}] x) => (float[{x}] y) {{ y = Trilu<upper = 0>(x) }}"


def _arg_max(elem: str) -> str:
    return f"g ({elem}[2,3] x) => (int64[1,3] y) {{ y = ArgMax(x) }}"


def _conv(attributes: str) -> str:
    return f"g (float[1,2,8,8] x, float[3,2,3,3] w) => (float[1,3,6,6] y) {{ y = Conv{attributes}(x, w) }}"


restricted_form.examples = [
    _flagged(
        "the axes of a Pad are an input, for TensorRT 10.3",
        "g (float[2,3] x, int64[1] a) => (float[A,B] y) <int64[2] p = {0, 1}> { y = Pad(x, p, , a) }",
        target="trt10.3",
    ),
    _silent(
        "constant axes of a Pad",
        "g (float[2,3] x) => (float[2,4] y) <int64[2] p = {0, 1}, int64[1] a = {1}> { y = Pad(x, p, , a) }",
        target="trt10.3",
    ),
    _flagged(
        "constant axes of a Pad, for TensorRT 9.3",
        "g (float[2,3] x) => (float[2,4] y) <int64[2] p = {0, 1}, int64[1] a = {1}> { y = Pad(x, p, , a) }",
        target="trt9.3",
    ),
    _flagged(
        "Pad by wrapping",
        'g (float[5] x) => (float[9] y) <int64[2] p = {2, 2}> { y = Pad<mode = "wrap">(x, p) }',
        target="trt9.3",
        opset=19,
    ),
    _silent(
        "Pad by reflection, for TensorRT 9.3, and by wrapping, for 10.0",
        'g (float[5] x) => (float[9] y) <int64[2] p = {2, 2}> { y = Pad<mode = "reflect">(x, p) }',
        target="trt9.3",
        opset=19,
    ),
    _flagged(
        "the scale of an InstanceNormalization is an input",
        f"{_NORM} {{ y = InstanceNormalization(x, a, a) }}",
        target="trt8.6",
    ),
    _silent("TensorRT 9 takes it", f"{_NORM} {{ y = InstanceNormalization(x, a, a) }}", target="trt9.0"),
    _flagged(
        "InstanceNormalization of six dimensions",
        """g (float[2,3,1,1,1,1] x) => (float[2,3,1,1,1,1] y) <float[3] a = {1, 1, 1}> {
            y = InstanceNormalization(x, a, a) }""",
        target="trt10.6",
    ),
    _silent(
        "constant scale and bias",
        "g (float[2,3,4] x) => (float[2,3,4] y) <float[3] a = {1, 1, 1}> { y = InstanceNormalization(x, a, a) }",
        target="trt8.5",
    ),
    _flagged(
        "the number of boxes is an input, for TensorRT 8.4",
        "g (float[1,6,4] b, float[1,1,6] s, int64 m) => (int64[N,3] y) { y = NonMaxSuppression(b, s, m) }",
        target="trt8.4",
    ),
    _flagged(
        "a warning: the selected boxes are padded",
        """g (float[1,6,4] b, float[1,1,6] s) => (int64[N,3] y) <int64 m = {3}> {
            y = NonMaxSuppression(b, s, m) }""",
        target="trt8.4",
    ),
    _silent(
        "TensorRT 8.5 has a layer",
        "g (float[1,6,4] b, float[1,1,6] s, int64 m) => (int64[N,3] y) { y = NonMaxSuppression(b, s, m) }",
        target="trt8.5",
    ),
    _flagged(
        "the k of a TopK is an input",
        "g (float[8] x, int64[1] k) => (float[K] y, int64[K] i) { y, i = TopK(x, k) }",
        target="trt8.5",
    ),
    _flagged(
        "a note: the k of a TopK comes from a static shape",
        """g (float[8] x, float[3] z) => (float[3] y, int64[3] i) { k = Shape(z)  y, i = TopK(x, k) }""",
        target="trt8.5",
    ),
    _silent(
        "a constant k",
        "g (float[8] x) => (float[2] y, int64[2] i) <int64[1] k = {2}> { y, i = TopK(x, k) }",
        target="trt8.5",
    ),
    _flagged("a dynamic number of sequences", _reverse_sequence("4,N", "N"), target="trt8.5"),
    _silent("a dynamic length", _reverse_sequence("N,3", "3"), target="trt8.5"),
    _flagged(
        "an ellipsis, for TensorRT 8", _einsum("2,3,3", "3,3,2", 'equation = "a...->...a"'), target="trt8.6"
    ),
    _silent(
        "an ellipsis, for TensorRT 9", _einsum("2,3,3", "3,3,2", 'equation = "a...->...a"'), target="trt9.0"
    ),
    _flagged("a diagonal, for TensorRT 10.11", _einsum("3,3", "3", 'equation = "ii->i"'), target="trt10.11"),
    _silent("a diagonal, for TensorRT 10.12", _einsum("3,3", "3", 'equation = "ii->i"'), target="trt10.12"),
    _silent(
        "a dimension of 1 that is broadcast, which 8.6.1 and 10.6.0 executed",
        f'g (float[1,3] x, float[2,3] z) => (float[2] y) {{ {_E} "ij,ij->i">(x, z) }}',
        target="trt10.6",
    ),
    _silent(
        "a product of dynamic matrices",
        f'g (float[N,3] x, float[3,M] z) => (float[N,M] y) {{ {_E} "ij,jk->ik">(x, z) }}',
        target="trt8.6",
    ),
    _flagged("Trilu of four dimensions", _trilu("1,2,3,3"), target="trt8.5"),
    _silent("Trilu of a batch", _trilu("2,3,3"), target="trt8.5"),
    _flagged(
        "random values in the shape of a constant",
        "g (float[2] x) => (float[2] y) <float[2] s = {1, 2}> { r = RandomNormalLike(s)  y = Add(x, r) }",
        target="trt10.10",
    ),
    _silent(
        "random values in the shape of a tensor",
        "g (float[2] x) => (float[2] y) { r = RandomNormalLike(x)  y = Add(x, r) }",
        target="trt10.10",
    ),
    _flagged("Hardmax along a dynamic axis", "g (float[2,N] x) => (float[2,N] y) { y = Hardmax(x) }"),
    _flagged(
        "Hardmax before opset 13, whose later axes count too",
        "g (float[2,4,N] x) => (float[2,4,N] y) { y = Hardmax(x) }",
        opset=11,
        target="rtx",
    ),
    _silent("Hardmax along another axis", "g (float[N,4] x) => (float[N,4] y) { y = Hardmax(x) }"),
    _flagged(
        "directions with other activations",
        f'{_GRU} {_BOTH} ["Sigmoid", "Tanh", "Sigmoid", "Relu"]>(x, w, r) }}',
    ),
    _flagged(
        "directions with other parameters of their activations",
        f"""{_GRU} {_BOTH} ["HardSigmoid", "Tanh", "HardSigmoid", "Tanh"],
            activation_alpha = [0.1, 0.0, 0.2, 0.0]>(x, w, r) }}""",
        target="rtx",
    ),
    _silent(
        "directions with the same activations",
        f'{_GRU} {_BOTH} ["Sigmoid", "Relu", "Sigmoid", "Relu"]>(x, w, r) }}',
    ),
    _flagged(
        "DeformConv with other padding at the end",
        """g (float[1,1,3,3] x, float[1,1,2,2] w, float[1,8,3,2] o) => (float[1,1,3,2] y) {
            y = DeformConv<pads = [1,0,0,0]>(x, w, o) }""",
        opset=19,
        target="trt10.13",
    ),
    _silent(
        "DeformConv with equal padding",
        """g (float[1,1,3,3] x, float[1,1,2,2] w, float[1,8,4,2] o) => (float[1,1,4,2] y) {
            y = DeformConv<pads = [1,0,1,0]>(x, w, o) }""",
        opset=19,
        target="trt11",
    ),
    _silent(
        "GridSample of five dimensions, for TensorRT 11.2",
        """g (float[1,1,2,3,4] x, float[1,2,2,2,3] q) => (float[1,1,2,2,2] y) {
            y = GridSample<mode = "linear">(x, q) }""",
        opset=20,
        target="trt11.2",
    ),
    _flagged(
        "GridSample of six dimensions",
        """g (float[1,1,2,2,3,4] x, float[1,2,2,2,2,4] q) => (float[1,1,2,2,2,2] y) {
            y = GridSample<mode = "nearest">(x, q) }""",
        opset=20,
        target="rtx",
    ),
    _flagged(
        "STFT of a complex signal",
        """g (float[1,16,2] x) => (float[1,1,16,2] y) <int64 s = {8}, int64 l = {16}> {
            y = STFT<onesided = 0>(x, s, , l) }""",
        target="rtx",
    ),
    _silent(
        "STFT of a real signal",
        """g (float[1,16,1] x) => (float[1,1,9,2] y) <int64 s = {8}, int64 l = {16}> { y = STFT(x, s, , l) }""",
        target="rtx",
    ),
    _flagged(
        "TensorScatter along another axis",
        """g (float[2,4,4,3] x, float[2,1,4,3] u, int64[2] i) => (float[2,4,4,3] y) {
            y = TensorScatter<axis = 1>(x, u, i) }""",
        opset=24,
        target="rtx",
    ),
    _silent(
        "TensorScatter along the same axis, counted from the start",
        """g (float[2,4,4,3] x, float[2,4,1,3] u, int64[2] i) => (float[2,4,4,3] y) {
            y = TensorScatter<axis = 2>(x, u, i) }""",
        opset=24,
        target="rtx",
    ),
    _flagged("DFT with a length", f"{_DFT.replace('TYPE', 'float')}>(x, n) }}", target="trt11.2"),
    _flagged("DFT of half precision", f"{_DFT.replace('TYPE', 'float16')}>(x) }}", target="trt11.2"),
    _silent("DFT", f"{_DFT.replace('TYPE', 'float')}>(x) }}", target="trt11.2"),
    _flagged("ArgMax of integers, for TensorRT 8.5", _arg_max("int32"), target="trt8.5"),
    _flagged("a note: ArgMax compares integers as float32", _arg_max("int32"), target="trt8.6"),
    _silent("ArgMax of floats", _arg_max("float"), target="trt8.5"),
    _flagged(
        "directions of an RNN with other parameters",
        """g (float[5,1,2] x, float[2,4,2] w, float[2,4,4] r) => (float[5,2,1,4] y) { y = RNN<hidden_size = 4,
            direction = "bidirectional", activations = ["LeakyRelu", "LeakyRelu"], activation_alpha = [0.1, 0.2]>
            (x, w, r) }""",
        target="rtx",
    ),
    _silent(
        "directions of an LSTM with the default activations",
        """g (float[5,1,2] x, float[2,16,2] w, float[2,16,4] r) => (float[5,2,1,4] y) {
            y = LSTM<hidden_size = 4, direction = "bidirectional">(x, w, r) }""",
    ),
    _flagged(
        "DFT of a dynamic last dimension",
        "g (float[1,6,N] x) => (float[1,6,2] y) { y = DFT<axis = 1>(x) }",
        target="trt11.2",
    ),
    _flagged(
        "a note: data and scale of other types",
        """g (float16[1,2,3] x) => (float16[1,2,3] y) <float[2] s = {1, 2}> {
            y = BatchNormalization(x, s, s, s, s) }""",
        target="trt10.6",
    ),
    _silent(
        "data and scale of other types, for TensorRT 10.7",
        """g (float16[1,2,3] x) => (float16[1,2,3] y) <float[2] s = {1, 2}> {
            y = BatchNormalization(x, s, s, s, s) }""",
        target="trt10.7",
    ),
    _flagged("a note: a computed kernel without kernel_shape", _conv(""), target="trt10.3"),
    _silent("a computed kernel with kernel_shape", _conv("<kernel_shape = [3, 3]>"), target="trt10.3"),
]
