"""The child's side of the ladder: loads both models and compares there, so that outputs need not cross the pipe.

Every function here is called through the sandbox. ``note`` reports what runs, so that a crash can be attributed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxfix import backends
from onnxfix._child import NO_MEMORY
from onnxfix.backends import ort_messages
from onnxfix.causes import ENDED, Cause
from onnxfix.errors import Fault
from onnxfix.sandbox import Outcome, note, one_line
from onnxfix.verification.compare import twin, twin_double
from onnxfix.verification.compare.compare import Metrics, Twin, compare
from onnxfix.verification.compare.noise import MOVES, Precise, shaken
from onnxfix.verification.compare.tolerance import Allowed
from onnxfix.verification.outputs import Computed, Outputs

_WIDEST = 4000  # characters of an error of which a line is made


@dataclass
class _State:
    original: backends.Session | None = None
    fixed: backends.Session | None = None
    backend: str = ""
    path: str = ""  # of the original
    fixed_path: str = ""
    twins: twin.Twins | None = None
    doubles: twin_double.Doubles | None = None
    last: tuple[dict[str, Any], list[Any], dict[str, Any]] | None = (
        None  # feed, original's and fixed model's outputs
    )
    without: tuple[str, ...] = ()  # inputs of the last feed that the fixed model does not have


_STATE = _State()
OUTPUTS = Outputs()
"""What both models computed, for the rung that holds them against TensorRT's networks."""


@dataclass(frozen=True)
class Ran:
    """The result of loading, or of one feed. ``stage`` and ``error``: which model failed and why; else both are empty.

    ``unsupported``: the backend cannot do this. ``no_kernel``: it lacks an operator of the model. ``broken``: the
    process cannot be used any more. ``places``: for the original and the fixed model, how many nodes each execution
    provider runs, where the backend reports that. ``starved``: memory ran out. ``mapped``: a model's weights were
    mapped from its file, not loaded as usual. ``cause``: why it failed, where that is known.
    """

    stage: str = ""
    error: str = ""
    metrics: tuple[Metrics, ...] = ()
    unstable: tuple[str, ...] = ()  # outputs in which the original differs from itself
    seconds: float = 0.0  # of the original's run
    unsupported: bool = False
    no_kernel: bool = False
    broken: bool = False
    starved: bool = False
    mapped: bool = False
    places: tuple[Mapping[str, int] | None, ...] = ()
    wobble: tuple[Metrics, ...] = ()  # where it differs from itself within tolerance
    precision: str = ""  # of the twin
    cause: Cause = ""
    said: str = ""  # the text of the exception of who ran it, and nothing else
    beyond: str = ""  # the first value of the original that is finite in its twin and not in half precision


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


def _failed(stage: str, error: Exception, seconds: float = 0.0) -> Ran:
    unsupported, broken = isinstance(error, backends.Unsupported), isinstance(error, backends.Broken)
    said = "" if unsupported else one_line(ort_messages.plain(one_line(str(error), _WIDEST)))
    text = str(error) if unsupported or broken else one_line(ort_messages.plain(one_line(error, _WIDEST)))
    starved = isinstance(error, MemoryError) or (not unsupported and bool(NO_MEMORY.search(str(error))))
    return Ran(
        stage,
        text,
        said=said,
        seconds=seconds,
        unsupported=unsupported,
        no_kernel=isinstance(error, backends.NoKernel),
        broken=broken,
        starved=starved,
        cause="memory" if starved else getattr(error, "cause", ""),
    )


def drop() -> None:
    """Release both models, and what they computed."""
    unload()
    OUTPUTS.clear()


def unload() -> None:
    """Release both models."""
    _STATE.original = _STATE.fixed = _STATE.twins = _STATE.doubles = _STATE.last = None


def load(
    backend: str,
    original: str,
    fixed: str,
    *,
    options: Mapping[str, Any] | None = None,
    fixed_options: Mapping[str, Any] | None = None,
) -> Ran:
    """Load both models, dropping what was loaded before. The options are those of the backend's ``load``."""
    unload()
    note("original")
    _STATE.backend, _STATE.path, _STATE.fixed_path = backend, original, fixed
    try:
        _STATE.original = backends.load(backend, original, **(options or {}))
    except Exception as error:
        return _failed("original", error)
    note("fixed")
    try:
        _STATE.fixed = backends.load(backend, fixed, **(fixed_options or {}))
    except Exception as error:
        return _failed("fixed", error)
    both = (_STATE.original, _STATE.fixed)
    return Ran(
        places=tuple(getattr(one, "places", None) for one in both),
        mapped=any(getattr(one, "mapped", False) for one in both),
    )


def alone(backend: str, path: str, feed: dict[str, Any] | None, options: Mapping[str, Any]) -> Ran:
    """Load one model, by itself, and run it on ``feed`` where there is one."""
    drop()
    try:
        session = backends.load(backend, path, **options)
        if feed is not None:
            session.run(feed)
    except Exception as error:
        return _failed("original", error)
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


def run(
    feed: dict[str, Any],
    *,
    again: bool,
    drawn: tuple[str, ...],
    exact: bool,
    noise: Mapping[str, float],
    skip: tuple[str, ...],
    coarse: str = "",
    allowed: Allowed | None = None,
    repeats: bool = True,
    keep: bool = False,
    without: tuple[str, ...] = (),
    hold: bool = False,
) -> Ran:
    """Run both models on ``feed`` and compare outputs, except those in ``skip``. ``keep`` their outputs, for
    ``by_twin`` or ``by_noise``, and ``hold`` them for a later rung. The fixed model gets the feed without the inputs in
    ``without``.

    ``again``: run the original once more to find outputs that are not deterministic. ``drawn`` are outputs that depend
    on a random operator: a rare draw may come out the same twice, so their values may differ. ``repeats``: the backend
    gives the same bits each time, unless something is random; else an output may differ from itself within tolerance,
    since the order of sums may vary.
    """
    original, fixed = _STATE.original, _STATE.fixed
    if original is None or fixed is None:
        return Ran("load", "the models are not loaded")
    note("original")
    began = time.perf_counter()
    itself: dict[str, tuple[Metrics, ...]] = {}
    try:
        expected = original.run(feed)
        seconds = time.perf_counter() - began
        if again:
            pairs = zip(original.outputs, expected, original.run(feed), strict=True)
            itself = {n: compare(n, a, b, exact=repeats, coarse=coarse) for n, a, b in pairs}
    except Exception as error:
        return _failed("original", error)
    unstable = {*skip, *(name for name, parts in itself.items() if any(map(_differs, parts)))}
    wobble = tuple(part for parts in itself.values() for part in parts if part.agreement == "within")
    note("fixed")
    took = time.process_time()
    try:
        found = dict(zip(fixed.outputs, fixed.run(less(feed, without)), strict=True))
    except Exception as error:
        return _failed("fixed", error, seconds)
    took = time.process_time() - took
    note("compare")
    _STATE.last, _STATE.without = (feed, expected, found) if keep else None, without
    metrics = _compare(original.outputs, expected, found, unstable, exact, noise, coarse, allowed)
    if hold:
        _hold(feed, dict(zip(original.outputs, expected, strict=True)), found, metrics, took)
    named = [(metric.output, metric) for metric in metrics]
    unstable |= {
        name for name, metric in named if name in drawn and _differs(metric) and metric.kind != "dtype"
    }
    metrics = tuple(metric for name, metric in named if name not in unstable)
    return Ran("", "", metrics, tuple(sorted(unstable)), seconds, wobble=wobble)


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
    drawn: tuple[str, ...],
    noise: Mapping[str, float],
    skip: tuple[str, ...],
    coarse: str = "",
    allowed: Allowed | None = None,
) -> Ran:
    """Judge the last run again, with the original in higher precision beside it. ``half`` is the model's half-precision
    type, ``folder`` a place for the twin; outputs in ``drawn`` and ``skip`` are left out."""
    if _STATE.last is None or _STATE.original is None:
        return Ran("twin", "nothing was kept of the last run")
    feed, expected, found = _STATE.last
    note("twin")
    try:
        _STATE.twins = _STATE.twins or twin.load(_STATE.backend, _STATE.path, folder)
        lost, values = _STATE.twins.run(feed)
    except Exception as error:
        return _failed("twin", error)
    note("compare")
    origins = _STATE.twins.origins  # an overflow excuses what is computed from it, and nothing else
    judges = {n: Twin(value, half, not origins[n].isdisjoint(lost)) for n, value in values.items()}
    unstable = {*skip, *drawn}
    metrics = _compare(
        _STATE.original.outputs, expected, found, unstable, False, noise, coarse, allowed, judges
    )
    return Ran(metrics=metrics, beyond=lost[0] if lost else "", precision=_STATE.twins.precision)


def by_noise(
    folder: str,
    fixed: str,
    *,
    drawn: tuple[str, ...],
    noise: Mapping[str, float],
    skip: tuple[str, ...],
    coarse: str = "",
    allowed: Allowed | None = None,
) -> Ran:
    """Judge the last run again, with what both models compute in float64 beside it, and what the original does once its
    inputs move. ``fixed`` is the fixed model's path, ``folder`` a place for both models in float64; outputs in
    ``drawn`` and ``skip`` are left out."""
    original = _STATE.original
    if _STATE.last is None or original is None:
        return Ran("twin", "nothing was kept of the last run")
    feed, expected, found = _STATE.last
    note("twin")
    try:
        _STATE.doubles = _STATE.doubles or twin_double.load(_STATE.backend, _STATE.path, fixed, folder)
        exact, other = _STATE.doubles.run(feed, _STATE.without)
        floats = any(map(twin_double.is_float, feed.values()))
        pinned = {name: feed[name] for name in _STATE.without}
        runs = [original.run({**shaken(feed, seed), **pinned}) for seed in range(MOVES if floats else 0)]
    except Exception as error:
        return _failed("twin", error)
    note("compare")
    moved = dict(zip(original.outputs, zip(*runs, strict=True), strict=True)) if runs else {}
    judges = {n: Precise(exact[n], other.get(n), moved.get(n, ())) for n in original.outputs if n in exact}
    unstable = {*skip, *drawn}
    metrics = _compare(
        original.outputs, expected, found, unstable, False, noise, coarse, allowed, precise=judges
    )
    return Ran(metrics=metrics)


def less(feed: Mapping[str, Any], without: Sequence[str]) -> dict[str, Any]:
    """A feed for a model that lacks some inputs."""
    return {name: value for name, value in feed.items() if name not in without}


def _differs(metric: Metrics) -> bool:
    return metric.agreement == "different"


def _compare(
    names: list[str],
    expected: list[Any],
    found: Mapping[str, Any],
    unstable: set[str],
    exact: bool,
    noise: Mapping[str, float],
    coarse: str,
    allowed: Allowed | None,
    twins: Mapping[str, Twin] | None = None,
    precise: Mapping[str, Precise] | None = None,
) -> tuple[Metrics, ...]:
    metrics: list[Metrics] = []
    for name, value in zip(names, expected, strict=True):
        if name in unstable:
            continue
        if name not in found:
            metrics.append(
                Metrics(name, "different", "is not an output of the fixed model", "absent", output=name)
            )
        else:
            judge, other = (twins or {}).get(name), (precise or {}).get(name)
            how: dict[str, Any] = {
                "exact": exact,
                "noise": noise.get(name, 0.0),
                "coarse": coarse,
                "allowed": allowed,
            }
            metrics.extend(compare(name, value, found[name], **how, twin=judge, precise=other))
    return tuple(metrics)
