"""Why a node computes something else, and what to do: the tests in the order of how much each of them proves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfix.diagnosis.counterpart import counterpart_of
from onnxfix.diagnosis.differences import changed
from onnxfix.diagnosis.facts import (
    Array,
    Evidence,
    Focus,
    farthest,
    focus_of,
    number,
    numeric,
)
from onnxfix.diagnosis.findings import Hazard
from onnxfix.diagnosis.records import Against, Culprit, Why
from onnxfix.diagnosis.rounding import (
    cancellation,
    ill_conditioned,
    in_float32_order,
    is_rounding,
    overflow,
    precision,
    saturation,
    tf32,
    underflow,
)
from onnxfix.rule import Severity

Explanation = tuple[Why, str]
_Test = Callable[[Evidence, Focus], Explanation | None]

_SHOWN = 4
"""Nodes that a sentence names."""
_TENSORRT = ("trt-network", "trt-gpu")


def explain(evidence: Evidence) -> Explanation:
    """The cause of a node's own error, and one sentence with the evidence: values, indices, ranges, sizes."""
    focus = focus_of(evidence)
    if focus is None:
        return _without_numbers(evidence)
    if not focus.error:
        return "rounding", "both sides compute the same from the same inputs"
    for test in _ORDER[evidence.against]:
        found = test(evidence, focus)
        if found is not None:
            return found
    return _fallback(evidence, focus)


def _without_numbers(evidence: Evidence) -> Explanation:
    """Of outputs that cannot be compared element by element: another shape, text, sequences, or absent."""
    found = changed(evidence)
    hazard = worst_hazard(evidence)
    if hazard is not None and evidence.against in _TENSORRT:
        return _hazard_text(hazard)
    shapes = _shapes(evidence)
    if found is not None:
        return found[0], f"{found[1]}{f'; {shapes}' if shapes else ''}"
    if evidence.against == "trt-network":
        return "import", shapes or "TensorRT's network computes something else"
    if shapes:
        return _operator(evidence) or "structure", f"{shapes}; {_computed_by(evidence)}"
    return "unknown", "its values are no numbers, and differ"


def _shapes(evidence: Evidence) -> str:
    for name, truth in evidence.truth.items():
        own = evidence.own.get(name)
        if own is not None and np.shape(truth) != np.shape(own):
            return f"the output has the shape {list(np.shape(own))} instead of {list(np.shape(truth))}"
    return ""


def _rounded(evidence: Evidence, focus: Focus) -> Explanation | None:
    if not is_rounding(evidence, focus):
        return None
    kind = focus.truth.dtype
    return (
        "rounding",
        f"the error is {focus.share:.2g} of the output's scale of {number(focus.scale)}, rounding of {kind}",
    )


def _changed(evidence: Evidence, focus: Focus) -> Explanation | None:
    found = changed(evidence)
    return (found[0], f"{found[1]}: {focus.values}") if found is not None else None


def _read_differently(evidence: Evidence, focus: Focus) -> Explanation | None:
    """A weight or attribute that TensorRT's network has another value of: an error of the import."""
    found = changed(evidence)
    return ("import", f"{found[1]}: {focus.values}") if found is not None else None


def _lost_cast(evidence: Evidence, focus: Focus) -> Explanation | None:
    """A Cast that the other side does not have: rounding to a type, or cutting to whole numbers, that is lost."""
    node = evidence.node
    if node.op_type != "Cast" or any(one.op_type == "Cast" for one in evidence.others):
        return None
    source = evidence.inputs.get(node.input[0])
    kinds = [str(array.dtype) for array in (source, focus.truth) if array is not None]
    low = next((kind for kind in kinds if kind in ("float16", "bfloat16")), "")
    if low:
        return "precision", f"the first model rounds to {low} here, {evidence.side} does not: {focus.values}"
    return "operator", f"the Cast from {' to '.join(kinds)} is missing in {evidence.side}: {focus.values}"


def _skipped(evidence: Evidence, focus: Focus) -> Explanation | None:
    """A node that the other side leaves out, or whose operands it swaps."""
    node = evidence.node
    within = max(1e-6 * focus.scale, 2 * (focus.wander or 0.0))
    if node.op_type == "Identity":
        return None
    for name in node.input:
        array = evidence.inputs.get(name)
        if _is(array, focus, within):
            rest = [other for other in node.input if other and other != name]
            left_out = f" without {', '.join(map(repr, rest))}" if rest else ""
            return "operator", (
                f"{evidence.side} returns the input {name!r} of {node.op_type} unchanged{left_out}: {focus.values}"
            )
    if len(node.input) == 2 and node.op_type in ("Sub", "Div", "Pow", "MatMul", "Less", "Greater"):
        first, second = (evidence.inputs.get(name) for name in node.input)
        if (
            first is not None
            and second is not None
            and _is(_swapped(node.op_type, first, second), focus, within)
        ):
            return "operator", f"the operands of {node.op_type} are swapped: {focus.values}"
    return None


def _swapped(op_type: str, first: Array, second: Array) -> Array | None:
    """What an operator computes of its operands in the other order; None where that is not worth computing."""
    if op_type not in ("Sub", "Div"):
        return None
    with np.errstate(all="ignore"):
        return np.subtract(second, first) if op_type == "Sub" else np.divide(second, first)


def _is(array: Array | None, focus: Focus, within: float) -> bool:
    if array is None or not numeric(array) or array.shape != focus.own.shape:
        return False
    return farthest(array, focus.own).error <= within and farthest(array, focus.truth).error > within


def _other_operator(evidence: Evidence, focus: Focus) -> Explanation | None:
    if _operator(evidence) is None:
        return None
    return "operator", f"{_computed_by(evidence)}: {focus.values}"


def _operator(evidence: Evidence) -> Why | None:
    """ "operator" where a single node of another operator computes the output on the other side."""
    nodes = counterpart_of(evidence).nodes
    same = len(nodes) == 1 and nodes[0].op_type == evidence.node.op_type
    return "operator" if len(nodes) == 1 and not same else None


def _computed_by(evidence: Evidence) -> str:
    nodes = [node.op_type for node in counterpart_of(evidence).nodes]
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    others = f"{', '.join(nodes[:_SHOWN])}{more}" if nodes else "no node"
    return f"{evidence.node.op_type} in the first model is computed by {others} in {evidence.side}"


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


def _hazard_text(hazard: Hazard) -> Explanation:
    return "hazard", f"{hazard.code} {hazard.name}: {hazard.message}"


def _hazard(evidence: Evidence, focus: Focus) -> Explanation | None:
    hazard = worst_hazard(evidence)
    if hazard is None:
        return None
    why, text = _hazard_text(hazard)
    return why, f"{text} ({focus.values})"


def _known_hazard(evidence: Evidence, focus: Focus) -> Explanation | None:
    """A hazard that is certain, where an error is more than rounding."""
    hazard = worst_hazard(evidence)
    certain = hazard is not None and hazard.severity is Severity.ERROR
    return _hazard(evidence, focus) if certain else None


def _structure(evidence: Evidence, focus: Focus) -> Explanation | None:
    if not evidence.others:
        return None
    nodes = counterpart_of(evidence).nodes
    if len(nodes) == 1 and nodes[0].op_type == evidence.node.op_type:
        return None  # the same node with the same constants: structure is no reason
    return "structure", f"{_computed_by(evidence)}: {focus.values}"


def _imported(evidence: Evidence, focus: Focus) -> Explanation | None:
    layers = ", ".join(evidence.error.nodes[:_SHOWN])
    return "import", f"TensorRT's network computes {focus.values}{f' (layers: {layers})' if layers else ''}"


def _fallback(evidence: Evidence, focus: Focus) -> Explanation:
    extent = f"the largest error is {number(focus.error)}, {focus.share:.2g} of the output's scale"
    if not math.isfinite(focus.error):
        extent = "one side alone is not finite"
    return "unknown", f"{evidence.node.op_type} gives {focus.values} from the same inputs; {extent}"


_RANGES: tuple[_Test, ...] = (overflow, underflow, saturation)
_NUMERIC: tuple[_Test, ...] = (cancellation, in_float32_order, ill_conditioned)
#: The tests in order, for each kind of other side. What is proven by the models themselves comes first where they may
#: differ, a known hazard where TensorRT reads the model, and otherwise the range of the values.
_ORDER: dict[Against, tuple[_Test, ...]] = {
    "model": (
        _changed, _lost_cast, _rounded, _skipped, *_RANGES, *_NUMERIC, precision, _other_operator, _structure, _hazard,
    ),
    "ort-cpu": (_rounded, *_RANGES, *_NUMERIC, precision, _hazard, _skipped, _other_operator, _structure),
    "ort-cuda": (_rounded, *_RANGES, cancellation, in_float32_order, tf32, ill_conditioned, precision, _hazard),
    "fp16": (*_RANGES, cancellation, ill_conditioned, precision),
    "bf16": (*_RANGES, cancellation, ill_conditioned, precision),
    "trt-network": (
        _rounded, _known_hazard, _read_differently, saturation, _hazard, *_NUMERIC, _skipped, _imported,
    ),
    "trt-gpu": (
        _changed, _lost_cast, _rounded, _known_hazard, *_RANGES, cancellation, in_float32_order, precision, tf32,
        ill_conditioned, _hazard,
    ),
}  # fmt: skip


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
    parts = [_fixed(hazard, path)] if hazard is not None and hazard.fix and not named else []
    if low and cause in OF_PRECISION:
        parts.append(_kept(evidence))
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


def _fixed(hazard: Hazard, path: str) -> str:
    model = "" if hazard.half else f" {path}"
    command = f"onnxfix apply{model} --select {hazard.code}{_OPTIONS[hazard.safety]} ({hazard.fix})"
    return f"in the model in half precision, {command}" if hazard.half else command


def _kept(evidence: Evidence) -> str:
    node = evidence.node
    name = f"node {node.name!r}" if node.name else f"the node of {next(iter(node.output), '')!r}"
    return f"keep {name} in float32 (onnxfix diagnose --keep-fp32 FILE, onnxfix precision --keep FILE)"


def _by_cause(cause: Why, evidence: Evidence) -> str:
    if cause == "rounding":
        share = tolerance(max(evidence.error.noise, evidence.error.own_error))
        return f"this is rounding: a tolerance of {share:g} of the scale is right"
    if cause in ("ill-conditioned", "cancellation"):
        share = tolerance(max(evidence.error.noise, evidence.error.own_error))
        if not math.isfinite(share):
            return "no tolerance helps: with inputs like these the truth itself is not finite everywhere"
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


def keep_fp32(culprits: Sequence[Culprit]) -> tuple[str, ...]:
    """The names of the nodes that should stay in float32, those without a name by their output.

    Where some leave the range of half precision or lose more than its rounding, those that only round are left out.
    """
    wanted = [one for one in culprits if one.cause in OF_PRECISION]
    serious = [one for one in wanted if one.cause != "precision"]
    places = [one.error.place.around or one.error.place for one in serious or wanted]
    return tuple(dict.fromkeys(place.node or place.output for place in places))
