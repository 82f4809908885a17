"""What engines and the truth computed for one feed, judged: who agrees with whom, and what that says of the fix.

The truth is the ONNX model: what ONNX Runtime, or the reference evaluator, computes for the original. A fix is refuted
where the fixed model's engine is further from it than the original's engine is. Where there is no truth, the original's
engine alone is the measure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from onnxfix.trt.engine import Ran
from onnxfix.verification.compare.compare import Metrics, compare
from onnxfix.verification.compare.tolerance import distances, parts, tolerance_for, wide
from onnxfix.verification.feeds.plan import Feed
from onnxfix.verification.verdict import FeedResult, FeedStatus

#: "agree": what was compared agrees. "repaired": the fixed model's engine is right and the original's is wrong.
#: "alike": the fixed model's engine is wrong, and no further from the truth than the original's. "wrong": it is
#: further. "nothing": no output could be compared.
Finding = Literal["agree", "repaired", "alike", "wrong", "nothing"]

ORACLES = {
    "ort-cpu": "ONNX Runtime on the CPU",
    "ort-cuda": "ONNX Runtime on CUDA",
    "reference": "the reference evaluator",
}
REPAIRED = "the engine of the original is wrong, the fixed one is right"
_BETWEEN = "the engines differ by more than the tolerance, though each agrees with the ONNX model"
_FURTHER = 2.0
"""So many times further from the truth than the original's engine is no chance of rounding."""
_NEWLY = 4.0
"""What the original's engine has right, the fixed model's may miss by so many times the tolerance."""
_KERNELS = 2e-4
"""So large a share of an output's largest magnitude may the float32 kernels of an engine cost, where both engines are
off alike: on full-size exports 8.3e-5 was seen (BERT, TensorRT-RTX 1.6.1 on an H200, without TF32), 17 times what
another order of summation does on a CPU."""
_MANY = 256
"""Outputs of fewer elements are judged element by element alone."""
_SHARES = (0.5, 0.9, 0.99, 1.0)
"""Shares of the elements, from the nearest to the truth, at which two engines are held against each other."""


@dataclass(frozen=True)
class Terms:
    """How outputs are compared. ``names`` are the model's outputs in order, ``excluded`` those that are not compared;
    ``noise`` and ``coarse`` as for ``compare``, ``slack`` what each output may be off besides, where the noise was
    measured. ``oracle`` is who computed the expected values, ``engine`` what to call the engine that is judged."""

    names: Sequence[str]
    excluded: Collection[str] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    coarse: str = ""
    slack: Mapping[str, Any] = field(default_factory=dict)
    oracle: str = "ort-cpu"
    engine: str = "the fixed model's engine"


@dataclass(frozen=True)
class Judgment:
    """What one feed showed; ``reason`` says so in a line and ``output`` is the first output that it is about, both ""
    where all agree within the tolerance. One that agrees only by the grace of its kernels has a reason."""

    finding: Finding
    results: tuple[FeedResult, ...]
    reason: str = ""
    output: str = ""


def judge(
    terms: Terms, label: str, feed: Feed | None, expected: Ran | None, before: Ran | None, after: Ran
) -> Judgment:
    """Judge the fixed model's engine (``after``) by the truth (``expected``) and by that of the original (``before``);
    None for a side that there is not."""
    engines = _compare(terms, before, after)
    oracle = _compare(terms, expected, after)
    unlike, off = _first(engines), _first(oracle)
    said = {
        "engines": f"the engines of the original and of the fixed model differ: {_text(unlike)}",
        "oracle": f"{terms.engine} differs from {ORACLES[terms.oracle]}: {_text(off)}",
    }
    finding, reason = _find(terms, expected, before, after, engines, oracle)
    about = off or unlike
    kernels = (
        finding in ("alike", "wrong") and unlike is None and off is not None and _is_of_kernels(terms, oracle)
    )
    if kernels:
        finding = "agree"
        reason = f"{said['oracle']}; that is less than {_KERNELS:g} of the output's largest magnitude"
    elif finding == "wrong":
        reason = "; ".join(said[which] for which, one in (("engines", unlike), ("oracle", off)) if one)
    elif finding == "alike":
        also = "which agrees with it" if unlike is None else "which is no nearer"
        reason = f"{said['oracle']}; so does the original's engine, {also}"
    elif finding == "repaired":
        about = _first(_compare(terms, expected, before))
        reason = f"{REPAIRED}: {_text(about)}"
    results = []
    if engines:
        excused = reason if unlike is not None and finding != "wrong" else ""
        results.append(replace(_result(f"engines: {label}", feed, engines, excused), sides="engines"))
    if oracle:
        which = f"engine against {terms.oracle}: {label}"
        found = FeedResult(which, feed, "within", reason, oracle) if kernels else _result(which, feed, oracle)
        results.append(replace(found, sides="oracle"))
    if finding in ("agree", "nothing"):
        return Judgment(finding, tuple(results), reason if kernels else "")
    return Judgment(finding, tuple(results), reason, about.output if about is not None else "")


def _find(
    terms: Terms,
    expected: Ran | None,
    before: Ran | None,
    after: Ran,
    engines: tuple[Metrics, ...],
    oracle: tuple[Metrics, ...],
) -> tuple[Finding, str]:
    """The finding, and what to say of engines that differ in spite of it."""
    unlike, off = _wrong(engines, terms), _wrong(oracle, terms)
    if not engines and not oracle:
        return "nothing", ""
    if not unlike and not off:
        return "agree", ""
    known = {one.output for one in oracle}
    if before is None or expected is None or not unlike | off <= known:
        return "wrong", ""
    original = _wrong(_compare(terms, expected, before), terms)
    if not off:
        # The fixed model's engine is right where the two differ.
        return ("repaired", "") if unlike & original else ("agree", _BETWEEN)
    further = any(name not in original or _is_further(terms, name, expected, before, after) for name in off)
    return ("wrong" if further else "alike"), ""


def _is_of_kernels(terms: Terms, oracle: Sequence[Metrics]) -> bool:
    """Whether what the engine is off is small beside the output, and thus what its float32 kernels cost."""
    return not terms.coarse and all(
        one.kind == "values"
        and not one.special
        and one.dtype == "float32"
        and one.elements >= _MANY
        and one.relative <= _KERNELS
        for one in oracle
        if one.agreement == "different"
    )


def _is_further(terms: Terms, name: str, expected: Ran, before: Ran, after: Ran) -> bool:
    """Whether the fixed model's engine is further from the truth in one output than the original's engine, which is
    wrong there too: over the elements as a whole, or far off where that one is right."""
    sides = [_excess(terms, name, expected, one) for one in (before, after)]
    if sides[0] is None or sides[1] is None:  # of another type or shape
        return sides[1] is None
    old, new = (one.reshape(-1) for one in sides if one is not None)
    if ((old <= 1) & (new > _NEWLY)).any():
        return True
    ranked = [np.sort(one) for one in (old, new)]
    places = [min(int(share * old.size), old.size - 1) for share in _SHARES]
    return any(ranked[1][one] > max(1.0, _FURTHER * ranked[0][one]) for one in places)


def _excess(terms: Terms, name: str, expected: Ran, found: Ran) -> Any:
    """How many times the tolerance each element of an array is off; None where type or shape are another."""
    value, wanted = found.outputs.get(name), expected.outputs.get(name)
    wanted = _narrow(wanted, value)
    if not isinstance(value, np.ndarray) or not isinstance(wanted, np.ndarray):
        return None
    if value.shape != wanted.shape or value.dtype != wanted.dtype or value.dtype.kind in "OUS":
        return None
    tolerance = tolerance_for(value.dtype.name, terms.noise.get(name, 0.0), terms.coarse)
    distance, limit, special = distances(
        parts(wide(wanted)), parts(wide(value)), tolerance, terms.slack.get(name, 0.0)
    )
    with np.errstate(all="ignore"):
        return np.where(special, np.inf, np.where(distance > limit, distance / limit, distance > 0))


def differing(terms: Terms, one: Ran, other: Ran) -> set[str]:
    """The outputs in which two runs differ by more than the tolerance."""
    return _wrong(_compare(terms, one, other), terms)


def _compare(terms: Terms, expected: Ran | None, found: Ran | None) -> tuple[Metrics, ...]:
    """Compare outputs, but for those that one side could not read; () where a side is missing."""
    if expected is None or found is None:
        return ()
    metrics: list[Metrics] = []
    for name in terms.names:
        if name in terms.excluded or name in expected.unread or name in found.unread:
            continue
        if name not in expected.outputs or name not in found.outputs:
            metrics.append(Metrics(name, "different", "is no output of both", "absent", output=name))
            continue
        value = found.outputs[name]
        metrics.extend(
            compare(
                name,
                _narrow(expected.outputs[name], value),
                value,
                exact=False,
                noise=terms.noise.get(name, 0.0),
                coarse=terms.coarse,
                slack=terms.slack.get(name, 0.0),
            )
        )
    return tuple(metrics)


def _narrow(wanted: Any, value: Any) -> Any:
    """TensorRT has no float64 and makes float32 of it: what was expected is rounded in the same way."""
    types = [one.dtype.name if isinstance(one, np.ndarray) else "" for one in (wanted, value)]
    if types != ["float64", "float32"]:
        return wanted
    with np.errstate(over="ignore"):
        return wanted.astype(np.float32)


def _wrong(metrics: Sequence[Metrics], terms: Terms) -> set[str]:
    return {one.output for one in metrics if one.agreement == "different"}


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
