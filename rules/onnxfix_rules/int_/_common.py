"""Shared by the INT rules: values as numpy arrays, and element types."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import Model, Node, Severity, Value, is_integer

Array = np.ndarray[Any, Any]

INT32_LOW, INT32_HIGH = -(2**31), 2**31 - 1

NATIVE = frozenset(
    getattr(TensorProto, name)
    for name in {
        "BOOL",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "FLOAT",
        "DOUBLE",
    }
)
"""Element types that numpy computes identically to ONNX Runtime."""


@cache
def native_dtype(elem_type: int | None) -> np.dtype[Any] | None:
    """The numpy dtype of an element type in ``NATIVE``; None for others and for an unknown one."""
    if elem_type is None or elem_type not in NATIVE:
        return None
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))


def shape_severity(model: Model) -> Severity:
    """Severity of shape arithmetic left to run time: TensorRT 8 refuses some of it, later versions fold it."""
    return Severity.INFO if model.target is None or model.target.int64 else Severity.WARNING


_SUMS = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
"""Operators whose constant factors ONNX Runtime packs in advance, which changes the order of summation."""


def sums(node: Node) -> bool:
    """Whether a node's order of summation may depend on which input is constant; unknown for function calls."""
    return node.op_type in _SUMS or not node.is_onnx


def is_zeros(value: Value | None) -> bool:
    """Whether the value is a constant of an integer type with at least one element, all of them 0."""
    if value is None:
        return False
    elem = value.scope.model.shapes.elem_type(value)
    if elem is not None and not is_integer(elem):
        return False  # a weight that need not be read
    array = value.constant()
    return array is not None and array.dtype.kind in "iu" and array.size > 0 and not array.any()


def text_of(array: Array, limit: int = 8) -> str:
    """The elements for messages, abbreviated."""
    if array.ndim == 0:
        return str(array.item())
    items = [str(item) for item in array.reshape(-1)[:limit].tolist()]
    more = ", ..." if array.size > limit else ""
    return f"[{', '.join(items)}{more}]"
