"""Whether two models compute the same for all values of their inputs, at given sizes.

Both graphs are walked together. A tensor that is made by the same operators of the same tensors is the same in both;
nothing of it is computed. Where a name stands for two tensors that are made differently, both are computed over
hashes from the nearest tensors that are the same in both, which count as unknown. If their hashes are equal, they are
the same from there on. So the work is that of the edits, not that of the model.
"""
# Long because: both models are walked in one place.

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto
from onnx.inliner import inline_local_functions, inline_selected_functions

from onnxfix.graph.signatures import schema_of
from onnxfix.proof.symbolic import control, sums, windows  # noqa: F401  # they enter their operators
from onnxfix.proof.symbolic.calls import OPERATORS, Value, versions_of
from onnxfix.proof.symbolic.evaluate import FAULTS, RANDOM, SPECIAL, Evaluator, Frame, Table, check_names
from onnxfix.proof.symbolic.identity import flat, identify_node, identify_tensor
from onnxfix.proof.symbolic.inference import Kind, Shapes, infer, with_types
from onnxfix.proof.symbolic.tensor import (
    UNTIL,
    Tensor,
    Undecided,
    Weights,
    atoms,
    check_time,
    constant,
    unknown_sequence,
)

_Array = np.ndarray[Any, Any]
_Values = Mapping[str, _Array]
_EFFORTS = ((-1, 64), (8, 1 << 16), (1 << 30, 1 << 25))
"""How far above an edit tensors are still computed, and the elements up to which shared weights are read: first what
costs least. The last is tried on the model's outputs only."""
_STATIC = 1 << 20
"""Elements of a tensor that no input decides, up to which it is computed rather than unknown."""
_HELD = 1 << 22
"""Elements computed, from which on those so far are dropped after the next equal tensor."""


@dataclass(frozen=True)
class Outcome:
    """Whether each output is the same (``proven``), else ``reason`` says what stands in the way. ``given`` are the
    inputs, or if none were left the tensors, whose values decide shapes and were given. So many ``elements`` were
    computed."""

    proven: bool
    reason: str = ""
    given: tuple[str, ...] = ()
    elements: int = 0


class _Task(NamedTuple):
    """Two models without local functions, with the shapes of their inputs, and how to prove that they are the same."""

    models: Sequence[ModelProto]
    shapes: Shapes
    weights: tuple[Weights, Weights]
    as_real: bool


class _Side:
    """One of the two models; ``ids`` says by name which tensor a name stands for."""

    def __init__(self, model: ModelProto, weights: Weights, as_real: bool) -> None:
        self.model, self.weights = model, weights
        self.evaluator = Evaluator(model, weights, as_real=as_real)
        self._room = _HELD
        self.table = Table(model.graph)
        self.ids: dict[str, bytes] = {}
        self.identities: set[bytes] = set()
        self.versions = versions_of(model)
        self.hops: dict[str, int] = {}
        self.static: dict[str, bool] = {}
        self.frames: dict[int, Frame] = {}

    def name(self, name: str, identity: bytes) -> None:
        """Say which tensor a name stands for."""
        self.ids[name] = identity
        self.identities.add(identity)

    def forget(self, name: str) -> None:
        """Drop hashes that are probably not read again, and those of a tensor that counts as unknown now."""
        if 0 in self.frames:
            self.frames[0].values.pop(name, None)
        if self.evaluator.elements > self._room:
            self.frames.clear()
            self._room = self.evaluator.elements + _HELD

    def measure(self, edited: list[NodeProto]) -> None:
        """Set the number of nodes between each tensor and the nearest edited node after it."""
        level = {name for node in edited for name in (*self.table.needs(node), *node.output) if name}
        steps = 0
        while level:
            self.hops |= dict.fromkeys(level, steps)
            nodes = [self.table.producers[name] for name in level if name in self.table.producers]
            level = {name for node in nodes for name in self.table.needs(node)} - self.hops.keys()
            steps += 1


def prove(
    original: ModelProto,
    fixed: ModelProto,
    shapes: Shapes,
    values: _Values | None = None,
    *,
    weights: tuple[Weights, Weights] = (Weights(), Weights()),
    limit: float = 60.0,
    as_real: bool = False,
) -> Outcome:
    """Try to prove that two models have the same outputs for all inputs of some shapes.

    ``shapes`` has each input's; ``values`` elements of inputs, which are used where they decide shapes. ``weights`` are
    those of each model. ``limit`` is in seconds of the processor, so that a busy machine proves no less. ``as_real``:
    the outputs are the same as real numbers, that is without rounding.
    """
    began = UNTIL.set(time.process_time() + limit)
    try:
        models = tuple(map(_inline, (original, fixed)))
        task = _Task(models, shapes, weights, as_real)
        outcome = _prove(task, values or {})
        if not outcome.proven and any(map(_has_bodies, models)):
            # ONNX defines some operators by functions of others, which say more than a black box.
            with suppress(Exception):  # the inliner raises what it likes
                check_time()
                bodies = [inline_selected_functions(with_types(one), _KNOWN, True, True) for one in models]
                again = _prove(task._replace(models=bodies), values or {})
                outcome = again if again.proven else outcome
        return outcome
    except Undecided as error:
        return Outcome(False, str(error))
    finally:
        UNTIL.reset(began)


def _inline(model: ModelProto) -> ModelProto:
    """A model without local functions, in which each name stands for one tensor."""
    inlined = inline_local_functions(model) if model.functions else model
    if inlined.functions or any(one.attribute_proto for one in model.functions):
        raise Undecided("a local function has default attributes or an operator set of its own")
    check_names(inlined.graph)
    return inlined


_KNOWN = [("", name) for name in (*OPERATORS, *SPECIAL)]


def _has_bodies(model: ModelProto) -> bool:
    """Whether ONNX defines an operator of the model by a function of others."""
    versions = versions_of(model)
    unknown = {one.op_type for one in model.graph.node if not one.domain} - {name for _, name in _KNOWN}
    schemas = [schema_of(name, versions[""]) for name in unknown]
    return any(
        one is not None and (one.has_function or one.has_context_dependent_function)  # type: ignore[attr-defined]
        for one in schemas
    )


def _prove(task: _Task, values: _Values) -> Outcome:
    """Try to prove it, at first without values of inputs, then with those that stand in the way."""
    given, assumed, elements = dict[str, _Array](), dict[str, _Array](), 0
    while True:
        try:
            pair = _Pair(task, given, assumed)
        except Undecided as error:
            return Outcome(False, str(error), (*given, *assumed), elements)
        obstacle = pair.find_obstacle()
        elements += pair.elements
        if obstacle is None:
            return Outcome(True, "", (*given, *assumed), elements)
        deciding = {name: values[name] for name in pair.origins(obstacle.names) if name in values}
        more = dict[str, _Array]()
        if deciding.keys() - given and len(given | deciding) < len(task.shapes):
            given |= deciding
            continue
        if deciding.keys() - given:
            # No input would be left: the tensors themselves are given, so that it is for all inputs that lead to them.
            with suppress(Undecided):
                more = pair.sample([name for name in obstacle.names if name not in assumed], values)
        if not more:
            return Outcome(False, str(obstacle), (*given, *assumed), elements)
        assumed |= more


class _Pair:
    def __init__(self, task: _Task, given: _Values, assumed: _Values) -> None:
        self._assumed = {name: constant(array) for name, array in assumed.items()}
        self.sides = [
            _Side(model, weights, task.as_real)
            for model, weights in zip(task.models, task.weights, strict=True)
        ]
        self._kinds = infer(task.models[0], task.shapes)
        self._known: dict[bytes, Kind] = {}  # what stays known of shared tensors
        self._values: dict[bytes, Value] = {}  # ... and what stands in for them
        self._done: set[str] = set()
        self._obstacles: dict[str, Undecided] = {}
        for side in self.sides:
            for proto in side.model.graph.input:
                self._enter(side, proto, task.shapes.get(proto.name), given.get(proto.name))
        nodes = [
            {node.SerializeToString(deterministic=True): node for node in side.model.graph.node}
            for side in self.sides
        ]
        for side, own, other in zip(self.sides, nodes, nodes[::-1], strict=True):
            side.measure([node for key, node in own.items() if key not in other])  # the edited ones

    def _enter(
        self, side: _Side, proto: ValueInfoProto, shape: tuple[Any, ...] | None, value: _Array | None
    ) -> None:
        """Identify an input, and say what stands in for it."""
        name, kind = proto.name, proto.type.tensor_type.elem_type
        default = side.table.initializers.get(name)
        shape = shape if default is None else tuple(default.dims)
        if shape is not None and not proto.type.HasField("tensor_type"):
            side.name(name, f"input {name} {proto.type} {shape}".encode())
            self._values[side.ids[name]] = unknown_sequence(f"input {name}", proto.type, shape)
            return
        if shape is None or not kind:
            raise Undecided(f"input {name} has no known shape")
        label = f"input {name} {kind} {shape}"
        if default is not None:
            label += identify_tensor(default, side.weights).hex()
        side.name(name, label.encode())
        side.static[name] = value is not None
        self._known[side.ids[name]] = Kind(kind, shape)
        self._values[side.ids[name]] = (
            atoms(label, kind, shape) if value is None else constant(np.asarray(value))
        )

    def find_obstacle(self) -> Undecided | None:
        """Why an output is not proven to be the same; None if all are."""
        first, second = self.sides
        names, others = ([one.name for one in side.model.graph.output] for side in self.sides)
        if names != others:
            return Undecided("the models have different outputs")
        try:
            for name in names:
                self._settle(name)
                if first.ids[name] != second.ids[name] and not self._agree(name, len(_EFFORTS) - 1):
                    differently = Undecided(f"output {name} is computed differently{self._origin()}")
                    return self._obstacles.get(name) or differently
        except Undecided as error:
            return error
        return None

    def _origin(self) -> str:
        """The first tensor of the original that the other model has too, computed differently."""
        first, second = (side.ids for side in self.sides)
        for node in self.sides[0].model.graph.node:
            for name in node.output:
                if name in first and name in second and first[name] != second[name]:
                    return f", from {node.op_type} ({name}) on"
        return ""

    @property
    def elements(self) -> int:
        """How many elements were met so far."""
        return sum(side.evaluator.elements for side in self.sides)

    def origins(self, names: Iterable[str]) -> list[str]:
        """The inputs of the models from which some tensors are computed, but for those of which only the shape
        counts."""
        names = list(names)
        origins = set().union(*(side.table.origins(names) for side in self.sides))
        return [name for name in self.sides[0].table.inputs if name in origins]

    def sample(self, names: Iterable[str], values: _Values) -> dict[str, _Array]:
        """What some tensors of the original are for values of all inputs."""
        side = self.sides[0]
        frame = Frame(side.evaluator, side.table, {name: constant(one) for name, one in values.items()})
        tensors = {name: frame.value(name) for name in names if name in side.table.producers}
        known = {name: one.known for name, one in tensors.items() if isinstance(one, Tensor)}
        return {name: one for name, one in known.items() if one is not None}

    def _settle(self, target: str) -> None:
        """Identify a tensor in both models, after all that it is made of."""
        waiting, open_names = [target], set[str]()
        while waiting:
            name = waiting[-1]
            if name in self._done:
                waiting.pop()
                continue
            missing = [
                one
                for side in self.sides
                if name in side.table.producers
                for one in side.table.needs(side.table.producers[name])
                if one not in self._done and one not in open_names
            ]
            if missing and name not in open_names:
                open_names.add(name)
                waiting.extend(missing)
                continue
            waiting.pop()
            self._done.add(name)
            found = [side for side in self.sides if self._identify(side, name)]
            if len(found) == 2 and len({side.ids[name] for side in found}) == 2:
                for effort in range(len(_EFFORTS) - 1):
                    if self._agree(name, effort):
                        break

    def _identify(self, side: _Side, name: str) -> bool:
        """Set the identity of a name, if the model has it."""
        if name in side.ids:
            return True
        if name in side.table.initializers:
            proto = side.table.initializers[name]
            side.name(name, identify_tensor(proto, side.weights))
            side.identities.add(flat(side.ids[name]))
            self._known.setdefault(side.ids[name], Kind(proto.data_type, tuple(proto.dims)))
            side.static[name] = True
            return True
        node = side.table.producers.get(name)
        if node is None:
            return False
        needs = side.table.needs(node)
        for one in needs:
            if one not in side.ids and not self._identify(side, one):
                raise Undecided(f"{one} is not defined")
        base = identify_node(node, side.table, side.ids, side.versions, side.weights)
        static = node.op_type in ("Shape", "Size", "Constant") or all(side.static.get(one) for one in needs)
        for place, output in enumerate(node.output):
            if output and output not in side.ids:
                side.name(output, base if node.op_type == "Constant" else base + str(place).encode())
                side.static[output] = static and node.op_type not in RANDOM
                kind = self._kinds.get(output) if side is self.sides[0] else None
                if kind is not None:
                    self._known.setdefault(side.ids[output], kind)
        return True

    def _agree(self, name: str, effort: int) -> bool:
        """Whether a name has equal hashes in both models; then it stands for the same tensor from here on."""
        first, second = self.sides
        try:
            for side in self.sides:
                if effort not in side.frames:
                    cut = partial(self._cut, side, effort)
                    side.frames[effort] = Frame(side.evaluator, side.table, {}, None, cut)
            values = [side.frames[effort].value(name) for side in self.sides]
            same = _same(*values)
        except (Undecided, *FAULTS) as error:
            check_time()
            self._obstacles[name] = error if isinstance(error, Undecided) else Undecided(f"{name}: {error}")
            return False
        if not same:
            self._obstacles.pop(name, None)
            return False
        second.name(name, first.ids[name])
        one, identity = values[0], first.ids[name]
        if isinstance(one, Tensor):
            self._known[identity] = Kind(one.dtype, one.shape)
            if one.known is None or one.size > 1024:  # what stays known are its type, its shape and its range
                one = one.settled()
                facts = Tensor(one.dtype, one.shape, atom=identity.hex(), bounds=one.bounds)
                one = replace(facts, within=one.within)
            self._values[identity] = one
        for side in self.sides:
            side.forget(name)
        return True

    def _cut(self, side: _Side, effort: int, name: str) -> Value | None:
        """What stands in for a tensor that is the same in both models, where it is not to be computed."""
        above, weights = _EFFORTS[effort]
        identity = side.ids.get(name)
        if identity is None:
            return None
        for one, tensor in self._assumed.items():
            if identity == self.sides[0].ids.get(one):
                return tensor
        kind, value = self._known.get(identity), self._values.get(identity)
        if kind is None:
            return value
        size = math.prod(kind.shape)
        if name in side.table.initializers and value is None:
            content = flat(identity)
            many = size > weights and self._shared(content)
            return atoms(content.hex(), kind.dtype, kind.shape) if many else None
        unknown = value or atoms(identity.hex(), kind.dtype, kind.shape)
        if name not in side.table.producers:
            return unknown
        if not self._shared(identity) or side.hops.get(name, 1 << 31) <= above:
            return None
        return None if side.static.get(name) and size <= _STATIC else unknown

    def _shared(self, identity: bytes) -> bool:
        return all(identity in side.identities for side in self.sides)


def _same(one: Value, other: Value) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.same_as(other)
    if isinstance(one, Tensor) or isinstance(other, Tensor) or len(one) != len(other):
        return False
    return all(_same(*pair) for pair in zip(one, other, strict=True))
