"""Compare the outputs of engines with the reference result for one feed, and judge the fix by it.

The reference result is what ONNX Runtime, or the reference evaluator, computes for the original. A fix is refuted where
the fixed model's engine is further from it than the original's engine is. Without a reference result, the fixed model's
engine is compared with the original's engine alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from onnxfix.inputs.feeds.plan import Feed
from onnxfix.proof.compare import compare
from onnxfix.proof.compare.compare import Metrics, agreement, compare_outputs, difference, different
from onnxfix.proof.compare.tolerance import Allowed, distances, parts, tolerance_for, wide
from onnxfix.proof.verdict import FeedResult
from onnxfix.tensorrt.engine import Ran

#: "agree": what was compared agrees. "repaired": the fixed model's engine is right and the original's is wrong.
#: "alike": the fixed model's engine is wrong, and no further from the reference than the original's. "wrong": it is
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
"""How many times further from the reference than the original's engine is not explained by rounding."""
_NEWLY = 4.0
"""How many times the tolerance the fixed model's engine may be off where the original's is right."""
KERNELS = 2e-4
"""Error of an engine's float32 kernels, as a share of an output's largest magnitude, that is accepted where neither
engine is further off. Measured on full-size exports with TensorRT-RTX 1.6.1 on an H200, without TF32: 8.3e-5 (BERT,
both engines alike, 17 times the effect of another order of summation on a CPU). The engines of one model differ by as
much from build to build where its convolutions get other kernels (CoaT, InceptionNeXt)."""
ALIKE = 4e-4
"""The same where no fix can be to blame: both engines are off alike, or there is only one. Measured on 134 exports with
TensorRT-RTX 1.6.1 on an H200: 2.7e-4 (FCN, whose sums of 18,433 terms explain four times that) and 2.8e-4 (CoaT)."""
_OF_MEDIAN = 1.2e-3
"""``KERNELS`` where the original's engine may be right, as a share of the median magnitude: a few elements, or half of
them, may be much larger than the others. Estimated for CoaT: 9e-4."""
_MANY = 256
"""Outputs with fewer elements are only judged element by element."""
_SHARES = (0.5, 0.9, 0.99, 1.0)
"""Quantiles of the elements' errors at which two engines are compared."""


@dataclass(frozen=True)
class Terms:
    """How outputs are compared. ``names`` are the model's outputs in order, ``excluded`` those that are not compared.
    ``coarse`` and ``allowed`` are as for ``compare``, ``slack`` is the measured noise that each output may be off in
    addition. ``oracle`` is the backend of the expected values, ``engine`` the name of the judged engine in texts.
    ``single``: it is the engine of the original itself."""

    names: Sequence[str]
    excluded: Collection[str] = ()
    coarse: str = ""
    slack: Mapping[str, Any] = field(default_factory=dict)
    oracle: str = "ort-cpu"
    engine: str = "the new model's engine"
    allowed: Allowed | None = None
    single: bool = False


@dataclass(frozen=True)
class Judgment:
    """The finding for one feed. ``reason`` is one line and ``output`` the first output that it is about; both are ""
    where all agree within the tolerance. Agreement that only kernels explain has a reason too."""

    finding: Finding
    results: tuple[FeedResult, ...]
    reason: str = ""
    output: str = ""


def judge(
    terms: Terms, label: str, feed: Feed | None, expected: Ran | None, before: Ran | None, after: Ran
) -> Judgment:
    """Judge the fixed model's engine (``after``) by the reference result (``expected``) and by the original's engine
    (``before``); None for what there is not."""
    engines, oracle = _compare(terms, before, after), _compare(terms, expected, after)
    original = _compare(terms, expected, before)
    unlike, off = different(engines), different(oracle)
    apart = f"the engines of the original and of the new model differ: {_describe(unlike)}"
    wrong = f"{terms.engine} differs from {ORACLES[terms.oracle]}: {_describe(off)}"
    finding: Finding = "nothing"
    reason = ""
    if engines or oracle:
        finding, reason = _find(terms, expected, before, after, (unlike, off, oracle, original))
    about = off or unlike
    blameless = finding == "alike" or terms.single
    most = ALIKE if blameless else KERNELS
    kernels = (
        finding in ("alike", "wrong", "repaired")
        and expected is not None
        and all(_is_of_kernels(terms, one, most) for one in (oracle, engines, original))
        and (blameless or finding != "wrong" or _is_small_beside_most((*oracle, *engines), expected))
    )
    if kernels:
        finding = "agree"
        reason = f"{wrong if off else apart}; that is at most {most:g} of the output's largest magnitude"
    elif finding == "wrong":
        reason = "; ".join(text for text, metrics in ((apart, unlike), (wrong, off)) if metrics)
    elif finding == "alike":
        also = "which is no nearer" if unlike else "which agrees with it"
        reason = f"{wrong}; so does the original's engine, {also}"
    elif finding == "repaired":
        about = different(original)
        reason = f"{REPAIRED}: {_describe(about)}"
    results = []
    if engines:
        result = FeedResult(f"engines: {label}", feed, agreement(engines), _describe(unlike), engines)
        if unlike and finding != "wrong":
            result = replace(result, status="not counted", reason=reason)
        results.append(replace(result, sides="engines"))
    if oracle:
        which = f"engine against {terms.oracle}: {label}"
        result = FeedResult(which, feed, agreement(oracle), _describe(off), oracle)
        result = replace(result, status="within", reason=reason) if kernels else result
        results.append(replace(result, sides="oracle"))
    if finding in ("agree", "nothing"):
        return Judgment(finding, tuple(results), reason if kernels else "")
    return Judgment(finding, tuple(results), reason, about[0].output if about else "")


def _find(
    terms: Terms,
    expected: Ran | None,
    before: Ran | None,
    after: Ran,
    compared: tuple[Sequence[Metrics], Sequence[Metrics], Sequence[Metrics], Sequence[Metrics]],
) -> tuple[Finding, str]:
    """The finding, and a reason for engines that differ in spite of it. ``compared`` is what differs between the
    engines and from the reference, and all metrics of the fixed and of the original's engine against the reference."""
    unlike, off = ({one.output for one in metrics} for metrics in compared[:2])
    oracle, original = compared[2], {one.output for one in different(compared[3])}
    if not unlike and not off:
        return "agree", ""
    if before is None or expected is None or not unlike | off <= {one.output for one in oracle}:
        return "wrong", ""
    if not off:
        # The fixed model's engine is right where the two differ.
        return ("repaired", "") if unlike & original else ("agree", _BETWEEN)
    further = any(name not in original or _is_further(terms, name, expected, before, after) for name in off)
    return ("wrong" if further else "alike"), ""


def _is_of_kernels(terms: Terms, metrics: Sequence[Metrics], most: float) -> bool:
    """Whether what differs is at most this share of the output's largest magnitude, and may be due to float32
    kernels."""
    return (
        not terms.coarse
        and terms.allowed is None
        and all(
            one.kind == "values"
            and not one.special
            and one.dtype == "float32"
            and one.elements >= _MANY
            and one.relative <= most
            for one in different(metrics)
        )
    )


def _is_small_beside_most(metrics: Sequence[Metrics], expected: Ran) -> bool:
    """Whether what differs is small compared with most elements: a few of the output's may be much larger."""
    for one in different(metrics):
        value = expected.outputs.get(one.output)
        if not isinstance(value, np.ndarray):
            return False
        size = np.abs(wide(value[np.isfinite(value)]))
        if not size.size or one.max_abs > _OF_MEDIAN * float(np.median(size)):
            return False
    return True


def _is_further(terms: Terms, name: str, expected: Ran, before: Ran, after: Ran) -> bool:
    """Whether the fixed model's engine is further from the reference in one output than the original's engine, which is
    wrong there too: over all elements, or far off where that one is right."""
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
    """The error of each element of an array as a multiple of the tolerance; None where type or shape differ."""
    value, wanted = found.outputs.get(name), expected.outputs.get(name)
    wanted = _narrow(wanted, value)
    if not isinstance(value, np.ndarray) or not isinstance(wanted, np.ndarray):
        return None
    if value.shape != wanted.shape or value.dtype != wanted.dtype or value.dtype.kind in "OUS":
        return None
    tolerance = tolerance_for(value.dtype.name, terms.coarse, terms.allowed)
    distance, limit, special = distances(
        parts(wide(wanted)), parts(wide(value)), tolerance, terms.slack.get(name, 0.0)
    )
    with np.errstate(all="ignore"):
        return np.where(special, np.inf, np.where(distance > limit, distance / limit, distance > 0))


def differing(terms: Terms, one: Ran, other: Ran) -> set[str]:
    """The outputs in which two runs differ by more than the tolerance."""
    return {metric.output for metric in different(_compare(terms, one, other))}


def _compare(terms: Terms, expected: Ran | None, found: Ran | None) -> tuple[Metrics, ...]:
    """Compare the outputs that both sides could read; () where a side is missing."""
    if expected is None or found is None:
        return ()
    names = [name for name in terms.names if name not in {*terms.excluded, *expected.unread, *found.unread}]
    both = {name: found.outputs[name] for name in names if name in expected.outputs and name in found.outputs}
    wanted = {name: _narrow(expected.outputs[name], value) for name, value in both.items()}
    how = compare.Terms(coarse=terms.coarse, allowed=terms.allowed)
    return compare_outputs(names, wanted, both, how, side="both", slack=terms.slack)


def _narrow(wanted: Any, value: Any) -> Any:
    """The expected value, rounded to float32 where TensorRT has float32 for float64, which it does not support."""
    types = [one.dtype.name if isinstance(one, np.ndarray) else "" for one in (wanted, value)]
    if types != ["float64", "float32"]:
        return wanted
    with np.errstate(over="ignore"):
        return wanted.astype(np.float32)


def _describe(wrong: Sequence[Metrics]) -> str:
    """The first difference, as text; "" for none."""
    return difference(wrong[0]) if wrong else ""
