"""The child's side of the ladder: loads both models and compares there, so that outputs need not cross the pipe.

Every function here is called through the sandbox. ``note`` reports what runs, so that a crash can be attributed.
"""

# Long because: all that the child of the ladder is asked to do is here.
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
import onnx

from onnxfix import backends
from onnxfix.sandbox import note
from onnxfix.verification.compare import twin, twin_double, twin_unsigned
from onnxfix.verification.compare.compare import Metrics, Terms, Twin, compare, compare_outputs, different
from onnxfix.verification.compare.rounding import MOVES, Precise, shaken
from onnxfix.verification.kept import Kept, identity
from onnxfix.verification.outputs import Computed, Outputs
from onnxfix.verification.ran import BOTH, Ran, failed


@dataclass
class _State:
    original: backends.Session | None = None
    fixed: backends.Session | None = None
    backend: str = ""
    path: str = ""  # of the original
    fixed_path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # with which it is loaded
    kept: Kept = field(default_factory=Kept)
    twins: twin.Twins | None = None
    doubles: twin_double.Doubles | None = None
    unsigned: twin_unsigned.Unsigned | None = None
    last: tuple[dict[str, Any], list[Any], dict[str, Any]] | None = (
        None  # feed, original's and fixed model's outputs
    )
    without: tuple[str, ...] = ()  # inputs of the last feed that the fixed model does not have


MOST_COPIED = 1 << 16
"""Elements of an input up to which each run gets an array of its own."""

_STATE = _State()
OUTPUTS = Outputs()
"""What both models computed, for the rung that holds them against TensorRT's networks."""


def warm(backend: str) -> None:
    """Load what a backend needs for any model."""
    backends.warm(backend)


def drop(scope: str = "") -> None:
    """Release both models, and what they computed, but for what is kept of the original in the run ``scope``."""
    unload()
    OUTPUTS.clear()
    if not scope:
        _STATE.kept = Kept()


def unload() -> None:
    """Release both models."""
    _STATE.original = _STATE.fixed = _STATE.last = None
    _STATE.twins = _STATE.doubles = _STATE.unsigned = None


def load(
    backend: str,
    original: str,
    fixed: str,
    *,
    options: Mapping[str, Any] | None = None,
    fixed_options: Mapping[str, Any] | None = None,
    scope: str = "",
) -> Ran:
    """Load both models, dropping what was loaded before. The options are those of the backend's ``load``.

    What the original computes is kept for later calls with the same ``scope`` ("": for none). An original of which
    something is kept is loaded when it has to run.
    """
    clock, began = _clock(backend)
    unload()
    note("original")
    _STATE.backend, _STATE.options = backend, options or {}
    _STATE.path, _STATE.fixed_path = original, fixed
    about = identity(scope, backend, original, _STATE.options)
    if about is None or _STATE.kept.of != about:
        try:
            own = _original()
        except Exception as error:
            return failed("original", error)
        places, mapped = getattr(own, "places", None), getattr(own, "mapped", False)
        _STATE.kept = Kept(about, own.outputs, places, mapped)
    note("fixed")
    try:
        _STATE.fixed = backends.load(backend, fixed, **(fixed_options or {}))
    except Exception as error:
        return failed("fixed", error)
    kept = _STATE.kept
    return Ran(
        places=(kept.places, getattr(_STATE.fixed, "places", None)),
        mapped=kept.mapped or getattr(_STATE.fixed, "mapped", False),
        seconds=clock() - began,
    )


def _clock(backend: str, *, own: bool = False) -> tuple[Callable[[], float], float]:
    """What measures costs, and the time on it: other processes do not count, nor other threads with ``own``, unless a
    GPU computes."""
    clock = time.thread_time if own else time.process_time
    clock = time.perf_counter if backend == "ort-cuda" else clock
    return clock, clock()


def _original() -> backends.Session:
    """The original, loaded now if it is not yet."""
    if _STATE.original is None:
        _STATE.original = backends.load(_STATE.backend, _STATE.path, **_STATE.options)
    return _STATE.original


def alone(backend: str, path: str, feed: dict[str, Any] | None, options: Mapping[str, Any]) -> Ran:
    """Load one model, by itself, and run it on ``feed`` where there is one."""
    drop()
    try:
        session = backends.load(backend, path, **options)
        if feed is not None:
            session.run(feed)
    except Exception as error:
        return failed("original", error)
    return Ran()


def extents(
    backend: str, path: str, names: tuple[str, ...], feed: dict[str, Any], folder: str
) -> dict[str, tuple[float, float]]:
    """Least and greatest finite value of tensors of the main graph on a feed; nothing where the model does not run."""
    try:
        model = onnx.load(path)
        own = {info.name for info in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in own)
        variant = Path(folder) / "variant.onnx"
        onnx.save(model, variant)
        session = backends.load(backend, str(variant))
        values = dict(zip(session.outputs, session.run(feed), strict=True))
    except Exception:  # a model that takes no such inputs: the rungs say so
        return {}
    found = {}
    for name in names:
        array = np.asarray(values[name]).astype(np.float64)
        finite = array[np.isfinite(array)]
        if finite.size:
            found[name] = (float(finite.min()), float(finite.max()))
    return found


# Long because: what a run is asked for is described here, and how each of its steps may end decided.
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
    beside: float | None = None,
) -> Ran:
    """Run both models on ``feed`` and compare outputs, except those in ``skip``. ``keep`` their outputs, for
    ``by_twin`` or ``by_noise``, and ``hold`` them for a later rung. The fixed model gets the feed without the inputs in
    ``without``.

    ``beside``: the original runs alone for so many seconds, then both at once, in two threads. If the process ends
    then, either may have ended it.

    ``again``: run the original once more to find outputs that are not deterministic; ``recheck``: only where outputs
    differ. ``drawn`` are outputs that depend on a random operator: a rare draw may come out the same twice, so their
    values may differ. ``repeats``: the backend gives the same bits each time, unless something is random; else an
    output may differ from itself within tolerance, since the order of sums may vary.
    """
    fixed = _STATE.fixed
    if fixed is None:
        return Ran("load", "the models are not loaded")
    clock, began = _clock(_STATE.backend)
    with _Beside(fixed, _own(less(feed, without)), beside) as other:
        try:
            expected, itself = _expected(feed, again, repeats, terms.coarse)
        except Exception as error:
            return replace(failed("original", error), beside=other.both())
        unstable = {*skip, *_unstable(itself)}
        wobble = tuple(part for parts in itself.values() for part in parts if part.agreement == "within")
        try:
            values, took = other.outputs()
        except Exception as error:
            return replace(failed("fixed", error), beside=other.both())
    found, seconds = dict(zip(fixed.outputs, values, strict=True)), clock() - began
    note("compare")
    _STATE.last, _STATE.without = (feed, expected, found) if keep else None, without
    metrics = _compare(expected, found, unstable, terms)
    if hold:
        _hold(feed, dict(zip(_names(), expected, strict=True)), found, metrics, took)
    if recheck and not again and different(metrics):
        note("original")
        try:
            unstable |= _unstable(_itself(feed, expected, repeats, terms.coarse))
        except Exception as error:
            return failed("original", error)
    unstable |= {
        one.output for one in metrics if one.output in drawn and _differs(one) and one.kind != "dtype"
    }
    metrics = tuple(one for one in metrics if one.output not in unstable)
    return Ran("", "", metrics, tuple(sorted(unstable)), seconds, wobble=wobble, beside=other.both())


class _Beside:
    """A run of the fixed model: when it is asked for or, in a thread of its own, from when the original has run for
    ``after`` seconds (None: never)."""

    def __init__(self, session: backends.Session, feed: dict[str, Any], after: float | None) -> None:
        self._session, self._feed = session, feed
        self._done, self._lock, self._both = Event(), Lock(), False  # of the original's run
        self._pool = ThreadPoolExecutor(1) if after is not None else None
        self._ahead = self._pool.submit(self._run_after, after) if self._pool is not None else None

    def __enter__(self) -> _Beside:
        return self

    def __exit__(self, *_: object) -> None:
        self.both()
        if self._pool is not None:
            self._pool.shutdown()

    def both(self) -> bool:
        """The original's run is over: whether the other one has begun."""
        with self._lock:
            self._done.set()
            return self._both

    def outputs(self) -> tuple[list[Any], float]:
        """What it computed, and the seconds that it took, after the original's run. Raises what the session raises."""
        if self.both() and self._ahead is not None:
            return self._ahead.result()
        note("fixed")
        return self._run()

    def _run_after(self, seconds: float | None) -> tuple[list[Any], float]:
        self._done.wait(seconds)
        with self._lock:
            if self._done.is_set():
                return [], 0.0
            self._both = True
            note(BOTH)
        return self._run()

    def _run(self) -> tuple[list[Any], float]:
        clock, began = _clock(_STATE.backend, own=True)
        return self._session.run(self._feed), clock() - began


def _expected(
    feed: dict[str, Any], again: bool, repeats: bool, coarse: str
) -> tuple[list[Any], dict[str, tuple[Metrics, ...]]]:
    """The original's outputs, computed or kept, and with ``again`` how those of another run differ from them."""
    note("original")
    kept = None if again else _STATE.kept.find(feed)
    if kept is not None:
        return kept, {}
    expected = _original().run(_own(feed))
    if again:
        return expected, _itself(feed, expected, repeats, coarse)
    _STATE.kept.put(feed, expected)
    return expected, {}


def _own(feed: Mapping[str, Any]) -> dict[str, Any]:
    """The feed for one run, with arrays of its own where they are small.

    ONNX Runtime writes to its inputs: BatchNormalization in training, before opset 14, updates the mean and variance
    that it is given, which have an element for each channel. What runs next would compute from another feed.
    """
    return {
        name: value.copy() if isinstance(value, np.ndarray) and value.size <= MOST_COPIED else value
        for name, value in feed.items()
    }


def _names() -> list[str]:
    """The original's outputs."""
    return list(_STATE.original.outputs) if _STATE.original is not None else _STATE.kept.names


def _itself(
    feed: dict[str, Any], expected: list[Any], repeats: bool, coarse: str
) -> dict[str, tuple[Metrics, ...]]:
    """How the outputs of another run of the original differ from the ``expected`` ones, by output."""
    pairs = zip(_names(), expected, _original().run(_own(feed)), strict=True)
    return {name: compare(name, a, b, exact=repeats, coarse=coarse) for name, a, b in pairs}


def _unstable(itself: Mapping[str, tuple[Metrics, ...]]) -> set[str]:
    return {name for name, parts in itself.items() if any(map(_differs, parts))}


def _hold(
    feed: dict[str, Any],
    expected: dict[str, Any],
    found: dict[str, Any],
    metrics: Sequence[Metrics],
    seconds: float,
) -> None:
    """Keep what both models computed, identical outputs once. ``seconds`` are those of the fixed model."""
    same = expected.keys() == found.keys() == {one.output for one in metrics}
    same = same and all(one.agreement == "identical" for one in metrics)
    OUTPUTS.put(_STATE.path, feed, Computed(expected, seconds))
    OUTPUTS.put(
        _STATE.fixed_path, less(feed, _STATE.without), Computed(expected if same else found, seconds), same
    )


def by_twin(
    folder: str,
    *,
    half: str,
    terms: Terms,
    skip: tuple[str, ...],
) -> Ran:
    """Judge the last run again, with the original in higher precision beside it. ``half`` is the model's half-precision
    type, ``folder`` a place for the twin; outputs in ``skip`` are left out."""
    if _STATE.last is None:
        return Ran("twin", "nothing was kept of the last run")
    feed, expected, found = _STATE.last
    note("twin")
    try:
        _STATE.twins = _STATE.twins or twin.load(_STATE.backend, _STATE.path, folder)
        lost, values = _STATE.twins.run(feed)
    except Exception as error:
        return failed("twin", error)
    note("compare")
    origins = _STATE.twins.origins  # an overflow excuses what is computed from it, and nothing else
    judges = {n: Twin(value, half, not origins[n].isdisjoint(lost)) for n, value in values.items()}
    metrics = _compare(expected, found, set(skip), replace(terms, exact=False), twins=judges)
    return Ran(metrics=metrics, beyond=lost[0] if lost else "", precision=_STATE.twins.precision)


def by_noise(
    folder: str,
    fixed: str,
    *,
    terms: Terms,
    skip: tuple[str, ...],
) -> Ran:
    """Judge the last run again, with what both models compute in float64 beside it, and what the original does once its
    inputs move. ``fixed`` is the fixed model's path, ``folder`` a place for both models in float64; outputs in
    ``skip`` are left out."""
    if _STATE.last is None:
        return Ran("twin", "nothing was kept of the last run")
    feed, expected, found = _STATE.last
    note("twin")
    try:
        _STATE.doubles = _STATE.doubles or twin_double.load(_STATE.backend, _STATE.path, fixed, folder)
        exact, other = _STATE.doubles.run(feed, _STATE.without)
        floats = any(map(twin_double.is_float, feed.values()))
        pinned = {name: feed[name] for name in _STATE.without}
        original = _original()
        runs = [original.run({**shaken(feed, seed), **pinned}) for seed in range(MOVES if floats else 0)]
    except Exception as error:
        return failed("twin", error)
    note("compare")
    moved = dict(zip(_names(), zip(*runs, strict=True), strict=True)) if runs else {}
    judges = {n: Precise(exact[n], other.get(n), moved.get(n, ())) for n in _names() if n in exact}
    metrics = _compare(expected, found, set(skip), replace(terms, exact=False), precise=judges)
    return Ran(metrics=metrics)


def pair(
    backend: str, original: str, fixed: str, feed: dict[str, Any], folder: str, *, half: str, terms: Terms
) -> Ran:
    """Run both models on one feed and judge as the check ``backend`` does where bits may differ; see ``by_twin``."""
    ran = load(backend, original, fixed)
    ran = ran if ran.stage else run(feed, again=False, drawn=(), terms=terms, skip=(), keep=True)
    if not ran.stage and different(ran.metrics):
        more: dict[str, Any] = {"terms": terms, "skip": ()}
        again = by_twin(folder, half=half, **more) if half else by_noise(folder, fixed, **more)
        ran = ran if again.stage else again
    drop()
    return ran


def by_unsigned(
    folder: str,
    fixed: str,
    feed: dict[str, Any],
    *,
    terms: Terms,
    skip: tuple[str, ...],
    without: tuple[str, ...],
) -> Ran:
    """Judge a run again by what both models compute with unsigned weights in their products of bytes; that is what
    ``by_twin`` and ``by_noise`` judge then, too. ``fixed`` is the fixed model's path, ``folder`` a place for both
    models; for the others see ``run``."""
    note("twin")
    try:
        _STATE.unsigned = _STATE.unsigned or twin_unsigned.load(_STATE.backend, _STATE.path, fixed, folder)
        original, other = _STATE.unsigned.original, _STATE.unsigned.fixed
        expected = original.run(_own(feed))
        found = dict(zip(other.outputs, other.run(_own(less(feed, without))), strict=True))
    except Exception as error:
        return failed("twin", error)
    note("compare")
    if _STATE.last is not None:
        _STATE.last = feed, expected, found
    metrics = _compare(expected, found, set(skip), terms)
    return Ran(metrics=metrics)


def less(feed: Mapping[str, Any], without: Sequence[str]) -> dict[str, Any]:
    """A feed for a model that lacks some inputs."""
    return {name: value for name, value in feed.items() if name not in without}


def _differs(metric: Metrics) -> bool:
    return metric.agreement == "different"


def _compare(
    expected: list[Any], found: Mapping[str, Any], unstable: set[str], terms: Terms, **judges: Any
) -> tuple[Metrics, ...]:
    values = {name: one for name, one in zip(_names(), expected, strict=True) if name not in unstable}
    return compare_outputs(values, values, found, terms, **judges)
