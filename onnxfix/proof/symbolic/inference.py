"""Types and shapes of tensors, as ONNX infers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, helper, shape_inference

from onnxfix.proof.symbolic.tensor import T

Shapes = Mapping[str, tuple[Any, ...]]
"""The shape of each input, of one that is a sequence those of its tensors."""
_READ = 64
"""Elements of an initializer that may decide shapes."""


class Kind(NamedTuple):
    """An element type and a shape."""

    dtype: int
    shape: tuple[int, ...]


def infer(model: ModelProto, shapes: Shapes) -> dict[str, Kind]:
    """Type and shape of each tensor of the main graph that ONNX's shape inference finds for the inputs' shapes.
    Weights are not read; types that the model declares are not believed."""
    skeleton = ModelProto(ir_version=model.ir_version)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = "shapes"
    graph.node.extend(model.graph.node)
    for one in model.graph.input:
        if not one.type.HasField("tensor_type"):
            graph.input.append(one)
        elif one.name in shapes:
            graph.input.append(
                helper.make_tensor_value_info(one.name, one.type.tensor_type.elem_type, shapes[one.name])
            )
    for tensor in model.graph.initializer:
        if int(np.prod(tensor.dims, dtype=np.int64)) <= _READ:
            graph.initializer.append(tensor)
        else:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    graph.output.extend(helper.make_empty_tensor_value_info(one.name) for one in model.graph.output)
    try:
        inferred = shape_inference.infer_shapes(skeleton, data_prop=True).graph
    except Exception:  # it raises what it likes
        return {}
    kinds: dict[str, Kind] = {}
    for one in (*inferred.value_info, *inferred.output):
        kind = one.type.tensor_type
        sizes = [size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim]
        if kind.elem_type and kind.HasField("shape") and -1 not in sizes and kind.elem_type != T.STRING:
            kinds[one.name] = Kind(kind.elem_type, tuple(sizes))
    return kinds


def with_types(model: ModelProto) -> ModelProto:
    """The model with the type of each tensor that is known, also of initializers, which the inliner asks for."""
    typed = shape_inference.infer_shapes(model)
    typed.graph.value_info.extend(
        helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in model.graph.initializer
    )
    return typed
