"""Results of loops and conditionals, and the loops that read them.

A separate module, since GRA012 needs it for most models.
"""

from __future__ import annotations

from onnxfix.rule import Node, Scope, Value

LOOPS = frozenset(("Loop", "Scan"))
CONTROL = LOOPS | {"If", "LSTM", "GRU", "RNN"}
"""Operators that TensorRT imports as a loop or a conditional."""


def is_result(value: Value) -> bool:
    """Whether a loop or a conditional of TensorRT computes the value."""
    producer = value.producer
    return producer is not None and producer.is_onnx and producer.op_type in CONTROL


def is_handed_in(source: Value, reader: Node) -> bool:
    """Whether ``reader``, in the body of another loop, reads the result of a loop or a conditional (CTL016)."""
    scope: Scope | None = reader.scope
    while is_result(source) and scope is not None and scope is not source.scope:
        if scope.owner is not None and scope.owner.is_onnx and scope.owner.op_type in LOOPS:
            return True
        scope = scope.parent
    return False
