"""Operators that create tensors from attributes: constants, fills, random numbers, windows."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxfix.files import lazy
from onnxfix.shapes.ops.base import (
    FLOATS,
    INTEGERS,
    Call,
    Elements,
    Info,
    Shape,
    elements,
    from_array,
    small,
    transfer,
)
from onnxfix.shapes.symbols import as_dim, constant


@transfer("ConstantOfShape")
def _constant_of_shape(call: Call) -> Info:
    tensor = call.attr("value")
    elem: int = TensorProto.FLOAT
    fill: float | None = 0.0
    if isinstance(tensor, TensorProto):
        elem, fill = tensor.data_type, None
        if elem in INTEGERS or elem in FLOATS:
            array = numpy_helper.to_array(lazy.with_payload(tensor))
            fill = array.reshape(-1)[0].item() if array.size == 1 else None
    target = call.ints(0)
    if target is None:
        rank = call.length(0)
        return Info(elem, None if rank is None else call.fresh_shape(0, rank), None, fill)
    return Info(elem, tuple(target), filled(tuple(target), elem, fill), fill)


def filled(shape: Shape, elem: int, fill: Any) -> Elements | None:
    """A small tensor that holds ``fill`` everywhere."""
    sizes = small(shape)
    if sizes is None or fill is None or not (elem in INTEGERS or elem in FLOATS):
        return None
    item = constant(int(fill)) if elem in INTEGERS else float(fill)
    return elements([item] * int(np.prod(sizes)), sizes)


@transfer("Constant")
def _constant_node(call: Call) -> Info:
    """A Constant inside a function call, whose attributes may come from the caller."""
    for name, elem in (("value_int", TensorProto.INT64), ("value_float", TensorProto.FLOAT)):
        scalar = call.attr(name)
        if scalar is not None:
            return Info(elem, (), from_array(np.array(scalar), elem))
    for name, elem in (("value_ints", TensorProto.INT64), ("value_floats", TensorProto.FLOAT)):
        items = call.attr(name)
        if items is not None:
            value = from_array(np.array(items), elem) if len(items) <= 64 else None
            return Info(elem, (constant(len(items)),), value)
    if call.attr("value_string") is not None:
        return Info(TensorProto.STRING, ())
    if call.attr("value_strings") is not None:
        return Info(TensorProto.STRING, (constant(len(call.attr("value_strings"))),))
    tensor = call.attr("value")
    if isinstance(tensor, TensorProto):
        return tensor_info(tensor)
    sparse = call.attr("sparse_value")
    if sparse is not None:
        return Info(sparse.values.data_type, tuple(constant(d) for d in sparse.dims))
    return Info()


def tensor_info(tensor: TensorProto) -> Info:
    """Type, dimensions and, for a small embedded tensor, the value."""
    shape = tuple(constant(d) for d in tensor.dims)
    elem = tensor.data_type
    value = None
    followed = elem in INTEGERS or elem in FLOATS
    if followed and tensor.data_location != TensorProto.EXTERNAL and small(shape) is not None:
        try:
            value = from_array(numpy_helper.to_array(lazy.with_payload(tensor)), elem)
        except (ValueError, TypeError):
            value = None  # its bytes do not match its dimensions: the checker reports it
    return Info(elem, shape, value)


@transfer("EyeLike", "Bernoulli", "RandomNormalLike", "RandomUniformLike")
def _like(call: Call) -> Info:
    data = call.info(0)
    return Info(call.attr("dtype", data.elem), data.shape)


@transfer("RandomNormal", "RandomUniform")
def _random(call: Call) -> Info:
    return Info(call.attr("dtype", TensorProto.FLOAT), tuple(constant(d) for d in call.attr("shape", [])))


@transfer("BlackmanWindow", "HammingWindow", "HannWindow")
def _window(call: Call) -> Info:
    size = call.ints(0)
    return Info(
        call.attr("output_datatype", TensorProto.FLOAT), (as_dim(size[0]) if size else call.fresh(0, 0),)
    )
