"""Copies of constants with leading dimensions of 1, made from the stored tensor without reading its values."""

from __future__ import annotations

from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import lazy, tensors
from onnxfix.rule import CONSTANT_LIMIT, AddInitializer, AddNode, Edit, Model, Value, shared

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
