"""What to do about a node that computes something else."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import ModelProto

from onnxfix.diagnosis.explain import half_hazard, worst_hazard
from onnxfix.diagnosis.facts import Evidence
from onnxfix.diagnosis.findings import Hazard
from onnxfix.diagnosis.records import Culprit, Why
from onnxfix.rule import Severity

MARGIN = 4.0
"""A tolerance is so many times the noise that was measured: other inputs may move the outputs further."""
_OPTIONS = {"exact": "", "numeric": " --numeric-fixes", "unsafe": " --unsafe-fixes"}
#: Causes that go away where the node computes in float32.
OF_PRECISION: tuple[Why, ...] = ("overflow", "underflow", "precision", "cancellation", "ill-conditioned")


@dataclass(frozen=True)
class Advice:
    """What to do, in one sentence; the code of the ``rule`` that names or fixes the node, and the safety of its fix (""
    for none)."""

    text: str
    rule: str = ""
    fix: str = ""


def tolerance(noise: float) -> float:
    """The tolerance that is right for this much noise (both as shares of the scale): 1, 2 or 5 times a power of 10."""
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
    parts = [_fixed(hazard, path)] if hazard is not None and hazard.fix else []
    if low and cause in OF_PRECISION:
        parts.append(_kept(evidence))
    elif not parts:
        parts.append(_by_cause(cause, evidence))
    return Advice("; or ".join(parts), rule, fix)


def _relevant(cause: Why, evidence: Evidence) -> Hazard | None:
    """The rule's finding about this cause: any where the cause is a hazard or unknown, else TensorRT's errors."""
    hazard = worst_hazard(evidence)
    if hazard is None or cause == "hazard":
        return hazard
    about_import = evidence.against in ("trt-network", "trt-gpu") and hazard.severity is Severity.ERROR
    return hazard if about_import or cause in ("saturation", "unknown") else None


def _fixed(hazard: Hazard, path: str) -> str:
    model = "the half-precision model" if hazard.half else path
    return f"onnxfix apply {model} --select {hazard.code}{_OPTIONS[hazard.safety]} ({hazard.fix})"


def _kept(evidence: Evidence) -> str:
    node = evidence.node
    name = f"node {node.name!r}" if node.name else f"the node of {next(iter(node.output), '')!r}"
    return f"keep {name} in float32 (keep_fp32 of the report; --keep of onnxfix precision)"


def _by_cause(cause: Why, evidence: Evidence) -> str:
    if cause == "rounding":
        share = tolerance(max(evidence.error.noise, evidence.error.own_error))
        return f"this is rounding: a tolerance of {share:g} of the scale is right"
    if cause in ("ill-conditioned", "cancellation"):
        share = tolerance(max(evidence.error.noise, evidence.error.own_error))
        return (
            f"no repair of the node can help: its inputs do not determine the result better; compare with a tolerance "
            f"of {share:g} of the scale, or compute this part in float64"
        )
    if cause == "kernel":
        return _about_kernels(evidence)
    if cause == "saturation":
        return "limit the values before the node (Clip), or use a type that holds them"
    return _TEXTS.get(cause, "reduce the model to this node (onnxfix reduce) and report it")


def _about_kernels(evidence: Evidence) -> str:
    share = tolerance(max(evidence.error.noise, evidence.error.own_error))
    allowed = f"a tolerance of {share:g} of the scale is right"
    if evidence.against in ("ort-cuda", "trt-gpu"):
        return f"turn TF32 off (NVIDIA_TF32_OVERRIDE=0) to see whether it is the reason; otherwise {allowed}"
    return f"this is the order of the sums: {allowed}"


_TEXTS: dict[Why, str] = {
    "weight": "the models hold different weights: export again, or take this weight from the first model",
    "attribute": "the models state different attributes: export again, or set the attribute as in the first model",
    "operator": "the models differ in this node: export again, or take the node from the first model",
    "structure": "the models compute this by other nodes: export again with the options of the first model",
    "hazard": "no fix is known for this finding: onnxfix explain says what to change",
    "import": "rewrite the node with explicit attributes, or decompose it; onnxfix lift shows what TensorRT imported",
    "overflow": "scale the values down before this node",
}


def keep_fp32(culprits: Sequence[Culprit], model: ModelProto) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes that should stay in float32, and the outputs of those among them that have no name.

    Each node is written as AutoCast of NVIDIA's Model Optimizer reads it in ``nodes_to_exclude``, as a regular
    expression that has to match the beginning of the name: the name itself where no other node's matches, otherwise
    with its special characters escaped and an end.
    """
    names = [node.name for node in model.graph.node if node.name]
    kept: dict[str, None] = {}
    unnamed: dict[str, None] = {}
    for culprit in culprits:
        if culprit.cause not in OF_PRECISION:
            continue
        place = culprit.error.place.around or culprit.error.place
        if place.node:
            kept[pattern(place.node, names)] = None
        else:
            unnamed[place.output] = None
    return tuple(kept), tuple(unnamed)


def pattern(name: str, names: Sequence[str]) -> str:
    """A regular expression that matches this name, and no other one of ``names``, from its beginning on."""
    try:
        plain = re.compile(name)
    except re.error:
        plain = None
    if plain is not None and plain.match(name) and not any(plain.match(one) for one in names if one != name):
        return name
    return f"{re.escape(name)}$"
