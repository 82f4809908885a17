"""Scales of blocks, spread over the elements that they belong to."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from onnxfix_rules.qdq._common import Linear, spread


def blocks(axis: int, block: int) -> Linear:
    return cast(Linear, SimpleNamespace(kind="block", axis=axis, block=block))


@pytest.mark.parametrize(
    ("dims", "axis", "block"),
    [([6], 0, 2), ([5], 0, 2), ([3, 7], -1, 4), ([7, 3], 0, 3), ([2, 5, 2], 1, 9), ([4, 0], 1, 2)],
)
def test_each_element_gets_the_scale_of_its_block(dims: list[int], axis: int, block: int) -> None:
    shape = [*dims]
    shape[axis] = -(-dims[axis] // block)
    scales = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = np.take(scales, np.arange(dims[axis]) // block, axis)
    found = spread(scales, blocks(axis, block), len(dims), dims)
    assert found is not None
    assert np.array_equal(found, expected)


def test_spreading_takes_no_more_memory_than_its_result() -> None:
    """Models that nobody has vetted may have many scales: indices for each element would be eight times as large."""
    scales = np.zeros(1 << 16, np.int8)
    tracemalloc.start()
    try:
        found = spread(scales, blocks(0, 2), 1, [1 << 17])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None
    assert peak < 2 * found.nbytes
