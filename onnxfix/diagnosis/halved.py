"""A model as a converter to half precision would leave it, for rules that look at types and small constants."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from onnxfix import walk
from onnxfix.files.lazy import with_payload
from onnxfix.files.tensors import is_external, nbytes

_FLOAT, _HALF = TensorProto.FLOAT, TensorProto.FLOAT16
_SMALL = 4096
"""Bytes up to which a constant is converted. A larger one becomes an input: no rule looks at its values."""
_TYPED = ("to", "dtype")
"""Attributes that hold an element type."""


def halved(proto: ModelProto) -> ModelProto:
    """A copy with float16 in place of float32. It is for checking only: large weights become inputs of the graph."""
    model = ModelProto()
    model.CopyFrom(proto)
    for body in walk.bodies(model):
        for graph in [body] if isinstance(body, GraphProto) else []:
            for inner in walk.graphs(graph):
                _convert(inner, inputs=inner is graph)
        for node in walk.nodes(body.node):
            for attribute in node.attribute:
                if (
                    attribute.name in _TYPED
                    and attribute.type == AttributeProto.INT
                    and attribute.i == _FLOAT
                ):
                    attribute.i = _HALF
                elif node.op_type in ("Constant", "ConstantOfShape"):
                    _convert_attribute(attribute)
    return model


def _convert(graph: GraphProto, *, inputs: bool) -> None:
    """Convert a graph's interface and initializers; ``inputs``: large ones may become inputs (not in a branch)."""
    del graph.value_info[:]
    for info in (*graph.input, *graph.output):
        _retype(info)
    kept: list[TensorProto] = []
    named = {info.name for info in graph.input}
    for tensor in graph.initializer:
        if tensor.data_type != _FLOAT:
            kept.append(tensor)
        elif not is_external(tensor) and (nbytes(tensor) <= _SMALL or not inputs):
            kept.append(_in_half(tensor))
        elif tensor.name not in named:
            graph.input.append(helper.make_tensor_value_info(tensor.name, _HALF, list(tensor.dims)))
    copies = [TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(copies)


def _retype(info: ValueInfoProto) -> None:
    kind = info.type.tensor_type
    if info.type.HasField("tensor_type") and kind.elem_type == _FLOAT:
        kind.elem_type = _HALF


def _convert_attribute(attribute: AttributeProto) -> None:
    if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == _FLOAT:
        if nbytes(attribute.t) <= _SMALL and not is_external(attribute.t):
            attribute.t.CopyFrom(_in_half(attribute.t))
    elif attribute.name in ("value_float", "value_floats"):
        stored = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
        shape = [] if attribute.name == "value_float" else [len(stored)]
        tensor = helper.make_tensor("", _FLOAT, shape, stored)
        attribute.CopyFrom(helper.make_attribute("value", _in_half(tensor)))


def _in_half(tensor: TensorProto) -> TensorProto:
    with np.errstate(all="ignore"):
        values = numpy_helper.to_array(with_payload(tensor)).astype(np.float16)
    return numpy_helper.from_array(values, tensor.name)
