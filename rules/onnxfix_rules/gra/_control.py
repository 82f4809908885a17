"""Results of loops and conditionals, and the loops that use them. GRA012 needs it for most models."""

from __future__ import annotations

from onnxfix.rule import Node, Scope, Value

LOOPS = frozenset(("Loop", "Scan"))
CONTROL = LOOPS | {"If", "LSTM", "GRU", "RNN"}
"""What TensorRT imports as a loop or a conditional."""


def is_result(value: Value) -> bool:
    """Whether the value comes out of a loop or a conditional of TensorRT."""
    producer = value.producer
    return producer is not None and producer.is_onnx and producer.op_type in CONTROL


def is_handed_in(source: Value, reader: Node) -> bool:
    """Whether ``reader``, in the body of another loop, reads what comes out of a loop or a conditional (CTL016)."""
    scope: Scope | None = reader.scope
    while is_result(source) and scope is not None and scope is not source.scope:
        if scope.owner is not None and scope.owner.is_onnx and scope.owner.op_type in LOOPS:
            return True
        scope = scope.parent
    return False
