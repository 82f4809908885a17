"""What TensorRT-RTX 1.7.1 accepts, as data: measured with its real parser and builder for compute capability 8.9.

``python benchmarks/trt_types.py`` measures again and compares; ``--print`` writes the three tables of types. They
have one result for each operator and each type that ONNX allows for its data: a model of one node was built, or was
refused by the parser (REFUSED) or the builder (UNBUILT). No engine was executed. The restrictions were measured one by
one; the rules' pages quote the parser's messages.
"""

from __future__ import annotations

from onnxfix.targets.documented import Types, names, notes, table

VERSION = "1.7.1"

_FLOATS = "FLOAT FLOAT16 BFLOAT16 DOUBLE"
_NUMBERS = f"{_FLOATS} INT32 INT64"
_ANY = f"{_NUMBERS} BOOL"
_RNG = "RandomNormal RandomUniform"
_WINDOWS = "BlackmanWindow HammingWindow HannWindow"
_ONLY_HALF = "GRU GlobalLpPool HardSwish LpNormalization LpPool Mish RandomNormalLike RandomUniformLike"

ACCEPTED: Types = table(
    {
        f"{_ANY} INT8 UINT8 FLOAT8E4M3FN": "Flatten Identity Shape Size",
        f"{_ANY} INT8 FLOAT8E4M3FN": "Reshape Transpose",
        f"{_ANY} INT8 UINT8": "Cast CastLike Equal",
        f"{_ANY} INT8": "Concat Expand EyeLike Gather GatherElements GatherND If Loop Pad Scan ScatterElements "
        "ScatterND Slice Split Squeeze Tile Trilu Unsqueeze Where",
        _ANY: "Constant ConstantOfShape",
        f"{_NUMBERS} INT8": "Abs Add ArgMax ArgMin DepthToSpace Div Greater GreaterOrEqual Less LessOrEqual Max Min "
        "Mul Neg ReduceMax ReduceMin Sign SpaceToDepth Sub TopK",
        _NUMBERS: "Clip CumSum Mod Pow ReduceL1 ReduceMean ReduceProd ReduceSum ReduceSumSquare",
        "FLOAT FLOAT16 DOUBLE INT32 INT64 BOOL INT8": "OneHot ReverseSequence Scatter",
        "FLOAT FLOAT16 DOUBLE INT32 INT64 INT8": "Shrink",
        f"{_FLOATS} INT64 INT8": "Relu",
        f"{_FLOATS} FLOAT8E4M3FN": "Dropout",
        f"{_FLOATS} INT8": "MaxPool Resize",
        _FLOATS: "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Conv Cos Cosh Elu Erf Exp Floor "
        "Gelu Gemm GlobalAveragePool GlobalMaxPool GridSample GroupNormalization HardSigmoid Hardmax "
        "InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Log LogSoftmax MatMul Mean PRelu "
        "RMSNormalization RNN Reciprocal ReduceL2 ReduceLogSum ReduceLogSumExp Round STFT Selu Sigmoid Sin Sinh "
        "Softmax Softplus Softsign Sqrt Sum Swish Tan Tanh TensorScatter ThresholdedRelu",
        "FLOAT FLOAT16 BFLOAT16": "QuantizeLinear RotaryEmbedding",
        "FLOAT FLOAT16 DOUBLE INT8": "Upsample",
        "FLOAT FLOAT16 DOUBLE": f"ConvTranspose Einsum {_ONLY_HALF}",
        "FLOAT DOUBLE INT32 INT64": "Range",
        "FLOAT DOUBLE": "MeanVarianceNormalization",
        "FLOAT FLOAT16": _RNG,
        "FLOAT16 BFLOAT16": "Attention",
        "INT8 FLOAT8E4M3FN": "DequantizeLinear",
        "BOOL": "And Not Or Xor",
        "FLOAT": f"Celu {_WINDOWS}",
    }
)
REFUSED: Types = table(
    {
        f"{_ANY} INT8 UINT8": "NonZero",
        "FLOAT16 BFLOAT16 DOUBLE INT32 INT64 INT8 UINT8": _WINDOWS,
        "INT32 INT64 BOOL INT8 UINT8 FLOAT8E4M3FN": "TensorScatter",
        _FLOATS: "RoiAlign",
        "FLOAT FLOAT16 BFLOAT16": "CausalConvWithState LinearAttention",
        "INT32 INT64 BOOL UINT8": "Resize Upsample",
        "INT32 INT64 UINT8": "Einsum",
        "INT32 INT64": "Gemm MatMul PRelu ReduceL2 ReduceLogSum ReduceLogSumExp",
        "INT32 UINT8": "DequantizeLinear",
        "INT32": "QuantizeLinear Relu",
        "BOOL UINT8": "DepthToSpace ReduceMax ReduceMin SpaceToDepth",
        "INT8 UINT8": "Clip Mod",
        "FLOAT16 BFLOAT16": "MeanVarianceNormalization Range",
        "BFLOAT16 DOUBLE": _RNG,
        "BFLOAT16": _ONLY_HALF,
        "UINT8": "Abs Add ArgMax ArgMin Concat Constant ConstantOfShape Div Expand EyeLike Gather GatherElements "
        "GatherND Greater GreaterOrEqual If Less LessOrEqual Max MaxPool Min Mul OneHot Pad Reshape ReverseSequence "
        "Scan Scatter ScatterElements ScatterND Shrink Sign Slice Split Squeeze Sub Tile TopK Transpose Trilu "
        "Unsqueeze Where",
    }
)
UNBUILT: Types = table(
    {
        "FLOAT DOUBLE": "Attention",
        "FLOAT": "NonMaxSuppression",
        "BFLOAT16": "ConvTranspose",
        "INT8": "Constant ConstantOfShape Einsum",
        "UINT8 FLOAT8E4M3FN": "Loop",
        "FLOAT8E4M3FN": "Cast CastLike If IsInf IsNaN Pad Scan Squeeze Unsqueeze",
    }
)

#: ``supports_operator`` returns False.
UNKNOWN = names(
    "AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress "
    "ConcatFromSequence ConvInteger CumProd DFT DeformConv Det DynamicQuantizeLinear ImageDecoder MatMulInteger "
    "MaxRoiPool MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement "
    "OptionalHasElement QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty "
    "SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat "
    "StringNormalizer StringSplit SwiGLU TfIdfVectorizer Unique"
)
#: Of these, the names that it refuses even if they are those of local functions.
REFUSED_BY_NAME = UNKNOWN - names("BitCast CumProd DFT DeformConv SwiGLU")
#: ``supports_operator`` returns True for these, which ONNX never had.
OWN = names(
    "DistCollective GroupQueryAttention MatMulNBits MultiHeadAttention QMoE SimplifiedLayerNormalization "
    "SkipSimplifiedLayerNormalization TRT_Attention TRT_AveragePool TRT_BlockDequantize TRT_BlockQuantize TRT_Conv "
    "TRT_Deconv TRT_DynamicQuantize TRT_FP4DynamicQuantize TRT_FP8DequantizeLinear TRT_FP8QuantizeLinear "
    "TRT_FloorDiv TRT_Gather TRT_INT4DequantizeLinear TRT_INT4QuantizeLinear TRT_KVCacheUpdate "
    "TRT_MXFP8DequantizeLinear TRT_MXFP8DynamicQuantize TRT_MXFP8QuantizeLinear TRT_MatMul "
    "TRT_MaxAverageBlendPool TRT_MaxPool TRT_MoE TRT_QuantizedAttention TRT_RaggedSoftmax TRT_Resize TRT_Scale "
    "TRT_Shuffle TRT_Slice TRT_TopK_Min"
)
#: ``supports_operator`` returns True for these, which ONNX has removed.
OLD = names("ImageScaler ParametricSoftplus ScaledTanh")
#: ``supports_operator`` returns True, but the parser refuses every node: the plugin is not in the package.
NO_PLUGIN = names("CausalConvWithState LinearAttention NonZero RoiAlign")
#: It parses, but the builder has no kernel for it.
NO_KERNEL = names("NonMaxSuppression")

_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare"
)
_BOTH_WAYS = "in both directions the activation functions must be the same"
#: Beside the restrictions of TensorRT's list; for these operators instead of them.
NOTES = notes(
    {
        "ArgMax ArgMin Softmax": "rank 2 at least",
        "Attention": "no past or present, softcap, softmax_precision or qk_matmul_output; float does not build for "
        "compute capability 8.9",
        "Cast CastLike": "to uint8 only where the result is a network output",
        "Conv": "at most three spatial dimensions",
        "ConvTranspose": "no dilations together with strides; output_shape and auto_pad may be misread",
        "DequantizeLinear QuantizeLinear": "the zero point must be 0, the scale positive",
        "GRU RNN": f"{_BOTH_WAYS}; layout 1 is ignored",
        "LSTM": f"{_BOTH_WAYS}; input_forget must be 0; layout 1 is ignored",
        _REDUCTIONS: "axes must be a build-time constant; rank 1 at least",
        "ScatterElements ScatterND": "no reduction",
        "Slice": "without axes, starts and ends must name every dimension",
        "SpaceToDepth": "mode CRD is ignored",
        "TopK": "K at most 3840",
        "Trilu": "without the attribute upper it is read as 0",
    }
)
