"""Compares attributes, types and constants, and describes them as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, TypeProto, helper

from onnxfix.errors import decoded
from onnxfix.files import tensors, walk
from onnxfix.files.dtypes import name_of
from onnxfix.graph.overlay import Node, Value

MOST = 16
"""Maximum number of elements of a constant or list that are shown as values."""
_NO_LIMIT = 1 << 62
"""A size in bytes that nothing exceeds: contents of any size are compared, one pair at a time."""
_SLICE_ENDS = {2**63 - 1: "end", -(2**63): "start"}


def same_tensor(first: TensorProto, base: Path | None, second: TensorProto, second_base: Path | None) -> bool:
    """Whether two tensors have the same type, shape and bits, wherever they are stored."""
    if first.data_type != second.data_type or list(first.dims) != list(second.dims):
        return False
    if first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True) and (
        base == second_base or not tensors.is_external(first)
    ):
        return True
    left, right = tensors.to_array(first, base, _NO_LIMIT), tensors.to_array(second, second_base, _NO_LIMIT)
    if left is None or right is None:
        return serialize_without(first, "name", "doc_string") == serialize_without(
            second, "name", "doc_string"
        )
    return same_array(left, right)


def same_array(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.hasobject:
        return bool((left == right).all())
    bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (left, right)]
    return bool(np.array_equal(bits[0], bits[1]))


def serialize_without(message: Any, *fields: str) -> bytes:
    """The bytes of a message without some of its fields."""
    copy = walk.copied(message)
    for field in fields:
        copy.ClearField(field)
    return bytes(copy.SerializeToString(deterministic=True))


def tensor_text(tensor: TensorProto, base: Path | None) -> str:
    """Type and values of a small tensor, type and shape of a larger one."""
    if tensors.element_count(tensor.dims) <= MOST:
        array = tensors.to_array(tensor, base, _NO_LIMIT)
        if array is not None:
            return f"{name_of(tensor.data_type)} {array_text(array)}"
    return f"{name_of(tensor.data_type)}[{','.join(map(str, tensor.dims))}]"


def array_text(array: np.ndarray[Any, Any]) -> str:
    """The values of an array."""
    if array.ndim == 0:
        return _number(array.item())
    # Elements of a string array lose its type, so that asarray needs it.
    return f"[{','.join(array_text(np.asarray(part, array.dtype)) for part in array)}]"


def constant_text(value: Value) -> str:
    """The text of a constant, as from ``tensor_text``; "constant" for a sparse one."""
    base = value.scope.model.base_dir
    tensor = tensor_of(value)
    if tensor is not None:
        return tensor_text(tensor, base)
    array = value.constant()
    if array is None or array.size > MOST:
        return "constant" if array is None else f"{array.dtype}[{','.join(map(str, array.shape))}]"
    return f"{array.dtype} {array_text(array)}".replace("object", "string").replace("float32", "float")


def same_constant(first: Value, second: Value) -> bool:
    """Whether two constants have the same type, shape and bits."""
    left, right = tensor_of(first), tensor_of(second)
    if left is not None and right is not None:
        return same_tensor(left, first.scope.model.base_dir, right, second.scope.model.base_dir)
    arrays = first.constant(_NO_LIMIT), second.constant(_NO_LIMIT)
    return arrays[0] is not None and arrays[1] is not None and same_array(arrays[0], arrays[1])


def tensor_of(value: Value) -> TensorProto | None:
    """The tensor that stores a constant; None for a sparse one, and for numbers of a Constant node."""
    if value.initializer is not None:
        return value.initializer
    node = value.producer
    for attribute in node.proto.attribute if node is not None else ():
        if attribute.name == "value" and attribute.HasField("t"):
            return attribute.t
    return None


def same_attribute(first: AttributeProto, second: AttributeProto, nodes: tuple[Node, Node]) -> bool:
    """Whether two attributes of two nodes have the same contents; the insides of graphs are compared elsewhere."""
    if first.type != second.type or first.ref_attr_name != second.ref_attr_name:
        return False
    if first.type == AttributeProto.TENSOR:
        return same_tensor(first.t, nodes[0].model.base_dir, second.t, nodes[1].model.base_dir)
    if first.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return len(first.graphs) == len(second.graphs)
    return serialize_without(first, "doc_string") == serialize_without(second, "doc_string")


def attribute_text(attribute: AttributeProto | None, node: Node) -> str:
    """The text of an attribute's value; "" for a missing attribute."""
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
    items = list(value)
    return (
        f"[{','.join(map(_number, items[:MOST]))}{f',… {len(items)} elements' if len(items) > MOST else ''}]"
    )


_PLAIN = {getattr(AttributeProto, name) for name in ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS")}


def _number(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:.9g}"
    return _SLICE_ENDS.get(value, str(value)) if isinstance(value, int) else str(value)


def type_text(kind: TypeProto) -> str:
    """A declared type, such as ``float[batch,3,224,224]``."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        tensor = kind.tensor_type
        if not tensor.HasField("shape"):
            return f"{name_of(tensor.elem_type)} of any shape"
        dims = (
            dim.dim_param or (str(dim.dim_value) if dim.HasField("dim_value") else "?")
            for dim in tensor.shape.dim
        )
        return f"{name_of(tensor.elem_type)}[{','.join(map(decoded, dims))}]"
    if which in ("sequence_type", "optional_type"):
        inner = getattr(kind, which).elem_type
        return f"{which.removesuffix('_type')}({type_text(inner)})"
    return (which or "untyped").removesuffix("_type")
