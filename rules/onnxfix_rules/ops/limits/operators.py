"""Operators that TensorRT does not import: unknown ones, and those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, imported, rule, target_of
from onnxfix_rules.ops._runtimes import OTHER_DOMAINS, is_foreign, is_imported, origin


@rule("OPS001", per="model", severity=Severity.ERROR, hazards=[43, 50, 57, 59, 61], general=True)
def unsupported_operator(model: Model) -> Iterator[Match]:
    """A standard operator that the target's parser does not import.

    ## Why it matters
    The parser stops at the first such node, used or not: `UNSUPPORTED_NODE`, or `Plugin not found, are the plugin name,
    version, and namespace correct?` for operators newer than the parser, measured with TensorRT-RTX 1.7.1. TensorRT 8
    says `No importer registered for op: Det. Attempting to import as plugin.` Some operators are imported as plugins
    that not every package contains: TensorRT-RTX has none for NonZero, RoiAlign, LinearAttention and
    CausalConvWithState (`NonZero plugin creator version 1 was not found in plugin registry`).

    Which operators a target imports is data with a source, which the message names: NVIDIA's operator list for
    TensorRT, the parser's own answer for TensorRT-RTX. The rule reports nothing for operators that the source does not
    mention. It covers ONNX's domains: no operator of `ai.onnx.ml`, `ai.onnx.preview` and `ai.onnx.preview.training` is
    imported (measured: `Plugin not found` for Scaler, Binarizer, TreeEnsemble, Adam, ...). Other domains: OPS101. A
    plugin that `--plugins` loads serves a standard operator, too, if the parser has no importer for it and does not
    refuse it outright. The parser ignores functions that are never called, and the untaken branch of an If with a
    constant condition.

    ## Fix
    None. GRA001 removes dead nodes. If ONNX defines the operator by other operators, decompose it. If the result is
    constant, fold it. Otherwise the model requires a plugin or a change.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/reference/onnx-opset-guide.html
    - NVIDIA/TensorRT-RTX issue 32: NonZero
    """
    target = target_of(model)
    # A refused name stays refused; before 9.0 TensorRT called no function (OPS102).
    functions = {scope.proto.name for scope in model.functions} - target.refused
    if not target.calls_functions:
        functions.clear()
    for node in imported(model).of(
        lambda operator: operator[0] in OTHER_DOMAINS or operator[1] in target.missing
    ):
        if target.has_plugin(node.op_type):
            continue
        if (
            node.domain in OTHER_DOMAINS
            and node.op_type not in functions
            and target.imports(node.op_type) is None
        ):
            yield Match(
                f"{target.title} has no importer for {node.domain}.{node.op_type} (source: {target.source})",
                node=node,
            )
        reason = target.missing.get(node.op_type)
        if reason is None or not node.is_onnx or node.op_type in functions:
            continue
        yield Match(
            f"{target.title} does not import {node.op_type}"
            + (f": {reason}" if reason else "")
            + f" (source: {target.source})",
            node=node,
        )


_BRANCHES = """<then_branch = p () => (float[2] u) { u = Det(x) },
    else_branch = q () => (float[2] v) { v = GlobalMaxPool(x) }>"""
_silent = partial(Silent, target="rtx")


unsupported_operator.examples = [
    Flagged(
        "no TensorRT version imports it", "g (float[2,3,3] x) => (float[2] y) { d = Det(x)  y = Neg(d) }"
    ),
    Flagged("a dead node", "g (float[2,3] x) => (float[2,3] y) { y = Relu(x)  u, i, v, c = Unique(x) }"),
    Flagged(
        "in the branch that a constant condition takes",
        f"g (float[2,3,3] x) => (float[2] y) <bool c = {{1}}> {{ y = If(c){_BRANCHES} }}",
    ),
    Flagged(
        "ONNX's domain under its other name, ai.onnx",
        """<ir_version: 9, opset_import: ["ai.onnx" : 18]>
            g (float[2,3,3] x) => (float[2] y) { y = ai.onnx.Det(x) }""",
    ),
    Flagged(
        "TensorRT 8.4 has no LayerNormalization",
        "g (float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization(x, s) }",
        target="trt8.4",
    ),
    Silent(
        "TensorRT 8.6 has LayerNormalization",
        "g (float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization(x, s) }",
        target="trt8.6",
    ),
    Flagged(
        "TensorRT-RTX lacks the plugin", "g (float[2,3] x) => (int64[2,K] y) { y = NonZero(x) }", target="rtx"
    ),
    Silent(
        "TensorRT has the plugin", "g (float[2,3] x) => (int64[2,K] y) { y = NonZero(x) }", target="trt11"
    ),
    Silent(
        "in the branch that a constant condition does not take",
        f"g (float[2,3,3] x) => (float[2] y) <bool c = {{0}}> {{ y = If(c){_BRANCHES} }}",
    ),
    Silent(
        "in the branch that a Constant node does not take",
        f"""g (float[2,3,3] x) => (float[2] y) {{
            c = Constant<value = bool {{0}}>()  y = If(c){_BRANCHES} }}""",
    ),
    Silent(
        "in a branch whose condition has a default",
        f"g (float[2,3,3] x, bool c) => (float[2] y) <bool c = {{0}}> {{ y = If(c){_BRANCHES} }}",
    ),
    Silent(
        "in a function that is never called",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3,3] x) => (float[2,3,3] y) { y = Neg(x) }
            <domain: "my", opset_import: ["" : 18]> F (a) => (b) { b = Det(a) }""",
    ),
    _silent(
        "TensorRT calls a local function with that name, whatever its domain",
        """<ir_version: 9, opset_import: ["" : 19, "my" : 1]>
            g (float[1,1,3,3] x, float[1,1,2,2] w, float[1,8,2,2] o) => (float[1,1,2,2] y, float[1,1,3,3] z) {
            y = DeformConv(x, w, o)  z = my.DeformConv(x, w, o) }
            <domain: "my", opset_import: ["" : 19]> DeformConv (a, b, c) => (d) { d = Neg(a) }""",
    ),
    Flagged(
        "an operator of ai.onnx.ml",
        """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
            g (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Scaler<scale = [1.0], offset = [0.0]>(x) }""",
    ),
    Flagged(
        "an operator of ai.onnx.preview.training",
        """<ir_version: 9, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>
            g (float r, int64 t, float[2] x, float[2] d, float[2] h) => (float[2] y, float[2] z) {
            y, z = ai.onnx.preview.training.Adagrad(r, t, x, d, h) }""",
    ),
    Silent(
        "operators that every target imports",
        "g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Sigmoid(a) }",
    ),
    _silent(
        "newer operators: Swish and RMSNormalization",
        "g (float[2,8] x, float[8] s) => (float[2,8] y) { a = Swish(x)  y = RMSNormalization(a, s) }",
        opset=24,
    ),
    _silent(
        "GroupNormalization, Hardmax, IsInf, and GridSample in bicubic mode",
        """g (float[2,4,4,4] x, float[4] s, float[2,2,2,2] q)
            => (float[2,4,4,4] y, float[2,4,4,4] h, bool[2,4,4,4] i, float[2,4,2,2] z) {
            y = GroupNormalization<num_groups = 2>(x, s, s)  h = Hardmax(x)  i = IsInf(x)
            z = GridSample<mode = "cubic">(x, q) }""",
        opset=21,
    ),
    Silent(
        "Scatter of opset 9, which TensorRT-RTX imports",
        """g (float[3,3] x, int64[1,3] i, float[1,3] u) => (float[3,3] y) { y = Scatter<axis=0>(x, i, u) }""",
        opset=9,
    ),
]


@rule("OPS088", per="model", severity=Severity.ERROR, hazards=[43], general=True)
def operator_of_onnx_runtime(model: Model) -> Iterator[Match]:
    """An operator of ONNX Runtime's own domains that the target does not import.

    ## Why it matters
    ONNX Runtime writes operators of `com.microsoft` and of its layout domains into models that it optimizes or
    quantizes. TensorRT looks for a plugin with that name: `Plugin not found, are the plugin name, version, and
    namespace correct?`, measured with TensorRT-RTX 1.7.1. The finding names the tool and how to export without the
    operator:

    - the graph optimizer (`optimized_model_filepath`): BiasGelu, FastGelu, FusedConv, FusedGemm, FusedMatMul, Gelu,
      QuickGelu, SkipLayerNormalization, SimplifiedLayerNormalization. Save the model before it, or with
      `ORT_ENABLE_BASIC`.
    - its layout optimizer (`ORT_ENABLE_ALL`): `com.microsoft.nchwc` and `com.ms.internal.nhwc`, NhwcFusedConv,
      NhwcMaxPool. Their weights are stored in blocks for one kind of processor.
    - `onnxruntime.transformers.optimizer`: Attention, MultiHeadAttention, EmbedLayerNormalization, NhwcConv, GroupNorm,
      PackedAttention and others.
    - `quantize_dynamic`, and the graph optimizer after it: DynamicQuantizeLSTM, DynamicQuantizeMatMul,
      MatMulIntegerToFloat. Use the float model, or quantize statically.
    - `quantize_static` with `QuantFormat.QOperator`: QGemm, QLinearAdd, QLinearMul, QLinearSigmoid and others. Use
      `QuantFormat.QDQ` with `ActivationSymmetric` and signed types.
    - weight-only quantizers: MatMulNBits, MatMulBnb4, MatMulFpQ4.
    - the model builder for generative models: GroupQueryAttention, RotaryEmbedding, MoE, QMoE and others.
    - the converter for text generation: BeamSearch, GreedySearch, Sampling.

    TensorRT-RTX 1.7.1 has importers for GroupQueryAttention, MatMulNBits, MultiHeadAttention, QMoE,
    SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization, and imports Gelu as ONNX's. The rule does not
    report them there, or operators whose support by the target is unknown. OPS060 covers operators that share the name
    of a standard operator and mean something else. Ignore the finding if you have a plugin with that name.

    ## Fix
    None. If other rules can decompose the operator (OPS068, OPS089 to OPS095, QDQ020, QDQ021, QDQ023), they report it
    instead.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    - https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html
    - https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    target = target_of(model)
    for node in imported(model).of(is_foreign):
        if node.function is not None or is_imported(node.op_type, target) is not False:
            continue
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        advice = origin(node) or "it is an operator of ONNX Runtime"
        yield Match(f"{target.title} has no importer for {name}; {advice}", node=node)


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "com.microsoft.nchwc" : 1]>'
_CHAIN = f"{_HEAD} g (float[2,3] x, float[2,3] w) => (float[2,3] y)"


def _microsoft(operator: str, x: str = "2,3") -> str:
    return f"{_HEAD} g (float[{x}] x) => (float[{x}] y) {{ y = com.microsoft.{operator}(x) }}"


operator_of_onnx_runtime.examples = [
    Silent(
        "a normalization that TensorRT-RTX imports",
        f"""{_HEAD} g (float[2,3] x, float[3] s) => (float[2,3] y) {{
            y = SimplifiedLayerNormalization(x, s) }}""",
        runs=False,
    ),
    Flagged(
        "an operator of quantize_dynamic",
        f"{_CHAIN} {{ y = com.microsoft.DynamicQuantizeLSTM(x, w) }}",
        runs=False,
    ),
    Flagged(
        "an operator that no table lists", f"{_CHAIN} {{ y = com.microsoft.NotHeardOf(x, w) }}", runs=False
    ),
    Flagged(
        "an operator of a layout domain",
        f"{_CHAIN} {{ y = com.microsoft.nchwc.ReorderOutput<channels = 3>(x) }}",
        runs=False,
    ),
    Flagged("TensorRT 8.6 has no Gelu", _microsoft("Gelu"), target="trt8.6"),
    _silent("TensorRT-RTX has Gelu", _microsoft("Gelu")),
    _silent(
        "an operator that TensorRT-RTX imports",
        f"""{_HEAD} g (float[1,4,8] q, float[1,4,8] k, float[1,4,8] v) => (float[1,4,8] y) {{
            y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }}""",
    ),
    Silent(
        "an operator of another domain",
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
            g (float[2,3] x) => (float[2,3] y) { y = my.FusedNorm(x) }""",
        runs=False,
    ),
    Silent("an operator with a standard name: OPS060", _microsoft("Relu", x="2"), runs=False),
    Silent(
        "in a function that is never called",
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1, "com.microsoft" : 1]>
            g (float[2,3,3] x) => (float[2,3,3] y) { y = Neg(x) }
            <domain: "my", opset_import: ["" : 17, "com.microsoft" : 1]> F (a) => (b) {
                b = com.microsoft.Inverse(a) }""",
    ),
]
