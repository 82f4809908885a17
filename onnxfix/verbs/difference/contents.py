"""Attributes, types and constants: whether two are the same, and their text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, TypeProto, helper

from onnxfix.errors import decoded
from onnxfix.files import tensors
from onnxfix.files.dtypes import name_of
from onnxfix.graph.overlay import Node, Value

MOST = 16
"""Elements of a constant, and of a list, that are shown with their values."""
_WHOLE = 1 << 62
"""No limit, in bytes: contents are compared however large they are, one pair at a time."""
_ENDS = {2**63 - 1: "end", -(2**63): "start"}


def same_tensor(one: TensorProto, base: Path | None, other: TensorProto, other_base: Path | None) -> bool:
    """Whether two tensors have the same type, shape and bits, wherever they are stored."""
    if one.data_type != other.data_type or list(one.dims) != list(other.dims):
        return False
    if one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True) and (
        base == other_base or not tensors.is_external(one)
    ):
        return True
    left, right = tensors.to_array(one, base, _WHOLE), tensors.to_array(other, other_base, _WHOLE)
    if left is None or right is None:
        return serialize_without(one, "name", "doc_string") == serialize_without(other, "name", "doc_string")
    return same_array(left, right)


def same_array(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.hasobject:
        return bool((left == right).all())
    bits = [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (left, right)]
    return bool(np.array_equal(bits[0], bits[1]))


def serialize_without(message: Any, *fields: str) -> bytes:
    """The bytes of a message without some of its fields."""
    copy = type(message)()
    copy.CopyFrom(message)
    for field in fields:
        copy.ClearField(field)
    return bytes(copy.SerializeToString(deterministic=True))


def tensor_text(tensor: TensorProto, base: Path | None) -> str:
    """Type and values of a small tensor, type and shape of a larger one."""
    if tensors.element_count(tensor.dims) <= MOST:
        array = tensors.to_array(tensor, base, _WHOLE)
        if array is not None:
            return f"{name_of(tensor.data_type)} {array_text(array)}"
    return f"{name_of(tensor.data_type)}[{','.join(map(str, tensor.dims))}]"


def array_text(array: np.ndarray[Any, Any]) -> str:
    """The values of an array."""
    if array.ndim == 0:
        return _number(array.item())
    # The parts of a list of texts are texts.
    return f"[{','.join(array_text(np.asarray(part, array.dtype)) for part in array)}]"


def constant_text(value: Value) -> str:
    """A value that is constant: as ``tensor_text``, or "constant" where it is sparse."""
    base = value.scope.model.base_dir
    tensor = tensor_of(value)
    if tensor is not None:
        return tensor_text(tensor, base)
    array = value.constant()
    if array is None or array.size > MOST:
        return "constant" if array is None else f"{array.dtype}[{','.join(map(str, array.shape))}]"
    return f"{array.dtype} {array_text(array)}".replace("object", "string").replace("float32", "float")


def same_constant(one: Value, other: Value) -> bool:
    """Whether two constants have the same type, shape and bits."""
    left, right = tensor_of(one), tensor_of(other)
    if left is not None and right is not None:
        return same_tensor(left, one.scope.model.base_dir, right, other.scope.model.base_dir)
    arrays = one.constant(_WHOLE), other.constant(_WHOLE)
    return arrays[0] is not None and arrays[1] is not None and same_array(arrays[0], arrays[1])


def tensor_of(value: Value) -> TensorProto | None:
    """The tensor that a constant is stored as; None for a sparse one, and for the numbers of a Constant node."""
    if value.initializer is not None:
        return value.initializer
    node = value.producer
    for attribute in node.proto.attribute if node is not None else ():
        if attribute.name == "value" and attribute.HasField("t"):
            return attribute.t
    return None


def same_attribute(one: AttributeProto, other: AttributeProto, nodes: tuple[Node, Node]) -> bool:
    """Whether two attributes of two nodes have the same contents; the insides of graphs are compared elsewhere."""
    if one.type != other.type or one.ref_attr_name != other.ref_attr_name:
        return False
    if one.type == AttributeProto.TENSOR:
        return same_tensor(one.t, nodes[0].model.base_dir, other.t, nodes[1].model.base_dir)
    if one.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return len(one.graphs) == len(other.graphs)
    return serialize_without(one, "doc_string") == serialize_without(other, "doc_string")


def attribute_text(attribute: AttributeProto | None, node: Node) -> str:
    """An attribute's value; "" for one that is not there."""
    if attribute is None:
        return ""
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if attribute.type == AttributeProto.TENSOR:
        return tensor_text(attribute.t, node.model.base_dir)
    if attribute.type == AttributeProto.GRAPH:
        return f"graph of {len(attribute.g.node)} nodes"
    if attribute.type not in _PLAIN:
        return AttributeProto.AttributeType.Name(attribute.type).lower().replace("_", " ")
    value = helper.get_attribute_value(attribute)
    if attribute.name in ("to", "dtype") and isinstance(value, int):
        return name_of(value)
    if isinstance(value, (int, float, bytes, str)):
        return _number(value)
    some = list(value)
    return f"[{','.join(map(_number, some[:MOST]))}{f',… {len(some)} elements' if len(some) > MOST else ''}]"


_PLAIN = {getattr(AttributeProto, name) for name in ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS")}


def _number(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:.9g}"
    return _ENDS.get(value, str(value)) if isinstance(value, int) else str(value)


def type_text(kind: TypeProto) -> str:
    """A declared type, such as ``float[batch,3,224,224]``."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        tensor = kind.tensor_type
        if not tensor.HasField("shape"):
            return f"{name_of(tensor.elem_type)} of any shape"
        dims = (
            one.dim_param or (str(one.dim_value) if one.HasField("dim_value") else "?")
            for one in tensor.shape.dim
        )
        return f"{name_of(tensor.elem_type)}[{','.join(map(decoded, dims))}]"
    if which in ("sequence_type", "optional_type"):
        inner = getattr(kind, which).elem_type
        return f"{which.removesuffix('_type')}({type_text(inner)})"
    return (which or "untyped").removesuffix("_type")
