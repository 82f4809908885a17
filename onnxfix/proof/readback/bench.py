"""Runs a model and the network that was read back in the sandbox, one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnxfix.proof.checks import sessions
from onnxfix.proof.checks.sessions import THREADS, Sessions
from onnxfix.proof.request import REMOTE
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.engine import Ran

_DROPPING = 30.0  # seconds
_WIDEST = 1500  # characters of an error: ONNX Runtime names the node at the end of some
_ONLY = "read back"  # the name of the model that is loaded


class Bench(Sessions):
    """Holds one model at a time. ``deaths`` counts how often one ended the child, and variants of models are written to
    the folder ``scratch``."""

    def __init__(self, worker: Worker, scratch: str) -> None:
        super().__init__(worker, sessions.__name__, {}, loading=0.0, running=0.0)
        self._scratch, self.deaths = scratch, 0
        if worker.pid is not None:  # what other checks have loaded
            worker.call(f"{REMOTE}:unload", timeout=_DROPPING)

    def limit(self, seconds: float) -> None:
        """Let a load, and a run, take so long from now on."""
        self._loading = self._running = seconds

    def put(
        self,
        backend: str,
        path: str,
        names: Sequence[str] = (),
        *,
        guarded: bool = False,
        recall: bool = False,
    ) -> Ran:
        """Load a model file in place of the last; see ``sessions.load``. With ``names`` on the CPU instead of CUDA.
        ``guarded``: the CPU must accept the inputs that CUDA gets, whose kernels check no index."""
        options: dict[str, Any] = {"guarded": True} if guarded and backend == "ort-cuda" else {}
        if backend == "ort-cpu":
            options = {"threads": THREADS}  # identical bits are not required
        if names:
            backend = "ort-cpu" if backend == "ort-cuda" else backend
            options = {"names": tuple(names), "scratch": self._scratch}
        self._on_gpu = backend == "ort-cuda"
        self.load(_ONLY, path, backend=backend, recall=recall, widest=_WIDEST, **options)
        return self._checked(self.last)

    def compute(self, feed: Mapping[str, Any]) -> Ran:
        """Run the model."""
        return self._checked(self.run(_ONLY, feed))

    def _checked(self, ran: Ran) -> Ran:
        self.deaths += ran.died
        lacks_memory = ran.cause == "memory" and not ran.died and not self._on_gpu
        return replace(ran, error=self._worker.starved(ran.error)) if lacks_memory else ran
