"""Operators, element types and restrictions of each TensorRT according to NVIDIA's lists, as data.

Sources, with their commits in onnx/onnx-tensorrt:

- 8.4: docs/operators.md, "TensorRT 8.4" (009d6541). Where it excludes an operator that the list of 8.5 has, and
  no changelog says that it was added, it is unknown: OneHot, Reciprocal. Shrink came with 8.4 GA, so 8.0 lacks it.
- 8.6: docs/operators.md, "TensorRT 8.5" (6d0ab7be), with what docs/Changelog.md (0137504e) says of 8.6. The list of
  8.6 itself was not available.
- 10.0 to 10.13: that of 10.15 without what came later, and what TensorRT 10.6.0 did with ONNX's node models, executed
  on a GPU (fixtures/node_truth.tsv). Windows came with 10.4, STFT with 10.5.
- 10.x: docs/operators.md, "TensorRT 10.15" (fa5aa9f6); onnxOpCheckers.cpp of that time refuses the same operators by
  name. Release dates are from docs/Changelog.md.
- 11.x: docs/operators.md, "TensorRT 11.2", from a copy (the layer catalogue of the project isaac_deploy_trt); the
  original was not available. It differs from 10.15 in four operators.

A list says what its authors intended to support. It contains types that the parser refuses, and omits others that it
accepts: ``onnxfix.targets`` compares the lists with the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping

Types = dict[str, frozenset[str]]
"""Operator -> ONNX's names of element types."""

_F16 = "FLOAT FLOAT16"
_FLOATS = "FLOAT FLOAT16 BFLOAT16"
_NUMBERS = f"{_FLOATS} INT32 INT64"
_ANY = f"{_NUMBERS} BOOL"
_NARROW = "FLOAT8E4M3FN FLOAT4E2M1 INT4"


def table(groups: Mapping[str, str]) -> Types:
    """Operators with their types, from groups of operators that share them: "types" -> "operators"."""
    return {name: frozenset(types.split()) for types, names in groups.items() for name in names.split()}


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


# ------------------------------------------------------------------------------------------- TensorRT 8

_ONLY_8_5 = "GridSample MeanVarianceNormalization Mod NonZero RandomNormal RandomNormalLike RoiAlign Trilu"

_TRT_8_5 = table(
    {
        _F16: "Acos Acosh ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization Ceil Celu Cos Cosh CumSum Dropout "
        "Einsum Erf Exp Floor GRU GridSample ImageScaler InstanceNormalization LRN LSTM Log LogSoftmax "
        "LpNormalization MatMul MeanVarianceNormalization NonMaxSuppression NonZero Pow QuantizeLinear RNN "
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Resize "
        "ReverseSequence RoiAlign Scan Sin Sinh Softmax Sqrt Tan TopK Upsample",
        f"{_F16} INT32": "Abs Add DepthToSpace Div Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Max Mean Min "
        "Mod Mul Neg Range Shrink SpaceToDepth Sub Sum",
        f"{_F16} INT8": "Clip Conv ConvTranspose Elu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool HardSigmoid "
        "HardSwish LeakyRelu LpPool MaxPool PRelu ParametricSoftplus Relu Round ScaledTanh Selu Sigmoid Softplus "
        "Softsign Tanh ThresholdedRelu",
        f"{_F16} INT8 INT32": "AveragePool Pad Scatter ScatterElements ScatterND Sign",
        f"{_F16} INT32 BOOL": "Expand EyeLike Flatten If Loop OneHot Split Tile Where",
        f"{_F16} INT8 INT32 BOOL": "Cast Concat Constant Gather GatherElements GatherND Identity Reshape Shape Size "
        "Slice Squeeze Transpose Trilu Unsqueeze",
        "FLOAT": "ConstantOfShape",
        "BOOL": "And Not Or Xor",
        "INT8": "DequantizeLinear",
    }
)
_UNSURE_8_4 = "HardSwish OneHot Reciprocal Shrink"
_INT8_GATHERS = table({f"{_F16} INT8 INT32": "Gather GatherElements GatherND"})

TRT_8_4: Types = {
    name: types
    for name, types in {**_TRT_8_5, **_INT8_GATHERS}.items()
    if name not in names(f"{_ONLY_8_5} {_UNSURE_8_4}")
}
TRT_8_6: Types = {
    **_TRT_8_5,
    **table({_F16: "GroupNormalization IsInf LayerNormalization", f"{_F16} INT32": "ArgMax ArgMin TopK"}),
}

# ----------------------------------------------------------------------------------- TensorRT 10 and 11

_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare"
)
TRT_10: Types = table(
    {
        _FLOATS: "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Celu Clip Conv ConvTranspose "
        "Cos Cosh CumSum Dropout Einsum Elu Erf Exp Floor GRU Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool "
        "GroupNormalization HardSigmoid HardSwish Hardmax ImageScaler InstanceNormalization IsInf LRN LSTM "
        "LayerNormalization LeakyRelu Log LogSoftmax LpNormalization LpPool MatMul MaxPool "
        "MeanVarianceNormalization PRelu ParametricSoftplus QuantizeLinear RMSNormalization RNN RandomNormal "
        "RandomNormalLike RandomUniform RandomUniformLike Reciprocal Resize RotaryEmbedding Round ScaledTanh Scan "
        "Selu Sigmoid Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Upsample",
        _NUMBERS: "Abs Add ArgMax ArgMin DepthToSpace Div Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Max "
        f"Min Mod Mul Neg Pad Pow Range {_REDUCTIONS} Relu Scatter ScatterElements ScatterND Shrink Sign "
        "SpaceToDepth Sub Sum TopK",
        _ANY: "Concat Expand EyeLike Flatten Gather GatherElements GatherND Identity If Loop OneHot Reshape "
        "ReverseSequence Shape Size Slice Split Squeeze Tile Transpose Trilu Unsqueeze Where",
        _F16: "BlackmanWindow DeformConv GridSample HammingWindow HannWindow Mish NonMaxSuppression NonZero RoiAlign",
        "BOOL": "And Not Or Xor",
        f"{_FLOATS} INT8 FLOAT8E4M3FN": "Attention",
        f"{_ANY} UINT8": "Cast CastLike",
        f"{_ANY} {_NARROW}": "Constant ConstantOfShape",
        f"INT8 {_NARROW}": "DequantizeLinear",
        f"{_NUMBERS} INT8": "Gelu",
        f"{_NUMBERS} FLOAT8E4M3FN": "Mean",
        f"{_FLOATS} INT32": "TensorScatter",
        "FLOAT": "STFT",
    }
)
_SINCE_10_14 = "Attention RMSNormalization RotaryEmbedding TensorScatter"
TRT_10_6: Types = {
    **{name: types - {"FLOAT4E2M1"} for name, types in TRT_10.items() if name not in names(_SINCE_10_14)},
    **table({_FLOATS: "CumSum Pow"}),
}
TRT_11: Types = {**TRT_10, **table({_FLOATS: "DFT GridSample STFT Swish"})}

# ---------------------------------------------------------------------------------- missing operators

_NEVER = (
    "AffineGrid Bernoulli BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress "
    "ConcatFromSequence ConvInteger Det DynamicQuantizeLinear ImageDecoder MatMulInteger MaxRoiPool MaxUnpool "
    "MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement OptionalHasElement "
    "QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty SequenceErase "
    "SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat "
    "StringNormalizer StringSplit TfIdfVectorizer Unique"
)
NOT_IN_11 = names(_NEVER)
NOT_IN_10 = NOT_IN_11 | names("DFT")
#: Measured with 10.6.0: "Plugin not found".
NOT_IN_10_6 = NOT_IN_10 | names(f"{_SINCE_10_14} Swish")
#: Refused by the list of 8.5, or added later: Hardmax 9.2, DeformConv 10.1, windows 10.4, STFT 10.5. CastLike and Gelu:
#: measured with 8.6.1.
NOT_IN_8_6 = NOT_IN_10_6 | names(
    "BlackmanWindow CastLike DeformConv Gelu HammingWindow HannWindow Hardmax STFT"
)
NOT_IN_8_4 = NOT_IN_8_6 | names(f"{_ONLY_8_5} GroupNormalization IsInf LayerNormalization")

# ------------------------------------------------------------------------------------------ restrictions

_BOTH_WAYS = "in both directions the activation functions must be the same"
_ONES = "dilations must be 1"


def notes(groups: Mapping[str, str]) -> dict[str, str]:
    """Operator -> restriction, from "operators" -> restriction."""
    return {name: text for words, text in groups.items() for name in words.split()}


NOTES_8_6 = notes(
    {
        "AveragePool MaxPool": "2-D or 3-D only; MaxPool gives one output",
        "CumSum Slice Squeeze Unsqueeze": "axis or axes must be an initializer",
        "DequantizeLinear QuantizeLinear": "the zero point must be 0",
        "Einsum": "no ellipsis, no diagonal, no broadcasting between inputs",
        "GRU LSTM RNN": _BOTH_WAYS,
        "If": "the branches' outputs must have broadcastable shapes and different names",
        "InstanceNormalization": "scale and bias must be initializers; rank 3 to 5",
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike": "seed is ignored",
        "Resize": "modes nearest and linear; not tf_crop_and_resize",
        "TopK": "K at most 3840",
    }
)
NOTES_8_4 = {
    **NOTES_8_6,
    **notes(
        {
            "Conv ConvTranspose": "2-D or 3-D only; weights must be an initializer",
            "NonMaxSuppression": "experimental: thresholds and box count must be initializers, the output is padded",
            "Range": "float inputs must be initializers",
            "ReverseSequence": "no dynamic shapes",
            "TopK": "K must be an initializer, at most 3840",
        }
    ),
}
NOTES_10 = notes(
    {
        "Attention": "4-D operands only; no past or present, softcap, softmax_precision or qk_matmul_output",
        "AveragePool": f"2-D or 3-D only; {_ONES}",
        "LpPool": f"p 1 or 2; {_ONES}",
        "MaxPool": f"2-D or 3-D only; {_ONES}; one output",
        "BatchNormalization": "inference only, one output",
        "Constant": "no sparse_value, value_string or value_strings",
        "CumSum": "the axis must be a build-time constant",
        "DeformConv": "one or two spatial dimensions, the same padding at begin and end",
        "DequantizeLinear QuantizeLinear": "the zero point must be 0",
        "Dropout": "training mode must be a constant false",
        "Einsum": "lower-case labels only",
        "EyeLike": "static dimensions only",
        "GridSample": "4-D only",
        "GRU RNN": _BOTH_WAYS,
        "LSTM": f"{_BOTH_WAYS}; input_forget and layout must be 0",
        "Hardmax": "the axis's dimension must be a build-time constant",
        "If": "the branches' outputs must have one rank and different names",
        "LayerNormalization": "one output",
        "Loop": "the length of scan outputs must not be dynamic; carried values keep their shape",
        "OneHot": "depth must be a build-time constant",
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike": "seed is ignored",
        _REDUCTIONS: "axes must be an initializer",
        "Resize": "modes nearest, linear, cubic; not tf_crop_and_resize, half_pixel_symmetric or antialias; aspect "
        "ratio stretch",
        "RotaryEmbedding": "position_ids must be INT64",
        "STFT": "frame_step and window must be initializers; real input",
        "ScatterND": "no reduction",
        "Squeeze Unsqueeze": "axes must fold to a constant",
        "TensorScatter": "4-D only, axis -2",
        "TopK": "sorted must be 1; K at most 3840",
    }
)
NOTES_11 = {
    **NOTES_10,
    **notes(
        {
            "DFT": "needs cuFFT; axis -2 as a constant; float16 and bfloat16 in lengths that are powers of two",
            "GridSample": "4-D or 5-D",
        }
    ),
}
