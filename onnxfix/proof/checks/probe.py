"""Whether TensorRT executes engines on this machine.

The driver reports a GPU, but only a trial shows whether TensorRT executes engines on it: NVIDIA's list of GPUs is not
complete. TensorRT-RTX builds engines without a GPU, so that a small engine is built, loaded and run in the sandbox.
This trial also shows whether float32 products are computed in TF32. TensorRT needs no trial: each build runs kernels
on the GPU to choose among them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnxfix.proof.checks.builder import Builder, builder, process_options, shared_builder, variables_of
from onnxfix.proof.checks.sessions import Sessions
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.nvidia import Gpu, Missing
from onnxfix.runtime.sandbox import Worker, shared
from onnxfix.tensorrt import build, package
from onnxfix.tensorrt.package import INSTALL, Choice
from onnxfix.tensorrt.records import TrtOptions

#: What executes engines in the sandbox.
RUN = "onnxfix.tensorrt.engine"
NO_GPU = "no NVIDIA GPU found"
_ASKING = 120.0  # seconds for a small engine
_LOADING = 60.0
"""Seconds to load any other engine. TensorRT-RTX compiles kernels while it loads. This takes seconds for exports of
600 MB on an H100, and never ends for some recurrences of a few nodes."""


@dataclass(frozen=True)
class Probe:
    """The result of a trial.

    ``reason`` says why no engine runs here, and ``cause`` is its category; both are "" if engines run. ``precision`` is
    the type in which float32 products are computed: "float32", "tf32", or "" if unknown. ``card`` is the GPU, and
    ``listed`` says whether NVIDIA lists its compute capability for the package."""

    reason: str = ""
    cause: Cause = ""
    precision: str = ""
    card: Gpu | None = None
    listed: bool = True

    @property
    def where(self) -> str:
        """The GPU with its compute capability, as text; "" without a GPU."""
        if self.card is None:
            return ""
        unlisted = "" if self.listed else ", which NVIDIA does not list"
        return f"{self.card.name} (compute capability {self.card.capability}{unlisted})"


def unavailable(options: TrtOptions) -> Missing | None:
    """Why this machine cannot execute engines; None if it can.

    If the driver reports a GPU, TensorRT-RTX builds, loads and runs a small engine.

    Raises:
        UsageError: the package or the compute capability does not exist.
    """
    found = builder(options)
    if isinstance(found, Missing):
        return found
    with closing(found):
        here = probe(found)
    return Missing(here.reason, here.cause) if here.reason else None


def probe(found: Builder) -> Probe:
    """Probe the chosen TensorRT. The trial engine runs once per process, and with TensorRT-RTX only."""
    if importlib.util.find_spec("polygraphy") is None:
        reason = f"polygraphy, which executes engines, is not installed: {INSTALL[found.choice.package]}"
        return Probe(reason, "not-installed")
    card = found.choice.gpu or next(iter(_cards(found)), None)
    if card is None:
        return Probe(NO_GPU, "no-gpu")
    listed = package.listed(found.choice.package, card.capability)
    if found.choice.package == "tensorrt":
        return Probe("", "", "tf32" if found.options.tf32 else "float32", card, listed)
    reason, precision, cause = _ask(found.choice, process_options(found.options), os.getpid())
    here = Probe("", "", precision, card, listed)
    if not reason:
        return here
    why = f"{found.product} cannot execute engines on {here.where}: {reason}"
    return replace(here, reason=why, cause=cause)


def _cards(found: Builder) -> list[Gpu]:
    outcome = found.worker.call("onnxfix.runtime.nvidia:gpus", timeout=_ASKING)
    return outcome.value if outcome.ok else []


@functools.cache
def _ask(choice: Choice, process: TrtOptions, number: int) -> tuple[str, str, Cause]:
    """Run the trial engine: why it does not run ("" if it does), the precision of float32 products, the cause."""
    with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
        model, engine = Path(folder, "trial.onnx"), Path(folder, "trial.engine")
        model.write_bytes(package.trial_model())
        how: dict[str, Any] = {
            "package": choice.package,
            "compute_capability": choice.capability,
            "tf32": process.tf32,
        }
        worker = shared_builder(process)
        done = build.attempt(worker, model, timeout=_ASKING, save_engine=str(engine), **how)
        if not done.accepted:
            cause: Cause = "memory" if done.status == "memory" else "gpu-not-served"
            return f"it cannot build a small engine: {done.reason}", "", cause
        with engines(choice, replace(process, timeout=_ASKING), _ASKING) as side:
            reason, precision = side.trial(str(engine))
            return reason, precision, "memory" if side.last.cause == "memory" else "gpu-not-served"


def engines(choice: Choice, options: TrtOptions, step: float) -> Sessions:
    """The sandbox that executes engines, each run in ``step`` seconds; without TF32 unless the options allow it."""
    variables, alone = variables_of(options), options.memory_mb is not None
    if alone:
        worker = Worker(memory_mb=options.memory_mb, variables=variables)
    else:  # not the sandbox that builds: a process serves one package, and Polygraphy's logger must be its first
        worker = shared(f"polygraphy for {choice.package} {process_options(options)}", variables)
    loading = min(options.timeout, _LOADING)
    return Sessions(worker, RUN, {"package": choice.package}, loading=loading, running=step, close=alone)
