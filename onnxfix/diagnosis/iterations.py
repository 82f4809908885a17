"""The graphs inside of an If, Loop or Scan on the values that they get in a run: a branch, or a body by iteration.

Local functions are inlined before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, helper, numpy_helper

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.graph import Graph
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
