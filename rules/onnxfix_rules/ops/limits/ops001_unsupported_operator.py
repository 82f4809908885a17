"""OPS001: operators that the target does not import."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, imported, rule, target_of

_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview.training")
"""ONNX's own other domains: TensorRT-RTX's parser answers that it has no importer for any operator of them."""


@rule(
    "OPS001",
    per="model",
    severity=Severity.ERROR,
    hazards=[13, 20, 27, 29, 31],
    general=True,
)
def unsupported_operator(model: Model) -> Iterator[Match]:
    """A standard operator that the target's parser does not import.

    ## Why it matters
    The parser stops at the first such node, read or not: `UNSUPPORTED_NODE`, or `Plugin not found, are the plugin name,
    version, and namespace correct?` for operators that are newer than it, measured with TensorRT-RTX 1.7.1. Some are
    imported as plugins that are not in every package: TensorRT-RTX brings none for NonZero, RoiAlign, LinearAttention
    and CausalConvWithState (`NonZero plugin creator version 1 was not found in plugin registry`).

    What a target imports is data with a source, which the message names: NVIDIA's list of operators for TensorRT, the
    parser's own answer for TensorRT-RTX. A list that is silent about an operator says nothing, and neither does this
    rule. It speaks of ONNX's domains: of `ai.onnx.ml` and `ai.onnx.preview.training` no operator is imported
    (measured: `Plugin not found` for Scaler, Binarizer, TreeEnsemble, Adam, ...). Operators of other domains may be
    plugins of yours; so may a standard one that the parser has no importer for
    and does not refuse outright. The parser does not look at functions that nobody calls, or at the branch that an If
    with a constant condition does not take.

    ## Fix
    None here. A dead node goes by GRA001. Where ONNX defines the operator by other operators, write those; where the
    result is a constant, fold it; else it takes a plugin, or another model.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/reference/onnx-opset-guide.html
    - NVIDIA/TensorRT-RTX issue 32: NonZero
    """
    target = target_of(model)
    taken = {scope.proto.name for scope in model.functions}
    for node in imported(model).of(lambda operator: operator[0] in _DOMAINS or operator[1] in target.missing):
        if node.domain in _DOMAINS and node.op_type not in taken and target.imports(node.op_type) is None:
            yield Match(
                f"{target.title} has no importer for {node.domain}.{node.op_type} (source: {target.source})",
                node=node,
            )
        reason = target.missing.get(node.op_type)
        if reason is None or not node.is_onnx or node.op_type in taken:
            continue
        yield Match(
            f"{target.title} does not import {node.op_type}"
            + (f": {reason}" if reason else "")
            + f" (source: {target.source})",
            node=node,
        )


_BRANCHES = """<then_branch = p () => (float[2] u) { u = Det(x) },
    else_branch = q () => (float[2] v) { v = GlobalMaxPool(x) }>"""


unsupported_operator.examples = [
    Flagged("no TensorRT imports it", "g (float[2,3,3] x) => (float[2] y) { d = Det(x)  y = Neg(d) }"),
    Flagged("a dead node too", "g (float[2,3] x) => (float[2,3] y) { y = Relu(x)  u, i, v, c = Unique(x) }"),
    Flagged(
        "inside a loop",
        """g (float[2,3,3] x, int64 n) => (float[2,3,3] y) {
            y = Loop(n, , x)<body = b (int64 i, bool c, float[2,3,3] v) => (bool d, float[2,3,3] w)
                { d = Identity(c)  e = Det(v)  w = Neg(v) }> }""",
    ),
    Flagged(
        "in the branch that a constant takes",
        f"g (float[2,3,3] x) => (float[2] y) <bool c = {{1}}> {{ y = If(c){_BRANCHES} }}",
    ),
    Flagged(
        "ONNX's domain by its other name",
        """<ir_version: 9, opset_import: ["ai.onnx" : 18]>
            g (float[2,3,3] x) => (float[2] y) { y = ai.onnx.Det(x) }""",
    ),
    Flagged(
        "TensorRT 8.4 has no LayerNormalization",
        "g (float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization(x, s) }",
        target="trt8.4",
    ),
    Silent(
        "TensorRT 8.6 has",
        "g (float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization(x, s) }",
        target="trt8.6",
    ),
    Flagged(
        "the plugin for it is not in TensorRT-RTX",
        "g (float[2,3] x) => (int64[2,K] y) { y = NonZero(x) }",
        target="rtx",
    ),
    Silent(
        "TensorRT has the plugin", "g (float[2,3] x) => (int64[2,K] y) { y = NonZero(x) }", target="trt11"
    ),
    Silent(
        "in the branch that a constant does not take",
        f"g (float[2,3,3] x) => (float[2] y) <bool c = {{0}}> {{ y = If(c){_BRANCHES} }}",
    ),
    Silent(
        "in the branch that a Constant does not take",
        f"""g (float[2,3,3] x) => (float[2] y) {{
            c = Constant<value = bool {{0}}>()  y = If(c){_BRANCHES} }}""",
    ),
    Silent(
        "in a branch for whose condition there is a default",
        f"g (float[2,3,3] x, bool c) => (float[2] y) <bool c = {{0}}> {{ y = If(c){_BRANCHES} }}",
    ),
    Silent(
        "in a function that nobody calls",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3,3] x) => (float[2,3,3] y) { y = Neg(x) }
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) { b = Det(a) }""",
    ),
    Silent(
        "TensorRT takes a local function of that name, whatever its domain",
        """<ir_version: 9, opset_import: ["" : 19, "my" : 1]>
            g (float[1,1,3,3] x, float[1,1,2,2] w, float[1,8,2,2] o) => (float[1,1,2,2] y, float[1,1,3,3] z) {
            y = DeformConv(x, w, o)  z = my.DeformConv(x, w, o) }
            <domain: "my", opset_import: ["" : 19]> DeformConv (a, b, c) => (d) { d = Neg(a) }""",
        target="rtx",
    ),
    Flagged(
        "ONNX's operators of classical machine learning",
        """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
            g (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Scaler<scale = [1.0], offset = [0.0]>(x) }""",
    ),
    Flagged(
        "ONNX's operators of training",
        """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>
            g (float r, int64 t, float[2] x, float[2] d, float[2] h) => (float[2] y, float[2] z) {
            y, z = ai.onnx.preview.training.Adagrad(r, t, x, d, h) }""",
    ),
    Silent(
        "operators that every target imports",
        "g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Sigmoid(a) }",
    ),
    Silent(
        "newer ones: Swish and RMSNormalization",
        "g (float[2,8] x, float[8] s) => (float[2,8] y) { a = Swish(x)  y = RMSNormalization(a, s) }",
        opset=24,
        target="rtx",
    ),
    Silent(
        "GroupNormalization, Hardmax, IsInf, and GridSample in bicubic mode",
        """g (float[2,4,4,4] x, float[4] s, float[2,2,2,2] q)
            => (float[2,4,4,4] y, float[2,4,4,4] h, bool[2,4,4,4] i, float[2,4,2,2] z) {
            y = GroupNormalization<num_groups = 2>(x, s, s)  h = Hardmax(x)  i = IsInf(x)
            z = GridSample<mode = "cubic">(x, q) }""",
        opset=21,
        target="rtx",
    ),
    Silent(
        "Scatter of opset 9, which TensorRT-RTX takes",
        """g (float[3,3] x, int64[1,3] i, float[1,3] u) => (float[3,3] y) { y = Scatter<axis=0>(x, i, u) }""",
        opset=9,
    ),
]
