"""Nodes and constants in one form, whatever the opset and the exporter that wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, NodeProto, TensorProto, helper

from onnxfix.errors import ModelError
from onnxfix.files import tensors, walk
from onnxfix.graph.signatures import schema_of

#: Attributes that became inputs in later opsets, by operator: attribute -> the number of the input.
_MOVED: dict[str, dict[str, int]] = {
    "Squeeze": {"axes": 1},
    "Unsqueeze": {"axes": 1},
    "Slice": {"starts": 1, "ends": 2, "axes": 3},
    "Pad": {"pads": 1, "value": 2},
    "Clip": {"min": 1, "max": 2},
    "Split": {"split": 1},
    "TopK": {"k": 1},
    "Dropout": {"ratio": 1},
    "Upsample": {"scales": 1},
    **{
        f"Reduce{name}": {"axes": 1}
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
#: Inputs that say how an operator computes, not what it computes on.
_PARAMETERS: dict[str, frozenset[int]] = {
    **{name: frozenset(moved.values()) for name, moved in _MOVED.items()},
    "Slice": frozenset({1, 2, 3, 4}),
    "Pad": frozenset({1, 2, 3}),
    "Dropout": frozenset({1, 2}),
    "Reshape": frozenset({1}),
    "Expand": frozenset({1}),
    "Tile": frozenset({1}),
    "Resize": frozenset({1, 2, 3}),
    "CumSum": frozenset({1}),
    "Trilu": frozenset({1}),
}
SHAPED = frozenset({"Reshape", "Expand"})
"""Operators whose parameter only says the shape of their output."""
COMMUTATIVE = frozenset(
    {"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean", "BitwiseAnd", "BitwiseOr"}
)
THROUGH = frozenset({"Identity", "Dropout"})
"""Operators whose first output is their first input (Dropout outside of training)."""
#: Attributes that the weights or the input repeat, or that change nothing.
_IDLE = {
    "Conv": frozenset({"kernel_shape"}),
    "ConvTranspose": frozenset({"kernel_shape"}),
    "Reshape": frozenset({"allowzero"}),
    "Dropout": frozenset({"ratio", "seed"}),
    "BatchNormalization": frozenset({"momentum", "spatial"}),
}


@dataclass(frozen=True)
class Role:
    """A node in one form: its operator (with the domain where it is not ONNX's), its attributes without defaults and
    ``fixed`` (those that other opsets have as inputs, by the number of the input), the inputs it computes on
    (``data``, by number) and those that say how (``parameters``, by number)."""

    op: str
    attributes: tuple[tuple[str, Any], ...]
    fixed: tuple[tuple[int, Any], ...]
    data: tuple[tuple[int, str], ...]
    parameters: tuple[tuple[int, str], ...]

    @property
    def commutative(self) -> bool:
        """Whether the order of its inputs does not matter."""
        return self.op in COMMUTATIVE


def role(node: NodeProto, opset: int, reads: tuple[str, ...]) -> Role:
    """The role of a node. ``opset`` is the version of ONNX's operators, ``reads`` are all values that the node and its
    subgraphs read from outside."""
    op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
    numbered = _PARAMETERS.get(op, frozenset())
    inputs = list(enumerate(node.input))
    if walk.subgraphs(node):
        inputs += [(len(inputs), name) for name in reads if name not in node.input]
    data = tuple((number, name) for number, name in inputs if name and number not in numbered)
    parameters = tuple((number, name) for number, name in inputs if name and number in numbered)
    moved, idle, usual = _MOVED.get(op, {}), _IDLE.get(op, ()), _defaults(node.op_type, opset, node.domain)
    attributes, fixed = [], []
    for attribute in node.attribute:
        value = _plain(attribute)
        if attribute.name in idle or usual.get(attribute.name, _NOTHING) == value:
            continue
        if attribute.name in moved:
            fixed.append((moved[attribute.name], value))
        elif not _is_idle(attribute.name, value):
            attributes.append((attribute.name, value))
    return Role(op, tuple(sorted(attributes, key=lambda one: one[0])), tuple(sorted(fixed)), data, parameters)


_NOTHING = object()


def _is_idle(name: str, value: Any) -> bool:
    """Whether a list attribute says what its absence says."""
    if not isinstance(value, tuple) or not value:
        return False
    return (name in ("dilations", "strides") and set(value) == {1}) or (name == "pads" and set(value) == {0})


def _plain(attribute: AttributeProto) -> Any:
    """An attribute's value as plain data that can be compared and hashed."""
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        inner = [node for graph in walk.attribute_graphs(attribute) for node in walk.nodes(graph.node)]
        return tuple(node.op_type for node in inner)
    if attribute.type == AttributeProto.TENSOR:
        return attribute.t.raw_data[:64], tuple(attribute.t.dims), attribute.t.data_type
    try:
        value = helper.get_attribute_value(attribute)
    except ValueError:
        return attribute.SerializeToString(deterministic=True)
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, (list, tuple)) or (
        hasattr(value, "__len__") and not isinstance(value, (str, bytes))
    ):
        return tuple(value)
    return value


@cache
def _defaults(op_type: str, opset: int, domain: str) -> dict[str, Any]:
    """The defaults of an operator's attributes; empty for one that ONNX does not define."""
    schema = schema_of(op_type, opset, walk.domain_of(domain))
    attributes = schema.attributes.items() if schema is not None else ()
    return {name: _plain(one.default_value) for name, one in attributes if one.default_value.name}


_WHOLE = 1 << 12
"""Elements up to which all of a tensor are compared."""
_SIDE = 16
"""Elements along each side of the grid of samples."""
_MARKED = 4
"""Different values from which on a content is something to recognize: a vector of zeros occurs everywhere."""


@dataclass(frozen=True)
class Content:
    """What a constant contains, to recognize a weight in another file. Up to 256 elements on a grid stand for a
    large weight. Floats are compared as float16, so that a copy in half precision has the same keys.
    ``key`` is equal for equal contents, ``turned`` is the key of its transpose (of a
    matrix; else ``key``). ``small`` are the elements of an integer or Boolean tensor of up to 64, or of a float scalar;
    else None. ``marked``: no other tensor is likely to have this key by chance."""

    key: tuple[Any, ...]
    turned: tuple[Any, ...]
    small: tuple[Any, ...] | None
    marked: bool
    size: int


def tensor_content(tensor: TensorProto, folder: str) -> Content | None:
    """The content of a tensor, whose external data is in ``folder``; None where it cannot be read, or numpy has no
    such type."""
    if tensor.data_type == TensorProto.STRING:
        texts = tuple(tensor.string_data)
        key = ("text", tuple(tensor.dims), texts)
        return Content(key, key, None, len(set(texts)) >= _MARKED, len(texts))
    try:
        array = tensors.to_array(tensor, Path(folder) if folder else None, 1 << 40)
    except (ModelError, OSError, ValueError, TypeError, KeyError):
        return None
    return content_of(array) if array is not None else None


def content_of(array: npt.NDArray[Any]) -> Content:
    """The content of an array of numbers or Booleans."""
    dims = tuple(array.shape)
    if array.dtype.kind in "OUS":
        text = ("text", dims, tuple(array.reshape(-1).tolist()))
        return Content(text, text, None, False, array.size)
    if array.size > _WHOLE:
        rows, columns = _matrix(dims)
        # Up to 16 indices along each side, spread evenly.
        sides = [np.linspace(0, count - 1, min(count, _SIDE)).astype(int) for count in (rows, columns)]
        return _sampled_content(array.reshape(rows, columns)[np.ix_(*sides)], dims)
    if array.dtype.kind in "iub" and array.size <= 64:
        small = tuple(int(one) for one in array.reshape(-1))
        key = ("whole", dims if array.size > 1 else (), small)
        return Content(key, key, small, len(set(small)) >= 8, array.size)
    if array.size == 1:
        value = float(np.float32(array.reshape(-1)[0]))
        number = ("number", f"{value:.5g}")
        return Content(number, number, (value,), False, 1)
    return _sampled_content(array.reshape(_matrix(dims)), dims)


def node_content(node: NodeProto, folder: str) -> Content | None:
    """The content of a Constant node; None where it is sparse or of strings."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return tensor_content(attribute.t, folder)
    array = tensors.constant_node_array(node, None, 0)
    return content_of(array) if array is not None and array.dtype != object else None


def _sampled_content(grid: npt.NDArray[Any], dims: tuple[int, ...]) -> Content:
    longer = tuple(dim for dim in dims if dim != 1)
    named = longer if len(longer) <= 1 else dims
    if grid.dtype.kind in "iub":
        rounded: npt.NDArray[Any] = grid.astype(np.int64)
    else:
        with np.errstate(all="ignore"):
            rounded = grid.astype(np.float32).astype(np.float16) + np.float16(0)  # no -0
    key = ("grid", named, rounded.tobytes())
    turned = key
    if len(dims) == 2 and len(longer) == 2:
        turned = ("grid", named[::-1], np.ascontiguousarray(rounded.T).tobytes())
    marked = len(np.unique(rounded)) >= min(_MARKED, max(2, grid.size))
    return Content(key, turned, None, bool(marked), tensors.element_count(dims))


def _matrix(dims: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix, the first dimension apart; a vector is a column."""
    longer = [dim for dim in dims if dim != 1]
    rows = longer[0] if longer else 1
    return rows, tensors.element_count(longer[1:]) if longer else 1
