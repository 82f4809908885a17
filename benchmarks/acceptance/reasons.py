"""Why TensorRT refuses a model, from the model itself and TensorRT's words; and why some of it is beyond repair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto, TypeProto

from acceptance.cases import random_operators
from onnxfix import walk

#: Types of inputs and outputs that TensorRT has. DOUBLE is read as FLOAT; FLOAT8E4M3FN goes through Q and DQ.
IO_TYPES = frozenset(
    {"FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "INT32", "INT64", "UINT8", "BOOL", "FLOAT8E4M3FN"}
)
_CODECS = frozenset({"ImageDecoder"})
_DATA_DEPENDENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})
_TREES = frozenset({"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})
_TRAINING = frozenset({"Adagrad", "Adam", "Gradient", "Momentum"})
#: Operator -> operands whose values are the size of the output, or decide it.
_SIZES = {
    "Col2Im": (1, 2), "OneHot": (1,), "Range": (0, 1, 2), "Resize": (2, 3), "STFT": (1, 3), "Upsample": (1,),
}  # fmt: skip

#: Kind of reason -> title, and why a rewriter cannot or should not do anything about it ("" where it could).
WHY = {
    "type": (
        "input or output type that TensorRT lacks",
        "strings, sequences, optional values, 16-bit and unsigned integers, 2 and 4 bits, most of float8: the type of"
        " an input or output is the interface, which no fix may change",
    ),
    "codec": (
        "image codec",
        "decoding JPEG, PNG, ... is no tensor arithmetic; it belongs before the network",
    ),
    "random": (
        "random numbers",
        "random values are no function of the inputs: no rewrite can be compared with the original, and no seed gives"
        " ONNX's and TensorRT's generators the same numbers",
    ),
    "data-dependent": (
        "size of the output depends on the data",
        "TensorRT-RTX has no kernel for it, and other operators make no tensor of a size that the values decide."
        " To take the declared shape for the size would be wrong for other data (`--unsafe-fixes` at most)",
    ),
    "size input": (
        "size of the output is the value of an input",
        "TensorRT takes that input neither as a shape nor as a constant. The declared output shape tells the size, but"
        " trusting it would be wrong for other values of the input (`--unsafe-fixes` at most)",
    ),
    "training": ("step of training", "optimizers and training modes have no place in an inference engine"),
    "loop": (
        "Loop over a growing state",
        "the trip count is known when it runs; unrolling and stacking need a constant one",
    ),
    "trees": (
        "tree ensemble",
        "no operator of TensorRT; a comparison for each node of each tree would be a large and slow graph",
    ),
    "crash": ("TensorRT crashes", "it dies instead of refusing"),
    "operator": ("operator, or a use of it", "no rule for it; by operator below"),
}


#: The same by operator, for "operator".
OPERATORS = {
    **dict.fromkeys(
        ("ArrayFeatureExtractor", "Binarizer"), "ai.onnx.ml, classic machine learning before the network"
    ),
    "BitCast": "the bits of a number as one of another kind: arithmetic that does it exactly would need to know them",
    **dict.fromkeys(
        ("Cast", "CastLike"),
        "without saturation, what float8 cannot hold becomes NaN; TensorRT's Quantize, the way to float8, saturates",
    ),
    **dict.fromkeys(
        ("DeformConv", "RoiAlign"),
        "a plugin that is not in the TensorRT-RTX package; by basic operators, gathers for each corner and sample",
    ),
    "MaxPool": "the positions of the maxima as an output",
    "MaxUnpool": "the counterpart of MaxPool's positions, which TensorRT does not give",
    "MelWeightMatrix": "its sizes are inputs; with constant ones it folds",
    "TfIdfVectorizer": "counts of token sequences: text preparation before the network",
}


@dataclass(frozen=True)
class Reason:
    """``kind`` is a key of ``WHY``; ``detail`` what it is in this model: types or an operator."""

    kind: str
    detail: str


def reason_of(model: onnx.ModelProto, status: str, operator: str, words: str) -> Reason:
    """The reason of a refusal: the first of ``WHY`` that applies, the interface before everything else.

    ``status`` is TensorRT's, ``operator`` what it stopped at, ``words`` what it said there.
    """
    ends = (*model.graph.input, *model.graph.output)
    strange = sorted({name for info in ends for name in _types(info.type)} - IO_TYPES)
    if strange:
        return Reason("type", ", ".join(strange))
    operators = {node.op_type for node in walk.model_nodes(model)}
    for kind, known in (("codec", _CODECS), ("data-dependent", _DATA_DEPENDENT), ("trees", _TREES)):
        if operators & known:
            return Reason(kind, ", ".join(sorted(operators & known)))
    drawing = random_operators(model)
    if drawing:
        return Reason("random", ", ".join(drawing))
    if status == "crash":
        return Reason("crash", operator)
    named = sorted(operators & _TRAINING) or [
        node.op_type for node in walk.model_nodes(model) if _trains(node)
    ]
    if named:
        return Reason("training", named[0])
    sized = [node.op_type for node in model.graph.node if _sized_by_input(node, model)]
    if sized:
        return Reason("size input", sized[0])
    if "Loop" in operators:
        return Reason("loop", "Range" if model.graph.name.startswith("test_range_") else "Loop")
    return Reason(
        "operator", operator or (next(iter(operators)) if len(operators) == 1 else words.split(":")[0])
    )


def _trains(node: onnx.NodeProto) -> bool:
    return any(one.name == "training_mode" and one.i for one in node.attribute)


def _sized_by_input(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    inputs = {info.name for info in model.graph.input} - {tensor.name for tensor in model.graph.initializer}
    return any(
        place < len(node.input) and node.input[place] in inputs for place in _SIZES.get(node.op_type, ())
    )


def _types(type_: TypeProto) -> Iterator[str]:
    kind = type_.WhichOneof("value")
    if kind == "tensor_type":
        yield TensorProto.DataType.Name(type_.tensor_type.elem_type)
    elif kind is not None:
        yield kind.removesuffix("_type")
