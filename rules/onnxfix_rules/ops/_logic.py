"""Integer and float values that are booleans: Casts of booleans, and constants of 0 and 1."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Model, Node, Value


class Operand(NamedTuple):
    """A boolean ``source`` that was cast, or, if ``constant``, a constant of 0 and 1."""

    source: Value
    constant: bool
    reads: tuple[Node | Value, ...]

    def name(self, draft: Draft) -> str:
        """The name of the boolean; a constant is added as bool."""
        if not self.constant:
            return self.source.name
        array = self.source.constant()
        assert array is not None
        return draft.constant(array.astype(np.bool_), "boolean")


def boolean(value: Value | None, node: Node, model: Model) -> Operand | None:
    """The boolean that ``value`` represents; None if it may contain anything but 0 and 1."""
    if value is None:
        return None
    producer = value.producer
    if producer is not None and producer.is_onnx and producer.op_type in ("Cast", "CastLike"):
        source = producer.input(0)
        # The source's name may be shadowed in the node's subgraph.
        if source is None or node.scope.lookup(source.name) is not source:
            return None
        if model.shapes.elem_type(source) != TensorProto.BOOL:
            return None
        return Operand(source, False, (producer, source))
    array = value.constant()
    if array is None or array.dtype == object or not np.isin(array.astype(np.float64), (0, 1)).all():
        return None
    return Operand(value, True, (value,))
