"""What engines and ONNX Runtime computed for one feed, judged: who agrees with whom, and what that says of the fix."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from onnxfix.backends.trt_run import Ran
from onnxfix.verification.compare import Metrics, compare, output_of
from onnxfix.verification.plan import Feed
from onnxfix.verification.verdict import FeedResult, FeedStatus

#: "agree": what was compared agrees. "repaired": the fixed model's engine agrees with ONNX Runtime, the original's
#: with neither. "alike": both engines agree with each other and neither with ONNX Runtime. "nothing": no output could
#: be compared.
Finding = Literal["agree", "repaired", "alike", "wrong", "nothing"]

ORACLES = {"ort-cpu": "ONNX Runtime on the CPU", "ort-cuda": "ONNX Runtime on CUDA"}
ENGINES = "engines: "
_BETWEEN = "the engines differ by more than the tolerance, though each agrees with ONNX Runtime"


@dataclass(frozen=True)
class Terms:
    """How outputs are compared. ``names`` are the model's outputs in order, ``excluded`` those that are not compared;
    ``noise`` and ``coarse`` as for ``compare``. ``oracle`` is the rung that computed the expected values, ``engine``
    what to call the engine that is judged."""

    names: Sequence[str]
    excluded: Collection[str] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    coarse: str = ""
    oracle: str = "ort-cpu"
    engine: str = "the fixed model's engine"


@dataclass(frozen=True)
class Judgement:
    """What one feed showed; ``reason`` names the comparison and the output, "" where all agree."""

    finding: Finding
    results: tuple[FeedResult, ...]
    reason: str = ""


def judge(
    terms: Terms, label: str, feed: Feed | None, expected: Ran | None, before: Ran | None, after: Ran
) -> Judgement:
    """Judge the fixed model's engine (``after``) by that of the original (``before``) and by ONNX Runtime on the
    original (``expected``); None for a side that there is not."""
    engines = _compare(terms, before, after)
    oracle = _compare(terms, expected, after)
    unlike, off = _first(engines), _first(oracle)
    said = {
        "engines": f"the engines of the original and of the fixed model differ: {_text(unlike)}",
        "oracle": f"{terms.engine} differs from {ORACLES[terms.oracle]}: {_text(off)}",
    }
    finding, reason = _find(terms, expected, before, engines, oracle)
    if finding == "wrong":
        reason = "; ".join(said[which] for which, one in (("engines", unlike), ("oracle", off)) if one)
    elif finding == "alike":
        reason = f"{said['oracle']}; so does the original's engine, which agrees with it"
    elif finding == "repaired":
        reason = said["engines"]
    results = []
    if engines:
        excused = reason if unlike is not None and finding != "wrong" else ""
        results.append(_result(f"{ENGINES}{label}", feed, engines, excused))
    if oracle:
        results.append(_result(f"engine against {terms.oracle}: {label}", feed, oracle))
    return Judgement(finding, tuple(results), "" if finding == "agree" else reason)


def _find(
    terms: Terms,
    expected: Ran | None,
    before: Ran | None,
    engines: tuple[Metrics, ...],
    oracle: tuple[Metrics, ...],
) -> tuple[Finding, str]:
    """The finding, and what to say of engines that differ in spite of it."""
    unlike, off = _wrong(engines), _wrong(oracle)
    if not engines and not oracle:
        return "nothing", ""
    if not unlike and not off:
        return "agree", ""
    original = (
        _wrong(_compare(terms, expected, before)) if expected is not None and before is not None else set()
    )
    if not off and unlike <= {one.name for one in oracle}:
        # The fixed model's engine is right where the two differ.
        return ("repaired", "") if unlike & original else ("agree", _BETWEEN)
    if not unlike and off <= original & {one.name for one in engines}:
        return "alike", ""
    return "wrong", ""


def differing(terms: Terms, one: Ran, other: Ran) -> set[str]:
    """The outputs in which two runs differ by more than the tolerance."""
    return {
        output_of(metric, terms.names)
        for metric in _compare(terms, one, other)
        if metric.agreement == "different"
    }


def _compare(terms: Terms, expected: Ran | None, found: Ran | None) -> tuple[Metrics, ...]:
    """Compare outputs, but for those that one side could not read; () where a side is missing."""
    if expected is None or found is None:
        return ()
    metrics: list[Metrics] = []
    for name in terms.names:
        if name in terms.excluded or name in expected.unread or name in found.unread:
            continue
        if name not in expected.outputs or name not in found.outputs:
            metrics.append(Metrics(name, "different", "is no output of both"))
            continue
        wanted, value = expected.outputs[name], found.outputs[name]
        noise = terms.noise.get(name, 0.0)
        metrics.extend(
            compare(name, _narrow(wanted, value), value, exact=False, noise=noise, coarse=terms.coarse)
        )
    return tuple(metrics)


def _narrow(wanted: Any, value: Any) -> Any:
    """TensorRT has no float64 and makes float32 of it: what was expected is rounded in the same way."""
    types = [one.dtype.name if isinstance(one, np.ndarray) else "" for one in (wanted, value)]
    if types != ["float64", "float32"]:
        return wanted
    with np.errstate(over="ignore"):
        return wanted.astype(np.float32)


def _wrong(metrics: Sequence[Metrics]) -> set[str]:
    return {one.name for one in metrics if one.agreement == "different"}


def _first(metrics: Sequence[Metrics]) -> Metrics | None:
    return next((one for one in metrics if one.agreement == "different"), None)


def _text(metric: Metrics | None) -> str:
    if metric is None:
        return ""
    if not metric.elements or not metric.mismatches or metric.first is None or metric.values is None:
        return f"output {metric.name} {metric.reason}"
    first, second = metric.values
    return f"output {metric.name}: {metric.reason}, first at {list(metric.first)}: {first} against {second}"


def _result(label: str, feed: Feed | None, metrics: tuple[Metrics, ...], excused: str = "") -> FeedResult:
    wrong = _first(metrics)
    if excused:
        return FeedResult(label, feed, "not counted", excused, metrics)
    if wrong is not None:
        return FeedResult(label, feed, "different", _text(wrong), metrics)
    within = any(one.agreement == "within" for one in metrics)
    status: FeedStatus = "within" if within else "identical"
    return FeedResult(label, feed, status, "", metrics)
