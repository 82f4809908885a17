"""The greatest element of a tensor that is computed from shapes, such as the indices by which a mask is read."""

from __future__ import annotations

from onnxfix.graph.overlay import Value
from onnxfix.shapes.shapes import Shapes
from onnxfix.shapes.symbols import Dim, as_dim

_MOVING = frozenset(
    ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)
"""Operators whose result has the elements of their first input."""
_DEPTH = 50  # nodes on the way to what is known


def largest(value: Value | None, shapes: Shapes, depth: int = _DEPTH) -> Dim | None:
    """The greatest element, as arithmetic on symbols; None where it is not known, or an element may be negative.

    Tensors have elements, and those of a Range grow, as numbers must that are known: so the last ones of two operands
    meet in their sum and in their product.
    """
    if value is None or depth == 0:
        return None
    known = shapes.value(value)
    if known is not None and all(one.bounds[0] >= 0 for one in known.data):
        if len(known.data) == 1:
            return known.data[0]
        numbers = [one.value for one in known.data if one.value is not None]
        grow = len(numbers) == len(known.data) > 0 and numbers == sorted(numbers)
        return as_dim(numbers[-1]) if grow else None
    node = value.producer
    if node is None or not node.is_onnx:
        return None
    if node.op_type in _MOVING:
        return largest(node.input(0), shapes, depth - 1)
    if node.op_type == "Range":
        start, end, step = (largest(node.input(k), shapes, 1) for k in range(3))
        return (
            end - 1
            if start is not None and end is not None and step is not None and step.value == 1
            else None
        )
    if node.op_type in ("Add", "Mul"):
        left, right = (largest(node.input(k), shapes, depth - 1) for k in range(2))
        if left is None or right is None:
            return None
        return left + right if node.op_type == "Add" else left * right
    return None
