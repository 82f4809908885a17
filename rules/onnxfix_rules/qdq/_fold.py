"""Apply nodes that only move elements to a constant."""

from __future__ import annotations

import numpy as np

from onnxfix.rule import Node, is_small

from ._common import Array


def moved_constant(node: Node, array: Array) -> Array | None:
    """The result of a node for a constant; None if it depends on runtime data or the operator is not covered."""
    operand = node.input(1)
    given = None if operand is None else operand.constant()
    if operand is not None and given is None:
        return None
    numbers = None if given is None else [int(number) for number in given.reshape(-1)]
    if node.op_type == "Identity":
        return array
    if node.op_type == "Transpose":
        perm = node.attr("perm")
        if perm and sorted(perm) != list(range(array.ndim)):
            return None
        return array.transpose(perm) if perm else array.transpose()
    if node.op_type == "Flatten":
        axis = int(node.attr("axis", 1))
        if not -array.ndim <= axis <= array.ndim:
            return None
        axis += array.ndim if axis < 0 else 0
        first = int(np.prod(array.shape[:axis], dtype=np.int64))
        return array.reshape(first, int(np.prod(array.shape[axis:], dtype=np.int64)))
    if node.op_type == "Reshape":
        numbers = numbers if numbers is not None else node.attr("shape")
        return _reshaped(array, numbers, bool(node.attr("allowzero", 0)))
    if node.op_type in ("Squeeze", "Unsqueeze"):
        return _ones(node.op_type, array, numbers if numbers is not None else node.attr("axes"))
    return None


def _reshaped(array: Array, shape: list[int] | None, allowzero: bool) -> Array | None:
    if shape is None or not array.size or not is_small(*[1] * len(shape)):
        return None  # with empty tensors 0 and -1 are ambiguous
    if any(size == 0 and (allowzero or axis >= array.ndim) for axis, size in enumerate(shape)):
        return None
    wanted = [array.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    rest = int(np.prod([size for size in wanted if size != -1], dtype=np.int64))
    if wanted.count(-1) > 1 or min(wanted, default=1) < -1 or array.size % rest:
        return None
    return array.reshape(wanted) if -1 in wanted or rest == array.size else None


def _ones(op_type: str, array: Array, axes: list[int] | None) -> Array | None:
    if not axes:
        return None  # Squeeze of all axes, or of none: RSH009
    rank = array.ndim + (len(axes) if op_type == "Unsqueeze" else 0)
    places = {axis % rank for axis in axes}
    if any(not -rank <= axis < rank for axis in axes) or len(places) < len(axes) or not is_small(*[1] * rank):
        return None
    if op_type == "Unsqueeze":
        found: Array = np.expand_dims(array, tuple(sorted(places)))
        return found
    if any(array.shape[axis] != 1 for axis in places):
        return None
    return array.reshape([size for axis, size in enumerate(array.shape) if axis not in places])
