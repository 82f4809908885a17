"""The specialization step: symbols become numbers and inputs become constants, in one model and nowhere else.

Only declarations and the readers of a fixed input change; folding the rest is for the rules. Weights are not read: the
model keeps their stand-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from onnxfix.files import walk
from onnxfix.graph.overlay import Value
from onnxfix.inputs.specialize import ResolvedSpecialization
from onnxfix.model import Model
from onnxfix.shapes import dimnames
from onnxfix.verbs.contract import find_tensor_type

_IR_WITH_CONSTANTS = 4
"""The IR version since which an initializer need not be a graph input."""


def specialize(proto: ModelProto, special: ResolvedSpecialization, base_dir: Path | None = None) -> None:
    """Apply ``special`` to ``proto``, in place.

    Raises:
        ModelError: the model makes no sense as a graph.
    """
    model = Model(proto, base_dir)
    for info in [*proto.graph.input]:
        if info.name in special.values:
            _fix_input(model, info, special.values[info.name], special.keep)
    inputs = {info.name for info in proto.graph.input}
    for graph in walk.graphs(proto.graph):  # in local functions, names of dimensions are their own
        for info in (*graph.input, *graph.output, *graph.value_info):
            of_main = graph is proto.graph and info.name in inputs
            tensor = find_tensor_type(info.type)
            if tensor is not None:
                _size_dims(tensor, info.name if of_main else "", special.sizes)


def declare_outputs(proto: ModelProto, base_dir: Path | None = None) -> dict[str, tuple[int | None, ...]]:
    """Declare the sizes that follow for open dimensions of the outputs of a specialized model. Returns them by output.

    Declarations of inner values are ignored: tools leave the sizes there that they traced the model with.

    Raises:
        ModelError: the model makes no sense as a graph.
    """
    found: dict[str, tuple[int | None, ...]] = {}
    infos = [info for info in proto.graph.output if any(map(_is_open, info.type.tensor_type.shape.dim))]
    if not infos:
        return found
    declared = [(graph, [*graph.value_info]) for graph in walk.graphs(proto.graph)]
    for graph, _ in declared:
        del graph.value_info[:]
    model = Model(proto, base_dir)
    for info in infos:
        dims, shape = info.type.tensor_type.shape.dim, model.shapes.shape(model.main.values[info.name])
        if shape is None or len(shape) != len(dims):
            continue
        sizes = [one.value if _is_open(dim) else None for dim, one in zip(dims, shape, strict=True)]
        found[info.name] = tuple(size if size is not None and size >= 0 else None for size in sizes)
    for graph, infos_inside in declared:
        graph.value_info.extend(infos_inside)
    for info in infos:
        for dim, size in zip(info.type.tensor_type.shape.dim, found.get(info.name, ()), strict=False):
            if size is not None:
                dim.dim_value = size
    return found


def _is_open(dim: TensorShapeProto.Dimension) -> bool:
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _size_dims(kind: Any, name: str, sizes: Mapping[str, int]) -> None:
    """Put numbers for symbols into a tensor type. ``name`` is the graph input that it belongs to, "" for others:
    only a graph input's unnamed dimensions have names."""
    if not kind.HasField("shape"):
        rank = sizes.get(f"{name}.rank") if name else None
        if rank is None:
            return
        kind.shape.SetInParent()
        for _ in range(rank):
            kind.shape.dim.add()
    for axis, dim in enumerate(kind.shape.dim):
        if dimnames.own(dim.dim_param):
            found = dimnames.replace(dim.dim_param, sizes)
        elif name and (not dim.HasField("dim_value") or dim.dim_value < 0):
            found = sizes.get(f"{name}.{axis}", "")
        else:
            continue
        if isinstance(found, int):
            dim.dim_value = found
        elif found:
            dim.dim_param = found


def _fix_input(model: Model, info: ValueInfoProto, array: np.ndarray[Any, Any], keep: bool) -> None:
    """Make all readers of an input read a constant instead."""
    graph, value = model.proto.graph, model.main.values[info.name]
    apart = keep or value.is_output
    name, number = f"{info.name}_fixed" if apart else info.name, 1
    while apart and name in model.names:
        number += 1
        name = f"{info.name}_fixed_{number}"
    model.names.add(name)
    if info.type.tensor_type.elem_type == TensorProto.STRING:
        texts = [str(text).encode() for text in array.reshape(-1)]
        tensor = TensorProto(name=name, data_type=TensorProto.STRING, dims=array.shape, string_data=texts)
    else:
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
    if not keep:  # else the input keeps them
        tensor.doc_string = info.doc_string
        for entry in getattr(info, "metadata_props", ()):
            if hasattr(tensor, "metadata_props"):
                tensor.metadata_props.add().CopyFrom(entry)
    if keep:
        _redirect(model, value, name)
    else:
        graph.input.remove(info)
        for default in [one for one in graph.initializer if one.name == info.name]:
            graph.initializer.remove(default)
        for sparse in [one for one in graph.sparse_initializer if one.values.name == info.name]:
            graph.sparse_initializer.remove(sparse)
        if apart:
            graph.node.insert(0, helper.make_node("Identity", [name], [info.name]))
    if model.ir_version < _IR_WITH_CONSTANTS:
        attribute = helper.make_attribute("value", tensor)
        graph.node.insert(0, NodeProto(op_type="Constant", output=[name], attribute=[attribute]))
    else:
        graph.initializer.append(tensor)


def _redirect(model: Model, value: Value, name: str) -> None:
    """Make the nodes that read ``value``, and the branches that return it, name another value."""
    for use in value.uses:
        use.node.proto.input[use.index] = name
    for scope in model.main.walk():
        if isinstance(scope.proto, GraphProto) and scope is not model.main:
            for info, result in zip(scope.proto.output, scope.outputs, strict=True):
                if result is value:
                    info.name = name
