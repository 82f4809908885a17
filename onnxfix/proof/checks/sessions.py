"""Loaded models in a sandbox: engines on a GPU, and the ONNX model in ONNX Runtime that they are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from onnxfix.errors import Fault
from onnxfix.proof import cuda
from onnxfix.proof.request import Request
from onnxfix.runtime import backends
from onnxfix.runtime.backends import reference
from onnxfix.runtime.causes import ENDED, Cause, cause_of
from onnxfix.runtime.sandbox import Outcome, Worker, one_line
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.timing import Latency

_DROPPING = 30.0  # seconds


class Sessions(AbstractContextManager["Sessions"]):
    """Models in a sandbox, reloaded where it lost them. However a run ends is a result.

    ``module`` has the functions to call there, as ``trt.engine`` and this module have them; ``options`` are passed to
    each call. ``loading`` and ``running`` are seconds. With ``close``, the sandbox is ended on leaving.
    """

    def __init__(
        self,
        worker: Worker,
        module: str,
        options: Mapping[str, Any],
        *,
        loading: float,
        running: float,
        close: bool = False,
    ) -> None:
        self._worker, self._module, self._options = worker, module, dict(options)
        self._loading, self._running, self._close = loading, running, close
        self._paths: dict[str, str] = {}
        self._loaded: set[str] = set()
        self._generation = -1
        self.late = False  # whether the last load took too long
        self.cause: Cause = ""  # why the last load or trial failed, where that is known

    def __exit__(self, *_: object) -> None:
        if self._close or (self._alive() and not self._drop().ok):
            self._worker.close()

    def _alive(self) -> bool:
        return self._worker.pid is not None and self._worker.generation == self._generation

    def _call(self, function: str, timeout: float, **arguments: Any) -> Outcome:
        return self._worker.call(f"{self._module}:{function}", timeout=timeout, **arguments, **self._options)

    def _drop(self, **name: str) -> Outcome:
        return self._worker.call(f"{self._module}:drop", timeout=_DROPPING, **name)

    def load(self, name: str, path: str) -> str:
        """Load a file as ``name``; returns the reason where that fails, else ""."""
        if not self._alive():
            self._loaded.clear()
        outcome = self._call("load", self._loading, name=name, path=path)
        self._generation = self._worker.generation
        self.late = outcome.status == "timeout"
        error = str(_value(outcome)) if outcome.ok or outcome.status == "error" else outcome.message
        self.cause = _cause(outcome, error)
        if not error:
            self._paths[name] = path
            self._loaded.add(name)
        return error

    def renew(self) -> None:
        """Have the next load start in another process, which has compiled no kernel yet."""
        self._loaded.clear()
        self._worker.close()

    def forget(self, name: str) -> None:
        """Release what the sandbox holds as ``name``, whoever loaded it."""
        self._loaded.discard(name)
        if self._alive():
            self._drop(name=name)

    def trial(self, path: str) -> tuple[str, str]:
        """``trt.engine.trial`` of an engine file; whatever happens is a result."""
        outcome = self._call("trial", self._loading, path=path)
        self._generation = self._worker.generation
        result: tuple[str, str] = outcome.value if outcome.ok else (outcome.message, "")
        self.cause = _cause(outcome, result[0])
        return result

    def latency(self, paths: Mapping[str, str], feed: Mapping[str, Any]) -> Latency:
        """``trt.engine.latency``, after which nothing is loaded; whatever happens is a result."""
        self._loaded.clear()
        timeout = len(paths) * self._loading + self._running
        outcome = self._call("latency", timeout, paths=dict(paths), feed=dict(feed))
        self._generation = self._worker.generation
        result: Latency = outcome.value if outcome.ok else Latency(reason=outcome.message)
        if result.reason:
            self._worker.close()  # what failed on the device may have left it in any state
        return result

    def run(self, name: str, feed: Mapping[str, Any], **more: Any) -> Ran:
        """Run what was loaded as ``name`` on a feed; ``more`` goes to the function that runs it. Whatever happens is a
        result."""
        if not self._alive():
            self._loaded.clear()
        if name not in self._loaded:
            error = self.load(name, self._paths[name])
            if error:
                return Ran(error=f"it does not load a second time: {error}", cause=self.cause)
        outcome = self._call("run", self._running, name=name, feed=dict(feed), **more)
        if self._worker.generation != self._generation:
            return Ran(error="its process ended between two runs")
        if not outcome.ok and outcome.status != "error":
            return Ran(error=outcome.message, cause=ENDED[outcome.status], late=outcome.status == "timeout")
        ran: Ran = _value(outcome)
        if ran.broken:
            self._worker.close()
        return replace(ran, cause=_cause(outcome, ran.error))


def _cause(outcome: Outcome, error: str) -> Cause:
    """Why a call failed; ``error`` is the message of TensorRT or ONNX Runtime where the child returned one."""
    return cause_of(error) if outcome.ok else ENDED[outcome.status]


def _value(outcome: Outcome) -> Any:
    if not outcome.ok:  # errors of models and engines come back as values
        raise Fault(outcome.message)
    return outcome.value


class Oracle(AbstractContextManager["Oracle"]):
    """Executes the original, whose outputs are the reference result for engines.

    ``backend`` is "ort-cuda" where that works, else "ort-cpu". Where ONNX Runtime has no kernel for an operator, or
    rejects a form of it that ONNX defines, it is "reference", unless the model is too large for that. ``silent`` is why
    none works ("" where one does). CUDA never runs what the CPU rejects, since its kernels check no index.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        no_gpu = backends.missing("ort-cuda") or cuda.unavailable(request.worker, request.step)
        self.cause: Cause = ""  # of ``silent``
        self._sides: dict[str, Sessions] = {}
        reasons = [self._load(name) for name in (("ort-cpu",) if no_gpu else ("ort-cpu", "ort-cuda"))]
        self.backend = next(reversed(self._sides), "ort-cpu")
        self.silent = "" if self._sides else f"ONNX Runtime: {reasons[0]}"
        if self.silent and not self._load_reference():
            self.backend, self.silent, self.cause = "reference", "", ""

    def _load(self, backend: str) -> str:
        """Load the original in a backend; returns the reason where that fails, else ""."""
        step = self._request.step
        side = Sessions(self._request.worker, __name__, {"backend": backend}, loading=step, running=step)
        reason = backends.missing(backend) or side.load(backend, str(self._request.original))
        self.cause = self.cause or side.cause
        if not reason:
            self._sides[backend] = side
        return reason

    def _load_reference(self, elements: int = 0) -> str:
        """Load the original in the reference evaluator, for inputs of so many elements; returns the reason where that
        fails, else ""."""
        too_large = reference.infeasible(self._request.known.model, elements)
        return too_large or ("" if "reference" in self._sides else self._load("reference"))

    def __exit__(self, *_: object) -> None:
        for side in self._sides.values():
            side.__exit__()

    def run(self, values: dict[str, Any]) -> Ran | None:
        """The original's outputs for these inputs; None where no backend works. Where ONNX Runtime fails, the reference
        evaluator runs too: a missing kernel may show only in a run."""
        if self.silent:
            return None
        if self.backend == "reference":
            return self._sides["reference"].run("reference", values)
        ran = Ran()
        for backend in [name for name in self._sides if name != "reference"]:
            ran = self._sides[backend].run(backend, values)
            if ran.error:
                break
        elements = sum(int(np.size(value)) for value in values.values())
        if ran.error and not self._load_reference(elements):
            other = self._sides["reference"].run("reference", values)
            if not other.error:
                self.backend = "reference"
                return other
        return ran


# ------------------------------------------------------------- ONNX Runtime's side of the pipe, called in the sandbox

_SESSIONS: dict[str, backends.Session] = {}


def load(name: str, path: str, *, backend: str) -> str:
    """Load the model file with a backend and keep it as ``name``; returns the error, else ""."""
    try:
        _SESSIONS[name] = backends.load(backend, path)
    except Exception as error:
        return _describe(error)
    return ""


def run(name: str, feed: Mapping[str, Any], *, backend: str) -> Ran:
    """Run the model that was loaded as ``name`` with ``backend``."""
    session = _SESSIONS[name]
    try:
        return Ran(dict(zip(session.outputs, session.run(dict(feed)), strict=True)))
    except Exception as error:
        return Ran(error=_describe(error), broken=isinstance(error, backends.Broken))


def drop(name: str = "") -> None:
    """Release a model, or all of them."""
    if name:
        _SESSIONS.pop(name, None)
    else:
        _SESSIONS.clear()


def _describe(error: Exception) -> str:
    ours = isinstance(error, (backends.Unsupported, backends.Broken))
    return str(error) if ours else one_line(error)
