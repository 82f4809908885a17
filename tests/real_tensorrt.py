"""The mark of tests that ask the real TensorRT-RTX."""

from __future__ import annotations

import importlib.util

import pytest

REAL = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None,
    reason="tensorrt-rtx is not installed: pip install 'onnxfix[tensorrt-rtx]'",
)
