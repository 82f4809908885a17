"""What running a model and TensorRT's network of it has shown, and the result for one feed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from onnxfix.causes import Cause
from onnxfix.trt.reading import Misread
from onnxfix.verification.compare.compare import Metrics, agreement, difference, different
from onnxfix.verification.rungs.trials import Trial
from onnxfix.verification.verdict import FeedResult, LeftOut

_SLIGHT = 1e-2  # of an output's largest value: less may be an approximation


@dataclass
class Comparison:
    """What running both has shown.

    ``lacking``: why this backend cannot run it, so that another should; ``unknown``: why the result is unknown;
    ``cause``: either as data. ``disputed``: ONNX Runtime rejects the model for its types, which another backend may
    accept. ``trials`` are the inputs that the model accepts, ``compared`` those that both accept. ``off`` are the
    tensors that differ because of the misreads. ``blank`` are the network's outputs without a finite value on all
    ``compared``; None before the first. ``left_out`` are inputs that the budget did not allow for.
    """

    misreads: list[Misread] = field(default_factory=list)
    results: list[FeedResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    noise: dict[str, float] = field(default_factory=dict)
    off: frozenset[str] = frozenset()
    trials: tuple[Trial, ...] = ()
    compared: list[Trial] = field(default_factory=list)
    blank: frozenset[str] | None = None
    left_out: tuple[LeftOut, ...] = ()
    lacking: str = ""
    unknown: str = ""
    cause: Cause = ""
    disputed: bool = False

    @property
    def stuck(self) -> bool:
        """Whether there is no point in going on."""
        return bool(self.lacking or self.unknown)


def result_of(trial: Trial, metrics: tuple[Metrics, ...]) -> FeedResult:
    """The result of comparing all outputs for the inputs of a trial."""
    wrong = different(metrics)
    reason = difference(wrong[0]) if wrong else ""
    return FeedResult(trial.label, trial.feed, agreement(metrics), reason, metrics, given=trial.given)


def excused(result: FeedResult, trial: Trial, metrics: tuple[Metrics, ...]) -> FeedResult:
    """The result of a trial whose differences are noise."""
    if result.fed != (trial.given, trial.feed):
        return result
    new = {metric.name: metric for metric in metrics}
    parts = tuple(new.get(metric.name, metric) for metric in result.metrics)
    return replace(result, status="within", reason="", metrics=parts)


def overruled(result: FeedResult, other: FeedResult) -> FeedResult:
    """The result of a trial, or that of another backend for the same inputs."""
    return other if result.fed == other.fed else result


def is_lost(metric: Metrics) -> bool:
    """Whether only NaN or infinity are at different positions, and every number agrees."""
    return metric.kind == "special" and not metric.beyond


def is_overflow(metric: Metrics) -> bool:
    """Whether only the model is not finite where they differ, and every number agrees."""
    return is_lost(metric) and not metric.worse


def is_slight(metric: Metrics) -> bool:
    """Whether it may be an approximation."""
    return metric.at is not None and metric.kind != "special" and 0.0 < metric.relative <= _SLIGHT
