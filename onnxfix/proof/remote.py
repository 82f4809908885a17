"""The child's side of the checks that run ONNX models: loads both models and compares there, so that outputs need not
cross the pipe.

Every function here is called through the sandbox. ``note`` reports the running model, so that a crash is attributed.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.errors import Fault
from onnxfix.proof import copies
from onnxfix.proof import outputs as kept_outputs
from onnxfix.proof.compare import twin
from onnxfix.proof.compare.compare import Metrics, Terms, Twin, compare_outputs, different
from onnxfix.proof.compare.tolerance import MOVES, Precise, shaken
from onnxfix.runtime import backends
from onnxfix.runtime.backends import ort_messages
from onnxfix.runtime.causes import ENDED, NO_MEMORY, Cause
from onnxfix.runtime.sandbox import Outcome, note, one_line

Values = Mapping[str, Any]
"""Inputs or outputs of a model by name."""


# ---------------------------------------------------------------------------------------------- what a call returns

_WIDEST = 4000  # most characters of an error to put into one line
_SAID = 600  # most characters of ONNX Runtime's message to keep


@dataclass(frozen=True)
class Ran:
    """The result of loading, or of one feed. ``stage`` and ``error``: which model failed and why; else both are empty.

    ``unsupported``: the backend cannot do this. ``no_kernel``: it lacks an operator of the model. ``broken``: the
    process cannot be used any more. ``places``: for the original and the fixed model, how many nodes each execution
    provider runs, if the backend reports that. ``starved``: memory ran out. ``mapped``: a model's weights were
    mapped from its file, not loaded as usual. ``cause``: the category of the failure, if known.
    """

    stage: str = ""
    error: str = ""
    metrics: tuple[Metrics, ...] = ()
    unstable: tuple[str, ...] = ()  # outputs in which the original differs from itself
    seconds: float = 0.0  # CPU time; if a GPU computes, wall-clock time
    unsupported: bool = False
    no_kernel: bool = False
    broken: bool = False
    starved: bool = False
    mapped: bool = False
    places: tuple[Mapping[str, int], ...] = ()
    wobble: tuple[Metrics, ...] = ()  # where the original differs from itself within tolerance
    precision: str = ""  # in which the twin computes
    cause: Cause = ""
    said: str = ""  # the text of the backend's exception alone
    beyond: str = ""  # the first value that overflows in half precision and is finite in the twin


def ran_of(outcome: Outcome) -> Ran:
    """The result of a call of ``load`` or ``run``; a crash is attributed to the model that ran.

    Raises:
        Fault: verification itself failed.
    """
    if outcome.ok:
        return outcome.value  # type: ignore[no-any-return]
    if outcome.status == "error":  # errors of models come back as a Ran
        raise Fault(outcome.message)
    stage = outcome.note if outcome.note in ("original", "fixed") else "original"
    return Ran(stage, outcome.message, starved=outcome.status == "memory", cause=ENDED[outcome.status])


def failed(stage: str, error: Exception) -> Ran:
    """The result if the model ``stage`` raised ``error``."""
    unsupported, broken = isinstance(error, backends.Unsupported), isinstance(error, backends.Broken)
    said = "" if unsupported else one_line(ort_messages.plain(one_line(str(error), _WIDEST)), _SAID)
    text = str(error) if unsupported or broken else one_line(ort_messages.plain(one_line(error, _WIDEST)))
    starved = isinstance(error, MemoryError) or (not unsupported and bool(NO_MEMORY.search(str(error))))
    return Ran(
        stage,
        text,
        said=said,
        unsupported=unsupported,
        no_kernel=isinstance(error, backends.NoKernel),
        broken=broken,
        starved=starved,
        cause="memory" if starved else getattr(error, "cause", ""),
    )


# --------------------------------------------------------------------------------------------- loading and running


@dataclass
class _Compared:
    """A run of both models that may be judged again: the feed, and the outputs of the original and the fixed model.
    ``without`` are the inputs that the fixed model does not get."""

    feed: dict[str, Any]
    expected: Values
    outputs: Values
    without: tuple[str, ...]


@dataclass
class _State:
    original: backends.Session | None = None
    fixed: backends.Session | None = None
    backend: str = ""
    path: str = ""  # of the original
    fixed_path: str = ""
    copies: dict[str, Any] = field(default_factory=dict)  # of both models, to judge a difference again
    last: _Compared | None = None


MOST_COPIED = 1 << 16
"""Most elements of an input that is copied for each run."""

_STATE = _State()


class _ModelFails(Exception):
    """A model does not load or run."""

    def __init__(self, ran: Ran) -> None:
        super().__init__(ran.error)
        self.ran = ran


@contextlib.contextmanager
def _running(stage: str) -> Iterator[None]:
    """Report which model runs, and attribute an error to this model."""
    note(stage)
    try:
        yield
    except Exception as error:
        raise _ModelFails(failed(stage, error)) from error


def _reports(function: Callable[..., Ran]) -> Callable[..., Ran]:
    """Decorator: return a model's failure instead of raising it."""

    @functools.wraps(function)
    def call(*args: Any, **arguments: Any) -> Ran:
        try:
            return function(*args, **arguments)
        except _ModelFails as failure:
            return failure.ran

    return call


def drop() -> None:
    """Release both models, and what they computed."""
    unload()
    kept_outputs.drop()


def unload() -> None:
    """Release both models."""
    _STATE.original = _STATE.fixed = _STATE.last = None
    _STATE.copies.clear()


@_reports
def load(
    backend: str,
    original: str,
    fixed: str,
    *,
    options: Mapping[str, Any] | None = None,
    fixed_options: Mapping[str, Any] | None = None,
) -> Ran:
    """Release the previous models and load both new ones. The options go to the backend's ``load``."""
    unload()
    with contextlib.suppress(Exception):  # a fault of the backend shows when it loads the model
        backends.warm(backend)  # the backend's own start-up, not counted for this model
    clock, began = _clock(backend)
    _STATE.backend, _STATE.path, _STATE.fixed_path = backend, original, fixed
    with _running("original"):
        before = backends.load(backend, original, **(options or {}))
    with _running("fixed"):
        after = backends.load(backend, fixed, **(fixed_options or {}))
    _STATE.original, _STATE.fixed = before, after
    return Ran(
        places=tuple(getattr(one, "places", {}) for one in (before, after)),
        mapped=any(getattr(one, "mapped", False) for one in (before, after)),
        seconds=clock() - began,
    )


def _clock(backend: str) -> tuple[Callable[[], float], float]:
    """The clock that measures costs, and its time: CPU time of this process, or wall-clock time for a GPU."""
    clock = time.perf_counter if backend in backends.ON_GPU else time.process_time
    return clock, clock()


@_reports
def alone(backend: str, path: str, feed: dict[str, Any] | None, options: Mapping[str, Any]) -> Ran:
    """Load one model, without the other, and run it on ``feed`` unless that is None."""
    drop()
    with _running("original"):
        session = backends.load(backend, path, **options)
        if feed is not None:
            session.run(feed)
    return Ran()


# Long because: it describes all arguments of a run, and decides how each step may end.
@_reports
def run(
    feed: dict[str, Any],
    *,
    again: bool,
    drawn: tuple[str, ...],
    terms: Terms,
    skip: tuple[str, ...],
    repeats: bool = True,
    keep: bool = False,
    without: tuple[str, ...] = (),
    recheck: bool = False,
    hold: bool = False,
) -> Ran:
    """Run both models on ``feed`` and compare their outputs, except outputs in ``skip``. ``keep``: keep the outputs for
    ``by_twin`` or ``by_noise``; ``hold``: keep them for a later check. The fixed model gets no inputs in ``without``.

    ``again``: run the original once more to find outputs that are not deterministic; ``recheck``: only if outputs
    differ. ``drawn`` are outputs that depend on a random operator: their values may differ, even if two runs of the
    original happened to give the same values. ``repeats``: without random operators, the backend gives the same bits
    in each run. Otherwise an output may differ from itself within tolerance, since the order of sums may vary.
    """
    original, fixed = _STATE.original, _STATE.fixed
    if original is None or fixed is None:
        return Ran("load", "the models are not loaded")
    clock, began = _clock(_STATE.backend)
    rerun_terms, rerun = Terms(repeats, terms.coarse), tuple[Metrics, ...]()
    with _running("original"):
        expected = _compute(original, feed)
        if again:
            rerun = _compare_with_itself(original, feed, expected, rerun_terms)
    with _running("fixed"):
        middle = clock()
        outputs = _compute(fixed, less(feed, without))
    ends = clock()
    if hold:  # the original may have run twice: the fixed model's time stands for both
        kept_outputs.keep(_STATE.path, feed, expected, ends - middle)
        kept_outputs.keep(_STATE.fixed_path, less(feed, without), outputs, ends - middle)
    note("compare")
    _STATE.last = _Compared(feed, expected, outputs, without) if keep else None
    unstable = {*skip, *(one.output for one in different(rerun))}
    metrics = _compare(expected, outputs, unstable, terms)
    if recheck and not again and different(metrics):
        with _running("original"):
            second = _compare_with_itself(original, feed, expected, rerun_terms)
        unstable.update(one.output for one in different(second))
    unstable.update(one.output for one in different(metrics) if one.output in drawn and one.kind != "dtype")
    return Ran(
        metrics=tuple(one for one in metrics if one.output not in unstable),
        unstable=tuple(sorted(unstable)),
        seconds=ends - began,
        wobble=tuple(one for one in rerun if one.agreement == "within"),
    )


def _compute(session: backends.Session, feed: Values) -> dict[str, Any]:
    """A model's outputs by name."""
    return dict(zip(session.outputs, session.run(_copy_small(feed)), strict=True))


def _copy_small(feed: Values) -> dict[str, Any]:
    """The feed for one run, with copies of small arrays.

    ONNX Runtime writes to its inputs: BatchNormalization in training, before opset 14, updates its inputs for mean and
    variance, which have an element for each channel. The next run would compute from these changed inputs.
    """
    return {
        name: value.copy() if isinstance(value, np.ndarray) and value.size <= MOST_COPIED else value
        for name, value in feed.items()
    }


def _compare_with_itself(
    original: backends.Session, feed: Values, expected: Values, terms: Terms
) -> tuple[Metrics, ...]:
    """How the outputs of another run of the original differ from the ``expected`` ones."""
    return compare_outputs(expected, expected, _compute(original, feed), terms)


def _compare(
    expected: Values, outputs: Values, skip: Iterable[str], terms: Terms, **judges: Any
) -> tuple[Metrics, ...]:
    return compare_outputs(
        [name for name in expected if name not in skip], expected, outputs, terms, **judges
    )


# ------------------------------------------------------------------------------------- judging the last run again


@_reports
def by_twin(folder: str, *, half: str, terms: Terms, skip: tuple[str, ...]) -> Ran:
    """Judge the last run again by its twin: the original in higher precision. ``half`` is the model's half-precision
    type, ``folder`` is a folder for the twin, and ``skip`` names outputs to leave out."""
    last = _STATE.last
    if last is None:
        return Ran("twin", "nothing was kept of the last run")
    with _running("twin"):
        twins = _copies("twin", lambda: twin.load(_STATE.backend, _STATE.path, folder))
        lost, values = twins.run(last.feed)
    note("compare")
    origins = twins.origins  # an overflow excuses only outputs that are computed from it
    judges = {n: Twin(value, half, not origins[n].isdisjoint(lost)) for n, value in values.items()}
    metrics = _compare(last.expected, last.outputs, skip, replace(terms, exact=False), twin=judges)
    return Ran(metrics=metrics, beyond=lost[0] if lost else "", precision=twins.precision)


@_reports
def by_noise(folder: str, fixed: str, *, terms: Terms, skip: tuple[str, ...], wrong: int = 0) -> Ran:
    """Judge the last run again by both models in float64, and by runs of the original on inputs that are perturbed by
    one rounding, unless they could excuse none of the ``wrong`` outputs. ``fixed`` is the fixed model's path,
    ``folder`` is a folder for the models in float64, and ``skip`` names outputs to leave out."""
    last, original = _STATE.last, _STATE.original
    if last is None or original is None:
        return Ran("twin", "nothing was kept of the last run")

    def judge(runs: Sequence[Values]) -> tuple[Metrics, ...]:
        both = ((name, exact[name], other.get(name)) for name in last.expected if name in exact)
        judges = {name: Precise(a, b, tuple(one.get(name) for one in runs)) for name, a, b in both}
        return _compare(last.expected, last.outputs, skip, replace(terms, exact=False), precise=judges)

    with _running("twin"):
        doubles = _copies("doubled", lambda: copies.load_doubled(_STATE.backend, _paths(fixed), folder))
        exact, other = doubles.run(copies.double_feed(last.feed), last.without)
        told = bool(wrong) and len(different(judge([last.outputs]))) == wrong  # at most excused
        moves = MOVES if not told and any(map(copies.is_float, last.feed.values())) else 0
        pinned = {name: last.feed[name] for name in last.without}
        moved = [_compute(original, {**shaken(last.feed, seed), **pinned}) for seed in range(moves)]
    note("compare")
    return Ran(metrics=judge(moved))


@_reports
def by_unsigned(
    folder: str,
    fixed: str,
    feed: dict[str, Any],
    *,
    terms: Terms,
    skip: tuple[str, ...],
    without: tuple[str, ...],
) -> Ran:
    """Judge a run again by copies of both models with unsigned weights in products of bytes. ``by_twin`` and
    ``by_noise`` then judge the outputs of these copies, too. ``fixed`` is the fixed model's path, and ``folder`` is a
    folder for the copies; ``run`` describes the other arguments."""
    with _running("twin"):
        unsigned = _copies("unsigned", lambda: copies.load_unsigned(_STATE.backend, _paths(fixed), folder))
        expected, outputs = unsigned.run(_copy_small(feed), without)
    note("compare")
    if _STATE.last is not None:
        _STATE.last = replace(_STATE.last, feed=feed, expected=expected, outputs=outputs)
    return Ran(metrics=_compare(expected, outputs, skip, terms))


def _paths(fixed: str) -> tuple[Path, Path]:
    return Path(_STATE.path), Path(fixed)


def _copies(kind: str, load: Callable[[], Any]) -> Any:
    """Copies of the models of this kind, loaded when they are first needed."""
    if kind not in _STATE.copies:
        _STATE.copies[kind] = load()
    return _STATE.copies[kind]


def pair(
    backend: str, original: str, fixed: str, feed: dict[str, Any], folder: str, *, half: str, terms: Terms
) -> Ran:
    """Run both models on one feed, and judge as the check ``backend`` does if bits may differ; see ``by_twin``."""
    ran = load(backend, original, fixed)
    ran = ran if ran.stage else run(feed, again=False, drawn=(), terms=terms, skip=(), keep=True)
    if wrong := len(different(ran.metrics)):
        kept: dict[str, Any] = {"terms": terms, "skip": ()}
        again = by_twin(folder, half=half, **kept) if half else by_noise(folder, fixed, wrong=wrong, **kept)
        ran = ran if again.stage else again
    drop()
    return ran


def less(feed: Values, without: Sequence[str]) -> dict[str, Any]:
    """The feed without the inputs in ``without``, which the fixed model lacks."""
    return {name: value for name, value in feed.items() if name not in without}
