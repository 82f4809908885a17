"""GRA014: BatchNormalization nodes that could be folded into the weights before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from onnx import ModelProto, numpy_helper, parser

from onnxfix.rule import (
    Draft,
    Edit,
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
    rule,
)
from onnxfix_rules.gra import _folded


@rule("GRA014", ops=["BatchNormalization"], safety=Safety.NUMERIC, severity=Severity.INFO)
def batch_normalization_after_convolution(node: Node, model: Model) -> Iterator[Match]:
    """A BatchNormalization with constant parameters follows a Conv, ConvTranspose or Gemm with constant weights.

    ## Why it matters
    In inference mode it multiplies each channel by a constant and adds another, which can be folded into the preceding
    weights and bias. Most exporters fold it; others keep it. TensorRT-RTX 1.7.1 imports each BatchNormalization as a
    layer of its own (measured: 12 layers of four Convs, or ConvTransposes, with BatchNormalization and Relu become 8;
    36 layers of four Gemms become 20). On an H100 a SegFormer that kept one took 12 % longer than the model folded by
    onnxsim.

    ## Fix
    New weights and a new bias: `w * scale / sqrt(variance + epsilon)` for each output channel, and `(bias - mean) *
    scale / sqrt(variance + epsilon) + B`, computed in float64 and rounded once. The values change, so the fix requires
    `--numeric-fixes`. A Gemm keeps `alpha`; its `beta` is folded too.

    Reported without a fix, with the reason in the message: parameters, weights or a bias that are or would become
    non-finite; a negative variance; a sum of variance and epsilon below 1e-9, where rounding errors decide; a channel
    whose weights would all become subnormal in half precision; a shared weight of which the copies for all readers
    exceed 1 MiB. Smaller ones are copied, as for heads that share a Conv and have their own normalization.

    Not reported: training mode, parameters that callers can override or that are not constant, dequantized weights, a
    result of the Conv with other readers, opsets below 7, a BatchNormalization before the Conv (padding would not be
    normalized), weights over 256 MiB.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
    - https://onnx.ai/onnx/operators/onnx__ConvTranspose.html, the layout of `W`
    """
    data = node.require(0)
    node.require_output(0)
    if not _infers(node):
        return
    before = data.producer
    if before is None or not before.is_onnx or before.op_type not in ("Conv", "ConvTranspose", "Gemm"):
        return
    if before.scope is not node.scope or data.use_count != 1 or not data.replaceable:
        return
    values, weight = _folded.parameters(node), _folded.weight_of(before)
    seen = None if weight is None else _folded.layout(before, weight)
    if values is None or weight is None or seen is None or values[0].size != seen.channels:
        return
    message = f"a BatchNormalization could be folded into the weights of the {before.op_type} before it"
    fix = None
    try:
        affine = _folded.affine(values, float(node.attr("epsilon", 1e-5)))
        bias = _folded.bias(before, affine, weight.dtype)
        if bias is None:
            return
        _folded.check_weights(weight, seen, affine.factor)
        kept = before.require(1)
        _folded.check_growth(kept, weight.nbytes)
        make = partial(_edits, node, before, partial(_folded.weights, weight, seen, affine.factor), bias)
        fix = Fix("fold it into the weights", make, replaces=node, safety=Safety.NUMERIC)
    except _folded.Refused as reason:
        message += f", but {reason}"
    reads: list[Node | Value] = [before]
    reads += [value for value in (*node.inputs, *before.inputs[1:]) if value is not None]
    yield Match(message, node=node, fix=fix, reads=tuple(reads))


def _infers(node: Node) -> bool:
    """Whether the node is in inference mode: it normalizes each channel by the given mean and variance."""
    if any(value is not None for value in node.outputs[1:]) or node.opset < 7:
        return False
    if node.opset < 9:
        return bool(node.attr("spatial", 1))
    return node.opset < 14 or not node.attr("training_mode", 0)


def _edits(node: Node, before: Node, make: Callable[[], _folded.Array], bias: _folded.Array) -> list[Edit]:
    """Edits that give the Conv new weights and let it compute the BatchNormalization's output."""
    draft, source = Draft(before), before.require_output()
    draft.set_input(before, 1, draft.constant(make(), "weight"))
    draft.set_input(before, 2, draft.constant(bias, "bias"))
    if before.op_type == "Gemm" and before.attribute("beta") is not None:
        draft.set_attr(before, "beta", None)
    after = Draft(node)
    after.bypass(node, source)
    return [*draft.edits, *after.edits]


_IO = "g (float[N,2,3,3] x) => (float[N,2,3,3] y)"
_W = "float[2,2,1,1] w = {1, 2, 3, 4}"
_BN = "float[2] s = {4, 1}, float[2] b = {1, -1}, float[2] m = {1, 2}, float[2] v = {3.75, 0.75}"
_RUN = "c = Conv(x, w)  y = BatchNormalization<epsilon = 0.25>(c, s, b, m, v)"
_FOLDED = "float[2,2,1,1] w = {2, 4, 3, 4}, float[2] b = {-1, -3}"


_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, safety=Safety.NUMERIC)


def _half(weight: int, scale: float, bias: float = 0) -> str:
    """A Conv with one weight, given as float16 bits, and a BatchNormalization with ``scale`` and ``bias``."""
    return f"""g (float16[N,1,2] x) => (float16[N,1,2] y) <float16[1,1,1] w = {{{weight}}}, float[1] s = {{{scale}}},
        float[1] b = {{{bias}}}, float[1] m = {{0}}, float[1] v = {{0.75}}> {{ {_RUN} }}"""


def _shared_weight() -> ModelProto:
    """A weight of 1 MiB that two nodes read."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N,512,1] x) => (float[N,512,1] y, float[N,512,1] z) <float[1] w = {1}, float[1] s = {1}> {
        c = Conv(x, w)  y = BatchNormalization(c, s, s, s, s)  z = Conv(y, w) }""")
    weight = np.arange(1 << 18, dtype=np.float32).reshape(512, 512, 1)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones(512, np.float32), "s"))
    return model


_silent = partial(Silent, runs=False)
batch_normalization_after_convolution.examples = [
    _fixed(
        "a Conv without a bias",
        f"{_IO} <{_W}, {_BN}> {{ {_RUN} }}",
        f"{_IO} <{_FOLDED}> {{ y = Conv(x, w, b) }}",
    ),
    Flagged("the fix requires --numeric-fixes", f"{_IO} <{_W}, {_BN}> {{ {_RUN} }}"),
    _fixed(
        "a 1-D Conv with bias, groups, strides and padding, followed by a Relu",
        f"""g (float[N,2,5] x) => (float[N,2,3] y) <float[2,1,2] w = {{1, 2, 3, 4}}, float[2] a = {{5, 6}}, {_BN}> {{
            c = Conv<group = 2, strides = [2], pads = [1, 0], kernel_shape = [2]>(x, w, a)
            n = BatchNormalization<epsilon = 0.25>(c, s, b, m, v)  y = Relu(n) }}""",
        """g (float[N,2,5] x) => (float[N,2,3] y) <float[2,1,2] w = {2, 4, 3, 4}, float[2] b = {9, 3}> {
            n = Conv<group = 2, strides = [2], pads = [1, 0], kernel_shape = [2]>(x, w, b)  y = Relu(n) }""",
    ),
    _fixed(
        "a ConvTranspose, whose second weight axis is the outputs of a group",
        """g (float[N,4,3] x) => (float[N,4,4] y) <float[4,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8},
            float[4] s = {1, 2, 3, 4}, float[4] b = {0, 1, 2, 3}, float[4] m = {1, 1, 1, 1},
            float[4] v = {0, 0, 0, 0}> {
            c = ConvTranspose<group = 2>(x, w)  y = BatchNormalization<epsilon = 1.0>(c, s, b, m, v) }""",
        """g (float[N,4,3] x) => (float[N,4,4] y) <float[4,2,2] w = {1, 2, 6, 8, 5, 6, 14, 16,
            3, 6, 12, 16, 15, 18, 28, 32}, float[4] b = {-1, -1, -1, -1}> { y = ConvTranspose<group = 2>(x, w, b) }""",
    ),
    _fixed(
        "a Gemm: its scalar bias becomes one per column",
        f"""g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {{1, 2, 3, 4, 5, 6}}, float[1,1] a = {{3}}, {_BN}> {{
            c = Gemm<alpha = 0.5, beta = 2.0>(x, w, a)  y = BatchNormalization<epsilon = 0.25>(c, s, b, m, v) }}""",
        """g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {2, 2, 6, 4, 10, 6}, float[1,2] b = {11, 3}> {
            y = Gemm<alpha = 0.5>(x, w, b) }""",
    ),
    _fixed(
        "a Gemm with transposed operands and no bias",
        f"""g (float[3,N] x) => (float[N,2] y) <float[2,3] w = {{1, 2, 3, 4, 5, 6}}, {_BN}> {{
            c = Gemm<transA = 1, transB = 1>(x, w)  y = BatchNormalization<epsilon = 0.25>(c, s, b, m, v) }}""",
        """g (float[3,N] x) => (float[N,2] y) <float[2,3] w = {2, 4, 6, 4, 5, 6}, float[1,2] b = {-1, -3}> {
            y = Gemm<transA = 1, transB = 1>(x, w, b) }""",
    ),
    _fixed(
        "half precision with float32 parameters",
        """g (float16[N,1,2,2] x) => (float16[N,2,2,2] y) <float16[2,1,1,1] w = {f16(1.0, 2.0)}, float[2] s = {0.5, 2},
            float[2] b = {0, 1}, float[2] v = {3.75, 3.75}> {
            c = Conv(x, w)  y = BatchNormalization<epsilon = 0.25>(c, s, b, b, v) }""",
        """g (float16[N,1,2,2] x) => (float16[N,2,2,2] y) <float16[2,1,1,1] w = {13312, 16384}, float16[2] b = {0, 0}> {
            y = Conv(x, w, b) }""",
    ),
    _fixed(
        "small weights that two nodes share, which are copied",
        f"""g (float[N,2,3,3] x) => (float[N,2,3,3] y, float[N,2,3,3] z) <{_W}, {_BN}> {{ {_RUN}  z = Conv(x, w) }}""",
        f"""g (float[N,2,3,3] x) => (float[N,2,3,3] y, float[N,2,3,3] z) <{_W}, float[2,2,1,1] u = {{2, 4, 3, 4}},
            float[2] b = {{-1, -3}}> {{ y = Conv(x, u, b)  z = Conv(x, w) }}""",
    ),
    _fixed(
        "before IR version 4, where constants are nodes too",
        """g (float[N,1,3] x) => (float[N,1,3] y) {
            w = Constant<value = float[1,1,1] {3}>()  s = Constant<value = float[1] {2}>()
            v = Constant<value = float[1] {0}>()  c = Conv(x, w)
            y = BatchNormalization<epsilon = 1.0, spatial = 1>(c, s, s, s, v) }""",
        """g (float[N,1,3] x) => (float[N,1,3] y) {
            w = Constant<value = float[1,1,1] {6}>()  b = Constant<value = float[1] {-2}>()  y = Conv(x, w, b) }""",
        opset=8,
        ir_version=3,
    ),
    _flagged("a negative variance", f"{_IO} <{_W}, {_BN.replace('0.75', '-0.125')}> {{ {_RUN} }}"),
    _flagged(
        "a variance of 0 and an epsilon close to 0",
        f"{_IO} <{_W}, {_BN.replace('0.75', '0')}> {{ {_RUN.replace('0.25', '1e-12')} }}",
    ),
    _flagged("weights that overflow half precision: 32768 times 4", _half(30720, 4)),
    _flagged("an infinite weight", _half(31744, 4)),
    _flagged("a weight that becomes subnormal in half precision", _half(1025, 0.3)),
    _flagged("a bias that overflows half precision", _half(15360, 1, 100000)),
    _flagged("a shared weight of 1 MiB", lambda: _shared_weight()),
    Silent(
        "a dequantized weight",
        f"""{_IO} <int8[2,2,1,1] q = {{1, 2, 3, 4}}, float e = {{0.5}}, int8 z = {{0}}, {_BN}> {{
            w = DequantizeLinear(q, e, z)  {_RUN} }}""",
    ),
    Silent(
        "another node reads the Conv's result",
        f"{_IO} <{_W}, {_BN}> {{ c = Conv(x, w)  n = BatchNormalization(c, s, b, m, v)  y = Add(n, c) }}",
    ),
    Silent(
        "a branch returns the Conv's result",
        f"""g (float[1,2,3,3] x, bool p) => (float[1,2,3,3] y, float[1,2,3,3] z) <{_W}, {_BN}> {{ {_RUN}
            z = If(p)<then_branch = t () => (float[1,2,3,3] o) {{ o = Relu(x) }},
                      else_branch = e () => (float[1,2,3,3] c) {{ }}> }}""",
    ),
    Silent(
        "the Conv's result is a graph output",
        f"g (float[N,2,3,3] x) => (float[N,2,3,3] y, float[N,2,3,3] c) <{_W}, {_BN}> {{ {_RUN} }}",
    ),
    Silent(
        "only the BatchNormalization is inside a branch",
        f"""g (float[1,2,3,3] x, bool p) => (float[1,2,3,3] y) <{_W}, {_BN}> {{ c = Conv(x, w)
            y = If(p)<then_branch = t () => (float[1,2,3,3] o) {{ o = BatchNormalization(c, s, b, m, v) }},
                      else_branch = e () => (float[1,2,3,3] q) {{ q = Relu(x) }}> }}""",
    ),
    Silent(
        "a caller may override the weight",
        f"g (float[N,2,3,3] x, float[2,2,1,1] w) => (float[N,2,3,3] y) <{_W}, {_BN}> {{ {_RUN} }}",
    ),
    Silent(
        "a caller may override the mean",
        f"g (float[N,2,3,3] x, float[2] m) => (float[N,2,3,3] y) <{_W}, {_BN}> {{ {_RUN} }}",
    ),
    Silent(
        "a bias that is not constant",
        f"""g (float[N,2,3,3] x, float[2] a) => (float[N,2,3,3] y) <{_W}, {_BN}> {{
            c = Conv(x, w, a)  y = BatchNormalization(c, s, b, m, v) }}""",
    ),
    _silent(
        "training mode",
        f"""{_IO} <{_W}, {_BN}> {{ c = Conv(x, w)
            y, p, q = BatchNormalization<training_mode = 1>(c, s, b, m, v) }}""",
    ),
    _silent(
        "training mode with one output, which uses the batch mean",
        f"{_IO} <{_W}, {_BN}> {{ c = Conv(x, w)  y = BatchNormalization<training_mode = 1>(c, s, b, m, v) }}",
    ),
    _silent(
        "training mode by the number of outputs, before opset 14",
        f"{_IO} <{_W}, {_BN}> {{ c = Conv(x, w)  y, p, q, r, t = BatchNormalization(c, s, b, m, v) }}",
        opset=9,
    ),
    _silent(
        "one mean per element, in opset 7",
        f"{_IO} <{_W}, {_BN}> {{ c = Conv(x, w)  y = BatchNormalization<spatial = 0>(c, s, b, m, v) }}",
        opset=7,
    ),
    _silent(
        "opset 6, which GRA020 converts first",
        f"{_IO} <{_W}, {_BN}> {{ c = Conv(x, w)  y = BatchNormalization<is_test = 1>(c, s, b, m, v) }}",
        opset=6,
    ),
    Silent(
        "a Gemm with one bias per row",
        f"""g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {{1, 2, 3, 4, 5, 6}}, float[2,1] a = {{3, 4}},
            {_BN}> {{ c = Gemm(x, w, a)  y = BatchNormalization(c, s, b, m, v) }}""",
    ),
    Silent(
        "the BatchNormalization comes first: padding would not be normalized",
        f"{_IO} <{_W}, {_BN}> {{ n = BatchNormalization(x, s, b, m, v)  y = Conv(n, w) }}",
    ),
]
