"""The child's side of the ladder: holds both models and compares there, so that outputs need not travel.

Every function here is called through the sandbox. ``note`` says what runs, so that a crash can be told apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxfix import backends
from onnxfix.sandbox import note, one_line
from onnxfix.verification.compare import Metrics, compare, identical


@dataclass
class _State:
    original: backends.Session | None = None
    fixed: backends.Session | None = None


_STATE = _State()


@dataclass(frozen=True)
class Ran:
    """What came of one feed. ``stage`` and ``error``: who failed and how; else both are empty."""

    stage: str = ""
    error: str = ""
    metrics: tuple[Metrics, ...] = ()
    unstable: tuple[str, ...] = ()  # outputs in which the original differs from itself
    seconds: float = 0.0  # of the original's run


def check(path: str) -> str:
    """onnx's checker on a model file; returns its complaint on one line, or an empty text."""
    import onnx

    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        return one_line(error)
    return ""


def drop() -> None:
    """Let go of both models."""
    _STATE.original = _STATE.fixed = None


def load(backend: str, original: str, fixed: str) -> Ran:
    """Load both models, dropping what was loaded before."""
    drop()
    note("original")
    try:
        _STATE.original = backends.load(backend, original)
    except Exception as error:
        return Ran("original", one_line(error))
    note("fixed")
    try:
        _STATE.fixed = backends.load(backend, fixed)
    except Exception as error:
        return Ran("fixed", one_line(error))
    return Ran()


def run(
    feed: dict[str, Any],
    *,
    again: bool,
    drawn: tuple[str, ...],
    exact: bool,
    noise: Mapping[str, float],
    skip: tuple[str, ...],
    coarse: str = "",
) -> Ran:
    """Run both models on ``feed`` and compare outputs, except those in ``skip``.

    ``again``: run the original once more to see which outputs differ from themselves. ``drawn`` are outputs that
    hang on a random operator: a rare draw may come out the same twice, so their values may differ.
    """
    original, fixed = _STATE.original, _STATE.fixed
    if original is None or fixed is None:
        return Ran("load", "the models are not loaded")
    note("original")
    began = time.perf_counter()
    try:
        expected = original.run(feed)
        seconds = time.perf_counter() - began
        unstable = set(skip) | (_unstable(original, feed, expected) if again else set())
    except Exception as error:
        return Ran("original", one_line(error))
    note("fixed")
    try:
        found = dict(zip(fixed.outputs, fixed.run(feed), strict=True))
    except Exception as error:
        return Ran("fixed", one_line(error), seconds=seconds)
    note("compare")
    metrics = _compare(original.outputs, expected, found, unstable, exact, noise, coarse)
    unstable |= {
        name
        for name, metric in ((metric.name.split("[")[0], metric) for metric in metrics)
        if name in drawn and metric.agreement == "different" and not metric.reason.startswith("has type")
    }
    metrics = tuple(metric for metric in metrics if metric.name.split("[")[0] not in unstable)
    return Ran("", "", metrics, tuple(sorted(unstable)), seconds)


def _unstable(session: backends.Session, feed: dict[str, Any], expected: list[Any]) -> set[str]:
    second = session.run(feed)
    pairs = zip(session.outputs, expected, second, strict=True)
    return {name for name, one, other in pairs if not identical(one, other)}


def _compare(
    names: list[str],
    expected: list[Any],
    found: Mapping[str, Any],
    unstable: set[str],
    exact: bool,
    noise: Mapping[str, float],
    coarse: str,
) -> tuple[Metrics, ...]:
    metrics: list[Metrics] = []
    for name, value in zip(names, expected, strict=True):
        if name in unstable:
            continue
        if name not in found:
            metrics.append(Metrics(name, "different", "is no output of the fixed model"))
        else:
            metrics.extend(
                compare(name, value, found[name], exact=exact, noise=noise.get(name, 0.0), coarse=coarse)
            )
    return tuple(metrics)
