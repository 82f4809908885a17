"""Run original and rewritten models by ONNX Runtime and onnx.reference, and say what their outputs are worth."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from acceptance.judging import Miss, misses
from onnxfix import backends
from onnxfix.sandbox import Outcome, Worker
from onnxfix.verification.compare.compare import compare, identical

#: In this order: the second is asked where the first cannot run a model, or gets the original wrong.
BACKENDS = ("ort-cpu", "reference")
SECONDS = {"ort-cpu": 30.0, "reference": 20.0}

#: right: meets the expected outputs. wrong: does not, on a backend that does not get the original wrong. random: only
#: values differ, and an operator draws them. not run: no backend runs it. no judge: each backend that runs it misses
#: the expected outputs with the original too.
Verdict = Literal["right", "wrong", "random", "not run", "no judge", "same graph", "no model"]


@dataclass(frozen=True)
class Outputs:
    """What a model's outputs are worth.

    ``backend`` judged, ``reason`` says why they are not right. ``identical``: whether they are bit-identical to the
    original's on one backend; None where none runs both.
    """

    verdict: Verdict
    backend: str = ""
    reason: str = ""
    identical: bool | None = None


def run(backend: str, path: str, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """In a sandbox: the outputs for each feed, in the graph's order.

    Raises:
        RuntimeError: whatever the backend raised, in few words.
    """
    # ONNX's newest node models are of an opset that is not released yet; ONNX Runtime has kernels for most of them.
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
    try:
        session = backends.load(backend, path)
        return [session.run(dict(feed)) for feed in feeds]
    except Exception as error:
        raise RuntimeError(shortened(str(error) or type(error).__name__)) from error


def shortened(words: str) -> str:
    """ONNX Runtime's words without the file, the line and the C++ signature that it puts before them."""
    text = " ".join(words.split())
    text = re.sub(r"^.*?Load model from \S+ failed:", "", text)
    text = re.sub(r"/onnxruntime_src/\S+:\d+ .*\)( const)? ", "", text)
    return text if len(text) <= 200 else f"{text[:199]}…"


def outputs_of(worker: Worker, backend: str, path: Path, feeds: Sequence[Mapping[str, Any]]) -> Outcome:
    """``run`` in the sandbox."""
    return worker.call(
        "acceptance.running:run", timeout=SECONDS[backend], backend=backend, path=str(path), feeds=list(feeds)
    )


@dataclass
class Judge:
    """Judges the models that were made of one original.

    Without ``expected`` outputs (one list for each feed), the original's own are expected, within the tolerances of
    ``onnxfix verify``; ``rtol`` and ``atol`` are for those that are given. ``half`` names the half-precision type that
    the original computes in: ONNX Runtime has few kernels for it, and where it rounds depends on which nodes are
    neighbors, so that identical bits are found by ``onnx.reference`` there, and make it forgive that type's tolerance.
    """

    worker: Worker
    original: Path
    feeds: Sequence[Mapping[str, Any]]
    expected: Sequence[list[Any]]
    rtol: float
    atol: float
    random: Sequence[str] = ()
    half: str = ""
    _originals: dict[str, Outcome] = field(default_factory=dict)

    def judge(self, path: Path) -> Outputs:
        """What the outputs of the model at ``path`` are worth."""
        runs: dict[str, Outcome] = {}
        found: list[tuple[str, Outputs]] = []
        for backend in BACKENDS:
            runs[backend] = self._ran(backend, path)
            found.append((backend, self._by(backend, path, runs)))
            if found[-1][1].verdict in ("right", "wrong", "random"):
                return _with_identity(found[-1][1], self._identical(path, runs))
        reason = "; ".join(f"{backend}: {one.reason}" for backend, one in found)
        verdict: Verdict = "no judge" if any(one.verdict == "no judge" for _, one in found) else "not run"
        return Outputs(verdict, "", reason, self._identical(path, runs))

    def _ran(self, backend: str, path: Path) -> Outcome:
        if path == self.original:
            return self._original(backend)
        return outputs_of(self.worker, backend, path, self.feeds)

    def _original(self, backend: str) -> Outcome:
        if backend not in self._originals:
            self._originals[backend] = outputs_of(self.worker, backend, self.original, self.feeds)
        return self._originals[backend]

    def _by(self, backend: str, path: Path, runs: dict[str, Outcome]) -> Outputs:
        """What one backend says."""
        ran = runs[backend]
        if not ran.ok:
            return Outputs("not run", backend, ran.message)
        base = self._original(backend)
        if not self.expected and not base.ok:
            return Outputs("not run", backend, f"the original: {base.message}")
        if self.expected:
            wrong = self._misses(ran.value)
        else:
            wrong = _differences(base.value, ran.value, "")
            if wrong and self.half and backend != "reference" and self._identical_on("reference", path, runs):
                wrong = _differences(base.value, ran.value, self.half)
        if not wrong:
            return Outputs("right", backend)
        if self.random and all(one.kind == "values" for one in wrong):
            return Outputs("random", backend, f"{', '.join(self.random)} draws")
        if base.ok and self.expected and (own := self._misses(base.value)):
            return Outputs("no judge", backend, f"the original itself misses ONNX's outputs: {own[0].text}")
        return Outputs("wrong", backend, wrong[0].text)

    def _misses(self, found: Sequence[list[Any]]) -> list[Miss]:
        pairs = zip(self.expected, found, strict=True)
        return [one for a, b in pairs for one in misses(a, b, self.rtol, self.atol)]

    def _identical(self, path: Path, runs: dict[str, Outcome]) -> bool | None:
        """On the first backend that runs both; in half precision, on one of them."""
        found = None
        for backend in BACKENDS:
            found = same if (same := self._identical_on(backend, path, runs)) is not None else found
            if found or (found is not None and not self.half):
                break
        return found

    def _identical_on(self, backend: str, path: Path, runs: dict[str, Outcome]) -> bool | None:
        base = self._original(backend)
        if not base.ok:
            return None
        if backend not in runs:
            runs[backend] = self._ran(backend, path)
        return identical(base.value, runs[backend].value) if runs[backend].ok else None


def _differences(original: Sequence[list[Any]], found: Sequence[list[Any]], coarse: str) -> list[Miss]:
    """Where outputs leave the tolerance of their type, or a coarser one, as ``onnxfix verify`` has it."""
    metrics = [
        one
        for number, (a, b) in enumerate(zip(original, found, strict=True))
        for one in compare(f"feed {number}", a, b, exact=False, coarse=coarse)
    ]
    return [Miss("values", f"{one.name}: {one.reason}") for one in metrics if one.agreement == "different"]


def _with_identity(outputs: Outputs, same: bool | None) -> Outputs:
    return Outputs(outputs.verdict, outputs.backend, outputs.reason, same)
