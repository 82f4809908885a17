"""Models lifted by the real TensorRT-RTX and run beside the original, for the tests of ``tensorrt/lift``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxfix.runtime import backends
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt import lift
from onnxfix.tensorrt.lift import Lifted
from support.models import of_opset, write

Feed = dict[str, Any]


text = of_opset(21)


def lifted(worker: Worker, model: ModelProto, folder: Path) -> Lifted:
    """What TensorRT-RTX reads of a model, which is written into ``folder``."""
    path = write(folder / "model.onnx", model)
    return lift.attempt(worker, path, folder / "lifted.onnx", package="tensorrt-rtx")


def both(worker: Worker, model: ModelProto, folder: Path, feed: Feed) -> tuple[list[Any], list[Any]]:
    """What ONNX Runtime computes of a model and of TensorRT's reading of it."""
    found = lifted(worker, model, folder)
    assert found.lifted, found.reason
    onnx.checker.check_model(found.path, full_check=False)
    return run(folder / "model.onnx", feed), run(Path(found.path), feed)


def run(path: Path, feed: Feed, backend: str = "ort-cpu") -> list[Any]:
    """Outputs of a model file."""
    return backends.load(backend, str(path)).run(feed)


def feed_of(model: ModelProto) -> Feed:
    """Numbers on both sides of 0 for every input that has no default; unknown dimensions are 2."""
    given, feed = {tensor.name for tensor in model.graph.initializer}, {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else 2 for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        values = np.resize(np.array([-7, 30, 2, -90, 5, 1, -3]), shape)
        if info.name not in given:
            feed[info.name] = np.array(values != 0 if dtype == np.bool_ else values).astype(dtype)
    return feed


def agree(worker: Worker, model: ModelProto, folder: Path, feed: Feed) -> None:
    """Assert that TensorRT reads the model as ONNX Runtime does."""
    for one, other in zip(*both(worker, model, folder, feed), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
