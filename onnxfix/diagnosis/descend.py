"""Into a suspected If, Loop or Scan: the graph that runs there, as a model of its own, on the values that it got.

Of an If the branch that is taken; of a Loop or Scan the body in the first iteration in which the two sides make
different values of the truth's. Local functions are inlined before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from onnxfix import walk
from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.facts import Evidence
from onnxfix.diagnosis.fingerprints import probe
from onnxfix.diagnosis.graph import Graph, upstream
from onnxfix.diagnosis.matching import match
from onnxfix.diagnosis.records import Culprit
from onnxfix.diagnosis.rows import Side
from onnxfix.diagnosis.sides import Prepared
from onnxfix.errors import ModelError
from onnxfix.files import tensors
from onnxfix.record import record

ENTERED = frozenset({"If", "Loop", "Scan"})
"""Operators that can be entered."""
_ITERATIONS = 256
_OFF = 1e-5  # share of the scale from which on an iteration differs
_LIMIT = 1 << 30

Values = dict[str, Any]


@record
class Inner:
    """The graphs that run inside of a node on both sides, and the values of the truth's inputs (``feed``). ``name`` is
    that of the node (of its first output, where it has none) and of the attribute; ``iteration`` counts from 0, None
    for a branch."""

    truth: Graph
    prepared: Prepared
    feed: Values
    name: str
    iteration: int | None = None


class _Unknown(Exception):
    """It cannot be entered."""


def inside(evidence: Evidence, truth: Graph, side: Side, bench: Bench) -> Inner | None:
    """What runs inside of a suspected node; None where the other side has no such node, it cannot be told what runs
    there, or no iteration differs."""
    region = evidence.row.region
    theirs = (
        next((name for name, ours in region.targets.items() if ours == evidence.row.name), "")
        if region
        else ""
    )
    number = side.graph.producer.get(theirs, -1)
    if region is None or number < 0 or side.graph.nodes[number].op_type != evidence.node.op_type:
        return None
    try:
        ours = _Outer(truth, evidence.node, truth.reads[evidence.row.number], dict(evidence.given))
        given = {name: evidence.given[one] for name, one in region.inputs.items() if one in evidence.given}
        values = _computed(side.graph, number, given, bench)
        other = _Outer(side.graph, side.graph.nodes[number], side.graph.reads[number], values)
        if evidence.node.op_type == "If":
            return _branch(ours, other, side, bench)
        return _iteration(ours, other, side, bench)
    except (_Unknown, ModelError, KeyError, IndexError, ValueError):
        return None


def _computed(graph: Graph, number: int, given: Values, bench: Bench) -> Values:
    """The values that a node of the other side reads, from the truth's values of its region's inputs."""
    wanted = [name for name in graph.reads[number] if not graph.is_constant(name) and name not in given]
    if not wanted:
        return given
    held = bench.hold(given)
    reply = bench.run_part(graph, upstream(graph, wanted, frozenset(given)), wanted, held)
    if reply.error:
        raise _Unknown
    return {**given, **{name: found.load() for name, found in reply.values.items()}}


class _Outer:
    """A node with graphs inside, and the values that it reads."""

    def __init__(self, graph: Graph, node: NodeProto, reads: Sequence[str], values: Values) -> None:
        self.graph, self.node, self.reads, self.known = graph, node, reads, values

    def value(self, name: str) -> Any:
        """The value of an input, None for an omitted one."""
        if not name:
            return None
        if name in self.known:
            return self.known[name]
        tensor = self.graph.constant(name)
        folder = Path(self.graph.folder) if self.graph.folder else None
        found = tensors.to_array(tensor, folder, _LIMIT) if tensor is not None else None
        if found is None:
            raise _Unknown
        return found

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute."""
        found = next((one for one in self.node.attribute if one.name == name), None)
        return default if found is None else helper.get_attribute_value(found)

    def body(self, name: str) -> GraphProto:
        """The graph of an attribute."""
        found = next((one for one in self.node.attribute if one.name == name), None)
        if found is None or found.type != AttributeProto.GRAPH:
            raise _Unknown
        return found.g

    def outside(self, body: GraphProto) -> list[str]:
        """The values of the main graph that a body reads."""
        own = {tensor.name for tensor in body.initializer} | {info.name for info in body.input}
        own |= {name for node in body.node for name in node.output}
        return [name for name in self.reads if name not in own and name in _read(body)]

    def model(self, body: GraphProto, formal: Mapping[str, Any], given: Sequence[str]) -> Graph:
        """A body as a model: its ``formal`` inputs and values of the main graph (``given``) are inputs, other values of
        the main graph are weights."""
        model = ModelProto(ir_version=self.graph.proto.ir_version)
        model.opset_import.extend(self.graph.proto.opset_import)
        graph = model.graph
        graph.CopyFrom(body)
        del graph.input[:]
        outside = self.outside(body)
        weights, nodes = self.graph.constants(name for name in outside if self.graph.is_constant(name))
        graph.initializer.extend(weights)
        for name in outside:
            if not self.graph.is_constant(name) and name not in given:
                graph.initializer.append(numpy_helper.from_array(np.asarray(self.value(name)), name))
        stored = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes, *stored])
        values = {**formal, **{name: self.value(name) for name in given}}
        graph.input.extend(_declared(name, value) for name, value in values.items())
        return Graph(model, self.graph.folder, self.graph.mapped)


def _read(body: GraphProto) -> set[str]:
    return {name for node in body.node for name in walk.reads(node)} | {info.name for info in body.output}


def _declared(name: str, value: Any) -> ValueInfoProto:
    array = np.asarray(value)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
    )


# ------------------------------------------------------------------------------------------------------- graphs


def _branch(ours: _Outer, theirs: _Outer, side: Side, bench: Bench) -> Inner:
    taken = bool(np.asarray(ours.value(ours.node.input[0])).reshape(-1)[0])
    if taken != bool(np.asarray(theirs.value(theirs.node.input[0])).reshape(-1)[0]):
        raise _Unknown  # the difference is the condition
    name = "then_branch" if taken else "else_branch"
    return _Bodies(ours, theirs, name, side, bench).inner({}, {}, None)


def _iteration(ours: _Outer, theirs: _Outer, side: Side, bench: Bench) -> Inner | None:
    """The first iteration in which the two bodies make different values of the same."""
    bodies = _Bodies(ours, theirs, "body", side, bench)
    for number, values in enumerate(_inputs_of_iterations(ours, bodies)):
        formal = dict(zip(bodies.formal_b, values, strict=True))
        found, other = bodies.run(dict(zip(bodies.formal_a, values, strict=True)), formal)
        if any(_is_off(one, two) for one, two in zip(found, other, strict=True)):
            return bodies.inner(dict(zip(bodies.formal_a, values, strict=True)), formal, number)
    return None


def _inputs_of_iterations(outer: _Outer, bodies: _Bodies) -> Iterator[list[Any]]:
    """The values of the body's inputs in each iteration of the truth."""
    inputs = [outer.value(name) for name in outer.node.input]
    if outer.node.op_type == "Loop":
        most, condition, state = inputs[0], inputs[1] if len(inputs) > 1 else None, inputs[2:]
        count = _ITERATIONS if most is None else min(int(np.asarray(most).reshape(-1)[0]), _ITERATIONS)
        going = condition is None or bool(np.asarray(condition).reshape(-1)[0])
        for number in range(count):
            if not going:
                return
            values = [np.array(number, np.int64), np.array(True), *state]
            yield values
            made = bodies.truth(dict(zip(bodies.formal_a, values, strict=True)))
            going, state = bool(np.asarray(made[0]).reshape(-1)[0]), made[1 : 1 + len(state)]
        return
    scanned = int(outer.attribute("num_scan_inputs", 0))
    state, sequences = inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]
    axes = list(outer.attribute("scan_input_axes", [0] * scanned))
    backwards = list(outer.attribute("scan_input_directions", [0] * scanned))
    for number in range(min(sequences[0].shape[axes[0]], _ITERATIONS)):
        parts = [
            np.take(one, one.shape[axis] - 1 - number if back else number, axis=axis)
            for one, axis, back in zip(sequences, axes, backwards, strict=True)
        ]
        yield [*state, *parts]
        state = bodies.truth(dict(zip(bodies.formal_a, [*state, *parts], strict=True)))[: len(state)]


def _is_off(one: Any, other: Any) -> bool:
    found = distance(np.asarray(one), np.asarray(other))
    return found.shape or bool(found.special) or found.relative > _OFF


class _Bodies:
    """The graphs of one attribute on both sides."""

    def __init__(self, ours: _Outer, theirs: _Outer, name: str, side: Side, bench: Bench) -> None:
        self.ours, self.theirs, self.name, self.side, self.bench = ours, theirs, name, side, bench
        self.a, self.b = ours.body(name), theirs.body(name)
        if len(self.a.input) != len(self.b.input) or len(self.a.output) != len(self.b.output):
            raise _Unknown
        self.formal_a = [info.name for info in self.a.input]
        self.formal_b = [info.name for info in self.b.input]
        read = set(ours.outside(self.a))
        #: values of the main graph that both read: theirs -> ours
        self.shared = {
            other: side.pairs[other]
            for other in theirs.outside(self.b)
            if other in side.pairs and side.pairs[other] in read and not theirs.graph.is_constant(other)
        }
        self._last: tuple[Any, list[Any]] | None = None

    def truth(self, formal: Values) -> list[Any]:
        """The outputs of the truth's body."""
        key = tuple(id(value) for value in formal.values())
        if self._last is None or self._last[0] != key:
            given = [name for name in self.ours.outside(self.a) if not self.ours.graph.is_constant(name)]
            self._last = key, _outputs(self.ours, self.a, formal, given, self.bench)
        return self._last[1]

    def run(self, ours: Values, theirs: Values) -> tuple[list[Any], list[Any]]:
        """The outputs of both bodies on values of their own inputs."""
        given = [name for name in self.theirs.outside(self.b) if not self.theirs.graph.is_constant(name)]
        return self.truth(ours), _outputs(self.theirs, self.b, theirs, given, self.bench)

    def inner(self, ours: Values, theirs: Values, iteration: int | None) -> Inner:
        """Both bodies as models, matched."""
        given = [name for name in self.ours.outside(self.a) if not self.ours.graph.is_constant(name)]
        truth = self.ours.model(self.a, ours, given)
        other = self.theirs.model(self.b, theirs, list(self.shared))
        inputs = {**dict(zip(self.formal_b, self.formal_a, strict=True)), **self.shared}
        outputs = dict(zip(other.outputs, truth.outputs, strict=True))
        feed = {**ours, **{name: self.ours.value(name) for name in given}}
        bare = Prepared(replace(self.side, graph=other, pairs=inputs), inputs, self.name)
        found = match(truth, other, probe(truth, other, bare.feed, self.bench, [feed]), {**inputs, **outputs})
        prepared = replace(bare, side=replace(bare.side, pairs=found.pairs))
        node = self.ours.node
        label = node.name or next((name for name in node.output if name), "")
        return Inner(truth, prepared, feed, f"{label}.{self.name}", iteration)


def _outputs(
    outer: _Outer, body: GraphProto, formal: Values, given: Sequence[str], bench: Bench
) -> list[Any]:
    graph = outer.model(body, formal, given)
    values = {**formal, **{name: outer.value(name) for name in given}}
    wanted = [
        name
        for name in dict.fromkeys(graph.outputs)
        if name in graph.producer and not graph.is_constant(name)
    ]
    held = bench.hold(values)
    reply = bench.run_part(graph, range(len(graph.nodes)), wanted, held)
    if reply.error:
        raise _Unknown
    values.update({name: found.load() for name, found in reply.values.items()})
    inner = _Outer(graph, outer.node, (), values)
    return [inner.value(name) for name in graph.outputs]


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
