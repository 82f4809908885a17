"""How TensorRT imports the bounds of a Clip of int8; officially it supports floats, int32 and int64.

Measured with TensorRT-RTX 1.7.1: without bounds the import is correct. A lower bound that is a weight is silently
replaced by 0, and so is an upper one that is a weight too. Everything else is refused: only an upper bound,
non-constant bounds, and bounds omitted by an empty name.
"""

from __future__ import annotations

from onnxfix.rule import Node, Value


def are_none(node: Node) -> bool:
    """Whether the Clip lists no bounds, not even empty names."""
    return len(node.proto.input) == 1


def are_replaced_by_zero(node: Node) -> bool:
    """Whether TensorRT certainly replaces the bounds of a Clip of int8 by 0."""
    bounds = [node.input(index) for index in range(1, len(node.proto.input))]
    # Defaults of graph inputs are weights for the parser, too.
    return bool(bounds) and all(
        v is not None and (v.is_constant or v.initializer is not None) for v in bounds
    )


def number(value: Value | None) -> float | None:
    """A one-element constant; None for anything else."""
    array = None if value is None else value.constant()
    return float(array.reshape(())) if array is not None and array.size == 1 else None
