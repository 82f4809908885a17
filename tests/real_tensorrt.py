"""The mark of tests that ask the real TensorRT-RTX, and how they ask it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

from onnxfix.backends.tensorrt import attempt
from onnxfix.backends.trt_types import TrtBuild
from onnxfix.sandbox import Worker

REAL = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None,
    reason="tensorrt-rtx is not installed: pip install 'onnxfix[tensorrt-rtx]'",
)


def built(worker: Worker, model: ModelProto, folder: Path) -> TrtBuild:
    """What its parser and builder make of a model, which is written into ``folder``."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return attempt(worker, path, package="tensorrt-rtx")
