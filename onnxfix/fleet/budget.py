"""How much memory a model needs, and which models must not be worked on at once."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from onnxfix.allowance import structure_limit
from onnxfix.fleet.work import Outcome, Task

MINIMUM_MB = 1024
"""MiB of the smallest share: imports, ONNX Runtime and a small model take 250 to 500 MiB of address space."""

_BASE_MB = 512
_WORKER, _RUNTIME, _TENSORRT, _IN_MEMORY = 0.25, 2.2, 3.5, 4.0
"""Memory as a multiple of the weights: of the worker alone, ONNX Runtime, TensorRT, other tools that edit the model."""

_GPU_RUNGS = ("ort-cuda", "trt-build", "trt-network", "trt-gpu")


def replaced_file(task: Task) -> str:
    """The file that a task reads and replaces, "" if it is to write another one.

    Of two links to one file, the second must find the fixed model: such tasks must not run at once.
    """
    return os.path.realpath(task.source) if task.options.output.in_place else ""


def size_mb(task: Task) -> float:
    """MiB of a model's file and external data; 0 for a model that cannot be read, which its own run reports."""
    from onnxfix.files import loading  # lazy: start-up
    from onnxfix.files.bounds import Budget  # lazy: start-up

    source = Path(task.source)
    try:
        size = source.stat().st_size
        with structure_limit(task.options.structure_mb):
            locations = loading.open_model(source, budget=Budget()).external
    except Exception:  # whatever it is, it must not end the other models' run
        return 0.0
    for location in locations:
        with contextlib.suppress(OSError):  # the model's own run reports missing data
            size += (source.parent / location).stat().st_size
    return size / (1 << 20)


def need_mb(task: Task, data_mb: float) -> int:
    """Estimated MiB that a process of this task uses, whose model has ``data_mb``.

    Measured on full-size exports of 16 to 440 MB: the worker takes 80 to 110 MiB whatever the weights, ONNX Runtime's
    child twice the weights, and TensorRT's child what ``backends.tensorrt.need_mb`` says, which is 3.5 times the
    weights if they are in the model's file. Activations come on top and are unknown in advance: 7 times the weights on
    ViT in half precision, 6 GiB on SegFormer with 16 MB of weights. A model that exceeds its share is retried alone.
    """
    options = task.options
    if task.command == "check":
        factor = _TENSORRT if options.trt is not None else _WORKER
    elif not options.verification.enabled:
        factor = _WORKER
    else:
        judged = options.verification
        rungs = None if judged.rungs is None else {*judged.rungs, *judged.require}
        factor = _TENSORRT if rungs is None or rungs.intersection(_GPU_RUNGS) else _RUNTIME
    if options.fixes.simplify or options.fixes.graphsurgeon:
        factor = max(factor, _IN_MEMORY)
    need = int(_BASE_MB + factor * data_mb)
    return need if options.memory_mb is None else min(need, _BASE_MB + options.memory_mb)


def more_helps(outcome: Outcome, granted: int) -> bool:
    """Whether a model that ran out of ``granted`` MiB may succeed with more.

    It may not if it ran into the user's own limit for sandbox children, or if its file has been replaced already.
    """
    options, report = outcome.task.options, outcome.report
    if report is None:
        return True
    users_limit = options.memory_mb is not None and options.memory_mb <= granted and not report.problems
    return not users_limit and not (report.output and options.output.in_place)
