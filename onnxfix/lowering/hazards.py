"""What onnxfix's rules know about a model in half precision: they look at it as if all of it were converted.

The rules PRC00x recognize norms, softmaxes and epsilons that half precision breaks. The data decides about ranges, and
the rules about what no sample may show: a row of equal elements, a channel that is always 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import ModelProto

from onnxfix.diagnosis.lowered import Lowerable
from onnxfix.engine import Found, check
from onnxfix.graph.overlay import Node
from onnxfix.lowering.convert import converted
from onnxfix.lowering.records import Why
from onnxfix.model import Model
from onnxfix.registry import registry

#: Rules that look at the model as it is: norms of float32 that a conversion would break.
_BEFORE: dict[str, Why] = {"PRC011": "norm"}
#: Rules that look at it converted.
_AFTER: dict[str, Why] = {"PRC001": "norm", "PRC002": "constant", "PRC007": "softmax"}
_QUOTIENT = frozenset({"Cast", "Div", "Mul", "Reciprocal"})
"""Operators by which a norm ends, after its root."""


def hazards(model: ModelProto, able: Lowerable, base_dir: Path | None) -> dict[int, tuple[Why, str]]:
    """The nodes that rules name, by index, with the reason and the rule's code. Nothing is asked about bfloat16 but
    norms: it has float32's range.

    Raises:
        OnnxfixError: the rules could not be loaded.
    """
    found = _named(model, _BEFORE, base_dir)
    if able.to == "fp16":
        low = converted(model, able, frozenset(able.slots), base_dir=base_dir, weights=False).proto
        # The conversion adds and removes nodes: outputs identify those that it kept.
        index_of = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
        for names, reason in _by_outputs(low, _AFTER):
            for name in names:
                index = index_of.get(name.removesuffix(f"/{able.to}"))
                if index is not None and index in able.slots:
                    found.setdefault(index, reason)
    return {index: reason for index, reason in found.items() if index in able.slots}


def _named(model: ModelProto, rules: dict[str, Why], base_dir: Path | None) -> dict[int, tuple[Why, str]]:
    index_of = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
    return {
        index_of[name]: reason
        for names, reason in _by_outputs(model, rules, base_dir)
        for name in names
        if name in index_of
    }


def _by_outputs(
    model: ModelProto, rules: dict[str, Why], base_dir: Path | None = None
) -> Iterator[tuple[list[str], tuple[Why, str]]]:
    """For each match in the main graph: the outputs of the nodes that it is about, and the reason."""
    overlay = Model(model, base_dir)
    for found in check(overlay, registry().choose(list(rules))):
        why = rules[found.rule.code], found.rule.code
        nodes = [node for node in _nodes(found, found.rule.code) if node.scope is overlay.main]
        yield [name for node in nodes for name in node.proto.output if name], why


def _nodes(found: Found, code: str) -> Iterator[Node]:
    """The nodes of a match, and for a norm those that end it."""
    match = found.match
    if match.node is None:
        return
    inside = [match.node, *(one for one in match.reads if isinstance(one, Node))]
    yield from inside
    if code == "PRC002":  # what the epsilon protects
        yield from _readers(match.node)
    if code in ("PRC001", "PRC011"):
        for node in _readers(match.node):
            if node.op_type in _QUOTIENT:
                yield node
                if _inverts(node):
                    yield from (one for one in _readers(node) if one.op_type in _QUOTIENT)


def _inverts(node: Node) -> bool:
    """Whether the quotient is yet to come: 1 / s, or s in another type."""
    divided = node.input(0)
    ones = node.op_type == "Div" and divided is not None and divided.is_constant
    return ones or node.op_type in ("Cast", "Reciprocal")


def _readers(node: Node) -> Iterator[Node]:
    output = node.output()
    if output is not None:
        yield from (use.node for use in output.uses)
