"""Broadcasts that a fix writes out: slopes of PRelu, exactness, and nodes cloned for their readers."""

from __future__ import annotations

from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import lazy, tensors
from onnxfix.rule import (
    CONSTANT_LIMIT,
    INTEGERS,
    AddInitializer,
    AddNode,
    Edit,
    Model,
    Node,
    Safety,
    Value,
    equal,
    shared,
)
from onnxfix.shapes.symbols import as_dim, is_one

from ._common import Broadcast, Shape


def shapes_of(node: Node, model: Model) -> tuple[Shape, Shape] | None:
    """Shapes of data and slope of a PRelu of opset 7 or later; None if one is unknown."""
    if node.op_type != "PRelu" or not node.is_onnx or node.opset < 7:
        return None
    data, slope = node.input(0), node.input(1)
    if data is None or slope is None:
        return None
    shape, other = model.shapes.shape(data), model.shapes.shape(slope)
    return None if shape is None or other is None else (shape, other)


def cannot_fit(node: Node, model: Model) -> bool:
    """Whether the slope certainly does not broadcast to the data, which must not be repeated."""
    found = shapes_of(node, model)
    if found is None:
        return False
    data, slope = found
    if len(slope) > len(data):
        return True
    pairs = zip(data[len(data) - len(slope) :], slope, strict=True)
    return any(equal(size, wanted).no and equal(as_dim(1), wanted).no for size, wanted in pairs)


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
    # ONNX Runtime selects from each value by the condition, then merges.
    if broadcast.node.op_type == "Where":
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


EMBEDDED_LIMIT = 1 << 26
"""Maximum bytes of an embedded tensor: a fix keeps a copy of it until it is applied."""


def stored(value: Value) -> TensorProto | None:
    """The constant's tensor as stored in the file; None for sparse ones and those not stored as a tensor."""
    if not value.is_constant or value.sparse:
        return None
    if value.initializer is not None:
        return value.initializer
    assert value.producer is not None
    for attribute in value.producer.proto.attribute:
        if attribute.name == "value" and attribute.type == AttributeProto.TENSOR:
            tensor: TensorProto = attribute.t
            return tensor
    array = value.constant()
    return numpy_helper.from_array(array) if array is not None else None


def _may_be_cloned(value: Value, tensor: TensorProto) -> bool:
    """Whether a copy is small enough, in the file (if others read the original) and in the fix.

    External data costs nothing: both tensors refer to the same bytes.
    """
    if tensors.is_external(tensor):
        return True
    size = tensors.nbytes(tensor)
    return size <= CONSTANT_LIMIT or (size <= EMBEDDED_LIMIT and value.use_count == 1 and value.replaceable)


def with_rank(value: Value, tensor: TensorProto, rank: int) -> tuple[str, list[Edit]] | None:
    """Name of ``value`` padded to ``rank`` by leading ones, and the edits that define it (none if it exists).

    None if the constant is too large to be copied.

    The name follows from the constant and the rank, so fixes of nodes that share a constant share its clone. It is
    defined in the scope of the original, where all readers of the original can read it.
    """
    known = shared(value.scope.model, _clones)  # one constant may have thousands of readers
    if (value, rank) not in known:
        known[value, rank] = _with_rank(value, tensor, rank) if _may_be_cloned(value, tensor) else None
    return known[value, rank]


def _clones(model: Model) -> dict[tuple[Value, int], tuple[str, list[Edit]] | None]:
    return {}


def _with_rank(value: Value, tensor: TensorProto, rank: int) -> tuple[str, list[Edit]]:
    clone = TensorProto()
    clone.CopyFrom(tensor)
    del clone.dims[:]
    clone.dims.extend([1] * (rank - len(tensor.dims)) + list(tensor.dims))
    names = value.scope.model.names
    base, number = f"{value.name}_rank{rank}", 1
    clone.name = base
    while clone.name in names:
        present = value.scope.values.get(clone.name)
        if present is not None and _is_same(present, clone):
            return clone.name, []
        number += 1
        clone.name = f"{base}_{number}"
    return clone.name, [_definition(value, clone)]


def _is_same(present: Value, wanted: TensorProto) -> bool:
    if not present.is_constant:
        return False
    tensor = stored(present)
    return tensor is not None and tensor.dims == wanted.dims and lazy.same(tensor, wanted)


def _definition(value: Value, clone: TensorProto) -> Edit:
    """An initializer for an initializer, a Constant for a Constant.

    So functions, which have no initializers, and IR version 3, where an initializer must be a graph input, are
    handled without a special case.
    """
    scope = value.scope
    if value.producer is None:
        return AddInitializer(scope, clone)
    node = NodeProto(
        op_type="Constant", output=[clone.name], attribute=[helper.make_attribute("value", clone)]
    )
    return AddNode(scope, node, value.producer)
