"""The last step of every transfer: unknown integer elements get names, so that they can be followed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxfix.shapes.ops.base import INTEGERS, Info, elements, small
from onnxfix.shapes.symbols import Dim, constant

NAMED_LIMIT = 16
"""Maximum number of elements of an integer tensor whose unknown elements get names."""


def finished(info: Info, name_element: Callable[[int, int], Dim]) -> Info:
    """``info`` with its shape and value in agreement; ``name_element(flat index, elem)`` makes the missing ones."""
    shape, value, elem = info.shape, info.value, info.elem
    if value is not None and shape is None:
        shape = tuple(constant(size) for size in value.shape)
    sizes = small(shape)
    if sizes is None or elem is None:
        return Info(elem, shape, None, info.fill, info.kind, info.item) if value is not None else info
    if value is not None and value.shape != sizes:
        value = None
    count = int(np.prod(sizes))
    if elem in INTEGERS:
        if value is None and 0 < count <= NAMED_LIMIT:
            value = np.full(sizes, None, dtype=object)
        if value is not None:
            items = [
                name_element(i, elem) if item is None else item for i, item in enumerate(value.reshape(-1))
            ]
            value = elements(items, sizes)
    elif value is not None and all(item is None for item in value.reshape(-1)):
        value = None
    return Info(elem, shape, value, info.fill, info.kind, info.item)
