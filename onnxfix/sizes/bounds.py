"""Which numbers an operator accepts in an input: indices within bounds, lengths within sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onnxfix.graph.overlay import Node, Value
from onnxfix.shapes.shapes import Shapes
from onnxfix.shapes.symbols import Dim


class Bound(NamedTuple):
    """The numbers in ``value`` must be from ``least`` to ``most`` (None: no upper bound)."""

    value: Value
    about: str
    least: Dim | int
    most: Dim | int | None

    def __str__(self) -> str:
        ends = f"at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        return f"{self.about} must be {ends}"


#: Operators whose second input holds indices into the axis given by an attribute, with its default.
_INDEXED = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0, "Scatter": 0}
#: (operator, input) of lengths of sequences.
_LENGTHS = frozenset({("Attention", 6), ("GRU", 4), ("LSTM", 4), ("RNN", 4), ("ReverseSequence", 1)})


BOUNDED = frozenset((*_INDEXED, "GatherND", "OneHot", "ScatterND", "TopK")) | {name for name, _ in _LENGTHS}
"""Operators with bounds."""


def bounds(node: Node, shapes: Shapes) -> Iterator[Bound]:
    """The bounds on the inputs of a node that are not constants."""
    if not node.is_onnx or node.op_type not in BOUNDED:
        return
    data = node.input(0)
    shape = shapes.shape(data) if data is not None else None
    for index, value in enumerate(node.inputs):
        if value is None or value.is_constant or shape is None:
            continue
        if node.op_type in _INDEXED and index == 1:
            size = _at(shape, node.attr("axis", _INDEXED[node.op_type]))
            if size is not None:
                yield Bound(value, "indices", -size, size - 1)
        elif node.op_type in ("GatherND", "ScatterND") and index == 1:
            yield from _nested(node, value, shape)
        elif (node.op_type, index) in _LENGTHS:
            size = _longest(node, shape, shapes)
            if size is not None:
                yield Bound(value, "lengths", 0 if node.op_type in ("GRU", "LSTM", "RNN") else 1, size)
        elif node.op_type == "TopK" and index == 1:
            size = _at(shape, node.attr("axis", -1))
            if size is not None:
                yield Bound(value, "k", 0, size)
        elif node.op_type == "OneHot" and index == 1:
            yield Bound(value, "the depth", 1, None)


def _nested(node: Node, value: Value, shape: tuple[Dim, ...]) -> Iterator[Bound]:
    """Indices of GatherND and ScatterND: a bound for each indexed axis."""
    first = node.attr("batch_dims", 0)
    inner = node.scope.model.shapes.shape(value)
    depth = inner[-1].value if inner else None
    for size in shape[first : first + depth] if depth is not None else ():
        yield Bound(value, "indices", -size, size - 1)


def _longest(node: Node, shape: tuple[Dim, ...], shapes: Shapes) -> Dim | None:
    """The size that a length may not exceed."""
    if node.op_type == "ReverseSequence":
        return _at(shape, node.attr("time_axis", 0))
    if node.op_type != "Attention":
        return _at(shape, node.attr("layout", 0))
    keys = node.input(1)
    lengths = shapes.shape(keys) if keys is not None else None
    return _at(lengths, -2) if lengths is not None else None


def _at(shape: tuple[Dim, ...], axis: int) -> Dim | None:
    return shape[axis] if -len(shape) <= axis < len(shape) else None
