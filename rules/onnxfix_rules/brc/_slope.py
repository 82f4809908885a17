"""Whether the slope of a PRelu broadcasts to its data."""

from __future__ import annotations

from onnxfix.rule import Model, Node, equal
from onnxfix.shapes.symbols import as_dim
from onnxfix_rules.brc._common import Shape


def shapes_of(node: Node, model: Model) -> tuple[Shape, Shape] | None:
    """Shapes of data and slope of a PRelu of opset 7 or later; None if one is unknown."""
    if node.op_type != "PRelu" or not node.is_onnx or node.opset < 7:
        return None
    data, slope = node.input(0), node.input(1)
    if data is None or slope is None:
        return None
    shape, other = model.shapes.shape(data), model.shapes.shape(slope)
    return None if shape is None or other is None else (shape, other)


def cannot_fit(node: Node, model: Model) -> bool:
    """Whether the slope certainly does not broadcast to the data, which must not be repeated."""
    found = shapes_of(node, model)
    if found is None:
        return False
    data, slope = found
    if len(slope) > len(data):
        return True
    pairs = zip(data[len(data) - len(slope) :], slope, strict=True)
    return any(equal(size, wanted).no and equal(as_dim(1), wanted).no for size, wanted in pairs)
