"""Values that are known before the engine is built although nodes compute them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Model, Node, UnknownAttribute, Value, elem_types
from onnxfix.shapes.ops.base import Info
from onnxfix_rules.gra._common import grouped

from ._common import INT32_HIGH, Array, native_dtype
from ._fold import FOLDABLE, INPUT_LIMIT, evaluate, fits

SHAPE_READERS = frozenset({"Shape", "Size"})


class Known:
    """The known values of a model, found in one pass in topological order.

    A value is known if all inputs of its producer are, or if the symbolic shapes prove each of its elements, as for
    one dimension of a shape whose others vary. Floats count only if they come from integers: folding arithmetic on
    weights is not the subject of this family.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._arrays: dict[Value, Array] = {}
        self._numbers: dict[Info, Array | None] = {}
        self._shape_math: set[Value] = set()
        self._doubtful: set[Value] = set()
        self._has_half = TensorProto.FLOAT16 in elem_types(model)
        for scope in model.scopes:
            for node in model.orders[scope]:
                if (node.op_type in FOLDABLE or node.op_type in SHAPE_READERS) and node.is_onnx:
                    self._visit(node)

    def array(self, value: Value) -> Array | None:
        """The value if it is known or constant, and small; else None."""
        found = self._arrays.get(value)
        return found if found is not None else value.constant(INPUT_LIMIT)

    def computed(self) -> Iterator[Value]:
        """The known values that are not constants yet, in topological order."""
        return iter(self._arrays)

    def folds(self, node: Node) -> bool:
        """Whether all outputs of the node are known, so that the node can be removed."""
        return all(value is None or value in self._arrays for value in node.outputs)

    def frontiers(self) -> list[list[Value]]:
        """The last known values before a node that must run, grouped by common readers."""
        return grouped({value: readers for value in self._arrays if (readers := self._readers(value))})

    def _readers(self, value: Value) -> list[Node]:
        """The nodes that read the value and are not known themselves; empty if it must stay as it is."""
        divides = any(use.node.op_type in ("Div", "Mod") and use.index == 1 for use in value.uses)
        if divides and not self._arrays[value].all():
            # ONNX Runtime refuses to load a constant divisor of 0; a computed one fails where it divides something.
            return []
        return list(dict.fromkeys(use.node for use in value.uses if not self.folds(use.node)))

    def _visit(self, node: Node) -> None:
        if (self._has_half or self._doubtful or node.op_type == "Slice") and self._is_doubtful(node):
            return
        results: list[Array | None] = [self._proven(value) for value in node.outputs]
        all_known = all(map(self._is_known, node.inputs))
        if not all_known and all(result is None for result in results):
            return
        inputs = [None if value is None else self.array(value) for value in node.inputs]
        if all_known and any(result is None for result in results):
            try:
                evaluated = evaluate(node, inputs)
            except UnknownAttribute:
                evaluated = []
            results = [a if a is not None else b for a, b in zip(results, evaluated, strict=False)] or results
        from_integers = self._from_integers(node)
        given = [array for array in inputs if array is not None]
        for value, result in zip(node.outputs, results, strict=False):
            if value is None or result is None:
                continue
            if not fits(result.nbytes, given) or not self._agrees(value, result):
                continue
            if result.dtype.kind == "f" and not from_integers:
                continue
            self._arrays[value] = result
            self._shape_math.add(value)

    def _is_known(self, value: Value | None) -> bool:
        if value is None or value in self._arrays:
            return True
        return value.is_constant and value.constant(INPUT_LIMIT) is not None

    def _is_doubtful(self, node: Node) -> bool:
        """Whether ONNX Runtime and ONNX disagree about the node, or about its inputs; its outputs are then marked.

        ONNX Runtime computes float16 in float32 and rounds once at the end of a chain; ONNX, and a GPU, after each
        operator. It also interprets the largest integer as "to the front" if a Slice steps backwards.
        """
        if node.op_type in SHAPE_READERS:
            return False
        shapes = self.model.shapes
        doubtful = _steps_back(node) or (
            (self._has_half or bool(self._doubtful))
            and any(
                value is not None
                and (value in self._doubtful or shapes.elem_type(value) == TensorProto.FLOAT16)
                for value in node.inputs
            )
        )
        if doubtful:
            self._doubtful.update(value for value in node.outputs if value is not None)
        return doubtful

    def _from_integers(self, node: Node) -> bool:
        """Whether an input is an integer, or a float that came from integers."""
        for value in node.inputs:
            if value is not None:
                array = self.array(value)
                if value in self._shape_math or (array is not None and array.dtype.kind in "iu"):
                    return True
        return False

    def _proven(self, value: Value | None) -> Array | None:
        """The value by symbolic shapes, where every element of it is a number."""
        if value is None:
            return None
        info = self.model.shapes.info(value)
        if info.value is None:
            return None
        if info not in self._numbers:  # many values are known to be the same
            self._numbers[info] = self._numbers_of(value)
        return self._numbers[info]

    def _numbers_of(self, value: Value) -> Array | None:
        shapes = self.model.shapes
        found = shapes.value(value)
        dtype = native_dtype(shapes.elem_type(value))
        if found is None or dtype is None or dtype.kind not in "biu":
            return None
        low, high = _bounds(dtype)
        items = [dim.value for dim in found.data]
        if not all(item is not None and low <= item <= high for item in items):
            return None
        return np.array(items, dtype=dtype).reshape(found.shape)

    def _agrees(self, value: Value, array: Array) -> bool:
        """Whether the array has the type and the shape that inference gives the value."""
        shapes = self.model.shapes
        shape = shapes.static_shape(value)
        return native_dtype(shapes.elem_type(value)) == array.dtype and shape in (None, array.shape)


@cache
def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The lowest and highest value of an integer type or bool."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _steps_back(node: Node) -> bool:
    """Whether a Slice may step backwards from or to a position that backends interpret differently."""
    if node.op_type != "Slice" or node.opset < 10 or node.input(4) is None:
        return False
    steps, ends = (None if value is None else value.constant() for value in (node.inputs[4], node.inputs[2]))
    if steps is None:
        return True
    return bool((steps < 0).any()) and (ends is None or bool((ends >= INT32_HIGH).any()))
