"""Limits on the numbers in a model input that becomes an index or a length through known arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onnx import ModelProto

from onnxfix.errors import ModelError
from onnxfix.graph.overlay import Node, Value
from onnxfix.model import Model
from onnxfix.shapes.symbols import Dim, evaluate
from onnxfix.sizes.bounds import BOUNDED, Bound, bounds

#: Operators that move or round the elements of their first input.
_MOVES = frozenset(
    {
        "Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze",
        "Ceil", "Floor", "Round",
    }
)  # fmt: skip
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
        least, most = (_size(end, sizes) for end in (self.bound.least, self.bound.most))
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


def limits_of(proto: ModelProto) -> dict[str, list[Limit]]:
    """The limits of each graph input that has any, by name."""
    try:
        model = Model(proto)
    except ModelError:
        return {}
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
                known = bounds(node, node.model.shapes)
                found += [Limit(scale, offset, one, up) for one in known if one.value is value]
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
    number = _number(other) if other is not None else None
    if number is None or not math.isfinite(number):
        return None
    if node.op_type == "Add":
        return 1.0, number
    if node.op_type == "Sub":
        return (1.0, -number) if index == 0 else (-1.0, number)
    if number == 0 or (node.op_type == "Div" and index == 1):
        return None
    return (number, 0.0) if node.op_type == "Mul" else (1 / number, 0.0)


def _number(value: Value) -> float | None:
    array = value.constant(_SMALL)
    return (
        float(array.reshape(-1)[0])
        if array is not None and array.size == 1 and array.dtype.kind in "iuf"
        else None
    )


def _size(end: Dim | int | None, sizes: Mapping[str, int]) -> int | None:
    return end if end is None or isinstance(end, int) else evaluate(end, sizes)
