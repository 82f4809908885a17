"""Kinds of operators, as far as precision is concerned."""

from __future__ import annotations

MOVES = frozenset(
    {
        "Compress",
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "ReverseSequence",
        "ScatterElements",
        "ScatterND",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    }
)
"""Operators that compute nothing of their data: what they write is rounded as what they read."""

HEAVY = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
"""Products and convolutions: what half precision is for."""

DENOMINATORS = {"Div": 1, "Log": 0, "Reciprocal": 0, "Sqrt": 0}
"""Operators and the input that must not become 0."""

SUMS = frozenset(
    {
        "AveragePool",
        "GlobalAveragePool",
        "GlobalLpPool",
        "LpPool",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMean",
        "ReduceSum",
        "ReduceSumSquare",
    }
)
"""Operators that sum before they make the result small."""

SQUARES = frozenset({"GlobalLpPool", "LpPool", "ReduceL2", "ReduceSumSquare"})
"""Those that sum squares."""


def is_heavy(op_type: str) -> bool:
    """Whether most of the model's time goes to such nodes."""
    return op_type in HEAVY


def cost_of(op_type: str) -> float:
    """What it costs to keep a node of this operator in float32, in cheap nodes."""
    return 16.0 if is_heavy(op_type) else 1.0
