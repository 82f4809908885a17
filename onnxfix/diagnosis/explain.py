"""Why a node computes something else, and what to do: the tests in the order of how much each of them proves."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from onnx import TensorProto

from onnxfix.diagnosis.advice import advise, keep_fp32, worst_hazard
from onnxfix.diagnosis.counterpart import counterpart_of
from onnxfix.diagnosis.differences import changed
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.evidence import (
    Array,
    Evidence,
    Focus,
    focus_of,
    number,
    numeric,
)
from onnxfix.diagnosis.findings import Findings, Hazard, collect
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.records import Against, Culprit, Explanation, NodeError, Why
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
from onnxfix.diagnosis.rows import Side
from onnxfix.diagnosis.sides import LOW
from onnxfix.diagnosis.terms import attributes
from onnxfix.errors import OnnxfixError
from onnxfix.lowering.records import pattern
from onnxfix.place import Place, place_of
from onnxfix.rule import Severity

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
    extent = f"the largest error is {number(focus.error)}, {focus.share:.2g} of the output's scale"
    if not math.isfinite(focus.error):
        extent = "one side alone is not finite"
    return "unknown", f"{evidence.node.op_type} gives {focus.values} from the same inputs; {extent}"


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
    """A weight or attribute that differs; where TensorRT's network has another value of it, an error of the import."""
    found = changed(evidence)
    if found is None:
        return None
    return "import" if evidence.against == "trt-network" else found[0], f"{found[1]}: {focus.values}"


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
    """A node that the other side leaves out."""
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
    return None


def _is(array: Array | None, focus: Focus, within: float) -> bool:
    if array is None or not numeric(array) or array.shape != focus.own.shape:
        return False
    return distance(array, focus.own).error <= within and distance(array, focus.truth).error > within


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
        _rounded, _known_hazard, _changed, saturation, _hazard, *_NUMERIC, _skipped, _imported,
    ),
    "trt-gpu": (
        _changed, _lost_cast, _rounded, _known_hazard, *_RANGES, cancellation, in_float32_order, precision, tf32,
        ill_conditioned, _hazard,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Explainer:
    """Explains the culprits of one diagnosis. ``path`` is what people call the truth's model."""

    against: Against
    truth: Graph
    other: Side
    path: str = "MODEL"

    @cached_property
    def findings(self) -> Findings:
        """Those of onnxfix's rules on the truth's model."""
        return _findings(self.truth, LOW.get(self.against, ""))

    @cached_property
    def other_findings(self) -> Findings:
        """Those on the second model."""
        return _findings(self.other.graph) if self.is_pair else Findings()

    @property
    def is_pair(self) -> bool:
        """Whether the other side is a second model: run as the first, or its engine."""
        return self.against == "model" or (self.against == "trt-gpu" and self.other.graph is not self.truth)

    def _hazards(self, evidence: Evidence) -> tuple[Hazard, ...]:
        """The findings at a node; of two models, those that only the second one has there, and for its engine all."""
        ours = self.findings.at(name for name in evidence.node.output if name)
        if not self.is_pair:
            return ours
        known = {one.code for one in ours} if self.against == "model" else set()
        theirs = self.other_findings.at(name for node in evidence.others for name in node.output if name)
        return tuple(one for one in theirs if one.code not in known)

    def culprit(self, error: NodeError, evidence: Evidence) -> Culprit:
        """The culprit with its cause, the reason in a sentence, and advice."""
        evidence = replace(evidence, error=error, findings=self._hazards(evidence))
        lost = missing(evidence, self.truth, frozenset(self.other.pairs.values())) if self.is_pair else None
        place, cause, reason = lost or (error.place, *explain(evidence))
        error = replace(error, place=place)
        advice = advise(cause, evidence, self.path)
        return Culprit(error, cause, reason, advice.text, advice.rule, advice.fix)

    def keep_fp32(self, culprits: Sequence[Culprit]) -> tuple[str, ...]:
        """Expressions for the nodes to keep in float32: their names, the outputs of those without a name."""
        names = [node.name for node in self.truth.nodes if node.name]
        return tuple(pattern(name, names) for name in keep_fp32(culprits))


def _findings(graph: Graph, low: str = "") -> Findings:
    """Those of a graph; none where the rules cannot read it."""
    try:
        return collect(graph.proto, Path(graph.folder) if graph.folder else None, low)
    except OnnxfixError:
        return Findings()


_FAR = 6  # nodes in a row that may be missing
_HALF = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


def missing(evidence: Evidence, truth: Graph, matched: Collection[str]) -> tuple[Place, Why, str] | None:
    """The nodes of the truth that the other side lacks before this one: the place of the last, the cause, and a
    sentence. None where it reads the same tensors, or has the tensor that it should read (``matched``: the truth's
    tensors that the other side has) and reads another one."""
    nodes = counterpart_of(evidence).nodes
    node = evidence.node
    if len(nodes) != 1 or nodes[0].op_type != node.op_type or len(nodes[0].input) != len(node.input):
        return None
    for ours, theirs in zip(node.input, nodes[0].input, strict=True):
        read = evidence.names.get(theirs, ours)
        if read == ours or ours in matched or ours not in truth.producer:
            continue
        chain = _between(truth, ours, read)
        if chain:
            return _about(evidence, truth, chain, ours, read)
    return None


def _between(truth: Graph, name: str, source: str) -> list[int]:
    """The nodes in a row that compute ``name`` from ``source``, the last one first; empty where it is no row."""
    chain: list[int] = []
    while len(chain) < _FAR and name in truth.producer:
        chain.append(truth.producer[name])
        read = [one for one in truth.reads[chain[-1]] if not truth.is_constant(one)]
        if source in read:
            return chain
        if len(read) != 1:
            return []
        name = read[0]
    return []


def _about(
    evidence: Evidence, truth: Graph, chain: list[int], name: str, source: str
) -> tuple[Place, Why, str]:
    nodes = [truth.nodes[number] for number in reversed(chain)]
    last = nodes[-1]
    kinds = ", ".join(node.op_type for node in nodes)
    targets = [int(attributes(node).get("to", 0)) for node in nodes if node.op_type == "Cast"]
    only_casts = len(targets) == len(nodes)
    low = next((name for elem, name in _HALF.items() if only_casts and elem in targets), "")
    verb = "is" if len(nodes) == 1 else "are"
    what = f"{kinds} before {name!r} {verb} missing in {evidence.side}, where {evidence.node.op_type} reads {source!r}"
    text = f"the first model rounds to {low} here: {what}" if low else what
    return replace(place_of(last, chain[0]), output=name), "precision" if low else "operator", text
