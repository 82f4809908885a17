"""What ONNX Runtime computes, with inner tensors as outputs, on inputs that planted faults show with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from diagnose.places import Seen
from onnxfix.errors import OnnxfixError
from onnxfix.inputs.feeds.inputs import make_inputs
from onnxfix.inputs.feeds.signature import Input, Signature, signature
from onnxfix.runtime.backends import ort, ort_weights
from onnxfix.runtime.sandbox import Worker, one_line

LARGE = 10 << 20
"""Bytes of a model from which on images come one at a time."""
ROWS = 3
#: As many as attention has heads, in the exports and in the fixtures: a permutation of the two still runs.
LONG, SHORT = 12, 4


def sizes_of(known: Signature, large: bool) -> dict[str, int]:
    """A size for each symbol: rows of texts, images, and the lengths of sequences."""
    found: dict[str, int] = {}
    for one in known.inputs:
        dims = one.dims or ()
        image = len(dims) > 2 and all(isinstance(dim, int) for dim in dims[1:])
        for axis, dim in enumerate(dims):
            if isinstance(dim, str):
                first = (1 if large else SHORT) if image else ROWS
                found.setdefault(dim, (LONG if large else SHORT) if axis else first)
    return found


def inputs_of(path: Path, seed: int) -> dict[str, Any]:
    """One feed for a model, the same for the same model and seed.

    Of a mask of texts the first row is full, the second has padding on the left, and the last is padding throughout, as
    rows are that fill up a batch: only there does the value of a mask show. A mask of images ends before its edges.
    """
    known = signature(path)
    feed = make_inputs(known, sizes_of(known, path.stat().st_size >= LARGE), seed)
    return {one.name: _masked(one, feed[one.name]) for one in known.inputs if one.name in feed}


def _masked(one: Input, value: Any) -> Any:
    if "mask" not in one.name or value.ndim < 2:
        return value
    mask = np.ones_like(value)
    if value.ndim == 2:
        mask[1:2, : value.shape[1] // 3] = 0
        mask[2:] = 0
    else:
        mask[..., value.shape[-2] * 4 // 5 :, :] = 0
        mask[..., :, value.shape[-1] * 3 // 4 :] = 0
    return mask


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
