"""Scatter with a reduction by comparison: each element against the index of each update, then one reduction."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from onnxfix.rule import Draft, Model, Node, Value, dtypes
from onnxfix_rules.ops import _rewrite as rw
from onnxfix_rules.ops._integers import SMALL

LIMIT = 1 << 22
"""Elements that are compared."""
_PLACES = 1 << 18
"""Places that are numbered in a constant."""
_REDUCTIONS = {"Add": "ReduceSum", "Max": "ReduceMax", "Min": "ReduceMin", "Mul": "ReduceProd"}


def reduced(draft: Draft, node: Node, model: Model, op: str) -> str:
    """What all updates of each element come to, in the shape of the data, as the name of a value.

    Elements without an update get the number that changes nothing. "" where a shape is not static, is empty, or there
    are too many to compare.
    """
    data, indices, updates = node.inputs[:3]
    if data is None or indices is None or updates is None:
        return ""
    shapes = [model.shapes.static_shape(value) for value in (data, indices)]
    elem = model.shapes.elem_type(data)
    if shapes[0] is None or shapes[1] is None or elem is None:
        return ""
    if 0 in shapes[0] or 0 in shapes[1]:
        return ""
    neutral = _neutral(op, elem)
    if neutral is None or (op in ("Add", "Mul") and elem in SMALL):
        return ""  # nor does ONNX add or multiply eight bits along an axis
    kind = model.shapes.elem_type(indices)
    if not kind:
        return ""
    work = _Comparison(draft, op, neutral, np.dtype(helper.tensor_dtype_to_np_dtype(kind)))
    if node.op_type == "ScatterND":
        return work.rows(shapes[0], shapes[1], indices, updates)
    return work.elements(shapes[0], shapes[1], indices, updates, int(node.attr("axis", 0)) % len(shapes[0]))


def _neutral(op: str, elem: int) -> np.ndarray[tuple[()], np.dtype[np.generic]] | None:
    """The number that changes nothing, in the data's type."""
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

    def rows(self, shape: tuple[int, ...], places: tuple[int, ...], indices: Value, updates: Value) -> str:
        """Of ScatterND: the indexed axes as one, the updates as one, the other axes as one."""
        depth, count = places[-1], math.prod(places[:-1])
        slots, width = math.prod(shape[:depth]), math.prod(shape[depth:])
        if depth == 0 or slots > _PLACES or slots * count * width > LIMIT:
            return ""
        strides = [math.prod(shape[place + 1 : depth]) for place in range(depth)]
        flat = self._shaped(indices, count, depth)
        counted = self.draft.add("Mod", [flat, self._indices(shape[:depth])])  # from the end, where negative
        if depth > 1:
            weighed = self.draft.add("Mul", [counted, self._indices(strides)])
            counted = self._reduce("ReduceSum", weighed, 1)
        here = self.draft.add(
            "Equal", [self._shaped(counted, 1, count, 1), self._range(slots, (slots, 1, 1))]
        )
        total = self._chosen(here, self._shaped(updates, 1, count, width), 1)
        return self._shaped(total, *shape)

    def elements(
        self, shape: tuple[int, ...], places: tuple[int, ...], indices: Value, updates: Value, axis: int
    ) -> str:
        """Of ScatterElements: the axis last, and the updates along another one behind it."""
        rank = len(shape)
        others = [place for place in range(rank) if place != axis]
        if rank >= 8 or any(shape[place] != places[place] for place in others):
            return ""
        if math.prod(shape) * places[axis] > LIMIT:
            return ""
        order = [*others, axis]
        moved = [
            value if axis == rank - 1 else self.draft.add("Transpose", [value], perm=order)
            for value in (indices, updates)
        ]
        counted = self.draft.add("Mod", [moved[0], self._indices(shape[axis])])
        column = rw.unsqueeze(self.draft, counted, [rank - 1])
        here = self.draft.add("Equal", [column, self._range(shape[axis], (shape[axis], 1))])
        total = self._chosen(here, rw.unsqueeze(self.draft, moved[1], [rank - 1]), rank)
        if axis == rank - 1:
            return total
        return self.draft.add("Transpose", [total], perm=[order.index(place) for place in range(rank)])

    def _chosen(self, here: str, updates: str, axis: int) -> str:
        masked = self.draft.add("Where", [here, updates, self.neutral])
        return self._reduce(_REDUCTIONS[self.op], masked, axis)

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
