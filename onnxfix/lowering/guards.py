"""Finds nodes that must stay in float32, whatever the budget, and masks that the low type cannot represent.

Measured ranges show some of them. Rules find hazards that samples may not show, such as a row of equal
elements or a channel that is always 0. The rules PRC00x recognize norms, softmaxes, epsilons and attention
masks that half precision breaks. They check the model as if all of it were converted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import tensors, walk
from onnxfix.files.dtypes import FLOATS
from onnxfix.graph.overlay import Node
from onnxfix.lowering.convert import converted
from onnxfix.lowering.lowered import DENOMINATORS, ELEMENT, MOVES, SQUARES, SUMS, Low, Lowerable, lowerable
from onnxfix.lowering.measure import Own, Tensor
from onnxfix.lowering.records import Why
from onnxfix.model import Model
from onnxfix.rewrite.engine import Found, check
from onnxfix.rewrite.registry import registry
from onnxfix.targets import Target

_RULE = "PRC003"
_PASSES = frozenset({*MOVES, "Add", "Cast", "Mul", "Sub"})
"""Operators that pass a mask on to their output."""
_LARGEST = 1 << 28


@dataclass(frozen=True)
class Masks:
    """``constants`` are the names of mask constants. ``nodes`` are the indices of the nodes that a mask
    passes through, including the Softmax. These nodes have large magnitudes on purpose."""

    constants: frozenset[str] = frozenset()
    nodes: frozenset[int] = frozenset()


def masks(model: ModelProto, base_dir: Path | None) -> Masks:
    """The masks of a model in which all tensors have names of their own.

    Raises:
        OnnxfixError: the rules could not be loaded.
    """
    candidates = lowerable(model, "fp16", base_dir, strict=True, inner=True)
    low = frozenset(candidates.slots)
    overlay = Model(converted(model, candidates, low, base_dir=base_dir, weights=False), None)
    constants: set[str] = set()
    mask_outputs: set[str] = set()
    for finding in check(overlay, registry().choose([_RULE])):
        node = finding.match.node
        if node is None or node.op_type == "Cast" or node.scope.root is not overlay.main:
            continue
        names = {getattr(value, "name", "").removesuffix("/fp16") for value in finding.match.reads}
        constants |= {
            name
            for name in names
            for _, tensor in _holders(model, [name])
            if _beyond(tensors.to_array(tensor, base_dir, _LARGEST), 65504.0)
        }
        mask_outputs.update(name.removesuffix("/fp16") for name in node.proto.output)
    if not constants:
        return Masks()
    return Masks(frozenset(constants), _nodes_to_softmax(model, mask_outputs))


def _nodes_to_softmax(model: ModelProto, starts: Collection[str]) -> frozenset[int]:
    """The indices of the nodes from these tensors to the next Softmax. Nodes are in topological order."""
    reached, indices = set(starts), set()
    for index, node in enumerate(walk.graph_nodes(model.graph)):
        if reached.isdisjoint((*node.input, *node.output)):
            continue
        if node.op_type in _PASSES:
            reached.update(node.output)
            indices.add(index)
        elif node.op_type == "Softmax":
            indices.add(index)
    return frozenset(indices)


def saturate(model: ModelProto, names: Collection[str], to: Low, base_dir: Path | None) -> None:
    """Clip, in place, the finite elements of these constants to the low type's range."""
    limit = np.float32(FLOATS[ELEMENT[to]].highest)
    for owner, tensor in _holders(model, names):
        array = tensors.to_array(tensor, base_dir, _LARGEST)
        if array is None or not _beyond(array, float(limit)):
            continue
        clipped = numpy_helper.from_array(
            np.where(np.isfinite(array), np.clip(array, -limit, limit), array).astype(np.float32), tensor.name
        )
        if isinstance(owner, NodeProto):
            del owner.attribute[:]
            owner.attribute.append(helper.make_attribute("value", clipped))
        else:
            tensor.CopyFrom(clipped)


def _beyond(array: Any, limit: float) -> bool:
    if array is None or array.dtype != np.float32:
        return False
    return bool((np.isfinite(array) & (np.abs(array) > limit)).any())


def _holders(model: ModelProto, names: Collection[str]) -> list[tuple[NodeProto | None, TensorProto]]:
    """The constants with these names, each with its Constant node (None for an initializer)."""
    inputs = {info.name for info in model.graph.input}
    holders: list[tuple[NodeProto | None, TensorProto]] = [
        (None, tensor)
        for graph in walk.graphs(model.graph)
        for tensor in graph.initializer
        if tensor.name in names and tensor.name not in inputs
    ]
    for node in walk.graph_nodes(model.graph):
        if node.op_type == "Constant" and node.output and node.output[0] in names:
            array = tensors.constant_node_array(node, None, _LARGEST)
            if array is not None:
                holders.append((node, numpy_helper.from_array(np.asarray(array), node.output[0])))
    return holders


#: Rules that check the original model: norms of float32 that a conversion would break.
_BEFORE: dict[str, Why] = {"PRC011": "norm"}
#: Rules that check the converted model.
_AFTER: dict[str, Why] = {"PRC001": "norm", "PRC002": "constant", "PRC007": "softmax"}
_QUOTIENT = frozenset({"Cast", "Div", "Mul", "Reciprocal"})
"""Operators that end a norm, after its root."""


def hazards(model: ModelProto, able: Lowerable, base_dir: Path | None) -> dict[int, tuple[Why, str]]:
    """The nodes that rules name, by index, with the reason and the rule's code. For bfloat16 only norms are
    checked, because it has float32's range.

    Raises:
        OnnxfixError: the rules could not be loaded.
    """
    nodes = walk.graph_nodes(model.graph)
    index_of = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    groups = [*_outputs_of_matches(model, _BEFORE, base_dir)]
    if able.to == "fp16":
        low = converted(model, able, frozenset(able.slots), base_dir=base_dir, weights=False)
        groups += _outputs_of_matches(low, _AFTER)
    reasons: dict[int, tuple[Why, str]] = {}
    for names, reason in groups:
        # The conversion adds and removes nodes. Outputs identify the nodes that it kept.
        indices = [index_of.get(name.removesuffix(f"/{able.to}"), -1) for name in names]
        reasons.update({index: reason for index in indices if index in able.slots and index not in reasons})
    return reasons


def _outputs_of_matches(
    model: ModelProto, rules: dict[str, Why], base_dir: Path | None = None
) -> Iterator[tuple[list[str], tuple[Why, str]]]:
    """For each match outside of functions: the outputs of its nodes, and the reason."""
    overlay = Model(model, base_dir)
    for finding in check(overlay, registry().choose(list(rules))):
        why = rules[finding.rule.code], finding.rule.code
        nodes = [node for node in _nodes(finding, finding.rule.code) if node.scope.root is overlay.main]
        yield [name for node in nodes for name in node.proto.output if name], why


def _nodes(finding: Found, code: str) -> Iterator[Node]:
    """The nodes of a match. For a norm, also the nodes that end it."""
    match = finding.match
    if match.node is None:
        return
    inside = [match.node, *(item for item in match.reads if isinstance(item, Node))]
    yield from inside
    if code == "PRC002":  # what the epsilon protects
        yield from _readers(match.node)
    if code in ("PRC001", "PRC011"):
        for node in _readers(match.node):
            if node.op_type in _QUOTIENT:
                yield node
                # The quotient may come later: after 1 / s, or after a Cast of s.
                dividend = node.input(0)
                is_reciprocal = node.op_type == "Div" and dividend is not None and dividend.is_constant
                if is_reciprocal or node.op_type in ("Cast", "Reciprocal"):
                    yield from (reader for reader in _readers(node) if reader.op_type in _QUOTIENT)


def _readers(node: Node) -> Iterator[Node]:
    output = node.output()
    if output is not None:
        yield from (use.node for use in output.uses)


MARGIN = 4.0
"""Factor by which other data may exceed the samples' magnitudes."""
_SCALARS = 64
"""Maximum size of a constant in which every element matters, such as an epsilon, a scale or a bound."""


@dataclass(frozen=True)
class Guard:
    """Why a node stays in float32, and the number that decided."""

    why: Why
    seen: float | None = None
    rule: str = ""


@dataclass(frozen=True)
class Facts:
    """What is known about a model: its graph, the nodes that can have the low type, measurements by tensor
    and by node, the nodes that rules name (``hazards``), and the nodes that saturated masks pass through
    (``masked``)."""

    model: ModelProto
    able: Lowerable
    tensors: Mapping[str, Tensor]
    own: Mapping[int, Own]
    hazards: Mapping[int, tuple[Why, str]]
    target: Target | None = None
    masked: frozenset[int] = frozenset()

    @cached_property
    def nodes(self) -> list[NodeProto]:
        """The nodes of all graphs, by index."""
        return walk.graph_nodes(self.model.graph)

    @cached_property
    def producers(self) -> dict[str, int]:
        """The node that writes a tensor."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.output if name}

    @property
    def highest(self) -> float:
        """The low type's largest number."""
        return FLOATS[ELEMENT[self.able.to]].highest

    @property
    def unit(self) -> float:
        """The rounding error of the low type at 1: half a unit in the last place."""
        return float(2.0 ** -FLOATS[ELEMENT[self.able.to]].precision)


def guards(facts: Facts) -> dict[int, Guard]:
    """The nodes to keep in float32, by index, with the first reason that applies."""
    reasons: dict[int, Guard] = {}
    for index in facts.able.slots:
        for guarded, guard in (*_guards_of_node(facts, index), *_guards_of_values(facts, index)):
            if guarded in facts.able.slots:
                reasons.setdefault(guarded, guard)
    return reasons


def _guards_of_node(facts: Facts, index: int) -> Iterator[tuple[int, Guard]]:
    """Reasons that the target and the rules give."""
    node = facts.nodes[index]
    if facts.target is not None and facts.target.accepts(node.op_type, ELEMENT[facts.able.to]) is False:
        yield index, Guard("target")
    if index in facts.hazards:
        why, rule = facts.hazards[index]
        yield index, Guard(why, rule=rule)


def _guards_of_values(facts: Facts, index: int) -> Iterator[tuple[int, Guard]]:
    """Reasons from the values that the node reads and writes, and from its own error."""
    node, slots, producers = facts.nodes[index], facts.able.slots[index], facts.producers
    read = [node.input[slot] for slot in slots.inputs]
    written = (node.output[slot] for slot in slots.outputs if node.output[slot])
    values = {name: facts.tensors[name] for name in (*read, *written) if name in facts.tensors}
    for stats in values.values() if index not in facts.masked else ():  # saturated masks lie at the limit
        if stats.highest * MARGIN > facts.highest:
            yield index, Guard("overflow", stats.highest)
    lossy_inputs = {name: stats for name, stats in values.items() if name in read and stats.lost}
    for name, stats in lossy_inputs.items():
        is_constant = name not in producers or facts.nodes[producers[name]].op_type == "Constant"
        if is_constant and stats.count <= _SCALARS * stats.samples:
            yield index, Guard("constant", stats.lost)
    if node.op_type in SUMS:  # a sum may overflow before a division or root makes it smaller
        data, result = facts.tensors.get(node.input[0]), facts.tensors.get(node.output[0])
        if data is not None and result is not None and result.count:
            term = data.highest**2 if node.op_type in SQUARES else data.highest
            if (total := term * data.count / result.count) > facts.highest:
                yield index, Guard("reduction", total)
    slot = DENOMINATORS.get(node.op_type)
    # A divisor, or the operand of a root or logarithm.
    if slot is not None and slot in slots.inputs and node.input[slot] in lossy_inputs:
        name = node.input[slot]
        yield index, Guard("underflow", lossy_inputs[name].lost)
        if name in producers:
            yield producers[name], Guard("underflow", lossy_inputs[name].lost)
    for stats in values.values():  # positions, indices, sizes that the low type does not represent
        if stats.whole and stats.rounding:
            yield index, Guard("integers", stats.highest)
    own_error = facts.own.get(index)
    if own_error is not None and not math.isfinite(own_error.error_power):
        yield index, Guard("not-finite")
    # A Q rounds in any type, and what it rounds otherwise is one step off: errors of outputs tell how much that is.
    if own_error is not None and own_error.changed and node.op_type != "QuantizeLinear":
        yield index, Guard("choice", own_error.changed / own_error.choices)
