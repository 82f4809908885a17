"""Helpers that rules about integers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import Model, Node, Severity, Value, imported_nodes, is_integer, name_of, target_of
from onnxfix.targets.documented import names

Array = np.ndarray[Any, Any]

INT32_LOW, INT32_HIGH = -(2**31), 2**31 - 1

NATIVE = frozenset(
    getattr(TensorProto, name)
    for name in names("BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT DOUBLE")
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
        return False  # its elements, perhaps a large weight, need not be read
    array = value.constant()
    return array is not None and array.dtype.kind in "iu" and array.size > 0 and not array.any()


def text_of(array: Array, limit: int = 8) -> str:
    """The elements for messages, abbreviated."""
    if array.ndim == 0:
        return str(array.item())
    items = [str(item) for item in array.reshape(-1)[:limit].tolist()]
    more = ", ..." if array.size > limit else ""
    return f"[{', '.join(items)}{more}]"


class Refused:
    """Says what TensorRT refuses about values that a fix turns into constants. ``goes`` says which nodes the
    fix removes. All queries together take linear time.

    Measured with TensorRT-RTX 1.7.1: for the axes of a reduction, the parser looks for a constant through
    Cast and Identity only. Unsqueeze, Squeeze, OneHot, TopK, CumSum, Split, Pad and Resize accept all that
    constants determine.
    """

    def __init__(self, model: Model, goes: Callable[[Node], bool]) -> None:
        self._model = model
        self._target = target_of(model)
        self._is_removed = goes
        self._seen: set[Value] = set()

    def why(self, values: Iterable[Value]) -> str:
        """What TensorRT refuses about the current form, as the end of a sentence; "" if nothing is known."""
        values = list(values)
        for value in values:
            for use in value.uses:
                if self._are_axes(value, use.node, use.index):
                    return f": TensorRT requires constant axes for {use.node.op_type}"
        for value in values:
            elem = self._unsupported_type(value)
            if not elem and (elem := self._unsupported_upstream(value)):
                return f": {self._target.title} does not support {name_of(elem)}"
        return ""

    def _are_axes(self, value: Value, node: Node, index: int) -> bool:
        if not (
            index == 1 and node.op_type.startswith("Reduce") and node.is_onnx and self._target.types_measured
        ):
            return False
        source: Value | None = value
        while source is not None and (made := source.producer) is not None and made.is_onnx:
            if made.op_type not in ("Cast", "Identity"):
                break
            source = made.input(0)
        return source is not None and not source.is_constant and self._is_imported(node)

    def _unsupported_upstream(self, value: Value) -> int:
        """An unsupported type that only the removed nodes use; 0 if there is none."""
        stack, unsupported = [value], 0
        while stack:
            node = stack.pop().producer
            if node is None or not self._is_removed(node):
                continue
            for operand in node.inputs:
                if operand is None or operand in self._seen:
                    continue
                self._seen.add(operand)
                stack.append(operand)
                elem = self._unsupported_type(operand)
                if elem and operand.replaceable and all(self._is_removed(use.node) for use in operand.uses):
                    unsupported = unsupported or (elem if self._is_imported(node) else 0)
        return unsupported

    def _unsupported_type(self, value: Value) -> int:
        elem = self._model.shapes.elem_type(value)
        return elem if elem and not self._target.has_type(elem) else 0

    def _is_imported(self, node: Node) -> bool:
        return node in imported_nodes(self._model)
