"""What verification found: frozen records, JSON-able field by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxfix.verification.compare import Metrics
from onnxfix.verification.plan import Feed

Status = Literal["passed", "failed", "skipped"]
FeedStatus = Literal["identical", "within", "different", "not counted"]

#: Rungs from the cheapest to the most telling.
RUNGS = ("contract", "reference", "ort-cpu", "ort-cuda", "trt-build", "trt-network", "trt-gpu")


@dataclass(frozen=True)
class FeedResult:
    """One test run. With ``feed`` (None for inputs that the user gave) and the model, ``make_inputs`` gives the same
    inputs again. ``reason`` says why it is "different" or "not counted"."""

    label: str
    feed: Feed | None
    status: FeedStatus
    reason: str = ""
    metrics: tuple[Metrics, ...] = ()


@dataclass(frozen=True)
class RungResult:
    """One rung. ``reason`` is one line: what was proven, what differs, or why it was skipped.

    ``excluded`` are outputs in which the original differs from itself; ``notes`` what a reader should know
    besides; ``seconds`` is wall-clock time.
    """

    name: str
    status: Status
    reason: str = ""
    feeds: tuple[FeedResult, ...] = ()
    excluded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seed: int = 0
    exact: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """All rungs that were asked for, in order, and the names of those that had to pass."""

    rungs: tuple[RungResult, ...]
    required: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """A rung failed, or one that is required did not pass."""
        passed = {rung.name for rung in self.rungs if rung.status == "passed"}
        return any(rung.status == "failed" for rung in self.rungs) or not passed.issuperset(self.required)

    @property
    def passed(self) -> bool:
        """Nothing failed and something was proven: a rung that executes the models passed, or ``contract`` where
        no other was asked for. Neither ``passed`` nor ``failed``: it could not be checked."""
        if self.failed:
            return False
        executed = [rung for rung in self.rungs if rung.name != "contract"] or self.rungs
        return any(rung.status == "passed" for rung in executed)

    @property
    def seconds(self) -> float:
        """Wall-clock time of all rungs."""
        return sum(rung.seconds for rung in self.rungs)
