"""The reference result for the rungs that execute engines: the ONNX model, executed by ONNX Runtime.

Where ONNX Runtime has no kernel for an operator, or rejects a form of it that ONNX defines, the reference evaluator
runs instead, unless the model is too large for it. Where neither runs, there is no reference result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfix import backends
from onnxfix.backends import reference
from onnxfix.causes import Cause
from onnxfix.trt.engine import Ran
from onnxfix.verification import cuda
from onnxfix.verification.request import Request
from onnxfix.verification.rungs.sessions import Sessions

#: What runs models in the sandbox.
MODULE = "onnxfix.verification.rungs.sessions"


class Oracle:
    """Executes the original. ``backend`` is "ort-cuda" where that works, else "ort-cpu" or "reference"; ``silent`` is
    why none works ("" where one does). CUDA never runs what the CPU rejects, since its kernels check no index."""

    def __init__(self, request: Request) -> None:
        self._request = request
        no_gpu = backends.missing("ort-cuda") or cuda.unavailable(request.worker, request.step)
        self.cause: Cause = ""  # of ``silent``
        self._sides: dict[str, Sessions] = {}
        reasons = []
        for backend in ("ort-cpu",) if no_gpu else ("ort-cpu", "ort-cuda"):
            reason = self._load(backend, request.step)
            if reason:
                reasons.append(f"ONNX Runtime: {reason}")
        self.backend = next(reversed(self._sides), "ort-cpu")
        self.silent = "" if self._sides else reasons[0]
        if self.silent and not self._by_reference():
            self.backend, self.silent, self.cause = "reference", "", ""

    def _load(self, backend: str, seconds: float) -> str:
        """Load the original in a backend; returns the reason where that fails, else ""."""
        request = self._request
        side = Sessions(request.worker, MODULE, {"backend": backend}, loading=seconds, running=seconds)
        reason = backends.missing(backend) or side.load(backend, str(request.original))
        self.cause = self.cause or side.cause
        if not reason:
            self._sides[backend] = side
        return reason

    def _by_reference(self) -> str:
        """Load the original in the reference evaluator; returns the reason where that fails, else ""."""
        if "reference" in self._sides:
            return ""
        return reference.infeasible(self._request.known.model, 0) or self._load(
            "reference", self._request.step
        )

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._sides.values():
            side.__exit__()

    def run(self, values: dict[str, Any]) -> Ran | None:
        """The original's outputs for these inputs; None where no backend works. Where ONNX Runtime fails, the reference
        evaluator runs too: a missing kernel may show only in a run."""
        if self.silent:
            return None
        ran = None
        for backend in ("reference",) if self.backend == "reference" else tuple(self._sides):
            ran = self._sides[backend].run(backend, values)
            if ran.error:
                break
        if ran is not None and ran.error and self.backend != "reference" and self._feasible(values):
            other = self._sides["reference"].run("reference", values)
            if not other.error:
                self.backend = "reference"
                return other
        return ran

    def _feasible(self, values: dict[str, Any]) -> bool:
        elements = sum(int(np.size(value)) for value in values.values())
        return reference.infeasible(self._request.known.model, elements) is None and not self._by_reference()
