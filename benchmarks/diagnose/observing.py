"""What ONNX Runtime computes, with inner tensors as outputs: in a process of its own, without optimizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from diagnose.faults import Seen
from onnxfix.backends import ort, ort_weights
from onnxfix.errors import OnnxfixError
from onnxfix.sandbox import Worker, one_line

STEP = 300.0  # seconds for a run
#: How far a node's output must be off, as a share of its largest magnitude, to be more than rounding: eight units in
#: the last place of that magnitude, for integers and truths at all.
VISIBLE = {"float16": 2.0**-8, "float32": 2.0**-20, "float64": 2.0**-20}


def computed(
    path: str, feed: Mapping[str, Any], inner: Sequence[str] = (), shapes: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Seen]]:
    """In a sandbox: the outputs and the tensors ``inner`` by name, and what ``shapes`` are like.

    Raises:
        RuntimeError: whatever ONNX Runtime raised, in one line.
    """
    where = ort_weights.stored(path)
    model = where.skeleton or onnx.load(path)
    outputs = [one.name for one in model.graph.output]
    extra = [one for one in dict.fromkeys([*inner, *shapes]) if one not in outputs]
    model.graph.output.extend(onnx.ValueInfoProto(name=one) for one in extra)
    options = ort.session_options(lean=where.large)
    try:
        if where.skeleton is not None:
            session = ort.load_mapped(model, where, options)
        else:
            session = ort.OrtSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        values = dict(zip(session.outputs, session.run(dict(feed)), strict=True))
    except Exception as error:
        raise RuntimeError(one_line(error)) from error
    seen = {name: Seen(values[name].shape, values[name].dtype.name) for name in shapes}
    return {name: values[name] for name in dict.fromkeys([*outputs, *inner])}, seen


class Observer:
    """Runs models in a child process, one after the other."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def see(
        self, path: Path, feed: Mapping[str, Any], inner: Sequence[str] = (), shapes: Sequence[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Seen]]:
        """``computed``.

        Raises:
            OnnxfixError: the model does not run.
        """
        wanted = {"path": str(path), "feed": dict(feed), "inner": list(inner), "shapes": list(shapes)}
        done = self.worker.call("diagnose.observing:computed", timeout=STEP, **wanted)
        if not done.ok:
            raise OnnxfixError(done.message)
        found: tuple[dict[str, Any], dict[str, Seen]] = done.value
        return found


def off(truth: Any, other: Any) -> float:
    """The largest difference as a share of the truth's largest finite magnitude; infinity for another shape or type, or
    where only one of them is finite."""
    if truth.shape != other.shape or truth.dtype != other.dtype:
        return float("inf")
    if not truth.size:
        return 0.0
    a, b = truth.astype(np.float64), other.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a[~same]).all() and np.isfinite(b[~same]).all()):
        return float("inf")
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    largest = float(np.abs(a[~same] - b[~same]).max())
    return largest / scale if scale else float("inf")


def shows(truth: Any, other: Any) -> bool:
    """Whether that is more than rounding."""
    return off(truth, other) > VISIBLE.get(truth.dtype.name, 0.0)
