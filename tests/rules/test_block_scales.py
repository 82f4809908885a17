"""Scales of blocks, spread over the elements that they belong to."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import cast

import numpy as np

from onnxfix_rules.qdq._read import Linear, spread


def blocks(axis: int, block: int) -> Linear:
    return cast(Linear, SimpleNamespace(kind="block", axis=axis, block=block))


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
