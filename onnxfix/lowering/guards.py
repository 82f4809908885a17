"""Nodes that must not compute in the low type, whatever the budget, and attention masks that it cannot represent.

The data decides about ranges, and rules about what no sample may show: a row of equal elements, a channel that is
always 0. The rules PRC00x recognize norms, softmaxes, epsilons and masks that half precision breaks; they look at the
model as if all of it were converted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfix.files import tensors
from onnxfix.files.dtypes import FLOATS
from onnxfix.graph.overlay import Node
from onnxfix.lowering.convert import converted
from onnxfix.lowering.lowered import DENOMINATORS, ELEMENT, MOVES, SQUARES, SUMS, Low, Lowerable, lowerable
from onnxfix.lowering.records import Why
from onnxfix.lowering.selfmeasure import Own, Tensor
from onnxfix.model import Model
from onnxfix.rewrite.engine import Found, check
from onnxfix.rewrite.registry import registry
from onnxfix.targets import Target

_RULE = "PRC003"
_PASSES = frozenset({*MOVES, "Add", "Cast", "Mul", "Sub"})
"""Operators that hand a mask on."""
_LARGEST = 1 << 28


@dataclass(frozen=True)
class Masks:
    """``constants`` are the names of mask constants; ``nodes`` are those that a mask goes through, the Softmax
    included, by index: large magnitudes are meant there."""

    constants: frozenset[str] = frozenset()
    nodes: frozenset[int] = frozenset()


def masks(model: ModelProto, base_dir: Path | None) -> Masks:
    """The masks of the main graph.

    Raises:
        OnnxfixError: the rules could not be loaded.
    """
    able = lowerable(model, "fp16", base_dir, strict=True)
    low = converted(model, able, frozenset(able.slots), base_dir=base_dir, weights=False).proto
    overlay = Model(low, None)
    constants: set[str] = set()
    starts: set[str] = set()
    for found in check(overlay, registry().choose([_RULE])):
        node = found.match.node
        if node is None or node.op_type == "Cast" or node.scope is not overlay.main:
            continue
        names = {getattr(value, "name", "").removesuffix("/fp16") for value in found.match.reads}
        constants |= {
            name
            for name in names
            for _, tensor in _holders(model, [name])
            if _beyond(tensors.to_array(tensor, base_dir, _LARGEST), 65504.0)
        }
        starts.update(name.removesuffix("/fp16") for name in node.proto.output)
    if not constants:
        return Masks()
    return Masks(frozenset(constants), _path(model, starts))


def _path(model: ModelProto, starts: Collection[str]) -> frozenset[int]:
    """The nodes from these tensors to the next Softmax; nodes are in order."""
    reached, found = set(starts), set()
    for index, node in enumerate(model.graph.node):
        if reached.isdisjoint((*node.input, *node.output)):
            continue
        if node.op_type in _PASSES:
            reached.update(node.output)
            found.add(index)
        elif node.op_type == "Softmax":
            found.add(index)
    return frozenset(found)


def saturate(model: ModelProto, names: Collection[str], to: Low, base_dir: Path | None) -> None:
    """Replace, in place, what is finite and beyond the low type's range in these constants by its limit."""
    limit = np.float32(FLOATS[ELEMENT[to]].highest)
    for owner, tensor in _holders(model, names):
        array = tensors.to_array(tensor, base_dir, _LARGEST)
        if array is None or not _beyond(array, float(limit)):
            continue
        made = numpy_helper.from_array(
            np.where(np.isfinite(array), np.clip(array, -limit, limit), array).astype(np.float32), tensor.name
        )
        if isinstance(owner, NodeProto):
            del owner.attribute[:]
            owner.attribute.append(helper.make_attribute("value", made))
        else:
            tensor.CopyFrom(made)


def _beyond(array: Any, limit: float) -> bool:
    if array is None or array.dtype != np.float32:
        return False
    return bool((np.isfinite(array) & (np.abs(array) > limit)).any())


def _holders(model: ModelProto, names: Collection[str]) -> list[tuple[NodeProto | None, TensorProto]]:
    """The constants of these names, with their Constant nodes."""
    inputs = {info.name for info in model.graph.input}
    found: list[tuple[NodeProto | None, TensorProto]] = [
        (None, tensor)
        for tensor in model.graph.initializer
        if tensor.name in names and tensor.name not in inputs
    ]
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output and node.output[0] in names:
            array = tensors.constant_node_array(node, None, _LARGEST)
            if array is not None:
                found.append((node, numpy_helper.from_array(np.asarray(array), node.output[0])))
    return found


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
    index_of = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
    named = [*_by_outputs(model, _BEFORE, base_dir)]
    if able.to == "fp16":
        low = converted(model, able, frozenset(able.slots), base_dir=base_dir, weights=False).proto
        named += _by_outputs(low, _AFTER)
    found: dict[int, tuple[Why, str]] = {}
    for names, reason in named:
        # The conversion adds and removes nodes: outputs identify those that it kept.
        indices = [index_of.get(name.removesuffix(f"/{able.to}"), -1) for name in names]
        found.update({index: reason for index in indices if index in able.slots and index not in found})
    return found


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
                # Where the quotient is yet to come: after 1 / s, or s in another type.
                divided = node.input(0)
                ones = node.op_type == "Div" and divided is not None and divided.is_constant
                if ones or node.op_type in ("Cast", "Reciprocal"):
                    yield from (one for one in _readers(node) if one.op_type in _QUOTIENT)


def _readers(node: Node) -> Iterator[Node]:
    output = node.output()
    if output is not None:
        yield from (use.node for use in output.uses)


MARGIN = 4.0
"""Factor by which other data may exceed the samples' magnitudes."""
_SCALARS = 64
"""Elements up to which every element of a constant matters: epsilons, scales, bounds."""


@dataclass(frozen=True)
class Guard:
    """Why a node is kept, and the number that decided."""

    why: Why
    seen: float | None = None
    rule: str = ""


@dataclass(frozen=True)
class Facts:
    """What is known of a model: its graph, what can have the low type, what was measured by tensor and by node, what
    rules name (``hazards``), and the nodes that saturated masks go through."""

    model: ModelProto
    able: Lowerable
    tensors: Mapping[str, Tensor]
    own: Mapping[int, Own]
    hazards: Mapping[int, tuple[Why, str]]
    target: Target | None = None
    masked: frozenset[int] = frozenset()

    @property
    def highest(self) -> float:
        """The low type's largest number."""
        return FLOATS[ELEMENT[self.able.to]].highest

    @property
    def unit(self) -> float:
        """Half a unit in the low type's last place, of 1."""
        return float(2.0 ** -FLOATS[ELEMENT[self.able.to]].precision)


def guards(facts: Facts) -> dict[int, Guard]:
    """The nodes to keep in float32, by index, with the first reason that applies."""
    reasons: dict[int, Guard] = {}
    producers = {name: i for i, node in enumerate(facts.model.graph.node) for name in node.output if name}
    for index in facts.able.slots:
        for at, guard in (*_judge_node(facts, index), *_judge_values(facts, index, producers)):
            if at in facts.able.slots:
                reasons.setdefault(at, guard)
    return reasons


def _judge_node(facts: Facts, index: int) -> Iterator[tuple[int, Guard]]:
    """What the target and the rules say."""
    node = facts.model.graph.node[index]
    if facts.target is not None and facts.target.accepts(node.op_type, ELEMENT[facts.able.to]) is False:
        yield index, Guard("target")
    if index in facts.hazards:
        why, rule = facts.hazards[index]
        yield index, Guard(why, rule=rule)


def _judge_values(facts: Facts, index: int, producers: Mapping[str, int]) -> Iterator[tuple[int, Guard]]:
    """What the values say that the node reads and writes, and its own error."""
    node, slots = facts.model.graph.node[index], facts.able.slots[index]
    read = [node.input[slot] for slot in slots.inputs]
    written = (node.output[slot] for slot in slots.outputs if node.output[slot])
    values = {name: facts.tensors[name] for name in (*read, *written) if name in facts.tensors}
    for seen in values.values() if index not in facts.masked else ():  # masks are meant to be at the limit
        if seen.highest * MARGIN > facts.highest:
            yield index, Guard("overflow", seen.highest)
    lost = {name: seen for name, seen in values.items() if name in read and seen.lost}
    for name, seen in lost.items():
        constant = name not in producers or facts.model.graph.node[producers[name]].op_type == "Constant"
        if constant and seen.count <= _SCALARS * seen.samples:
            yield index, Guard("constant", seen.lost)
    if node.op_type in SUMS:  # they may leave the range before they are divided or their root is taken
        data, result = facts.tensors.get(node.input[0]), facts.tensors.get(node.output[0])
        if data is not None and result is not None and result.count:
            each = data.highest**2 if node.op_type in SQUARES else data.highest
            if (total := each * data.count / result.count) > facts.highest:
                yield index, Guard("reduction", total)
    slot = DENOMINATORS.get(node.op_type)
    if (
        slot is not None and slot in slots.inputs and node.input[slot] in lost
    ):  # divided by, or its root or logarithm is taken
        name = node.input[slot]
        yield index, Guard("underflow", lost[name].lost)
        if name in producers:
            yield producers[name], Guard("underflow", lost[name].lost)
    for seen in values.values():  # positions, indices, sizes that the low type does not represent
        if seen.whole and seen.rounding:
            yield index, Guard("integers", seen.highest)
    own = facts.own.get(index)
    if own is not None and not math.isfinite(own.error_power):
        yield index, Guard("not-finite")
    if own is not None and own.changed:
        yield index, Guard("choice", own.changed / own.choices)
