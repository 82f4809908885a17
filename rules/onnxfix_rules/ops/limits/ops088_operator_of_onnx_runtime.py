"""OPS088: operators of ONNX Runtime's own domains."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Severity, Silent, imported, rule, target_of
from onnxfix_rules.ops._runtimes import is_foreign, is_imported, origin


@rule(
    "OPS088",
    per="model",
    severity=Severity.ERROR,
    hazards=[43],
    general=True,
)
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
    None. If other rules can decompose the operator (OPS068, OPS089 to OPS095, QDQ020, QDQ021), they report it instead.

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
    Flagged(
        "in a branch",
        f"""{_HEAD} g (float[2,2] x, bool c) => (float[2,2] y) {{
            y = If(c)<then_branch = p () => (float[2,2] u) {{ u = com.microsoft.Inverse(x) }},
                      else_branch = q () => (float[2,2] v) {{ v = Neg(x) }}> }}""",
    ),
    Flagged(
        "TensorRT 8.6 has no Gelu",
        f"{_HEAD} g (float[2,3] x) => (float[2,3] y) {{ y = com.microsoft.Gelu(x) }}",
        target="trt8.6",
    ),
    Silent(
        "TensorRT-RTX has Gelu",
        f"{_HEAD} g (float[2,3] x) => (float[2,3] y) {{ y = com.microsoft.Gelu(x) }}",
        target="rtx",
    ),
    Silent(
        "an operator that TensorRT-RTX imports",
        f"""{_HEAD} g (float[1,4,8] q, float[1,4,8] k, float[1,4,8] v) => (float[1,4,8] y) {{
            y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }}""",
        target="rtx",
    ),
    Silent(
        "an operator of another domain",
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
            g (float[2,3] x) => (float[2,3] y) { y = my.FusedNorm(x) }""",
        runs=False,
    ),
    Silent(
        "an operator with a standard name: OPS060",
        f"{_HEAD} g (float[2] x) => (float[2] y) {{ y = com.microsoft.Relu(x) }}",
        runs=False,
    ),
    Silent(
        "in a function that is never called",
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1, "com.microsoft" : 1]>
            g (float[2,3,3] x) => (float[2,3,3] y) { y = Neg(x) }
            <domain: "my", opset_import: ["" : 17, "com.microsoft" : 1]> F (a) => (b) {
                b = com.microsoft.Inverse(a) }""",
    ),
]
