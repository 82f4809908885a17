"""The sandbox in which a model and the network that was read back run, one after the other, and what that shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnxfix.errors import Fault
from onnxfix.proof.compare.compare import Metrics, agreement, difference, different
from onnxfix.proof.readback.child import THREADS, Reply
from onnxfix.proof.request import REMOTE, Trial
from onnxfix.proof.verdict import FeedResult, LeftOut
from onnxfix.runtime.causes import ENDED, Cause
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.engine import Ran
from onnxfix.tensorrt.reading import Misread

_CHILD = "onnxfix.proof.readback.child"
_DROPPING = 30.0  # seconds
_KEPT = 512 << 20  # bytes of outputs that are kept at once
_DEATHS = 3  # of the child, after which it is not used any more


class Bench:
    """Runs one model at a time and keeps its outputs until they are compared. ``step`` is in seconds, ``deaths`` counts
    how often a model ended the child."""

    def __init__(self, worker: Worker, step: float) -> None:
        self._worker, self.step = worker, step
        self.deaths = 0
        if worker.pid is not None:  # what other checks have loaded
            worker.call(f"{REMOTE}:unload", timeout=_DROPPING)
        self.drop()

    def drop(self) -> None:
        """Release everything."""
        if self._worker.pid is not None:
            self._worker.call(f"{_CHILD}:drop", timeout=_DROPPING)

    def ask(self, function: str, **arguments: Any) -> Reply:
        """Call a function of ``child``. What it returns is a reply, or the ``value`` of one."""
        outcome = self._worker.call(f"{_CHILD}:{function}", timeout=self.step, **arguments)
        if outcome.status == "error":  # errors of models come back as values
            raise Fault(outcome.message)
        if not outcome.ok:
            self.deaths += 1
            return Reply(outcome.message, died=True, cause=ENDED[outcome.status])
        reply = outcome.value if isinstance(outcome.value, Reply) else Reply(value=outcome.value)
        return replace(reply, error=self._worker.starved(reply.error)) if reply.starved else reply

    def load(self, backend: str, path: str, *, guarded: bool = False) -> Reply:
        """Load a model file in place of the last; ``guarded``: the CPU must accept the inputs that CUDA gets, whose
        kernels check no index. Several threads run on the CPU, since identical bits are not required."""
        options: dict[str, Any] = {"threads": THREADS} if backend == "ort-cpu" else {}
        options = {"guarded": True} if guarded and backend == "ort-cuda" else options
        return self.ask("load", backend=backend, path=path, options=options)

    def load_with(self, backend: str, path: str, names: Sequence[str], scratch: str) -> Reply:
        """The same with these tensors as outputs, and on the CPU instead of CUDA."""
        backend = "ort-cpu" if backend == "ort-cuda" else backend
        return self.ask("load", backend=backend, path=path, extra=tuple(names), scratch=scratch)

    def run(
        self,
        side: str,
        key: str,
        feed: Mapping[str, Any],
        wires: Mapping[str, tuple[str, int]] | None = None,
        *,
        moved: bool = False,
    ) -> Reply:
        """Run the model that is loaded; see ``child.run``."""
        return self.ask("run", side=side, key=key, feed=dict(feed), wires=wires, moved=moved)

    def judge(
        self,
        key: str,
        pairs: Sequence[tuple[str, str]],
        coarse: str,
        noise: Mapping[str, float] | None = None,
    ) -> Reply:
        """See ``child.judge``; the metrics are the reply's ``value``."""
        return self.ask("judge", key=key, pairs=tuple(pairs), coarse=coarse, noise=dict(noise or {}))


@dataclass
class Tried:
    """Tries inputs on the model, which ``load`` loads where it has to run. ``path`` is its file where outputs of it
    were left ("": nowhere). ``taken`` are the keys under which the sandbox keeps its outputs, in order; ``words``
    are the errors for inputs that it rejects."""

    bench: Bench
    load: Callable[[], Reply]
    path: str = ""
    taken: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    kept: int = 0

    def expect(self, values: dict[str, Any]) -> Ran:
        """Whether the model accepts these inputs, for ``Finder``, and the seconds of the processor that a comparison on
        them costs."""
        if self.kept > _KEPT:
            return Ran(error="no memory for the outputs of more inputs")
        if self.bench.deaths >= _DEATHS:
            return Ran(error="too many runs ended the process")
        key = str(len(self.taken) + len(self.words))
        left = self.bench.ask("recall", key=key, path=self.path, feed=dict(values)) if self.path else Reply()
        reply = left if left.value else self.bench.run("onnx", key, values)
        if reply.unloaded:
            reply = self.load()
            reply = reply if reply.error else self.bench.run("onnx", key, values)
        if reply.error:
            if reply.cause == "timeout" and not self.taken:
                self.bench.deaths = _DEATHS  # the inputs are not why: others would take as long
            self.words.append(reply.error)
            self.causes.append(reply.cause)
            return Ran(error=reply.error, cause=reply.cause)
        self.kept += reply.size
        self.taken.append(key)
        return Ran(seconds=(1 if left.value else 2) * reply.seconds)  # the network runs, too


# -- what running a model and the network has shown

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
    return trial.result(agreement(metrics), reason, metrics)


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
