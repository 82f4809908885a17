"""Nodes that the other side does not have: a node there reads what they read, instead of what they compute."""

from __future__ import annotations

from collections.abc import Collection

from onnx import NodeProto, TensorProto

from onnxfix.diagnosis.counterpart import counterpart_of
from onnxfix.diagnosis.facts import Evidence
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.records import Why
from onnxfix.diagnosis.terms import attributes
from onnxfix.place import Place
from onnxfix.record import record

_FAR = 6  # nodes in a row that may be missing
_HALF = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


@record
class Missing:
    """The ``place`` of the last node that is missing, the cause, and a sentence about all of them."""

    place: Place
    cause: Why
    text: str


def missing(evidence: Evidence, truth: Graph, matched: Collection[str]) -> Missing | None:
    """The nodes of the truth that the other side lacks before this one; None where it reads the same tensors, or has
    the tensor that it should read (``matched``: the truth's tensors that the other side has) and reads another one."""
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


def _about(evidence: Evidence, truth: Graph, chain: list[int], name: str, source: str) -> Missing:
    nodes = [truth.nodes[number] for number in reversed(chain)]
    last = nodes[-1]
    kinds = ", ".join(node.op_type for node in nodes)
    low = _rounded_to(nodes)
    verb = "is" if len(nodes) == 1 else "are"
    what = f"{kinds} before {name!r} {verb} missing in {evidence.side}, where {evidence.node.op_type} reads {source!r}"
    text = f"the first model rounds to {low} here: {what}" if low else what
    return Missing(
        Place((), last.name, last.op_type, name, chain[0]), "precision" if low else "operator", text
    )


def _rounded_to(nodes: list[NodeProto]) -> str:
    """The type to which these nodes round, where all of them are Casts; else ""."""
    if any(node.op_type != "Cast" for node in nodes):
        return ""
    targets = [int(attributes(node).get("to", 0)) for node in nodes]
    return next((name for number, name in _HALF.items() if number in targets), "")
