"""Loaded models in a sandbox, for the two sides of the rung trt-gpu: engines, and ONNX Runtime on the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onnxfix import backends
from onnxfix.causes import ENDED, Cause, cause_of
from onnxfix.errors import Fault
from onnxfix.sandbox import Outcome, Worker, one_line
from onnxfix.trt.engine import Ran
from onnxfix.trt.timing import Latency

_DROPPING = 30.0  # seconds


class Sessions:
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
        self._close = close
        self._loading, self._running = loading, running
        self._paths: dict[str, str] = {}
        self._held: set[str] = set()
        self._generation = -1
        self.late = False  # whether the last load took too long
        self.cause: Cause = ""  # why the last load or trial failed, where that is known

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        if self._close or (
            self._alive() and not self._worker.call(f"{self._module}:drop", timeout=_DROPPING).ok
        ):
            self._worker.close()

    def _alive(self) -> bool:
        return self._worker.pid is not None and self._worker.generation == self._generation

    def load(self, name: str, path: str) -> str:
        """Load a file as ``name``; returns the reason where that fails, else ""."""
        if not self._alive():
            self._held.clear()
        outcome = self._worker.call(
            f"{self._module}:load", timeout=self._loading, name=name, path=path, **self._options
        )
        self._generation = self._worker.generation
        self.late = outcome.status == "timeout"
        error = str(_value(outcome)) if outcome.ok or outcome.status == "error" else outcome.message
        self.cause = _cause(outcome, error)
        if error:
            return error
        self._paths[name] = path
        self._held.add(name)
        return ""

    def renew(self) -> None:
        """Have the next load start in another process, which has compiled no kernel yet."""
        self._held.clear()
        self._worker.close()

    def forget(self, name: str) -> None:
        """Release what the sandbox holds as ``name``, whoever loaded it."""
        self._held.discard(name)
        if self._alive():
            self._worker.call(f"{self._module}:drop", timeout=_DROPPING, name=name)

    def trial(self, path: str) -> tuple[str, str]:
        """``trt.engine.trial`` of an engine file; whatever happens is a result."""
        outcome = self._worker.call(
            f"{self._module}:trial", timeout=self._loading, path=path, **self._options
        )
        self._generation = self._worker.generation
        found: tuple[str, str] = _value(outcome) if outcome.ok else (outcome.message, "")
        self.cause = _cause(outcome, found[0])
        return found

    def latency(self, paths: Mapping[str, str], feed: Mapping[str, Any]) -> Latency:
        """``trt.engine.latency``, after which nothing is loaded; whatever happens is a result."""
        self._held.clear()
        outcome = self._worker.call(
            f"{self._module}:latency",
            timeout=len(paths) * self._loading + self._running,
            paths=dict(paths),
            feed=dict(feed),
            **self._options,
        )
        self._generation = self._worker.generation
        found: Latency = outcome.value if outcome.ok else Latency(reason=outcome.message)
        if found.reason:
            self._worker.close()  # what failed on the device may have left it in any state
        return found

    def run(self, name: str, feed: Mapping[str, Any], **more: Any) -> Ran:
        """Run what was loaded as ``name`` on a feed; ``more`` goes to the function that runs it. Whatever happens is a
        result."""
        if not self._alive():
            self._held.clear()
        if name not in self._held:
            error = self.load(name, self._paths[name])
            if error:
                return Ran(error=f"it does not load a second time: {error}", cause=self.cause)
        outcome = self._worker.call(
            f"{self._module}:run",
            timeout=self._running,
            name=name,
            feed=dict(feed),
            **self._options,
            **more,
        )
        if self._worker.generation != self._generation:
            return Ran(error="its process ended between two runs")
        if not outcome.ok and outcome.status != "error":
            return Ran(error=outcome.message, cause=ENDED[outcome.status], late=outcome.status == "timeout")
        ran: Ran = _value(outcome)
        ran = replace(ran, cause=_cause(outcome, ran.error))
        if ran.broken:
            self._worker.close()
        return ran


def _cause(outcome: Outcome, error: str) -> Cause:
    """Why a call failed; ``error`` is the message of TensorRT or ONNX Runtime where the child returned one."""
    return cause_of(error) if outcome.ok else ENDED[outcome.status]


def _value(outcome: Outcome) -> Any:
    if not outcome.ok:  # errors of models and engines come back as values
        raise Fault(outcome.message)
    return outcome.value


# ------------------------------------------------------------- ONNX Runtime's side of the pipe, called in the sandbox

_SESSIONS: dict[str, backends.Session] = {}


def load(name: str, path: str, *, backend: str) -> str:
    """Load the model file with a backend and keep it as ``name``; returns the error, else ""."""
    try:
        _SESSIONS[name] = backends.load(backend, path)
    except Exception as error:
        return _told(error)
    return ""


def run(name: str, feed: Mapping[str, Any], *, backend: str) -> Ran:
    """Run the model that was loaded as ``name`` with ``backend``."""
    session = _SESSIONS[name]
    try:
        return Ran(dict(zip(session.outputs, session.run(dict(feed)), strict=True)))
    except Exception as error:
        return Ran(error=_told(error), broken=isinstance(error, backends.Broken))


def drop(name: str = "") -> None:
    """Release a model, or all of them."""
    if name:
        _SESSIONS.pop(name, None)
    else:
        _SESSIONS.clear()


def _told(error: Exception) -> str:
    ours = isinstance(error, (backends.Unsupported, backends.Broken))
    return str(error) if ours else one_line(error)
