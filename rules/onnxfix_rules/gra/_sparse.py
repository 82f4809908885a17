"""Converts sparse tensors to dense ones, and builds models with sparse tensors, which ONNX text cannot express."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

from onnxfix.files import tensors

LIMIT = 1 << 26
"""Maximum bytes of a dense tensor."""


def dense(sparse: SparseTensorProto, name: str, base_dir: Path | None) -> TensorProto | None:
    """The dense tensor; None if it is invalid, of strings, or larger than ``LIMIT``."""
    values = tensors.to_array(sparse.values, base_dir, LIMIT)
    indices = tensors.to_array(sparse.indices, base_dir, LIMIT)
    shape = tuple(sparse.dims)
    if (
        values is None
        or indices is None
        or values.ndim != 1
        or values.dtype == object
        or min(shape, default=0) < 0
    ):
        return None
    size = math.prod(shape)
    if size * values.dtype.itemsize > LIMIT:
        return None
    if indices.dtype != np.int64 or len(indices) != len(values) or indices.ndim not in (1, 2):
        return None
    if indices.ndim == 2:
        if indices.shape[1] != len(shape) or not ((indices >= 0) & (indices < shape)).all():
            return None
        indices = np.ravel_multi_index(tuple(indices.T), shape) if len(indices) else indices.reshape(-1)
    if not ((indices >= 0) & (indices < size)).all() or len(np.unique(indices)) != len(indices):
        return None
    array = np.zeros(size, values.dtype)
    array[indices] = values
    return numpy_helper.from_array(array.reshape(shape), name)


def _tensor(name: str, shape: list[int], places: list[list[int]] | list[int], kind: int) -> SparseTensorProto:
    """Values 1, 2, … at ``places``."""
    values = helper.make_tensor(name, kind, [len(places)], list(range(1, len(places) + 1)))
    flat = [i for place in places for i in (place if isinstance(place, list) else [place])]
    dims = [len(places), len(flat) // len(places)] if isinstance(places[0], list) else [len(places)]
    return helper.make_sparse_tensor(
        values, helper.make_tensor(f"{name}_at", TensorProto.INT64, dims, flat), shape
    )


def model(
    text: str,
    shape: list[int],
    places: list[list[int]] | list[int],
    *,
    node: bool = False,
    kind: int = TensorProto.FLOAT,
) -> ModelProto:
    """The model of ``text``, in which ``w`` is a sparse initializer or the output of a Constant."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')
    sparse = _tensor("w", shape, places, kind)
    if not node:
        model.graph.sparse_initializer.append(sparse)
        return model
    constant = helper.make_node("Constant", [], ["w"], sparse_value=sparse)
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([constant, *rest])
    return model
