"""Which numbers an operator accepts in an input (indices within bounds, lengths within sizes), and what that means for
the numbers in a model input that becomes an index or a length through known arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from onnxfix.graph.overlay import Node, Value
from onnxfix.model import Model
from onnxfix.shapes.symbols import Dim, as_dim, evaluate


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


def bounds(node: Node) -> Iterator[Bound]:
    """The bounds on the inputs of a node that are not constants."""
    if not node.is_onnx or node.op_type not in BOUNDED:
        return
    shape = _shape(node, 0)
    for index, value in enumerate(node.inputs):
        if value is None or value.is_constant or shape is None:
            continue
        if node.op_type in _INDEXED and index == 1:
            size = _at(shape, node.attr("axis", _INDEXED[node.op_type]))
            if size is not None:
                yield Bound(value, "indices", -size, size - 1)
        elif node.op_type in ("GatherND", "ScatterND") and index == 1:
            inner = node.model.shapes.shape(value)
            depth, first = inner[-1].value if inner else None, node.attr("batch_dims", 0)
            for size in shape[first : first + depth] if depth is not None else ():  # each indexed axis
                yield Bound(value, "indices", -size, size - 1)
        elif (node.op_type, index) in _LENGTHS:
            # the size that a length may not exceed
            if node.op_type == "ReverseSequence":
                size = _at(shape, node.attr("time_axis", 0))
            elif node.op_type != "Attention":
                size = _at(shape, node.attr("layout", 0))
            else:
                size = _at(keys, -2) if (keys := _shape(node, 1)) is not None else None
            if size is not None:
                yield Bound(value, "lengths", 0 if node.op_type in ("GRU", "LSTM", "RNN") else 1, size)
        elif node.op_type == "TopK" and index == 1:
            size = _at(shape, node.attr("axis", -1))
            if size is not None:
                yield Bound(value, "k", 0, size)
        elif node.op_type == "OneHot" and index == 1:
            yield Bound(value, "the depth", 1, None)


def _shape(node: Node, index: int) -> tuple[Dim, ...] | None:
    value = node.input(index)
    return node.model.shapes.shape(value) if value is not None else None


def _at(shape: tuple[Dim, ...], axis: int) -> Dim | None:
    return shape[axis] if -len(shape) <= axis < len(shape) else None


# ------------------------------------------------------------------------------------------ limits of model inputs

_MOVING = frozenset(
    ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)
"""Operators whose result has the elements of their first input."""
_MOVES = _MOVING | {"Slice", "Ceil", "Floor", "Round"}
"""Operators that move or round the elements of their first input."""
_SMALL = 64  # bytes of a constant that is added or multiplied


class Limit(NamedTuple):
    """``bound`` applies to ``scale`` times the input plus ``offset``. ``up``: fractions are rounded up there."""

    scale: float
    offset: float
    bound: Bound
    up: bool = False

    def __str__(self) -> str:
        times = "" if self.scale == 1 else "-" if self.scale == -1 else f"{self.scale:g} * "
        plus = f" {'+' if self.offset > 0 else '-'} {abs(self.offset):g}" if self.offset else ""
        return (
            str(self.bound)
            if not times and not plus
            else f"with x for a number, {times}x{plus}: {self.bound}"
        )

    def ends(self, sizes: Mapping[str, int], whole: bool) -> tuple[float, float] | None:
        """The minimum and maximum of the input, without negative indices; None if a size is unknown.

        ``whole``: the input has integers; otherwise rounding must not lead out of the bounds.
        """
        least, most = (
            end if end is None or isinstance(end, int) else evaluate(end, sizes)
            for end in (self.bound.least, self.bound.most)
        )
        if least is None or (self.bound.most is not None and most is None):
            return None
        exact = whole or (self.scale == 1.0 and not self.offset)
        shift = 0.0 if exact else -0.25 if self.up else 0.25
        ends = [(max(least, 0) + shift - self.offset) / self.scale]
        ends.append(
            math.copysign(math.inf, self.scale) if most is None else (most + shift - self.offset) / self.scale
        )
        return min(ends), max(ends)


def within(limits: Sequence[Limit], sizes: Mapping[str, int], whole: bool) -> tuple[float, float] | None:
    """The range that satisfies all limits with known sizes; None without any, or if the range is empty."""
    known = [ends for one in limits if (ends := one.ends(sizes, whole)) is not None]
    if not known:
        return None
    low, high = max(low for low, _ in known), min(high for _, high in known)
    return (low, high) if low <= high else None


def limits_of(model: Model) -> dict[str, list[Limit]]:
    """The limits of each graph input that has any, by name."""
    found = {value.name: _limits(value) for value in model.main.inputs}
    return {name: limits for name, limits in found.items() if limits}


def _limits(start: Value) -> list[Limit]:
    pending: list[tuple[Value, float, float, bool]] = [(start, 1.0, 0.0, False)]
    seen = {start}
    found: list[Limit] = []
    while pending:
        value, scale, offset, up = pending.pop()
        for use in value.uses:
            node = use.node
            if node.op_type in BOUNDED:  # infer shapes only if needed
                found += [Limit(scale, offset, one, up) for one in bounds(node) if one.value is value]
            step = _step(node, use.index)
            made = node.output()
            if step is None or made is None or made in seen:
                continue
            seen.add(made)
            pending.append((made, scale * step[0], offset * step[0] + step[1], up or node.op_type == "Ceil"))
    return found


def _step(node: Node, index: int) -> tuple[float, float] | None:
    """The factor and the summand of a node that scales and shifts an input; None for any other node."""
    if not node.is_onnx:
        return None
    if node.op_type in _MOVES or (node.op_type == "Gather" and index == 0):
        return (1.0, 0.0) if index == 0 else None
    if node.op_type == "Concat":
        return 1.0, 0.0
    if node.op_type == "Where":
        return (1.0, 0.0) if index else None
    if node.op_type == "Neg":
        return -1.0, 0.0
    other = node.input(1 - index) if node.op_type in ("Add", "Sub", "Mul", "Div") else None
    array = other.constant(_SMALL) if other is not None else None
    if array is None or array.size != 1 or array.dtype.kind not in "iuf":
        return None
    return scale_and_shift(node.op_type, index, float(array.reshape(-1)[0]))


def scale_and_shift(op_type: str, index: int, number: float) -> tuple[float, float] | None:
    """The factor and the summand of Add, Sub, Mul or Div for operand ``index``, where the other one is ``number``; None
    where the result does not depend on the operand in this way."""
    if not math.isfinite(number):
        return None
    if op_type == "Add":
        return 1.0, number
    if op_type == "Sub":
        return (1.0, -number) if index == 0 else (-1.0, number)
    if number == 0 or (op_type == "Div" and index == 1):
        return None
    return (number, 0.0) if op_type == "Mul" else (1 / number, 0.0)


# ------------------------------------------------------------------------- numbers that are computed from shapes

_DEPTH = 50  # nodes on the way to what is known


def largest(value: Value | None, depth: int = _DEPTH) -> Dim | None:
    """The greatest element, as arithmetic on symbols; None where it is not known, or an element may be negative.

    Tensors have elements, and those of a Range grow, as numbers must that are known: so the last ones of two operands
    meet in their sum and in their product.
    """
    if value is None or depth == 0:
        return None
    known = value.scope.model.shapes.value(value)
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
        return largest(node.input(0), depth - 1)
    if node.op_type == "Range":
        start, end, step = (largest(node.input(k), 1) for k in range(3))
        return (
            end - 1
            if start is not None and end is not None and step is not None and step.value == 1
            else None
        )
    if node.op_type in ("Add", "Mul"):
        left, right = (largest(node.input(k), depth - 1) for k in range(2))
        if left is None or right is None:
            return None
        return left + right if node.op_type == "Add" else left * right
    return None
