"""Scatter with a reduction, decomposed: compare each element's index with that of each update, then reduce."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from onnxfix.rule import Draft, Model, Node, Value, dtypes
from onnxfix_rules.ops._integers import SMALL

LIMIT = 1 << 22
"""Maximum number of comparisons."""
_MOST_INDICES = 1 << 18
"""Maximum number of indices in a constant."""
REDUCTIONS = {"Add": "ReduceSum", "Max": "ReduceMax", "Min": "ReduceMin", "Mul": "ReduceProd"}


def reduced(draft: Draft, node: Node, model: Model, op: str) -> str:
    """Add the reduction of all updates of each element, in the shape of the data; return the name of the value.

    Elements without an update get the neutral value. "" if a shape is dynamic or empty, or there are too many
    comparisons.
    """
    data, indices, updates = node.inputs[:3]
    if data is None or indices is None or updates is None:
        return ""
    shapes = [model.shapes.static_shape(value) for value in (data, indices)]
    elem = model.shapes.elem_type(data)
    if shapes[0] is None or shapes[1] is None or elem is None:
        return ""
    if 0 in shapes[0] or 0 in shapes[1] or not shapes[0] or not shapes[1]:
        return ""
    neutral = _neutral(op, elem)
    if neutral is None or (op in ("Add", "Mul") and elem in SMALL):
        return ""  # ONNX has no sum or product of 8-bit integers along an axis
    kind = model.shapes.elem_type(indices)
    if not kind:
        return ""
    comparison = _Comparison(draft, op, neutral, np.dtype(helper.tensor_dtype_to_np_dtype(kind)))
    if node.op_type == "ScatterND":
        return comparison.rows(shapes[0], shapes[1], indices, updates)
    return comparison.elements(
        shapes[0], shapes[1], indices, updates, int(node.attr("axis", 0)) % len(shapes[0])
    )


def _neutral(op: str, elem: int) -> np.ndarray[tuple[()], np.dtype[np.generic]] | None:
    """The neutral value of the reduction, in the data's type."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    if elem in dtypes.INTEGERS:
        ends = dtypes.INTEGERS[elem]
        return np.array({"Add": 0, "Mul": 1, "Max": ends.low, "Min": ends.high}[op], dtype)
    if not dtypes.is_float(elem):
        return None
    return np.array({"Add": 0.0, "Mul": 1.0, "Max": -math.inf, "Min": math.inf}[op], dtype)


class _Comparison:
    def __init__(
        self,
        draft: Draft,
        op: str,
        neutral: np.ndarray[tuple[()], np.dtype[np.generic]],
        kind: np.dtype[np.generic],
    ) -> None:
        self.draft, self.op, self.kind = draft, op, kind
        self.neutral = draft.constant(neutral, "neutral")

    def rows(
        self, shape: tuple[int, ...], index_shape: tuple[int, ...], indices: Value, updates: Value
    ) -> str:
        """For ScatterND: flatten the indexed axes, the updates, and the other axes."""
        depth, count = index_shape[-1], math.prod(index_shape[:-1])
        if depth > len(shape):
            return ""  # no valid model; a declared shape may say 2**40
        slots, width = math.prod(shape[:depth]), math.prod(shape[depth:])
        if depth == 0 or slots > _MOST_INDICES or slots * count * width > LIMIT:
            return ""
        strides = [math.prod(shape[axis + 1 : depth]) for axis in range(depth)]
        flat = self._shaped(indices, count, depth)
        counted = self.draft.add(
            "Mod", [flat, self._indices(shape[:depth])]
        )  # negative indices count from the end
        if depth > 1:
            weighed = self.draft.add("Mul", [counted, self._indices(strides)])
            counted = self._reduce("ReduceSum", weighed, 1)
        matches = self.draft.add(
            "Equal", [self._shaped(counted, 1, count, 1), self._range(slots, (slots, 1, 1))]
        )
        total = self._reduced_updates(matches, self._shaped(updates, 1, count, width), 1)
        return self._shaped(total, *shape)

    def elements(
        self, shape: tuple[int, ...], index_shape: tuple[int, ...], indices: Value, updates: Value, axis: int
    ) -> str:
        """For ScatterElements: move the axis last, and compare with the updates along a new last axis."""
        rank = len(shape)
        others = [other for other in range(rank) if other != axis]
        if (
            rank >= 8
            or len(index_shape) != rank
            or any(shape[other] != index_shape[other] for other in others)
        ):
            return ""
        if math.prod(shape) * index_shape[axis] > LIMIT:
            return ""
        order = [*others, axis]
        moved = [
            value if axis == rank - 1 else self.draft.add("Transpose", [value], perm=order)
            for value in (indices, updates)
        ]
        counted = self.draft.add("Mod", [moved[0], self._indices(shape[axis])])
        column = self.draft.unsqueeze(counted, [rank - 1])
        matches = self.draft.add("Equal", [column, self._range(shape[axis], (shape[axis], 1))])
        total = self._reduced_updates(matches, self.draft.unsqueeze(moved[1], [rank - 1]), rank)
        if axis == rank - 1:
            return total
        return self.draft.add("Transpose", [total], perm=[order.index(other) for other in range(rank)])

    def _reduced_updates(self, matches: str, updates: str, axis: int) -> str:
        masked = self.draft.add("Where", [matches, updates, self.neutral])
        return self._reduce(REDUCTIONS[self.op], masked, axis)

    def _reduce(self, op_type: str, name: str, axis: int) -> str:
        if self.draft.anchor.scope.opset() < (13 if op_type == "ReduceSum" else 18):
            return self.draft.add(op_type, [name], axes=[axis], keepdims=0)
        axes = self.draft.constant(np.array([axis], np.int64), "axes")
        return self.draft.add(op_type, [name, axes], keepdims=0)

    def _shaped(self, value: Value | str, *shape: int) -> str:
        return self.draft.add("Reshape", [value, self.draft.constant(np.array(shape, np.int64), "shape")])

    def _indices(self, values: object) -> str:
        return self.draft.constant(np.array(values, self.kind), "sizes")

    def _range(self, count: int, shape: tuple[int, ...]) -> str:
        return self.draft.constant(np.arange(count, dtype=self.kind).reshape(shape), "numbers")
