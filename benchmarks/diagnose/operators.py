"""Which operators bear which fault, and the numbers that faults put into them."""

from __future__ import annotations

FEWEST = 8
"""Elements of a constant that counts as a weight."""
FACTOR = 1.01
EPSILON = 1e-3
MASK = -1e4
TINY = 1e-4  # a constant of at most this, added to something, is an epsilon
NORMS = {"LayerNormalization": 1e-5, "BatchNormalization": 1e-5, "InstanceNormalization": 1e-5}
WEIGHED = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Add", "Mul", "LayerNormalization", "Gather")
REDUCES = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")
AXES = ("Softmax", "LogSoftmax", "Concat", "Gather", "Split", "LayerNormalization", "ArgMax", "Flatten")
PADDED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")
#: Operators that have a float16 form, with the operands that a Cast may make half precision.
HALF: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("MatMul", "Add", "Sub", "Mul", "Div"), (0, 1)),
    **dict.fromkeys(("Gemm", "Conv", "LayerNormalization"), (0, 1, 2)),
    **dict.fromkeys(("Softmax", "Sqrt", "Tanh", "Erf", "Gelu", "Sigmoid", "Pow", "Reciprocal", *REDUCES), (0,)),
}  # fmt: skip
#: Those that ONNX Runtime has no float16 kernel for on the CPU: it would compute in float32, and remove the Casts.
EMULATED = frozenset(HALF) - {"LayerNormalization"}
SWAPPED = {
    **dict.fromkeys(("Sub", "Div", "Concat", "MatMul", "Pow"), (0, 1)),
    "Where": (1, 2),
}
#: Operators that an exporter or a converter takes for another.
INSTEAD = {
    "LessOrEqual": "Less", "Less": "LessOrEqual", "GreaterOrEqual": "Greater", "Greater": "GreaterOrEqual",
    "Erf": "Tanh", "Tanh": "Erf", "Sigmoid": "HardSigmoid", "Relu": "LeakyRelu", "Sin": "Cos", "Cos": "Sin",
    "ReduceMean": "ReduceMax", "Max": "Min", "Min": "Max", "And": "Or",
}  # fmt: skip
#: Constants of shapes and indices, by the operand of the node that reads them.
COUNTS = {
    "Slice": (1, 2),
    "Gather": (1,),
    "Reshape": (1,),
    "Expand": (1,),
    "Range": (0, 1),
    "Concat": (0, 1, 2, 3),
}
OPEN = 1 << 40
"""An end of a Slice beyond this means the end of the axis."""
