"""The sandbox in which ``precision`` runs a model and its variants."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfix.causes import ENDED, Cause
from onnxfix.diagnosis.lowered import Low
from onnxfix.errors import OnnxfixError
from onnxfix.lowering.child import Reply
from onnxfix.lowering.records import OutputError
from onnxfix.lowering.selfmeasure import Own, Tensor
from onnxfix.sandbox import Worker

_CHILD = "onnxfix.lowering.child"


class Failed(OnnxfixError):
    """The model could not be run; ``cause`` says why where it is not to blame."""

    def __init__(self, message: str, cause: Cause = "") -> None:
        super().__init__(message)
        self.cause = cause


class Bench:
    """A model in a sandbox, with its float32 outputs on the feeds that it takes (``samples``). Use it as a context.

    ``step`` is in seconds, for each run of the model.
    """

    def __init__(self, step: float = 600.0) -> None:
        self.step = step
        self.samples = 0
        self._worker = Worker()
        self._folder = tempfile.TemporaryDirectory(prefix="onnxfix-")

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()
        self._folder.cleanup()

    def open(self, path: Path, to: Low, feeds: Sequence[Mapping[str, Any]], most: int = 16) -> None:
        """Load the model and run it in float32 on those of the feeds that it takes, ``most`` at most.

        Raises:
            Failed: it does not run.
        """
        given = [dict(feed) for feed in feeds]
        self.samples = self._call(
            "open_model", path=str(path.absolute()), to=to, scratch=self._folder.name, feeds=given, most=most
        )

    def saturate(self, names: Collection[str]) -> None:
        """Saturate constants in all variants from here on. Raises Failed."""
        self._call("saturate", names=sorted(names))

    def measure(self) -> tuple[dict[str, Tensor], dict[int, Own]]:
        """Ranges by tensor and own errors by node. Raises Failed."""
        found: tuple[dict[str, Tensor], dict[int, Own]] = self._call("measure")
        return found

    def errors(self, low: Collection[int], *, quick: bool = False) -> tuple[OutputError, ...]:
        """The outputs' errors with these nodes in the low type; ``quick``: on the sample with the largest error in the
        last run on all of them. Raises Failed."""
        found: tuple[OutputError, ...] = self._call("errors", low=sorted(low), quick=quick)
        return found

    def result_errors(self, path: Path, *, wide: bool) -> tuple[OutputError, ...]:
        """The errors of a result file; ``wide``: with kernels of float32. Raises Failed."""
        found: tuple[OutputError, ...] = self._call("result_errors", path=str(path.absolute()), wide=wide)
        return found

    def _call(self, function: str, **arguments: Any) -> Any:
        outcome = self._worker.call(f"{_CHILD}:{function}", timeout=self.step, **arguments)
        if not outcome.ok:
            raise Failed(outcome.message, ENDED[outcome.status])
        reply: Reply = outcome.value
        if reply.error:
            raise Failed(reply.error, reply.cause)
        return reply.value
