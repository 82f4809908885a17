"""How TensorRT takes the bounds of a Clip of int8, which is for floats, int32 and int64 by its own word.

Measured with TensorRT-RTX 1.7.1: without bounds it is read right. A lower bound that is a weight is taken for 0 without
a word, and so is an upper one that is a weight too. All else is refused: an upper bound alone, bounds at run time, and
a bound that is left out by an empty name.
"""

from __future__ import annotations

from onnxfix.rule import Node, Value


def are_none(node: Node) -> bool:
    """Whether the Clip lists no bounds, not even by empty names."""
    return len(node.proto.input) == 1


def are_taken_for_zero(node: Node) -> bool:
    """Whether the bounds of a Clip of int8 certainly count as 0."""
    bounds = [node.input(place) for place in range(1, len(node.proto.input))]
    return bool(bounds) and all(one is not None and _is_weight(one) for one in bounds)


def _is_weight(value: Value) -> bool:
    """Whether the parser certainly takes it for a weight, as it does defaults of graph inputs; no node's result."""
    return value.is_constant or value.initializer is not None
