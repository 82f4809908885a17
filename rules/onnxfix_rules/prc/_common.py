"""Shared by the precision rules: scalar constants, half-precision types, and looking through Casts."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Model, Node, Value

HALF = int(TensorProto.FLOAT16)
FLOAT = int(TensorProto.FLOAT)
DOUBLE = int(TensorProto.DOUBLE)
HIGHEST = 65504.0
"""The largest finite float16."""

NUMPY: dict[int, type[np.floating[Any]]] = {HALF: np.float16, FLOAT: np.float32, DOUBLE: np.float64}
"""The floating-point types that norms are computed in; bfloat16 has the range of float32 and needs no rule here."""


def producer(value: Value | None, *op_types: str) -> Node | None:
    """The ONNX node of one of these types that produces ``value``, or None."""
    node = None if value is None else value.producer
    return node if node is not None and node.is_onnx and node.op_type in op_types else None


def type_of(value: Value | None, model: Model) -> int | None:
    """The proven element type; known for a Cast's result even if its input type is unknown."""
    cast = producer(value, "Cast")
    to = None if cast is None else cast.attr("to")
    if isinstance(to, int):
        return to
    return None if value is None else model.shapes.elem_type(value)


ANY_RANK = 64


def rank_of(value: Value | None, model: Model) -> int:
    """The rank, 0 if unknown: a constant of at most that rank does not raise the rank of the results."""
    return 0 if value is None else model.shapes.rank(value) or 0


def scalar(value: Value | None, most: int = 0) -> float | None:
    """The value of a one-element float or integer constant of rank up to ``most``; None for anything else."""
    array = None if value is None else value.constant()
    if array is None or array.size != 1 or array.ndim > most:
        return None
    number = array.reshape(())
    return float(number) if array.dtype.kind in "fiu" else None
