"""What the rules about booleans share: which integer or float values are booleans in other clothes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Model, Node, Value


class Operand(NamedTuple):
    """A boolean ``source`` that was cast, or a ``constant`` of 0 and 1."""

    source: Value
    constant: bool
    reads: tuple[Node | Value, ...]

    def name(self, draft: Draft) -> str:
        """The boolean's name, for which a constant is written again."""
        if not self.constant:
            return self.source.name
        array = self.source.constant()
        assert array is not None
        return draft.constant(array.astype(np.bool_), "boolean")


def boolean(value: Value | None, node: Node, model: Model) -> Operand | None:
    """What ``value`` was as a boolean; None where it may hold anything but 0 and 1, or that is not known."""
    if value is None:
        return None
    producer = value.producer
    if producer is not None and producer.is_onnx and producer.op_type in ("Cast", "CastLike"):
        source = producer.input(0)
        # A subgraph may have another value of the source's name where the node stands.
        if source is None or node.scope.lookup(source.name) is not source:
            return None
        if model.shapes.elem_type(source) != TensorProto.BOOL:
            return None
        return Operand(source, False, (producer, source))
    array = value.constant()
    if array is None or array.dtype == object or not np.isin(array.astype(np.float64), (0, 1)).all():
        return None
    return Operand(value, True, (value,))
