"""The child's side of the checks that run ONNX models: loads both models and compares there, so that outputs need not
cross the pipe.

Every function here is called through the sandbox. ``note`` reports what runs, so that a crash can be attributed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix.proof.compare import copies, twin
from onnxfix.proof.compare.compare import Metrics, Terms, Twin, compare, compare_outputs, different
from onnxfix.proof.compare.rounding import MOVES, Precise, shaken
from onnxfix.proof.outputs import Computed, Outputs
from onnxfix.proof.ran import Ran, failed
from onnxfix.runtime import backends
from onnxfix.runtime.sandbox import note


@dataclass
class _Kept:
    """What the original computed, for the candidates that follow in one run. ``key`` says which original that is, in
    which run (None: nothing is kept); ``names`` are its outputs, ``places`` and ``mapped`` those of its session."""

    key: object = None
    names: Sequence[str] = ()
    places: Mapping[str, int] | None = None
    mapped: bool = False
    outputs: Outputs = field(default_factory=Outputs)


@dataclass
class _State:
    original: backends.Session | None = None
    fixed: backends.Session | None = None
    backend: str = ""
    path: str = ""  # of the original
    fixed_path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # with which it is loaded
    kept: _Kept = field(default_factory=_Kept)
    copies: dict[str, Any] = field(default_factory=dict)  # of both models, which judge where these two differ
    last: tuple[dict[str, Any], list[Any], dict[str, Any]] | None = None  # feed, original's and fixed outputs
    without: tuple[str, ...] = ()  # inputs of the last feed that the fixed model does not have


MOST_COPIED = 1 << 16
"""Elements of an input up to which each run gets an array of its own."""

_STATE = _State()
OUTPUTS = Outputs()
"""What both models computed, for the check that compares them with TensorRT's networks."""


def drop(scope: str = "") -> None:
    """Release both models, and what they computed, but for what is kept of the original in the run ``scope``."""
    unload()
    OUTPUTS.clear()
    if not scope:
        _STATE.kept = _Kept()


def unload() -> None:
    """Release both models."""
    _STATE.original = _STATE.fixed = _STATE.last = None
    _STATE.copies.clear()


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
    unload()
    with contextlib.suppress(Exception):  # what is wrong with a backend shows where the model is loaded
        backends.warm(backend)  # any model needs that: it is not part of this one's price
    clock, began = _clock(backend)
    note("original")
    _STATE.backend, _STATE.options = backend, options or {}
    _STATE.path, _STATE.fixed_path = original, fixed
    key = _identify(scope, original)
    if key is None or _STATE.kept.key != key:
        try:
            own = _original()
        except Exception as error:
            return failed("original", error)
        places, mapped = getattr(own, "places", None), getattr(own, "mapped", False)
        _STATE.kept = _Kept(key, own.outputs, places, mapped)
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


def _identify(scope: str, path: str) -> object:
    """What tells the original of a run, and how it is loaded, from others; None where nothing is to be kept."""
    try:
        file = os.stat(path)
    except OSError:
        return None
    state = (file.st_ino, file.st_size, file.st_mtime_ns)
    return (scope, _STATE.backend, path, state, sorted(_STATE.options.items())) if scope else None


def _clock(backend: str) -> tuple[Callable[[], float], float]:
    """What measures costs, and the time on it: other processes do not count, unless a GPU computes."""
    clock = time.perf_counter if backend == "ort-cuda" else time.process_time
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
) -> Ran:
    """Run both models on ``feed`` and compare outputs, except those in ``skip``. ``keep`` their outputs, for
    ``by_twin`` or ``by_noise``, and ``hold`` them for a later check. The fixed model gets the feed without the inputs
    in ``without``.

    ``again``: run the original once more to find outputs that are not deterministic; ``recheck``: only where outputs
    differ. ``drawn`` are outputs that depend on a random operator: a rare draw may come out the same twice, so their
    values may differ. ``repeats``: the backend gives the same bits each time, unless something is random; else an
    output may differ from itself within tolerance, since the order of sums may vary.
    """
    fixed = _STATE.fixed
    if fixed is None:
        return Ran("load", "the models are not loaded")
    clock, began = _clock(_STATE.backend)
    note("original")
    try:
        expected = _expect(feed, fresh=again)
        itself = _rerun(feed, expected, repeats, terms.coarse) if again else {}
    except Exception as error:
        return failed("original", error)
    unstable = {*skip, *_unstable(itself)}
    wobble = tuple(part for parts in itself.values() for part in parts if part.agreement == "within")
    note("fixed")
    middle = clock()
    try:
        values = fixed.run(_own(less(feed, without)))
    except Exception as error:
        return failed("fixed", error)
    ends = clock()
    found, seconds = dict(zip(fixed.outputs, values, strict=True)), ends - began
    note("compare")
    _STATE.last, _STATE.without = (feed, expected, found) if keep else None, without
    metrics = _compare(expected, found, unstable, terms)
    if hold:
        _hold(feed, dict(zip(_names(), expected, strict=True)), found, metrics, ends - middle)
    if recheck and not again and different(metrics):
        note("original")
        try:
            unstable |= _unstable(_rerun(feed, expected, repeats, terms.coarse))
        except Exception as error:
            return failed("original", error)
    unstable |= {
        one.output for one in metrics if one.output in drawn and _differs(one) and one.kind != "dtype"
    }
    metrics = tuple(one for one in metrics if one.output not in unstable)
    return Ran("", "", metrics, tuple(sorted(unstable)), seconds, wobble=wobble)


def _expect(feed: dict[str, Any], *, fresh: bool) -> list[Any]:
    """The original's outputs, computed or, unless they must be ``fresh``, kept."""
    kept = _STATE.kept
    if not fresh and (known := kept.outputs.find(_STATE.path, feed)) is not None:
        return [known.values[name] for name in kept.names]
    clock, began = _clock(_STATE.backend)
    outputs = _original().run(_own(feed))
    if not fresh and kept.key is not None:
        computed = Computed(dict(zip(kept.names, outputs, strict=True)), clock() - began)
        kept.outputs.put(_STATE.path, feed, computed)
    return outputs


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
    return list(_STATE.kept.names if _STATE.original is None else _STATE.original.outputs)


def _rerun(
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


def by_twin(folder: str, *, half: str, terms: Terms, skip: tuple[str, ...]) -> Ran:
    """Judge the last run again, with the original in higher precision beside it. ``half`` is the model's half-precision
    type, ``folder`` a place for the twin; outputs in ``skip`` are left out."""
    if _STATE.last is None:
        return Ran("twin", "nothing was kept of the last run")
    feed, expected, found = _STATE.last
    note("twin")
    try:
        twins = _copies("twin", lambda: twin.load(_STATE.backend, _STATE.path, folder))
        lost, values = twins.run(feed)
    except Exception as error:
        return failed("twin", error)
    note("compare")
    origins = twins.origins  # an overflow excuses what is computed from it, and nothing else
    judges = {n: Twin(value, half, not origins[n].isdisjoint(lost)) for n, value in values.items()}
    metrics = _compare(expected, found, set(skip), replace(terms, exact=False), twins=judges)
    return Ran(metrics=metrics, beyond=lost[0] if lost else "", precision=twins.precision)


def by_noise(folder: str, fixed: str, *, terms: Terms, skip: tuple[str, ...]) -> Ran:
    """Judge the last run again, with what both models compute in float64 beside it, and what the original does once its
    inputs move. ``fixed`` is the fixed model's path, ``folder`` a place for both models in float64; outputs in
    ``skip`` are left out."""
    if _STATE.last is None:
        return Ran("twin", "nothing was kept of the last run")
    feed, expected, found = _STATE.last
    note("twin")
    try:
        doubles = _copies("doubled", lambda: copies.load_doubled(_STATE.backend, _paths(fixed), folder))
        exact, other = doubles.run(copies.double_feed(feed), _STATE.without)
        floats = any(map(copies.is_float, feed.values()))
        pinned = {name: feed[name] for name in _STATE.without}
        original = _original()
        runs = [original.run({**shaken(feed, seed), **pinned}) for seed in range(MOVES if floats else 0)]
    except Exception as error:
        return failed("twin", error)
    note("compare")
    moved = dict(zip(_names(), zip(*runs, strict=True), strict=True)) if runs else {}
    judges = {n: Precise(exact[n], other.get(n), moved.get(n, ())) for n in _names() if n in exact}
    return Ran(metrics=_compare(expected, found, set(skip), replace(terms, exact=False), precise=judges))


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
        unsigned = _copies("unsigned", lambda: copies.load_unsigned(_STATE.backend, _paths(fixed), folder))
        outputs, found = unsigned.run(_own(feed), without)
    except Exception as error:
        return failed("twin", error)
    note("compare")
    expected = [outputs[name] for name in _names()]
    if _STATE.last is not None:
        _STATE.last = feed, expected, found
    return Ran(metrics=_compare(expected, found, set(skip), terms))


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
    """Run both models on one feed and judge as the check ``backend`` does where bits may differ; see ``by_twin``."""
    ran = load(backend, original, fixed)
    ran = ran if ran.stage else run(feed, again=False, drawn=(), terms=terms, skip=(), keep=True)
    if not ran.stage and different(ran.metrics):
        more: dict[str, Any] = {"terms": terms, "skip": ()}
        again = by_twin(folder, half=half, **more) if half else by_noise(folder, fixed, **more)
        ran = ran if again.stage else again
    drop()
    return ran


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
