"""Declarations of graph inputs, the only declarations in a file that are trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorShapeProto, TypeProto

from onnxfix.shapes import dimnames
from onnxfix.shapes.ops.base import INTEGERS, UNKNOWN, Info, finished, small
from onnxfix.shapes.symbols import Dim, constant, data_symbol, symbol

if TYPE_CHECKING:
    from onnxfix.graph.overlay import Value
    from onnxfix.shapes.propagate import Pass


def graph_input(run: Pass, value: Value) -> Info:
    """Description of an input of the main graph, by its declaration."""
    declared = value.declared
    if declared is None:
        return UNKNOWN
    info = _info(run, value.name, declared)
    sizes = small(info.shape)
    if sizes is not None and info.elem in INTEGERS and info.kind == "tensor":
        return finished(
            info, lambda i, elem: data_symbol(run.mint_input(f"{value.name}[{i}]"), *INTEGERS[elem])
        )
    return info


def _info(run: Pass, name: str, declared: TypeProto) -> Info:
    kind = declared.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        item = (
            declared.sequence_type.elem_type if kind == "sequence_type" else declared.optional_type.elem_type
        )
        inner = _info(run, f"{name}[]", item)
        if (
            kind == "sequence_type"
            and inner.shape is not None
            and not all(d.value is not None for d in inner.shape)
        ):
            # The dimensions may differ from item to item.
            inner = Info(inner.elem, None, None, None, inner.kind, inner.item)
        return Info(kind=kind.removesuffix("_type"), item=inner)
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return Info(kind="map" if kind == "map_type" else "tensor")
    tensor = declared.tensor_type if kind == "tensor_type" else declared.sparse_tensor_type
    elem = tensor.elem_type or None
    if not tensor.HasField("shape"):
        return Info(elem)
    dims = tuple(_dim(run, name, axis, dim) for axis, dim in enumerate(tensor.shape.dim))
    return Info(elem, dims, kind="tensor" if kind == "tensor_type" else "sparse")


def _dim(run: Pass, name: str, axis: int, dim: TensorShapeProto.Dimension) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value" and dim.dim_value >= 0:
        return constant(dim.dim_value)
    if kind == "dim_param" and dimnames.own(dim.dim_param):
        label = run.claim(str(dim.dim_param), ("dim_param", dim.dim_param))
    else:
        label = run.mint_input(f"{name}.{axis}")
    run.symbols.setdefault(label, (name, axis))
    return symbol(label)
