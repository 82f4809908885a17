"""Into a suspected If, Loop or Scan: the graph that runs there, as a model of its own, on the values that it got.

Of an If the branch that is taken; of a Loop or Scan the body in the first iteration in which the two sides make
different values of the truth's. Local functions are inlined before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, ValueInfoProto, helper, numpy_helper

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.evidence import Evidence
from onnxfix.diagnosis.fingerprints import probe
from onnxfix.diagnosis.graph import Graph, upstream
from onnxfix.diagnosis.matching import match
from onnxfix.diagnosis.records import Culprit
from onnxfix.diagnosis.rows import Side
from onnxfix.errors import ModelError
from onnxfix.files import tensors, walk

ENTERED = frozenset({"If", "Loop", "Scan"})
"""Operators that can be entered."""
_ITERATIONS = 256
_OFF = 1e-5  # share of the scale from which on an iteration differs
_LIMIT = 1 << 30


@dataclass(frozen=True)
class Inner:
    """The graphs that run inside of a node on both sides, and the values of the truth's inputs (``feed``). ``name`` is
    that of the node (of its first output, where it has none) and of the attribute; ``iteration`` counts from 0, None
    for a branch."""

    truth: Graph
    side: Side
    feed: Mapping[str, Any]
    name: str
    iteration: int | None = None


class _Unknown(Exception):
    """It cannot be entered."""


def inside(evidence: Evidence, truth: Graph, side: Side, bench: Bench) -> Inner | None:
    """What runs inside of a suspected node; None where the other side has no such node, it cannot be told what runs
    there, or no iteration differs."""
    row, node, other = evidence.row, evidence.node, side.graph
    targets = row.region.targets.items() if row.region is not None else ()
    number = next((other.producer[name] for name, ours in targets if ours == row.name), -1)
    if row.region is None or number < 0 or other.nodes[number].op_type != node.op_type:
        return None
    try:
        given = {
            name: evidence.given[ours] for name, ours in row.region.inputs.items() if ours in evidence.given
        }
        values = _compute(other, number, given, bench)
        if node.op_type != "If":
            return _enter_iteration(
                _Body(truth, row.number, evidence.given, "body"),
                _Body(other, number, values, "body"),
                side,
                bench,
            )
        taken = _is_true(_value(truth, evidence.given, node.input[0]))
        if taken != _is_true(_value(other, values, other.nodes[number].input[0])):
            return None  # the difference is the condition
        name = "then_branch" if taken else "else_branch"
        ours, theirs = _Body(truth, row.number, evidence.given, name), _Body(other, number, values, name)
        return _match(ours, theirs, [], None, side, bench)
    except (_Unknown, ModelError, KeyError, IndexError, ValueError):
        return None


def _compute(graph: Graph, number: int, given: Mapping[str, Any], bench: Bench) -> Mapping[str, Any]:
    """The values that a node of the other side reads, from the truth's values of its region's inputs."""
    wanted = [name for name in graph.reads[number] if not graph.is_constant(name) and name not in given]
    reply = bench.run_part(graph, upstream(graph, wanted, frozenset(given)), wanted, given)
    if reply.error:
        raise _Unknown
    return {**given, **reply.values}


def _value(graph: Graph, values: Mapping[str, Any], name: str) -> Any:
    """A value that is known or constant, None for an omitted one."""
    if not name or name in values:
        return values.get(name)
    tensor = graph.constant(name)
    folder = Path(graph.folder) if graph.folder else None
    array = tensors.to_array(tensor, folder, _LIMIT) if tensor is not None else None
    if array is None:
        raise _Unknown
    return array


def _is_true(value: Any) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])


class _Body:
    """A graph inside of a node: ``formal`` are its inputs, ``outside`` the values of the main graph that it reads, of
    which ``given`` are no constants, and ``known`` the values that the node reads."""

    def __init__(self, graph: Graph, number: int, known: Mapping[str, Any], name: str) -> None:
        self.graph, self.node, self.known, self.name = graph, graph.nodes[number], known, name
        attribute = next((one for one in self.node.attribute if one.name == name), None)
        if attribute is None or attribute.type != AttributeProto.GRAPH:
            raise _Unknown
        body = self.body = attribute.g
        self.formal = [info.name for info in body.input]
        own = {tensor.name for tensor in body.initializer}.union(
            self.formal, *(node.output for node in body.node)
        )
        read = {name for node in body.node for name in walk.reads(node)} | {info.name for info in body.output}
        self.outside = [name for name in graph.reads[number] if name in read and name not in own]
        self.given = [name for name in self.outside if not graph.is_constant(name)]

    def value(self, name: str) -> Any:
        """The value of an input of the node."""
        return _value(self.graph, self.known, name)

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute of the node."""
        found = next((one for one in self.node.attribute if one.name == name), None)
        return default if found is None else helper.get_attribute_value(found)

    def feed(self, formal: Sequence[Any], given: Sequence[str]) -> dict[str, Any]:
        """Values of its formal inputs, and those of the main graph, by name."""
        return {**dict(zip(self.formal, formal, strict=True)), **{name: self.value(name) for name in given}}

    def model(self, feed: Mapping[str, Any]) -> Graph:
        """The body as a model. What is fed is an input; other values of the main graph are weights."""
        model = ModelProto(ir_version=self.graph.proto.ir_version)
        model.opset_import.extend(self.graph.proto.opset_import)
        graph = model.graph
        graph.CopyFrom(self.body)
        del graph.input[:], graph.node[:]
        constant = [name for name in self.outside if self.graph.is_constant(name)]
        weights, nodes = self.graph.constants(constant)
        graph.initializer.extend(weights)
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(self.value(name)), name)
            for name in self.given
            if name not in feed
        )
        graph.node.extend([*nodes, *self.body.node])
        graph.input.extend(_declared(name, value) for name, value in feed.items())
        return Graph(model, self.graph.folder, self.graph.mapped)

    def outputs(self, formal: Sequence[Any], bench: Bench) -> list[Any]:
        """What it computes of values of its formal inputs."""
        values = self.feed(formal, self.given)
        graph = self.model(values)
        wanted = [
            name
            for name in dict.fromkeys(graph.outputs)
            if name in graph.producer and not graph.is_constant(name)
        ]
        reply = bench.run_part(graph, range(len(graph.nodes)), wanted, values)
        if reply.error:
            raise _Unknown
        values.update(reply.values)
        return [_value(graph, values, name) for name in graph.outputs]


def _declared(name: str, value: Any) -> ValueInfoProto:
    array = np.asarray(value)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
    )


def _enter_iteration(ours: _Body, theirs: _Body, side: Side, bench: Bench) -> Inner | None:
    """The first iteration in which the two bodies make different values of the same."""
    for number, (formal, made) in enumerate(_iterations(ours, bench)):
        if any(_is_off(*pair) for pair in zip(made, theirs.outputs(formal, bench), strict=True)):
            return _match(ours, theirs, formal, number, side, bench)
    return None


def _iterations(body: _Body, bench: Bench) -> Iterator[tuple[list[Any], list[Any]]]:
    """The inputs and the outputs of the truth's body in each iteration."""
    inputs = [body.value(name) for name in body.node.input]
    if body.node.op_type == "Loop":
        most, condition, state = inputs[0], inputs[1] if len(inputs) > 1 else None, inputs[2:]
        count = _ITERATIONS if most is None else min(int(np.asarray(most).reshape(-1)[0]), _ITERATIONS)
        going = condition is None or _is_true(condition)
        for number in range(count if going else 0):
            formal = [np.array(number, np.int64), np.array(True), *state]
            made = body.outputs(formal, bench)
            yield formal, made
            if not _is_true(made[0]):
                return
            state = made[1 : 1 + len(state)]
        return
    scanned = int(body.attribute("num_scan_inputs", 0))
    state, sequences = inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]
    axes = list(body.attribute("scan_input_axes", [0] * scanned))
    backwards = list(body.attribute("scan_input_directions", [0] * scanned))
    for number in range(min(sequences[0].shape[axes[0]], _ITERATIONS)):
        parts = [
            np.take(one, one.shape[axis] - 1 - number if back else number, axis=axis)
            for one, axis, back in zip(sequences, axes, backwards, strict=True)
        ]
        made = body.outputs([*state, *parts], bench)
        yield [*state, *parts], made
        state = made[: len(state)]


def _is_off(one: Any, other: Any) -> bool:
    far = distance(np.asarray(one), np.asarray(other))
    return far.shape or bool(far.special) or far.relative > _OFF


def _match(
    ours: _Body, theirs: _Body, formal: Sequence[Any], iteration: int | None, side: Side, bench: Bench
) -> Inner:
    """Both bodies as models, matched, on values of the formal inputs."""
    read = set(ours.outside)
    #: values of the main graph that both read: theirs -> ours
    shared = {name: side.pairs[name] for name in theirs.given if side.pairs.get(name) in read}
    feed = ours.feed(formal, ours.given)
    truth, other = ours.model(feed), theirs.model(theirs.feed(formal, list(shared)))
    inputs = {**dict(zip(theirs.formal, ours.formal, strict=True)), **shared}
    outputs = dict(zip(other.outputs, truth.outputs, strict=True))
    bare = replace(side, graph=other, pairs=inputs, inputs=inputs, name=ours.name, notes=())
    matching = match(truth, other, probe(truth, other, bare.feed, bench, [feed]), {**inputs, **outputs})
    label = ours.node.name or next((name for name in ours.node.output if name), "")
    return Inner(truth, replace(bare, pairs=matching.pairs), feed, f"{label}.{ours.name}", iteration)


# ------------------------------------------------------------------------------------------------------ culprits


def moved(inner: Inner, around: Culprit, found: Sequence[Culprit]) -> list[Culprit]:
    """The culprits inside of a node, as culprits of the model around it."""
    outer = around.error.place
    when = f"in iteration {inner.iteration} (from 0), " if inner.iteration is not None else ""
    return [
        replace(
            one,
            error=replace(
                one.error,
                place=replace(
                    one.error.place,
                    graph=(*outer.graph, inner.name, *one.error.place.graph),
                    index=outer.index,
                    around=outer.around or outer,
                ),
                effect=around.error.effect,
                feed=around.error.feed,
            ),
            reason=when + one.reason,
        )
        for one in found
    ]


Diagnose = Callable[[Inner], Sequence[Culprit]]


def descended(
    evidence: Evidence, culprit: Culprit, truth: Graph, side: Side, bench: Bench, diagnose: Diagnose
) -> list[Culprit]:
    """The culprits inside of a culprit that has graphs inside, as ``diagnose`` finds them there; itself where there are
    none."""
    if evidence.node.op_type not in ENTERED:
        return [culprit]
    inner = inside(evidence, truth, side, bench)
    found = diagnose(inner) if inner is not None else ()
    return moved(inner, culprit, found) if inner is not None and found else [culprit]
