"""Nodes that must not compute in the low type, whatever the budget: their values leave its range, or what they decide
changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from onnx import ModelProto, NodeProto

from onnxfix.diagnosis.lowered import ELEMENT, Lowerable
from onnxfix.dtypes import FLOATS
from onnxfix.lowering.kinds import DENOMINATORS, SQUARES, SUMS
from onnxfix.lowering.records import Why
from onnxfix.lowering.selfmeasure import Own, Tensor
from onnxfix.record import record
from onnxfix.targets import Target

MARGIN = 4.0
"""Factor by which other data may exceed the samples' magnitudes."""
_SCALARS = 64
"""Elements up to which every element of a constant matters: epsilons, scales, bounds."""


@record
class Guard:
    """Why a node is kept, and the number that decided."""

    why: Why
    seen: float | None = None
    rule: str = ""


@record
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
    found: dict[int, Guard] = {}
    producers = {name: i for i, node in enumerate(facts.model.graph.node) for name in node.output if name}
    for index in facts.able.slots:
        node = facts.model.graph.node[index]
        for at, guard in _of_node(facts, index, node, producers):
            if at in facts.able.slots:
                found.setdefault(at, guard)
    return found


def _of_node(
    facts: Facts, index: int, node: NodeProto, producers: Mapping[str, int]
) -> Iterator[tuple[int, Guard]]:
    if facts.target is not None and facts.target.accepts(node.op_type, ELEMENT[facts.able.to]) is False:
        yield index, Guard("target")
    if index in facts.hazards:
        why, rule = facts.hazards[index]
        yield index, Guard(why, rule=rule)
    yield from _ranges(facts, index, node)
    yield from _constants(facts, index, node, producers)
    yield from _sums(facts, index, node)
    yield from _zeros(facts, index, node, producers)
    yield from _integers(facts, index, node)
    own = facts.own.get(index)
    if own is not None and not math.isfinite(own.error_power):
        yield index, Guard("not-finite")
    if own is not None and own.changed:
        yield index, Guard("choice", own.changed / own.choices)


def _ranges(facts: Facts, index: int, node: NodeProto) -> Iterator[tuple[int, Guard]]:
    """Overflow of what the node reads or writes; masks are meant to be at the limit."""
    if index in facts.masked:
        return
    for name in _floats(facts, index, node):
        seen = facts.tensors.get(name)
        if seen is not None and seen.highest * MARGIN > facts.highest:
            yield index, Guard("overflow", seen.highest)


def _constants(
    facts: Facts, index: int, node: NodeProto, producers: Mapping[str, int]
) -> Iterator[tuple[int, Guard]]:
    """Small constants of which an element becomes 0."""
    for slot in facts.able.slots[index].inputs:
        name = node.input[slot]
        made = producers.get(name)
        constant = made is None or facts.model.graph.node[made].op_type == "Constant"
        seen = facts.tensors.get(name)
        if constant and seen is not None and seen.lost and seen.count <= _SCALARS * seen.samples:
            yield index, Guard("constant", seen.lost)


def _sums(facts: Facts, index: int, node: NodeProto) -> Iterator[tuple[int, Guard]]:
    """Sums that may leave the range before they are divided or their root is taken."""
    if node.op_type not in SUMS:
        return
    data, result = facts.tensors.get(node.input[0]), facts.tensors.get(node.output[0])
    if data is None or result is None or not result.count:
        return
    each = data.highest**2 if node.op_type in SQUARES else data.highest
    total = each * data.count / result.count
    if total > facts.highest:
        yield index, Guard("reduction", total)


def _zeros(
    facts: Facts, index: int, node: NodeProto, producers: Mapping[str, int]
) -> Iterator[tuple[int, Guard]]:
    """Values that are divided by, or whose root or logarithm is taken, and that become 0."""
    slot = DENOMINATORS.get(node.op_type)
    if slot is None or slot not in facts.able.slots[index].inputs:
        return
    name = node.input[slot]
    seen = facts.tensors.get(name)
    if seen is not None and seen.lost:
        yield index, Guard("underflow", seen.lost)
        if name in producers:
            yield producers[name], Guard("underflow", seen.lost)


def _integers(facts: Facts, index: int, node: NodeProto) -> Iterator[tuple[int, Guard]]:
    """Whole numbers that the low type does not represent: positions, indices, sizes."""
    for name in _floats(facts, index, node):
        seen = facts.tensors.get(name)
        if seen is not None and seen.whole and seen.rounding:
            yield index, Guard("integers", seen.highest)


def _floats(facts: Facts, index: int, node: NodeProto) -> Iterator[str]:
    """The float32 tensors that would have the low type if the node had."""
    slots = facts.able.slots[index]
    yield from (node.input[slot] for slot in slots.inputs)
    yield from (node.output[slot] for slot in slots.outputs if node.output[slot])
