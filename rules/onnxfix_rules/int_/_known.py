"""Which values are fixed before the engine is built although nodes compute them at run time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.errors import ModelError
from onnxfix.graph.overlay import Model, Node, Scope, UnknownAttribute, Value

from ._common import Array, native_dtype
from ._fold import FOLDABLE, INPUT_LIMIT, evaluate, fits

SHAPE_READERS = frozenset({"Shape", "Size"})


class Known:
    """The known values of a model, found in one pass in topological order.

    A value is known when all of its producer's inputs are, or when the symbolic shapes prove each of its elements,
    as for one dimension of a shape whose others vary. Floats count only where they come from integers: folding
    arithmetic on weights is not the business of this family.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._arrays: dict[Value, Array] = {}
        self._shape_math: set[Value] = set()
        for scope in model.scopes:
            for node in _ordered(scope):
                self._visit(node)

    def array(self, value: Value) -> Array | None:
        """The value where it is known or constant, and small; else None."""
        found = self._arrays.get(value)
        return found if found is not None else value.constant(INPUT_LIMIT)

    def computed(self) -> Iterator[Value]:
        """The known values that are not constants yet, in topological order."""
        return iter(self._arrays)

    def folds(self, node: Node) -> bool:
        """Whether everything that the node computes is known, so that the node itself can go."""
        return all(value is None or value in self._arrays for value in node.outputs)

    def _visit(self, node: Node) -> None:
        if not node.is_onnx or (node.op_type not in FOLDABLE and node.op_type not in SHAPE_READERS):
            return
        inputs = [None if value is None else self.array(value) for value in node.inputs]
        results: list[Array | None] = [self._proven(value) for value in node.outputs]
        all_known = all(a is not None or v is None for a, v in zip(inputs, node.inputs, strict=True))
        if all_known and any(result is None for result in results):
            try:
                evaluated = evaluate(node, inputs)
            except UnknownAttribute:
                evaluated = []
            results = [a if a is not None else b for a, b in zip(results, evaluated, strict=False)] or results
        from_integers = self._from_integers(node)
        given = [array for array in inputs if array is not None]
        for value, result in zip(node.outputs, results, strict=False):
            if value is None or result is None or not fits(result.nbytes, given) or not self._agrees(value, result):
                continue
            if result.dtype.kind == "f" and not from_integers:
                continue
            self._arrays[value] = result
            self._shape_math.add(value)

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
        shapes = self.model.shapes
        dtype = native_dtype(shapes.elem_type(value))
        found = shapes.value(value)
        if found is None or dtype is None or dtype.kind not in "biu":
            return None
        items = [dim.value for dim in found.data]
        if any(item is None for item in items):
            return None
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if not all(item is not None and low <= item <= high for item in items):
            return None
        return np.array(items, dtype=dtype).reshape(found.shape)

    def _agrees(self, value: Value, array: Array) -> bool:
        """Whether the array has the type and the shape that inference gives the value."""
        shapes = self.model.shapes
        shape = shapes.static_shape(value)
        return native_dtype(shapes.elem_type(value)) == array.dtype and shape in (None, array.shape)


def _ordered(scope: Scope) -> list[Node]:
    try:
        return scope.topological()
    except ModelError:
        return []
