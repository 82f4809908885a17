"""Whether the constant indices of a Scatter contain duplicates."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfix.rule import Model, Node

LIMIT = 1 << 24
"""Size of the largest indices that are checked, in bytes."""


def are_distinct(node: Node, model: Model) -> bool | None:
    """Whether the indices of a ScatterND or ScatterElements are certainly distinct, or certainly not.

    None if they are not constant, or if it depends on the size of a dynamic axis.
    """
    data, indices = node.input(0), node.input(1)
    array = None if indices is None else indices.constant(LIMIT)
    shape = None if data is None else model.shapes.shape(data)
    if array is None or array.ndim == 0 or shape is None or not shape:
        return None
    if node.op_type == "ScatterND":
        if array.shape[-1] > len(shape):
            return None
        columns = [_nonnegative(array[..., i].reshape(-1), shape[i].value) for i in range(array.shape[-1])]
    else:
        axis = node.attr("axis", 0) % len(shape)
        grid = np.meshgrid(*(np.arange(n) for n in array.shape), indexing="ij")
        columns = [_nonnegative(array.reshape(-1), shape[axis].value)]
        columns += [part.reshape(-1) for i, part in enumerate(grid) if i != axis]
    known = [column for column in columns if column is not None]
    if not known or len(known) < len(columns):
        return None
    rows = np.stack(known, axis=1)
    return len(np.unique(rows, axis=0)) == len(rows)


def _nonnegative(indices: np.ndarray[Any, Any], size: int | None) -> np.ndarray[Any, Any] | None:
    """Nonnegative indices; None if there are negative ones and the size is unknown."""
    if (indices >= 0).all():
        return indices
    return None if size is None else np.where(indices < 0, indices + size, indices)
