"""Whether two models compute the same for all values of their inputs, at given sizes.

Both graphs are walked together. A tensor that is made by the same operators of the same tensors is the same in both;
nothing of it is computed. Where a name stands for two tensors that are made differently, both are computed over
hashes from the nearest tensors that are the same in both, which count as unknown. If their hashes are equal, they are
the same from there on. So the work is that of the edits, not that of the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.inliner import inline_local_functions, inline_selected_functions

from onnxfix.proof.symbolic import control, quantize, sums, windows  # noqa: F401  # they enter their operators
from onnxfix.proof.symbolic.calls import OPERATORS, Value, schema_of, versions_of
from onnxfix.proof.symbolic.evaluate import FAULTS, RANDOM, SPECIAL, Evaluator, Frame, Table, check_names
from onnxfix.proof.symbolic.identity import flat, identify_node, identify_tensor
from onnxfix.proof.symbolic.inference import Kind, Shapes, infer, with_types
from onnxfix.proof.symbolic.tensor import Tensor, Undecided, atoms, constant, unknown_sequence
from onnxfix.proof.symbolic.weights import Weights

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


class _Side:
    """One of the two models; ``ids`` says by name which tensor a name stands for."""

    def __init__(self, model: ModelProto, weights: Weights) -> None:
        self.model, self.weights = model, weights
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
    values: Mapping[str, np.ndarray[Any, Any]] | None = None,
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
    until = time.process_time() + limit
    try:
        models = tuple(map(_inline, (original, fixed)))
    except Undecided as error:
        return Outcome(False, str(error))
    outcome = _prove(models, shapes, weights, values or {}, until, as_real)
    if not outcome.proven and any(map(_has_bodies, models)):
        # ONNX defines some operators by functions of others, which say more than a black box.
        with suppress(Exception):  # the inliner raises what it likes
            bodies = [inline_selected_functions(with_types(one), _KNOWN, True, True) for one in models]
            again = _prove(bodies, shapes, weights, values or {}, until, as_real)
            outcome = again if again.proven else outcome
    return outcome


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
    schemas = [schema_of(name, "", versions[""]) for name in unknown]
    return any(
        one is not None and (one.has_function or one.has_context_dependent_function)  # type: ignore[attr-defined]
        for one in schemas
    )


def _prove(
    models: Sequence[ModelProto],
    shapes: Shapes,
    weights: tuple[Weights, Weights],
    values: Mapping[str, np.ndarray[Any, Any]],
    until: float,
    as_real: bool,
) -> Outcome:
    """Try to prove it, at first without values of inputs, then with those that stand in the way."""
    given: dict[str, np.ndarray[Any, Any]] = {}
    assumed: dict[str, np.ndarray[Any, Any]] = {}
    elements = 0
    while True:
        obstacle: Undecided | None
        pair: _Pair | None = None
        try:
            pair = _Pair(models, shapes, weights, given, until, as_real, assumed)
            obstacle = pair.compare()
        except Undecided as error:
            obstacle = error
        deciding: set[str] = set()
        if pair is not None:
            elements += pair.elements
            deciding = pair.deciding(obstacle.names if obstacle is not None else ()) & set(values) - set(
                given
            )
        if obstacle is None or pair is None or not deciding:
            break
        if len(given) + len(deciding) < len(shapes):
            given |= {name: values[name] for name in deciding}
            continue
        # No input would be left: the tensors themselves are given, so that it is for all inputs that lead to them.
        more: dict[str, np.ndarray[Any, Any]] = {}
        with suppress(Undecided):
            more = pair.sample(set(obstacle.names) - set(assumed), values)
        if not more:
            break
        assumed |= more
    reason = str(obstacle) if obstacle is not None else ""
    return Outcome(not reason, reason, (*given, *assumed), elements)


class _Pair:
    def __init__(
        self,
        models: Sequence[ModelProto],
        shapes: Shapes,
        weights: tuple[Weights, Weights],
        values: Mapping[str, np.ndarray[Any, Any]],
        until: float,
        as_real: bool,
        assumed: Mapping[str, np.ndarray[Any, Any]],
    ) -> None:
        self._assumed = {name: constant(array) for name, array in assumed.items()}
        self.sides = first, second = tuple(map(_Side, models, weights))
        self._until, self._as_real, self._dropped = until, as_real, 0
        self._kinds = infer(models[0], shapes)
        self._known: dict[bytes, Kind] = {}  # what stays known of shared tensors
        self._sequences: dict[str, Value] = {}
        self._values: dict[bytes, Tensor] = {}  # ... and what stands in for them
        self._done: set[str] = set()
        self._obstacles: dict[str, Undecided] = {}
        given = {name: constant(np.asarray(array)) for name, array in values.items()}
        for side in self.sides:
            for proto in side.model.graph.input:
                name, kind = proto.name, proto.type.tensor_type.elem_type
                default = side.table.initializers.get(name)
                shape = shapes.get(name) if default is None else tuple(default.dims)
                if shape is not None and not proto.type.HasField("tensor_type"):
                    side.name(name, f"input {name} {proto.type} {shape}".encode())
                    self._sequences[name] = unknown_sequence(f"input {name}", proto.type, shape)
                    continue
                if shape is None or not kind:
                    raise Undecided(f"input {name} has no known shape")
                label = f"input {name} {kind} {shape}"
                if default is not None:
                    label += identify_tensor(default, side.weights).hex()
                side.name(name, label.encode())
                value = given.get(name) or atoms(label, kind, shape)
                self._known[side.ids[name]], self._values[side.ids[name]] = Kind(kind, shape), value
                side.static[name] = name in given
        edited = _edited(first, second)
        for side, nodes in zip(self.sides, edited, strict=True):
            side.measure(nodes)

    def compare(self) -> Undecided | None:
        """Why an output is not proven to be the same; None if all are."""
        first, second = self.sides
        names = [[one.name for one in side.model.graph.output] for side in self.sides]
        if names[0] != names[1]:
            return Undecided("the models have different outputs")
        for name in names[0]:
            self._settle(name)
            if first.ids[name] != second.ids[name] and not self._agree(name, len(_EFFORTS) - 1):
                return self._obstacles.get(name) or Undecided(
                    f"output {name} is computed differently{self._origin()}"
                )
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
        frames = (frame for side in self.sides for frame in side.frames.values())
        return self._dropped + sum(frame.side.elements for frame in frames)

    def deciding(self, names: Iterable[str]) -> set[str]:
        """The inputs of the models from which some tensors are computed, but for those of which only the shape
        counts."""
        return {one for side in self.sides for one in side.table.origins(names) & set(side.table.inputs)}

    def sample(
        self, names: Iterable[str], values: Mapping[str, np.ndarray[Any, Any]]
    ) -> dict[str, np.ndarray[Any, Any]]:
        """What some tensors of the original are for values of all inputs."""
        side = self.sides[0]
        evaluator = Evaluator(side.model, side.weights, until=self._until)
        frame = Frame(evaluator, side.table, {name: constant(one) for name, one in values.items()})
        tensors = {name: frame.value(name) for name in names if name in side.table.producers}
        return {
            name: one.known
            for name, one in tensors.items()
            if isinstance(one, Tensor) and one.known is not None
        }

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
            values = [self._frame(side, effort).value(name) for side in self.sides]
            same = _same(*values)
        except (Undecided, *FAULTS) as error:
            self._obstacles[name] = error if isinstance(error, Undecided) else Undecided(f"{name}: {error}")
            return False
        if not same:
            self._obstacles.pop(name, None)
            return False
        second.name(name, first.ids[name])
        one = values[0]
        if isinstance(one, Tensor):
            kept = one if one.known is not None and one.size <= 1024 else _facts(one, first.ids[name])
            self._known[first.ids[name]] = Kind(one.dtype, one.shape)
            self._values[first.ids[name]] = kept
        for side in self.sides:
            self._forget(side, name)
        return True

    def _forget(self, side: _Side, name: str) -> None:
        """Drop hashes that are probably not read again, and those of a tensor that counts as unknown now."""
        for effort, frame in tuple(side.frames.items()):
            if effort == 0:
                frame.values.pop(name, None)
            if frame.side.elements > _HELD:
                self._dropped += side.frames.pop(effort).side.elements

    def _frame(self, side: _Side, effort: int) -> Frame:
        if effort not in side.frames:
            evaluator = Evaluator(side.model, side.weights, as_real=self._as_real, until=self._until)

            def cut(name: str) -> Value | None:
                return self._cut(side, name, effort)

            side.frames[effort] = Frame(evaluator, side.table, {}, None, cut)
        return side.frames[effort]

    def _cut(self, side: _Side, name: str, effort: int) -> Value | None:
        """What stands in for a tensor that is the same in both models, where it is not to be computed."""
        if name in self._sequences:
            return self._sequences[name]
        above, weights = _EFFORTS[effort]
        identity = side.ids.get(name)
        for one, tensor in self._assumed.items():
            if identity is not None and identity == self.sides[0].ids.get(one):
                return tensor
        kind = self._known.get(identity) if identity is not None else None
        if identity is None or kind is None:
            return None
        size = math.prod(kind.shape)
        if name in side.table.initializers and identity not in self._values:
            content = flat(identity)
            many = size > weights and self._shared(content)
            return atoms(content.hex(), kind.dtype, kind.shape) if many else None
        unknown = self._values.get(identity) or atoms(identity.hex(), kind.dtype, kind.shape)
        if name not in side.table.producers:
            return unknown
        if not self._shared(identity) or side.hops.get(name, 1 << 31) <= above:
            return None
        return None if side.static.get(name) and size <= _STATIC else unknown

    def _shared(self, identity: bytes) -> bool:
        return all(identity in side.identities for side in self.sides)


def _facts(value: Tensor, identity: bytes) -> Tensor:
    """An unknown tensor of which the type, the shape and the range are those of another."""
    value = value.settled()
    return Tensor(
        value.dtype, value.shape, atom=identity.hex(), low=value.low, high=value.high, within=value.within
    )


def _same(one: Value, other: Value) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.same_as(other)
    if isinstance(one, Tensor) or isinstance(other, Tensor) or len(one) != len(other):
        return False
    return all(_same(*pair) for pair in zip(one, other, strict=True))


def _edited(first: _Side, second: _Side) -> tuple[list[NodeProto], list[NodeProto]]:
    """The nodes of each model that the other has not."""
    keys = [
        {node.SerializeToString(deterministic=True): node for node in side.model.graph.node}
        for side in (first, second)
    ]
    return tuple([node for key, node in own.items() if key not in other] for own, other in (keys, keys[::-1]))  # type: ignore[return-value]
