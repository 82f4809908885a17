"""Axes that are not constant: sizes and positions that depend on them, looked up in tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Model, Node, Value, dtypes, equal, target_of

REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
Axes = tuple[int, ...]
#: Special dimensions of a result, besides the index of a dimension of the data: a size of 1, and of 0.
ONE, NONE = -1, -2
#: Maximum number of values that are visited upstream of the axes.
_MOST_VISITED = 100


def non_constant(node: Node, model: Model, index: int = 1) -> Value | None:
    """The input, if TensorRT cannot know it at build time. None in functions, whose caller may pass a constant."""
    value = node.input(index)
    if node.opset >= 18 and all(node.op_type in one.ignores_axes for one in target_of(model).releases):
        return None
    if value is None or node.scope.root.kind == "function":
        return None
    if value.initializer is not None or value.is_constant:
        return None
    known = model.shapes.value(value)
    is_static = known is not None and known.static is not None
    return None if is_static or _from_weights(node, value) else value


def _from_weights(node: Node, value: Value) -> bool:
    """Whether TensorRT computes it from weights at build time, including defaults that the caller may override.

    Measured with TensorRT-RTX 1.7.1: the axes of a reduction through Cast and Identity only, others through arithmetic.
    """
    seen, stack = {value}, [value]
    while stack:
        one = stack.pop()
        if one.initializer is not None or one.is_constant:
            continue
        made = one.producer
        if made is None or not made.is_onnx or made.subgraphs or len(seen) > _MOST_VISITED:
            return False
        if node.op_type.startswith("Reduce") and made.op_type not in ("Cast", "Identity"):
            return False
        new = [read for read in made.inputs if read is not None and read not in seen]
        if not made.inputs:
            return False
        seen.update(new)
        stack += new
    return True


def is_shape_tensor(value: Value, model: Model) -> bool:
    """Whether the value can be a shape tensor: computed from shapes, constants and integer graph inputs.

    Measured with TensorRT-RTX 1.7.1: after a Cast or any other operator of floats `Network input b is a shape tensor
    and must have type Int32 or Int64`.
    """
    seen = {value}
    stack = [value]
    while stack:
        one = stack.pop()
        node = one.producer
        if one.is_constant or (node is not None and node.is_onnx and node.op_type in ("Shape", "Size")):
            continue
        if node is None:
            elem = model.shapes.elem_type(one)
            if one.scope.parent is not None or elem is None or not dtypes.is_integer(elem):
                return False
            continue
        if not node.is_onnx or node.subgraphs:
            return False
        new = {read for read in node.inputs if read is not None} - seen
        seen |= new
        stack += new
        if len(seen) > _MOST_VISITED:
            return False
    return True


def count_of(axes: Value, model: Model) -> int | None:
    """The number of axes; None if it is unknown, they are not int64, or an axis certainly comes twice, which ONNX does
    not define."""
    if model.shapes.elem_type(axes) != TensorProto.INT64:
        return None
    known = model.shapes.value(axes)
    if known is not None and any(equal(a, b).yes for a, b in itertools.combinations(known.data, 2)):
        return None
    shape = model.shapes.static_shape(axes)
    return shape[0] if shape is not None and len(shape) == 1 else None


class Choice:
    """Values that depend on ``count`` non-constant axes of ``rank``, which may be negative and in any order.

    A code computed from the axes, the axis itself or the sum of 2 to their powers, selects the rows of tables. It is
    unique for each set of axes. Duplicate or invalid axes have the code of a row of zeros, or one out of range.
    """

    def __init__(self, draft: Draft, data: Value, axes: Value, *, rank: int, count: int) -> None:
        self.sets = list(itertools.combinations(range(rank), count))
        self._draft, self._data, self._rank, self._count = draft, data, rank, count
        self._shape = draft.anchor.model.shapes.shape(data) or ()
        self._sizes = ""
        indices = draft.add("Add", [axes, self._const([rank], "rank")], hint="places")
        if count == 1:
            self._code = draft.add("Squeeze", [indices, self._const([0], "first")], hint="place")
        else:
            powers = self._const([1 << axis for axis in range(rank)] * 2, "powers")
            bits = draft.add("Gather", [powers, indices], hint="bits")
            self._code = draft.add("ReduceSum", [bits, self._const([0], "all")], hint="code", keepdims=0)

    def row(self, rows: Mapping[Axes, Sequence[int]], other: int = 0, hint: str = "row") -> str:
        """The row for the axes; ``other`` fills the rows for duplicate axes."""
        width = len(next(iter(rows.values())))
        length = 2 * self._rank if self._count == 1 else self._count * (1 << self._rank - 1) + 1
        table = np.full((length, width), other, np.int64)
        for axes, row in rows.items():
            if self._count == 1:
                table[axes[0]] = table[axes[0] + self._rank] = row
            else:
                table[sum(1 << axis for axis in axes)] = row
        return self._draft.add(
            "Gather", [self._draft.constant(table, "table"), self._code], hint=hint, axis=0
        )

    def shape(self, rows: Mapping[Axes, Sequence[int]]) -> str:
        """The shape for the axes: rows of indices of the data's dimensions, ``ONE`` and ``NONE``."""
        if self.is_static:
            sizes = [dim.value or 0 for dim in self._shape]
            known = {axes: [1 if one == ONE else sizes[one] for one in row] for axes, row in rows.items()}
            return self.row(known, hint="shape")
        indices = {axes: [self.index(one) for one in row] for axes, row in rows.items()}
        picked = self.row(indices, other=self.index(NONE), hint="dims")
        return self._draft.add("Gather", [self.sizes, picked], hint="shape")

    def span(self) -> tuple[str, str]:
        """Start and end of the axes' result among the flattened, concatenated results for all ``sets``."""
        if not self.is_static:
            return self._computed_span()
        starts, ends, end = {}, {}, 0
        for reduced in self.sets:
            starts[reduced] = [end]
            end += math.prod(dim.value or 0 for axis, dim in enumerate(self._shape) if axis not in reduced)
            ends[reduced] = [end]
        return self.row(starts, hint="start"), self.row(ends, hint="end")

    def _computed_span(self) -> tuple[str, str]:
        """``span`` for dynamic sizes. An empty last set is for duplicate axes."""
        count = len(self.sets)
        rows = [[ONE if axis in reduced else axis for axis in range(self._rank)] for reduced in self.sets]
        rows.append([NONE] * self._rank)
        dims = self._draft.integers([[self.index(dim) for dim in row] for row in rows], "dims")
        picked = self._draft.add("Gather", [self.sizes, dims], hint="dims")
        lengths = self._draft.along("ReduceProd", picked, [1], hint="one", keepdims=0)
        before = self._draft.constant(np.tril(np.ones((count + 1, count + 1), np.int64), -1), "before")
        shares = self._draft.add("Mul", [before, lengths])
        starts = self._draft.along("ReduceSum", shares, [1], hint="one", keepdims=0)
        which = self.row(
            {reduced: [index] for index, reduced in enumerate(self.sets)}, other=count, hint="which"
        )
        start = self._draft.add("Gather", [starts, which], hint="start")
        length = self._draft.add("Gather", [lengths, which], hint="length")
        return start, self._draft.add("Add", [start, length], hint="end")

    @property
    def is_static(self) -> bool:
        """Whether all dimensions of the data are known."""
        return all(dim.value is not None for dim in self._shape)

    @property
    def sizes(self) -> str:
        """The computed dimensions of the data, then 1 and 0; ``index`` gives the index of each."""
        if not self._sizes:
            shape = self._draft.add("Shape", [self._data], hint="sizes")
            self._sizes = self._draft.add(
                "Concat", [shape, self._const([1, 0], "more")], hint="sizes", axis=0
            )
        return self._sizes

    def index(self, dim: int) -> int:
        """The index in ``sizes`` of a dimension, ``ONE`` or ``NONE``."""
        return {ONE: len(self._shape), NONE: len(self._shape) + 1}.get(dim, dim)

    def _const(self, values: list[int], hint: str) -> str:
        return self._draft.integers(values, hint)


def reshaped(draft: Draft, data: Value | str, shape: str, *, empty: bool) -> str | None:
    """Add a Reshape; None if the data may be ``empty`` and the opset has no `allowzero`."""
    if not empty:
        return draft.add("Reshape", [data, shape])
    return draft.add("Reshape", [data, shape], allowzero=1) if draft.anchor.scope.opset() >= 14 else None
