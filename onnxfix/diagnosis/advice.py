"""What to do about a node whose result differs, and which findings of rules are about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfix.diagnosis.evidence import Evidence
from onnxfix.diagnosis.findings import Hazard
from onnxfix.diagnosis.records import Culprit, Why
from onnxfix.rule import Severity

MARGIN = 4.0
"""A tolerance is so many times the noise that was measured: other inputs may move the outputs further."""
_OPTIONS = {"exact": "", "numeric": " --numeric-fixes", "unsafe": " --unsafe-fixes"}
#: Causes that go away where the node computes in float32.
OF_PRECISION: tuple[Why, ...] = ("overflow", "underflow", "precision", "cancellation", "ill-conditioned")


def worst_hazard(evidence: Evidence) -> Hazard | None:
    """The finding that explains most: the most severe one, of those that say that values may differ."""
    telling = [one for one in evidence.findings if one.severity >= Severity.WARNING and not one.half]
    return max(telling, key=lambda one: (one.severity, one.code == "TRT004"), default=None)


def half_hazard(evidence: Evidence) -> Hazard | None:
    """The finding about half precision at this node; None where it is not computed in half precision."""
    if not evidence.precision:
        return None
    telling = [one for one in evidence.findings if one.half or one.code.startswith("PRC")]
    return max(telling, key=lambda one: one.severity, default=None)


@dataclass(frozen=True)
class Advice:
    """What to do, in one sentence; the code of the ``rule`` that names or fixes the node, and the safety of its fix (""
    for none)."""

    text: str
    rule: str = ""
    fix: str = ""


def tolerance(noise: float) -> float:
    """The tolerance that is right for this much noise (both as shares of the scale): 1, 2 or 5 times a power of 10.
    Infinite where the noise is."""
    if not math.isfinite(noise):
        return math.inf
    wanted = max(MARGIN * noise, 1e-7)
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(step for step in (1, 2, 5, 10) if step * power >= wanted * (1 - 1e-9))
    return float(f"{step * power:.3g}")


def advise(cause: Why, evidence: Evidence, path: str = "MODEL") -> Advice:
    """What to do about a node whose result differs because of ``cause``. ``path`` is the truth's model, as people name
    it on the command line."""
    low = evidence.precision
    hazard = half_hazard(evidence) if low else None
    hazard = hazard or _relevant(cause, evidence)
    rule, fix = (hazard.code, hazard.safety) if hazard is not None else ("", "")
    named = hazard is not None and evidence.against == "model"
    parts = []
    if hazard is not None and hazard.fix and not named:
        option = _OPTIONS[hazard.safety]
        command = (
            f"onnxfix apply{'' if hazard.half else f' {path}'} --select {hazard.code}{option} ({hazard.fix})"
        )
        parts.append(f"in the model in half precision, {command}" if hazard.half else command)
    if low and cause in OF_PRECISION:
        node = evidence.node
        name = f"node {node.name!r}" if node.name else f"the node of {next(iter(node.output), '')!r}"
        parts.append(
            f"keep {name} in float32 (onnxfix diagnose --keep-fp32 FILE, onnxfix precision --keep FILE)"
        )
    elif not parts:
        parts.append(_by_cause(cause, evidence))
    if named and hazard is not None:
        parts.append(
            f"{hazard.code} ({hazard.name}) names the node in the second model only: {hazard.message}"
        )
        return Advice("; ".join(parts), rule, fix)
    return Advice("; or ".join(parts), rule, fix)


def _relevant(cause: Why, evidence: Evidence) -> Hazard | None:
    """The rule's finding about this cause: any where the cause is a hazard or unknown, else TensorRT's errors."""
    hazard = worst_hazard(evidence)
    if hazard is None or cause == "hazard" or evidence.against == "model":
        return hazard
    about_import = evidence.against in ("trt-network", "trt-gpu") and hazard.severity is Severity.ERROR
    return hazard if about_import or cause in ("saturation", "unknown") else None


def _by_cause(cause: Why, evidence: Evidence) -> str:
    share = tolerance(max(evidence.error.noise, evidence.error.own_error))
    allowed = f"a tolerance of {share:g} of the scale is right"
    if cause == "rounding":
        return f"this is rounding: {allowed}"
    if cause in ("ill-conditioned", "cancellation"):
        if not math.isfinite(share):
            return "no tolerance helps: with inputs like these the truth itself is not finite everywhere"
        return (
            f"no repair of the node can help: its inputs do not determine the result better; compare with a tolerance "
            f"of {share:g} of the scale, or compute this part in float64"
        )
    if cause == "kernel" and evidence.against in ("ort-cuda", "trt-gpu"):
        return f"turn TF32 off (NVIDIA_TF32_OVERRIDE=0) to see whether it is the reason; otherwise {allowed}"
    if cause == "kernel":
        return f"this is the order of the sums: {allowed}"
    return _TEXTS.get(cause, "reduce the model to this node (onnxfix reduce) and report it")


_TEXTS: dict[Why, str] = {
    "weight": "the models hold different weights: export again, or take this weight from the first model",
    "attribute": "the models state different attributes: export again, or set the attribute as in the first model",
    "operator": "the models differ in this node: export again, or take the node from the first model",
    "structure": "the models compute this by other nodes: export again with the options of the first model",
    "hazard": "no fix is known for this finding: onnxfix explain says what to change",
    "import": "rewrite the node with explicit attributes, or decompose it; onnxfix lift shows what TensorRT imported",
    "overflow": "scale the values down before this node",
    "saturation": "limit the values before the node (Clip), or use a type that holds them",
}


def keep_fp32(culprits: Sequence[Culprit]) -> tuple[str, ...]:
    """The names of the nodes that should stay in float32, those without a name by their output.

    Where some leave the range of half precision or lose more than its rounding, those that only round are left out.
    """
    wanted = [one for one in culprits if one.cause in OF_PRECISION]
    serious = [one for one in wanted if one.cause != "precision"]
    places = [one.error.place.around or one.error.place for one in serious or wanted]
    return tuple(dict.fromkeys(place.node or place.output for place in places))
