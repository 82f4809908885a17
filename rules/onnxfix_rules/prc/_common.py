"""What the precision rules share: constants as numbers, half-precision types, Casts that are looked through."""

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
"""The floating-point types that norms are computed in; bfloat16 has the range of float32 and is no matter here."""


def producer(value: Value | None, *op_types: str) -> Node | None:
    """The ONNX node of one of these types that makes ``value``, or None."""
    node = None if value is None else value.producer
    return node if node is not None and node.is_onnx and node.op_type in op_types else None


def type_of(value: Value | None, model: Model) -> int | None:
    """The proven element type; a Cast's result is known even where nothing before it is."""
    cast = producer(value, "Cast")
    to = None if cast is None else cast.attr("to")
    if isinstance(to, int):
        return to
    return None if value is None else model.shapes.elem_type(value)


ANY_RANK = 64


def rank_of(value: Value | None, model: Model) -> int:
    """The rank, 0 where it is not known: a constant of that rank at most leaves the ranks of its results alone."""
    return 0 if value is None else model.shapes.rank(value) or 0


def scalar(value: Value | None, most: int = 0) -> float | None:
    """The one number of a floating-point or integer constant of a rank up to ``most``; None for anything else."""
    array = None if value is None else value.constant()
    if array is None or array.size != 1 or array.ndim > most:
        return None
    number = array.reshape(())
    return float(number) if array.dtype.kind in "fiu" else None
