"""Whether the constant indices of a Scatter name one place twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfix.rule import Model, Node

LIMIT = 1 << 24
"""Bytes of indices that are looked at."""


def distinct(node: Node, model: Model) -> bool | None:
    """Whether the indices of a ScatterND or ScatterElements certainly name different places, or certainly not.

    None where they come at run time, or where that depends on the size of a dynamic axis.
    """
    data, indices = node.input(0), node.input(1)
    array = None if indices is None else indices.constant(LIMIT)
    shape = None if data is None else model.shapes.shape(data)
    if array is None or array.ndim == 0 or shape is None or not shape:
        return None
    if node.op_type == "ScatterND":
        if array.shape[-1] > len(shape):
            return None
        places = [_counted(array[..., i].reshape(-1), shape[i].value) for i in range(array.shape[-1])]
    else:
        axis = node.attr("axis", 0) % len(shape)
        grid = np.meshgrid(*(np.arange(n) for n in array.shape), indexing="ij")
        places = [_counted(array.reshape(-1), shape[axis].value)]
        places += [part.reshape(-1) for i, part in enumerate(grid) if i != axis]
    known = [place for place in places if place is not None]
    if not known or len(known) < len(places):
        return None
    rows = np.stack(known, axis=1)
    return len(np.unique(rows, axis=0)) == len(rows)


def _counted(indices: np.ndarray[Any, Any], size: int | None) -> np.ndarray[Any, Any] | None:
    """Indices counted from the first element; None where that takes a size that is not known."""
    if (indices >= 0).all():
        return indices
    return None if size is None else np.where(indices < 0, indices + size, indices)
