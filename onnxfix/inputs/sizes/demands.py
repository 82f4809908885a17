"""Demands: conditions that operators require of the symbolic dimensions of their inputs.

A demand is necessary: if it does not hold, an operator fails. All demands together do not prove that a model runs:
dimensions may depend on data, and operators may be unknown. Demands on a number in a model input that becomes an index
or a length through known arithmetic bound that number.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onnxfix.graph.overlay import Node, Value
from onnxfix.model import Model
from onnxfix.shapes.algebra.dim import Atom, text_of
from onnxfix.shapes.symbols import Dim, as_dim, equal, evaluate


class Kind(enum.StrEnum):
    """How the two sides of a demand are related."""

    AT_LEAST = "at least"
    EQUAL = "equal to"
    #: Equal, or one of them is 1.
    BROADCAST = "broadcast with"
    #: Equal, or the left side is 1.
    EXTENDS = "1 or equal to"
    MULTIPLE = "a multiple of"


class Term(NamedTuple):
    """A condition without its node: ``left`` is ``kind`` ``right``."""

    kind: Kind
    left: Dim
    right: Dim

    def gap(self, sizes: Mapping[str, int], memo: dict[Atom, int | None] | None = None) -> int | None:
        """The difference of the two sides when symbols have these sizes, the remainder for a multiple, and 0 if one
        side is a broadcast 1; None if a symbol has no size. ``memo`` goes to ``evaluate``."""
        left, right = evaluate(self.left, sizes, memo), evaluate(self.right, sizes, memo)
        return None if left is None or right is None else self._gap(left, right)

    def _gap(self, left: int, right: int) -> int:
        if self.kind is Kind.MULTIPLE:
            return left % right if right else 1
        extends = self.kind in (Kind.BROADCAST, Kind.EXTENDS) and left == 1
        return 0 if extends or (self.kind is Kind.BROADCAST and right == 1) else left - right

    def met(self, gap: int) -> bool:
        """Whether it holds with this difference."""
        return gap >= 0 if self.kind is Kind.AT_LEAST else gap == 0

    def holds(self, sizes: Mapping[str, int], memo: dict[Atom, int | None] | None = None) -> bool | None:
        """Whether it holds when symbols have these sizes; None if a symbol has no size."""
        gap = self.gap(sizes, memo)
        return None if gap is None else self.met(gap)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols on either side."""
        return self.left.symbols | self.right.symbols

    @property
    def decided(self) -> bool | None:
        """True if it holds for all sizes, False if it holds for none; None if that depends on the sizes."""
        if self.left.value is not None and self.right.value is not None:
            return self.met(self._gap(self.left.value, self.right.value))
        if self.kind is Kind.AT_LEAST:
            low, high = (self.left - self.right).bounds
            return True if low >= 0 else False if high < 0 else None
        if self.kind is Kind.MULTIPLE:
            return True if self.right.value == 1 else None
        if self.kind in (Kind.BROADCAST, Kind.EXTENDS) and self.left.value == 1:
            return True
        if self.kind is Kind.BROADCAST and self.right.value == 1:
            return True
        equality = equal(self.left, self.right)
        if equality.yes:
            return True
        return False if equality.no and self.kind is Kind.EQUAL else None


@dataclass(frozen=True)
class Demand:
    """A condition on dimensions, with the place and operator of its node. ``about`` names the left side."""

    term: Term
    place: str
    op_type: str
    about: str

    def __str__(self) -> str:
        left, right = text_of(self.term.left), text_of(self.term.right)
        return f"{self.about} {left} must be {self.term.kind} {right}"


def at_least(left: Dim | int, right: Dim | int) -> Term:
    """``left >= right``."""
    return Term(Kind.AT_LEAST, as_dim(left), as_dim(right))


def same(left: Dim | int, right: Dim | int) -> Term:
    """``left == right``."""
    return Term(Kind.EQUAL, as_dim(left), as_dim(right))


def broadcast(left: Dim | int, right: Dim | int) -> Term:
    """``left == right``, or one of them is 1."""
    return Term(Kind.BROADCAST, as_dim(left), as_dim(right))


def extends(left: Dim | int, right: Dim | int) -> Term:
    """``left == right``, or ``left`` is 1."""
    return Term(Kind.EXTENDS, as_dim(left), as_dim(right))


def multiple(left: Dim | int, right: Dim | int) -> Term:
    """``right`` divides ``left``."""
    return Term(Kind.MULTIPLE, as_dim(left), as_dim(right))


def open_ones(demands: Iterable[Demand]) -> list[Demand]:
    """The demands that depend on sizes or never hold. Each condition is listed once, for its first node."""
    first_demands: dict[Term, Demand] = {}
    for demand in demands:
        if demand.term not in first_demands and demand.term.decided is not True:
            first_demands[demand.term] = demand
    return list(first_demands.values())


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
