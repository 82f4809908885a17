"""Who says what a model computes, for the rungs that execute engines: the ONNX model, as ONNX Runtime runs it.

Where ONNX Runtime has no kernel for an operator, or refuses a form of it that ONNX defines, the reference evaluator is
asked, unless the model is too large for it. Where neither runs, nobody says what is right.
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
    """The truth about the original. ``backend`` names who is asked: "ort-cuda" where that works, else "ort-cpu" or
    "reference"; ``silent`` says why nobody can be ("" when one can). What the CPU refuses, CUDA is not asked: its
    kernels check no index."""

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
        """Load the original in a backend; returns why that is impossible, else ""."""
        request = self._request
        side = Sessions(request.worker, MODULE, {"backend": backend}, loading=seconds, running=seconds)
        reason = backends.missing(backend) or side.load(backend, str(request.original))
        self.cause = self.cause or side.cause
        if not reason:
            self._sides[backend] = side
        return reason

    def _by_reference(self) -> str:
        """Have the reference evaluator ready; returns why that is impossible, else ""."""
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
        """What the original gives for these inputs; None where nobody can be asked. The reference evaluator is asked
        besides where ONNX Runtime fails, for that may lack a kernel which it misses only when it runs."""
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
