"""What operators do with the values of their operands, as far as test inputs depend on it: tables of names."""

from __future__ import annotations

#: (operator, operand) -> what the operand is to it.
SINKS: dict[tuple[str, int], str] = {
    ("Gather", 1): "index", ("GatherElements", 1): "index", ("ScatterElements", 1): "index",
    ("Scatter", 1): "index", ("GatherND", 1): "index_nd", ("ScatterND", 1): "index_nd",
    ("NegativeLogLikelihoodLoss", 1): "index", ("SoftmaxCrossEntropyLoss", 1): "index",
    ("ArrayFeatureExtractor", 1): "index", ("RotaryEmbedding", 3): "index", ("OneHot", 0): "class",
    ("OneHot", 1): "depth", ("MaxUnpool", 1): "zero", ("RoiAlign", 2): "zero", ("TensorScatter", 2): "zero",
    ("SequenceAt", 1): "zero", ("SequenceInsert", 2): "zero", ("SequenceErase", 1): "zero", ("Trilu", 1): "zero",
    ("Reshape", 1): "reshape", ("Expand", 1): "expand", ("ConstantOfShape", 0): "size", ("Tile", 1): "repeat",
    ("TopK", 1): "one", ("Range", 0): "start", ("Range", 1): "limit", ("Range", 2): "one",
    ("Slice", 1): "zero", ("Slice", 2): "size", ("Slice", 3): "axes", ("Slice", 4): "one",
    ("Pad", 1): "pads", ("Pad", 3): "axes", ("Resize", 2): "scales", ("Resize", 3): "expand",
    ("Upsample", 1): "scales", ("Loop", 0): "size", ("Loop", 1): "true", ("Squeeze", 1): "axes",
    ("Unsqueeze", 1): "axes", ("CumSum", 1): "zero", ("Split", 1): "split", ("SplitToSequence", 1): "split",
    ("ReverseSequence", 1): "length", ("LSTM", 4): "length", ("GRU", 4): "length", ("RNN", 4): "length",
    ("Attention", 6): "length", ("NonMaxSuppression", 2): "size", ("Dropout", 1): "ratio",
    ("Dropout", 2): "false", ("HannWindow", 0): "size", ("HammingWindow", 0): "size",
    ("BlackmanWindow", 0): "size", ("DFT", 1): "size", ("DFT", 2): "one", ("STFT", 1): "one",
    ("STFT", 3): "size", ("CenterCropPad", 1): "size", ("Col2Im", 1): "image", ("Col2Im", 2): "one",
    ("AffineGrid", 1): "grid", ("MaxUnpool", 2): "unpooled", ("MelWeightMatrix", 0): "size",
    ("MelWeightMatrix", 1): "size",
    ("BitShift", 1): "shift", ("Clip", 1): "low", ("Clip", 2): "high", ("Bernoulli", 0): "share",
    ("QuantizeLinear", 1): "positive", ("DequantizeLinear", 1): "positive",
    ("BatchNormalization", 4): "positive",
    ("Multinomial", 0): "share", ("Upsample", 2): "scales", ("Compress", 1): "choice", ("If", 0): "choice",
    ("Log", 0): "above 0", ("Sqrt", 0): "above 0", ("Acos", 0): "unit", ("Asin", 0): "unit", ("Atanh", 0): "unit",
    ("Acosh", 0): "above 1", ("Mod", 1): "divisor", ("Div", 1): "divisor", ("Pow", 1): "exponent",
}  # fmt: skip

for _name in ("QLinearConv", "QLinearMatMul"):
    SINKS.update({(_name, place): "positive" for place in (1, 4, 6)})
for _name in ("Sum", "SumSquare", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp"):
    SINKS[f"Reduce{_name}", 1] = "axes"

#: Operands that any value of the right type and sign will do for.
HARMLESS = frozenset(
    {"positive", "low", "high", "share", "divisor", "exponent", "index", "choice", "ratio", "above 0", "above 1",
     "unit", "probability", "pixel"}
)  # fmt: skip

#: Operators whose first outputs hold the values of these operands, unchanged or merely rounded.
KEEPS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Cast", "CastLike", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Slice", "Transpose", "Expand",
         "Tile", "Gather", "GatherND", "GatherElements", "Split", "Pad", "DepthToSpace", "SpaceToDepth", "Compress",
         "SequenceAt", "ConcatFromSequence", "SplitToSequence", "Optional", "OptionalGetElement", "ReverseSequence",
         "Trilu", "Dropout", "Resize", "Upsample", "BitCast", "Ceil", "Floor", "Round"),
        (0,),
    ),
    "Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2), "SequenceInsert": (0, 1), "Max": (0, 1),
    "Min": (0, 1),
}  # fmt: skip
KEEPS_ALL = ("Concat", "SequenceConstruct")
#: What only looks at the shape: no value passes.
BLIND = ("Shape", "Size", "SequenceLength", "OptionalHasElement", "SequenceEmpty")
#: Operators whose results differ from run to run.
DRAWS = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
#: Uses that make an integer look like a mask, if it has no others.
MASK_OPS = ("Mul", "Sub", "Where", "Equal", "Not", "And", "Or", "Greater", "Less", "Add")
SAME_SHAPE = (
    *("Cast", "CastLike", "Identity", "DequantizeLinear", "QuantizeLinear", "Relu", "Neg", "Dropout", "Clip"),
)

CHOOSING = {"ArgMax": 0, "ArgMin": 0, "TopK": -1}
"""Operators whose last output holds indices of the elements that they choose, with the default of their axis."""
