"""Whether this machine can execute TensorRT's engines, and the sandbox in which it would.

The driver is asked for a GPU, and TensorRT itself whether it loads an engine there: which GPUs it serves is its own
to say. Nothing is executed for that.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
from contextlib import closing
from pathlib import Path

import onnx

from onnxfix.backends import tensorrt, trt_package
from onnxfix.backends.trt_package import INSTALL, Choice, Gpu
from onnxfix.backends.trt_types import TrtOptions
from onnxfix.sandbox import Worker, shared
from onnxfix.verification.trt_build import Builder, builder
from onnxfix.verification.trt_sides import Side

#: What executes engines in the sandbox.
RUN = "onnxfix.backends.trt_run"
NO_GPU = "the driver shows no GPU"
_ASKING = 120.0  # seconds for a small engine


def unavailable(options: TrtOptions) -> str | None:
    """Why no engine can be executed on this machine, in one line; None where one can.

    Where the driver shows a GPU, TensorRT itself is asked: a small engine is built and loaded, not run.

    Raises:
        UsageError: the package or the compute capability does not exist.
    """
    found = builder(options)
    if isinstance(found, str):
        return found
    with closing(found):
        return refusal(found)


def refusal(found: Builder) -> str | None:
    """The same for TensorRT as it was chosen."""
    if importlib.util.find_spec("polygraphy") is None:
        return f"polygraphy, which executes engines, is not installed: {INSTALL[found.choice.package]}"
    card = found.choice.gpu or next(iter(_cards(found)), None)
    if card is None:
        return NO_GPU
    reason = _ask(found.choice, os.getpid())
    if not reason:
        return None
    where = f"{card.name} (compute capability {card.capability})"
    return f"{found.product} executes no engine on {where}: {reason}"


def _cards(found: Builder) -> list[Gpu]:
    outcome = found.worker.call(f"{trt_package.__name__}:gpus", timeout=_ASKING)
    return outcome.value if outcome.ok else []


@functools.cache
def _ask(choice: Choice, process: int) -> str:
    """What TensorRT says when it is to load an engine here, "" when it loads one. Asked once a process."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
        model, engine = Path(folder, "probe.onnx"), Path(folder, "probe.engine")
        model.write_bytes(_one_node())
        done = tensorrt.attempt(
            shared("tensorrt"),
            model,
            package=choice.package,
            compute_capability=choice.capability,
            timeout=_ASKING,
            save_engine=str(engine),
        )
        if not done.accepted:
            return f"it does not even build a small one: {done.reason}"
        with engines(choice, TrtOptions(timeout=_ASKING), _ASKING) as side:
            return side.load("probe", str(engine))


def _one_node() -> bytes:
    make = onnx.helper
    x, y = (make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = make.make_graph([make.make_node("Add", ["x", "x"], ["y"])], "probe", [x], [y])
    opset = make.make_opsetid("", 13)
    return bytes(make.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())


def engines(choice: Choice, options: TrtOptions, step: float) -> Side:
    """The sandbox for engines; a run takes at most ``step`` seconds, loading what a build may take."""
    # A process serves one of the two packages, and Polygraphy's logger must be its first: not the child that builds.
    common = options.memory_mb is None
    worker = shared(f"polygraphy for {choice.package}") if common else Worker(memory_mb=options.memory_mb)
    told = {"package": choice.package}
    return Side(worker, RUN, told, loading=options.timeout, running=step, close=not common)
