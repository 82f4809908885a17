"""Into an If, Loop or Scan: the graphs inside as models of their own, on the values that they get in a run.

Of a suspected If the branch that is taken; of a Loop or Scan the body in the first iteration in which the two sides
make different values of the truth's. Local functions are inlined before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, helper, numpy_helper

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
_LIMIT = 1 << 30


class Unknown(Exception):
    """It cannot be entered."""


def value_in(graph: Graph, values: Mapping[str, Any], name: str) -> Any:
    """A value that is known or constant, None for an omitted one.

    Raises:
        Unknown: it is neither.
    """
    if not name or name in values:
        return values.get(name)
    tensor = graph.constant(name)
    folder = Path(graph.folder) if graph.folder else None
    array = tensors.to_array(tensor, folder, _LIMIT) if tensor is not None else None
    if array is None:
        raise Unknown
    return array


def is_true(value: Any) -> bool:
    """Whether the first element is true."""
    return bool(np.asarray(value).reshape(-1)[0])


class Body:
    """A graph inside of a node: ``formal`` are its inputs, ``outside`` the values of the main graph that it reads, of
    which ``given`` are no constants, and ``known`` the values that the node reads.

    Raises:
        Unknown: the node has no such graph.
    """

    def __init__(self, graph: Graph, number: int, known: Mapping[str, Any], name: str) -> None:
        self.graph, self.node, self.known, self.name = graph, graph.nodes[number], known, name
        attribute = next((one for one in self.node.attribute if one.name == name), None)
        if attribute is None or attribute.type != AttributeProto.GRAPH:
            raise Unknown
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
        return value_in(self.graph, self.known, name)

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute of the node."""
        found = next((one for one in self.node.attribute if one.name == name), None)
        return default if found is None else helper.get_attribute_value(found)

    def feed(self, formal: Sequence[Any]) -> dict[str, Any]:
        """Values of its formal inputs, and those of the main graph that it reads, by name."""
        given = {name: self.value(name) for name in self.given}
        return {**dict(zip(self.formal, formal, strict=True)), **given}

    def model(self, values: Mapping[str, Any], inputs: Collection[str]) -> Graph:
        """The body as a model. Of ``values`` (see ``feed``) these are inputs, and the others weights."""
        model = ModelProto(ir_version=self.graph.proto.ir_version)
        model.opset_import.extend(self.graph.proto.opset_import)
        model.functions.extend(self.graph.proto.functions)
        graph = model.graph
        graph.CopyFrom(self.body)
        del graph.input[:], graph.node[:]
        weights, nodes = self.graph.constants(name for name in self.outside if self.graph.is_constant(name))
        graph.initializer.extend(weights)
        graph.node.extend([*nodes, *self.body.node])
        for name, value in values.items():
            array = np.asarray(value)
            if name in inputs:
                elem = helper.np_dtype_to_tensor_dtype(array.dtype)
                graph.input.append(helper.make_tensor_value_info(name, elem, [None] * array.ndim))
            else:
                graph.initializer.append(numpy_helper.from_array(array, name))
        return Graph(model, self.graph.folder, self.graph.mapped)

    def outputs(self, formal: Sequence[Any], bench: Bench) -> list[Any]:
        """What it computes of values of its formal inputs.

        Raises:
            Unknown: it does not run.
        """
        values = self.feed(formal)
        graph = self.model(values, values)
        computed = [name for name in dict.fromkeys(graph.outputs) if name in graph.producer]
        wanted = [name for name in computed if not graph.is_constant(name)]
        reply = bench.run_part(graph, range(len(graph.nodes)), wanted, values)
        if reply.error:
            raise Unknown
        return [value_in(graph, {**values, **reply.values}, name) for name in graph.outputs]


@dataclass(frozen=True)
class Iteration:
    """A run of a body on the values ``formal`` of its inputs."""

    body: Body
    formal: Sequence[Any]
    bench: Bench

    @cached_property
    def outputs(self) -> list[Any]:
        """What the body computes. Raises what ``Body.outputs`` does."""
        return self.body.outputs(self.formal, self.bench)


def iterations(body: Body, bench: Bench) -> Iterator[Iteration]:
    """The iterations of a Loop or a Scan; of an If its branch, which has no inputs.

    Raises:
        Unknown: an input of the node is not known, or the body does not run.
    """
    inputs = [body.value(name) for name in body.node.input]
    if body.node.op_type == "If":
        yield Iteration(body, (), bench)
    elif body.node.op_type == "Loop":
        most, condition, state = inputs[0], inputs[1] if len(inputs) > 1 else None, inputs[2:]
        count = _ITERATIONS if most is None else min(int(np.asarray(most).reshape(-1)[0]), _ITERATIONS)
        going = condition is None or is_true(condition)
        for number in range(count if going else 0):
            now = Iteration(body, [np.array(number, np.int64), np.array(True), *state], bench)
            yield now
            if not is_true(now.outputs[0]):
                return
            state = now.outputs[1 : 1 + len(state)]
    else:
        scanned = int(body.attribute("num_scan_inputs", 0))
        state, sequences = inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]
        axes = list(body.attribute("scan_input_axes", [0] * scanned))
        backwards = list(body.attribute("scan_input_directions", [0] * scanned))
        for number in range(min(sequences[0].shape[axes[0]], _ITERATIONS)):
            parts = [
                np.take(one, one.shape[axis] - 1 - number if back else number, axis=axis)
                for one, axis, back in zip(sequences, axes, backwards, strict=True)
            ]
            now = Iteration(body, [*state, *parts], bench)
            yield now
            state = now.outputs[: len(state)]


_OFF = 1e-5  # share of the scale from which on an iteration differs


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
                Body(truth, row.number, evidence.given, "body"),
                Body(other, number, values, "body"),
                side,
                bench,
            )
        taken = is_true(value_in(truth, evidence.given, node.input[0]))
        if taken != is_true(value_in(other, values, other.nodes[number].input[0])):
            return None  # the difference is the condition
        name = "then_branch" if taken else "else_branch"
        ours, theirs = Body(truth, row.number, evidence.given, name), Body(other, number, values, name)
        return _match(ours, theirs, [], None, side, bench)
    except (Unknown, ModelError, KeyError, IndexError, ValueError):
        return None


def _compute(graph: Graph, number: int, given: Mapping[str, Any], bench: Bench) -> Mapping[str, Any]:
    """The values that a node of the other side reads, from the truth's values of its region's inputs."""
    wanted = [name for name in graph.reads[number] if not graph.is_constant(name) and name not in given]
    reply = bench.run_part(graph, upstream(graph, wanted, frozenset(given)), wanted, given)
    if reply.error:
        raise Unknown
    return {**given, **reply.values}


def _enter_iteration(ours: Body, theirs: Body, side: Side, bench: Bench) -> Inner | None:
    """The first iteration in which the two bodies make different values of the same."""
    for number, now in enumerate(iterations(ours, bench)):
        both = zip(now.outputs, theirs.outputs(now.formal, bench), strict=True)
        if any(distance(np.asarray(one), np.asarray(other)).relative > _OFF for one, other in both):
            return _match(ours, theirs, now.formal, number, side, bench)
    return None


def _match(
    ours: Body, theirs: Body, formal: Sequence[Any], iteration: int | None, side: Side, bench: Bench
) -> Inner:
    """Both bodies as models, matched, on values of the formal inputs."""
    read = set(ours.outside)
    #: values of the main graph that both read: theirs -> ours
    shared = {name: side.pairs[name] for name in theirs.given if side.pairs.get(name) in read}
    feed = ours.feed(formal)
    truth, other = ours.model(feed, feed), theirs.model(theirs.feed(formal), {*theirs.formal, *shared})
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
