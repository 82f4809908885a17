"""Decompose ONNX Runtime's quantized operators into DequantizeLinear, a float operator and QuantizeLinear."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.rule import AddNode, Edit, Fix, Model, Node, RemoveNode, Value, takes
from onnxfix_rules.ops import _bounds

from ._common import WEIGHT_LIMIT, Unable, Workshop

PLAIN = {
    "QGemm": "Gemm",
    "QLinearAdd": "Add",
    "QLinearAveragePool": "AveragePool",
    "QLinearConcat": "Concat",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearMul": "Mul",
    "QLinearSigmoid": "Sigmoid",
    "QLinearSoftmax": "Softmax",
}
"""The float operator."""
_OWN = ("channels_last", "opset")
_BYTES = (TensorProto.INT8, TensorProto.UINT8)


class _Part(NamedTuple):
    """Data with its scale and zero point; data is None for the result."""

    data: Value | None
    scale: Value | None
    zero: Value | None


def _parts(node: Node) -> tuple[list[_Part], _Part]:
    """The quantized inputs and the quantization of the result."""

    def part(start: int, *, result: bool = False) -> _Part:
        if result:
            return _Part(None, node.input(start), node.input(start + 1))
        return _Part(node.input(start), node.input(start + 1), node.input(start + 2))

    if node.op_type == "QLinearConcat":
        return [part(index) for index in range(2, len(node.inputs), 3)], part(0, result=True)
    if node.op_type == "QGemm":
        return [part(0), part(3)], part(7, result=True)
    if node.op_type in ("QLinearAdd", "QLinearMul"):
        return [part(0), part(3)], part(6, result=True)
    return [part(0)], part(3, result=True)


def moved(node: Node, model: Model) -> Fix | None:
    """A Concat of inputs that are quantized like the result; None if they differ."""
    inputs, result = _parts(node)
    output = node.output()
    if node.op_type != "QLinearConcat" or output is None or node.attribute("axis") is None:
        return None
    names = [part.data for part in inputs]
    elems = {None if data is None else model.shapes.elem_type(data) for data in names}
    known = [(_bounds.number(part.scale), _bounds.number(part.zero)) for part in (*inputs, result)]
    if len(set(known)) != 1 or None in known[0] or len(elems) != 1 or not elems <= set(_BYTES):
        return None
    if not takes("Concat", node.scope.opset(), next(iter(elems)) or 0):
        return None
    shop = Workshop()
    shop.edits.append(RemoveNode(node))
    shop.at(node).add("Concat", names, output=output.name, axis=node.attr("axis"))
    return Fix("concatenate the quantized tensors", shop.edits)


def written(node: Node, model: Model) -> list[Edit]:
    """Build DequantizeLinear, the operator, QuantizeLinear.

    Raises:
        Unable: a type, scale or attribute is unknown or unsupported.
    """
    inputs, result = _parts(node)
    output, plain, shop = node.output(), PLAIN[node.op_type], Workshop()
    if output is None or not inputs or node.scope.opset() < 10 or not _plainly(node, model):
        raise Unable
    shop.edits.append(RemoveNode(node))
    draft = shop.at(node)
    elem = model.shapes.elem_type(inputs[0].data) if inputs[0].data is not None else None
    names = [_floats(shop, node, model, part, which) for which, part in enumerate(inputs)]
    if plain == "Gemm" and node.input(6) is not None:
        names.append(_bias(shop, node))
    found = shop.like(node, plain, names, without=_OWN)
    if result.scale is None:
        if plain != "Gemm":
            raise Unable
        for edit in shop.edits:
            if isinstance(edit, AddNode) and edit.proto.output[0] == found:
                edit.proto.output[0] = output.name
        return shop.edits
    ending = _ends(shop, node, model, result, elem)
    draft.add("QuantizeLinear", [found, *ending], output=output.name)
    return shop.edits


def _ends(shop: Workshop, node: Node, model: Model, part: _Part, elem: int | None) -> list[Value | str]:
    """Per-tensor scale and zero point of type ``elem``, as far as present."""
    scale, zero = part.scale, part.zero
    kind = TensorProto.UINT8 if zero is None else model.shapes.elem_type(zero)
    if scale is None or elem not in _BYTES or elem != kind:
        raise Unable
    if model.shapes.elem_type(scale) != TensorProto.FLOAT:
        raise Unable
    return [_single(shop, node, model, value) for value in (scale, zero) if value is not None]


def _plainly(node: Node, model: Model) -> bool:
    """Whether the attributes match those of the float operator."""
    if node.attr("channels_last", 0) != 0:
        return False
    if node.op_type == "QLinearSoftmax":
        axis, data = node.attr("axis", -1), node.input(0)
        rank = None if data is None else model.shapes.rank(data)
        last = axis == -1 or (rank is not None and axis == rank - 1)
        return last or (node.attr("opset", 0) >= 13 and node.scope.opset() >= 13)
    if node.op_type == "QGemm":
        alpha = node.attr("alpha", 1.0)
        return math.isfinite(alpha) and (node.input(6) is not None or node.scope.opset() >= 11)
    return True


def _floats(shop: Workshop, node: Node, model: Model, part: _Part, which: int) -> str:
    """The dequantized data of one input."""
    data, scale, zero = part
    if data is None or scale is None:
        raise Unable
    elem = model.shapes.elem_type(data)
    columns = node.op_type == "QGemm" and which == 1 and model.shapes.rank(scale) == 1
    if not columns or _is_single(model, scale):
        return shop.at(node).add("DequantizeLinear", [data, *_ends(shop, node, model, part, elem)])
    if node.scope.opset() < 13 or zero is None or not model.shapes.same_shape(scale, zero).yes:
        raise Unable
    if elem not in _BYTES or model.shapes.elem_type(scale) != TensorProto.FLOAT:
        raise Unable
    axis = 0 if node.attr("transB", 0) else 1
    return shop.at(node).add("DequantizeLinear", [data, scale, zero], axis=axis)


def _is_single(model: Model, value: Value) -> bool:
    return model.shapes.static_shape(value) in ((), (1,))


def _single(shop: Workshop, node: Node, model: Model, value: Value) -> Value | str:
    """A one-element scale or zero point as a scalar, which DequantizeLinear requires for per-tensor quantization."""
    shape = model.shapes.static_shape(value)
    if shape == ():
        return value
    array = value.constant()
    if shape != (1,) or array is None:
        raise Unable
    return shop.constant(node, array.reshape(()), "scalar")


def _bias(shop: Workshop, node: Node) -> str:
    """The dequantized bias. In ONNX Runtime its scale is the product of the two scales and alpha, around 0."""
    values = [node.input(index) for index in (6, 1, 4)]
    arrays = [None if value is None else value.constant(WEIGHT_LIMIT) for value in values]
    if any(array is None for array in arrays):
        raise Unable
    numbers, first, second = (np.asarray(array, np.float32) for array in arrays)
    if first.size != 1 or (second.size != 1 and numbers.shape[-1:] != second.shape):
        raise Unable
    scales = first.reshape(()) * (second.reshape(()) if second.size == 1 else second)
    return shop.constant(
        node, np.asarray(numbers * scales * np.float32(node.attr("alpha", 1.0)), np.float32), "bias"
    )
