"""Shape changes for which ONNX Runtime, which verifies fixes, selects other kernels.

All fixes of this family are exact by ONNX's rules. However, ONNX Runtime 1.31's CPU provider selects a kernel by how
the operands' ranks and dimensions of 1 line up, and for some operators the kernels differ in bits:

- ``Pow`` cubes by multiplication if the exponent is one element, and calls ``pow`` otherwise;
- ``Where`` turns -0.0 into 0.0 in some of them, and ``Min`` and ``Max`` return either zero of a tie;
- half precision is computed in float, and the rounding between two adjacent nodes is omitted unless a node that only
  moves data separates them.
"""

from __future__ import annotations

from onnx import TensorProto

from onnxfix.rule import INTEGERS, Model, Safety
from onnxfix.shapes.symbols import is_one

from ._common import Broadcast, Shape

ZERO_SENSITIVE = ("Min", "Max", "Where")
HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

Flags = tuple[bool, ...]
"""For each dimension, whether it is known not to be 1."""


def safety_of_alignment(broadcast: Broadcast, model: Model) -> Safety:
    """Safety of storing a constant with leading dimensions of 1: EXACT if the kernels are the same or agree."""
    return Safety.EXACT if not _is_sensitive(broadcast, model) or _is_settled(broadcast) else Safety.NUMERIC


def safety_of_movement(broadcast: Broadcast, model: Model) -> Safety:
    """Safety of a node that adds leading dimensions to an operand."""
    return max(safety_of_alignment(broadcast, model), _safety_of_halves(broadcast, model))


def safety_of_repetition(broadcast: Broadcast, model: Model) -> Safety:
    """Safety of a node that repeats an operand: the kernel always changes."""
    return Safety.NUMERIC if _is_sensitive(broadcast, model) else _safety_of_halves(broadcast, model)


def _elem_types(broadcast: Broadcast, model: Model) -> list[int | None]:
    return [model.shapes.elem_type(side.value) for side in broadcast.operands if side.value is not None]


def _safety_of_halves(broadcast: Broadcast, model: Model) -> Safety:
    known = _elem_types(broadcast, model)
    return Safety.NUMERIC if None in known or any(elem in HALVES for elem in known) else Safety.EXACT


def _is_sensitive(broadcast: Broadcast, model: Model) -> bool:
    op_type = broadcast.node.op_type
    if op_type not in ZERO_SENSITIVE:
        return op_type == "Pow"
    return not all(elem in INTEGERS or elem == TensorProto.STRING for elem in _elem_types(broadcast, model))


def _is_settled(broadcast: Broadcast) -> bool:
    """Whether leading ones do not change the selection of kernels.

    The kernel depends on the last axis, among those of both sides, at which the larger size is not 1. Leading ones
    add such axes, which matters only if there were none before.
    """
    sides = [_flags(operand.shape) for operand in broadcast.operands]
    if (
        broadcast.node.op_type == "Where"
    ):  # ONNX Runtime selects from each value by the condition, then merges
        condition, first, second = sides
        pairs = [
            (condition, first),
            (condition, second),
            (_union(condition, first), _union(condition, second)),
        ]
    else:
        pairs, so_far = [], sides[0]
        for side in sides[1:]:
            pairs.append((so_far, side))
            so_far = _union(so_far, side)
    return all(len(a) == len(b) or _has_larger_axis(a, b) for a, b in pairs)


def _flags(shape: Shape) -> Flags:
    return tuple(is_one(dim).no for dim in shape)


def _union(a: Flags, b: Flags) -> Flags:
    rank = max(len(a), len(b))
    padded = [(False,) * (rank - len(flags)) + flags for flags in (a, b)]
    return tuple(one or other for one, other in zip(*padded, strict=True))


def _has_larger_axis(a: Flags, b: Flags) -> bool:
    common = max(1, min(len(a), len(b)))  # a scalar is compared with the last axis
    return any(_union(a, b)[-common:])
