"""Fixes for a decomposed norm: one operator, or the same nodes in float32."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Dim, Draft, Fix, Model, Node, Safety, Value, target_of

from ._common import NUMPY, rank_of, type_of
from ._norm import Mean, Norm, same_dims, trailing

MOST_ONES = 1 << 16
"""Most elements of a scale of ones that a fix may add."""


Operand = Value | np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Tail:
    """The scale and bias after a norm, if they have the normalized shape, and the last node."""

    scale: Operand | None
    bias: Operand | None
    last: Node


def as_operator(norm: Norm, model: Model) -> Fix | None:
    """LayerNormalization or RMSNormalization, if the opset and the target support it; else None."""
    op_type, since = ("RMSNormalization", 23) if norm.mean is None else ("LayerNormalization", 17)
    elem = type_of(norm.x, model)
    count, shape = trailing(norm, model), model.shapes.shape(norm.x)
    if norm.last.opset < since or elem is None or target_of(model).accepts(op_type, elem) is not True:
        return None
    epsilon = float(np.float32(norm.epsilon))
    if (
        epsilon <= 0
        or count is None
        or shape is None
        or count > len(shape)
        or type_of(norm.result, model) != elem
    ):
        return None
    dims = shape[len(shape) - count :]
    tail = _tail(norm, dims, elem, model)
    draft = Draft(tail.last)
    if tail.scale is None:
        sizes = [dim.value for dim in dims if dim.value is not None]
        if len(sizes) != count or np.prod(sizes, dtype=object) > MOST_ONES:
            return None
        tail = replace(tail, scale=np.ones(sizes, NUMPY[elem]))
    given = ((tail.scale, "scale"), (tail.bias, "bias"))
    more = [draft.constant(one, hint) if isinstance(one, np.ndarray) else one for one, hint in given]
    inputs = [norm.x, *(one for one in more if one is not None)]
    output = tail.last.output()
    assert output is not None
    draft.remove(tail.last)
    draft.add(op_type, inputs, output=output.name, axis=-count, epsilon=epsilon)
    return Fix(f"replace by {op_type}, which computes in float32", draft.edits, Safety.NUMERIC)


def _tail(norm: Norm, dims: tuple[Dim, ...], elem: int, model: Model) -> _Tail:
    scale = _operand(norm.last, "Mul", dims, elem, model)
    last = norm.last if scale is None else scale[0]
    bias = None if norm.mean is None else _operand(last, "Add", dims, elem, model)
    return _Tail(scale and scale[1], bias and bias[1], last if bias is None else bias[0])


def _operand(
    node: Node, op_type: str, dims: tuple[Dim, ...], elem: int, model: Model
) -> tuple[Node, Operand] | None:
    """The ``op_type`` that is the only reader of ``node``'s result, and its other operand of this shape and type.

    A constant may have additional leading dimensions of 1, up to the rank of the norm's result.
    """
    value = node.output()
    if value is None or value.use_count != 1 or not value.replaceable:
        return None
    use = value.uses[0]
    other = use.node.input(1 - use.index) if use.node.op_type == op_type else None
    if other is None or not use.node.is_onnx or use.node.scope is not node.scope:
        return None
    if type_of(other, model) != elem or use.node.output() is None:
        return None
    if same_dims(other, dims, model):
        return use.node, other
    shape = model.shapes.static_shape(other) if other.is_constant else None
    if shape is None or len(shape) > rank_of(value, model) or set(shape[: len(shape) - len(dims)]) != {1}:
        return None
    sizes = shape[len(shape) - len(dims) :]
    array = other.constant(MOST_ONES) if [dim.value for dim in dims] == list(sizes) else None
    return None if array is None else (use.node, array.reshape(sizes))


def upcast(norm: Norm, model: Model) -> Fix:
    """The same nodes in float32 (in double where the model computes some of them so), between two Casts."""
    draft = Draft(norm.last)
    work = norm.work
    data = draft.add("Cast", [norm.x], hint="wide", to=work)
    if norm.mean is not None:
        mean = _again(draft, norm.mean, data)
        data = draft.add("Sub", [data, mean])
    average = _again(draft, norm.average, draft.add("Mul", [data, data], hint="square"))
    # Of the original's rank: a rank of its own would be kept.
    shape = () if (array := norm.epsilon_value.constant()) is None else array.shape
    epsilon = draft.constant(np.full(shape, norm.epsilon, NUMPY[work]), "epsilon")
    root = draft.add("Sqrt", [draft.add("Add", [average, epsilon])])
    final = type_of(norm.result, model)
    draft.remove(norm.last)
    if final == work:
        draft.add("Div", [data, root], output=norm.result.name)
    else:
        draft.add("Cast", [draft.add("Div", [data, root])], output=norm.result.name, to=final)
    return Fix(f"compute in {_NAMES[work]} between Casts", draft.edits, Safety.NUMERIC)


_NAMES = {
    int(TensorProto.FLOAT): "float32",
    int(TensorProto.DOUBLE): "double, which TensorRT takes as float32",
}


def _again(draft: Draft, mean: Mean, data: str) -> str:
    """The same mean of ``data``, as one ReduceMean."""
    node = mean.node
    if node.op_type == "ReduceMean" and node.attr("keepdims", 1):
        attributes: dict[str, Any] = {a.name: node.attr(a.name) for a in node.proto.attribute}
        return draft.add(node.op_type, [data, *node.inputs[1:]], **attributes)
    if mean.axes is None:
        return draft.add("ReduceMean", [data])
    if node.opset < 18:
        return draft.add("ReduceMean", [data], axes=list(mean.axes))
    return draft.add("ReduceMean", [data, draft.constant(np.array(mean.axes, np.int64), "axes")])
