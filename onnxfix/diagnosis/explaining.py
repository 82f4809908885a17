"""Why a node computes something else, and what to do: where a diagnosis asks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from onnx import NodeProto, TensorProto

from onnxfix.diagnosis.counterpart import counterpart_of
from onnxfix.diagnosis.explain import advise, explain, keep_fp32
from onnxfix.diagnosis.facts import Evidence
from onnxfix.diagnosis.findings import Findings, Hazard, collect
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.records import Against, Culprit, NodeError, Why
from onnxfix.diagnosis.sides import LOW
from onnxfix.diagnosis.terms import attributes
from onnxfix.errors import OnnxfixError
from onnxfix.lowering.records import pattern
from onnxfix.place import Place


@dataclass(frozen=True)
class Explainer:
    """Explains the culprits of one diagnosis: of ``truth`` against ``other``, which may be the same graph. ``path`` is
    what people call the truth's model, and ``matched`` are those of its tensors that the other side has."""

    against: Against
    truth: Graph
    other: Graph
    path: str = "MODEL"
    matched: frozenset[str] = frozenset()

    @cached_property
    def findings(self) -> Findings:
        """Those of onnxfix's rules on the truth's model."""
        return _findings(self.truth, LOW.get(self.against, ""))

    @cached_property
    def other_findings(self) -> Findings:
        """Those on the second model."""
        return _findings(self.other) if self.is_pair else Findings()

    @property
    def is_pair(self) -> bool:
        """Whether the other side is a second model: run as the first, or its engine."""
        return self.against == "model" or (self.against == "trt-gpu" and self.other is not self.truth)

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
        lost = missing(evidence, self.truth, self.matched) if self.is_pair else None
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
    low = _rounded_to(nodes)
    verb = "is" if len(nodes) == 1 else "are"
    what = f"{kinds} before {name!r} {verb} missing in {evidence.side}, where {evidence.node.op_type} reads {source!r}"
    text = f"the first model rounds to {low} here: {what}" if low else what
    return Place((), last.name, last.op_type, name, chain[0]), "precision" if low else "operator", text


def _rounded_to(nodes: list[NodeProto]) -> str:
    """The type to which these nodes round, where all of them are Casts; else ""."""
    if any(node.op_type != "Cast" for node in nodes):
        return ""
    targets = [int(attributes(node).get("to", 0)) for node in nodes]
    return next((name for number, name in _HALF.items() if number in targets), "")
