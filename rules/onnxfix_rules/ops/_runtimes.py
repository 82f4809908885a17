"""Operators of ONNX Runtime's own domains: which of its tools writes them, and how to export without them."""

from __future__ import annotations

from onnxfix.rule import Node, Target, target_of
from onnxfix.targets.measured import OWN

MS = "com.microsoft"
OTHER_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
"""ONNX's other domains: TensorRT-RTX's parser has no importer for any of their operators."""
_LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Layout domains; ONNX Runtime chooses the layout for the processor it runs on."""

OPTIMIZER = "ONNX Runtime's graph optimizer"
TRANSFORMERS = "ONNX Runtime's transformer optimizer"
BUILDER = "ONNX Runtime's model builder for generative models"
LAYOUT = "ONNX Runtime's layout optimizer"
DYNAMIC = "quantize_dynamic of ONNX Runtime, or its graph optimizer after it"
STATIC = "quantize_static of ONNX Runtime with QuantFormat.QOperator"
WEIGHTS = "a weight-only quantizer of ONNX Runtime"
SEARCH = "ONNX Runtime's converter for text generation"

ADVICE = {
    OPTIMIZER: "save the model before ONNX Runtime optimizes it, or with ORT_ENABLE_BASIC",
    TRANSFORMERS: "use the model from before onnxruntime.transformers.optimizer",
    BUILDER: "export the original model to ONNX without the builder",
    LAYOUT: "save the optimized model with ORT_ENABLE_BASIC: the layout fits one kind of processor only",
    DYNAMIC: "use the float model, or quantize it statically with QuantFormat.QDQ",
    STATIC: "quantize with QuantFormat.QDQ, ActivationSymmetric and signed 8-bit types",
    WEIGHTS: "use the float model, or quantize its weights to DequantizeLinear (QuantFormat.QDQ)",
    SEARCH: "export the model of one step, and search outside it",
}
"""Tool -> how to export without its operators."""

_BY_TOOL = {
    OPTIMIZER: """BiasGelu BiasSoftmax BiasDropout FastGelu FusedConv FusedGemm FusedMatMul FusedMatMulActivation Gelu
        QuickGelu SkipLayerNormalization SimplifiedLayerNormalization TransposeMatMul MatMulPacked""",
    TRANSFORMERS: """Attention BiasAdd BiasSplitGelu DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention
        EmbedLayerNormalization GatedRelativePositionBias GemmFastGelu GroupNorm LongformerAttention MultiHeadAttention
        NhwcConv PackedAttention PackedMultiHeadAttention QAttention QEmbedLayerNormalization QOrderedAttention
        QOrderedGelu QOrderedLayerNormalization QOrderedMatMul RelativePositionBias RemovePadding RestorePadding
        SkipGroupNorm SkipSimplifiedLayerNormalization""",
    BUILDER: """CausalConvWithState GatherBlockQuantized GroupQueryAttention LinearAttention MoE PagedAttention QMoE
        RotaryEmbedding SparseAttention""",
    LAYOUT: "NhwcFusedConv NhwcMaxPool QLinearConv",
    DYNAMIC: "DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulIntegerToFloat",
    STATIC: """QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul
        QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere""",
    WEIGHTS: "MatMulBnb4 MatMulFpQ4 MatMulNBits MatMulNBitsMlp MatMulNBitsQkv",
    SEARCH: "BeamSearch GreedySearch NGramRepeatBlock Sampling WhisperBeamSearch",
}

TOOLS = {name: tool for tool, names in _BY_TOOL.items() for name in names.split()}
"""Operator of ``com.microsoft`` -> the tool that writes it."""


def is_foreign(operator: tuple[str, str]) -> bool:
    """Whether (domain, name) is an operator of ONNX Runtime."""
    domain, name = operator
    return domain == MS or domain in _LAYOUTS or (domain == "" and name == "SimplifiedLayerNormalization")


def is_imported(name: str, target: Target) -> bool | None:
    """Whether the target imports ONNX Runtime's operator, or a standard one of that name; None if unknown."""
    if target.has_plugin(name):
        return True
    known = target.imports(name)
    if known is None and name in OWN:
        return True if target.package == "tensorrt-rtx" else False if target.oldest < (9,) else None
    return bool(known)


def origin(node: Node) -> str:
    """Which tool writes the operator, and how to export without it; "" if unknown."""
    tool = LAYOUT if node.domain in _LAYOUTS else TOOLS.get(node.op_type)
    if tool is None or not is_foreign((node.domain, node.op_type)):
        return ""
    return f"{tool} writes it: {ADVICE[tool]}"


def no_importer(node: Node) -> str:
    """The message about an operator of ONNX Runtime that the target lacks."""
    title = target_of(node.model).title
    return f"{title} has no importer for {node.domain}.{node.op_type}; {origin(node)}"
