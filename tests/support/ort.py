"""Models run by ONNX Runtime's kernels, with its graph optimizations off, and by ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

Feed = dict[str, Any]


def session(model: ModelProto | Path) -> onnxruntime.InferenceSession:
    """A session on the CPU, with one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(model: ModelProto | Path, feed: Feed) -> list[Any]:
    """All outputs."""
    return list(session(model).run(None, feed))


def runner(model: ModelProto) -> Callable[[Feed], list[Any]]:
    """``run`` of one model with many feeds."""
    loaded = session(model)
    return lambda feed: list(loaded.run(None, feed))


def reference(model: ModelProto, feed: Feed) -> list[Any]:
    """All outputs, by ONNX's reference evaluator."""
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, feed))


def run_or_reference(model: ModelProto, feed: Feed) -> list[Any]:
    """All outputs; by ONNX's reference evaluator where ONNX Runtime does not load the model (a new operator set)."""
    try:
        loaded = session(model)
    except Exception:
        return reference(model, feed)
    return list(loaded.run(None, feed))
