"""Inlining: the branch of an If, one iteration of a Loop or a Scan, and the body of a local function become nodes of
the main graph, so that they can be cut like these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from onnxfix.errors import Fault
from onnxfix.files import walk
from onnxfix.lowering.lowered import fresh, names_of
from onnxfix.reduction import case as cases
from onnxfix.reduction.case import Case
from onnxfix.reduction.search import Reducer

_ITERATIONS = 8
"""Iterations of a Loop that are tried."""


def opened(reducer: Reducer) -> bool:
    """Inline whatever keeps the failure. Returns whether anything was."""
    before = reducer.case
    while any(_attempt(reducer, what, candidate) for what, candidate in _candidates(reducer)):
        reducer.values.forget()  # of a branch that is not taken, or of another iteration
    return reducer.case is not before


def _attempt(reducer: Reducer, what: str, candidate: Case | None) -> bool:
    """Try a case with something inlined: the failure may be at a node that was inside, or has another operator now."""
    if candidate is None:
        return False
    before = {name: node.op_type for node in reducer.case.model.graph.node for name in node.output}
    nodes = candidate.model.graph.node
    new = {name for node in nodes for name in node.output if before.get(name) != node.op_type}
    return reducer.attempt(candidate, what, new)


def _candidates(reducer: Reducer) -> Iterator[tuple[str, Case | None]]:
    graph = reducer.case.model.graph
    if reducer.case.model.functions:
        yield "the bodies of functions", functions_inlined(reducer)
    for number, node in enumerate(graph.node):
        if node.op_type == "If" and not node.domain:
            value = (reducer.values.of(reducer.case, [node.input[0]]) or {}).get(node.input[0])
            branches = ["then_branch", "else_branch"]
            if value is not None and not np.asarray(value).reshape(-1)[:1].all():
                branches.reverse()  # the one that is taken comes first
            for name in branches:
                yield "one branch", branch_inlined(reducer.case, number, name)
        elif node.op_type == "Loop" and not node.domain:
            for iteration in range(_ITERATIONS):
                candidate = loop_inlined(reducer, number, iteration)
                if candidate is None:
                    break
                yield "one iteration", candidate
        elif node.op_type == "Scan" and not node.domain:
            yield "one iteration", scan_inlined(reducer, number)


# ------------------------------------------------------------------------------------------------------ renaming


class Renamer:
    """New names for what a body defines. ``names`` are those given already; what is not defined inside stays."""

    def __init__(
        self, prefix: str, names: Mapping[str, str], origin: Mapping[str, str], taken: set[str]
    ) -> None:
        self.prefix, self.names, self.taken = prefix, dict(names), taken
        self.origin = dict(origin)

    def define(self, name: str) -> None:
        """Give a value of the body a name of its own."""
        if not name or name in self.names:
            return
        new = self.names[name] = fresh(self.taken, f"{self.prefix}{name}")
        self.origin[new] = self.origin.get(name, name)

    def node(self, node: NodeProto) -> NodeProto:
        """A copy of a node with new names, also inside."""
        found = NodeProto()
        found.CopyFrom(node)
        for one in walk.nodes([found]):
            _rename(one.input, self.names)
            _rename(one.output, self.names)
            for graph in walk.subgraphs(one):
                for infos in (graph.input, graph.output, graph.value_info):
                    for info in infos:
                        info.name = self.names.get(info.name, info.name)
                for tensor in _stored(graph):
                    tensor.name = self.names.get(tensor.name, tensor.name)
        return found


def _rename(field: Any, names: Mapping[str, str]) -> None:
    field[:] = [names.get(name, name) for name in field]


def _stored(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values


def _inner_names(nodes: Sequence[NodeProto]) -> Iterator[str]:
    for one in walk.nodes(nodes):
        yield from one.output
        for graph in walk.subgraphs(one):
            yield from (info.name for info in graph.input)
            yield from (tensor.name for tensor in _stored(graph))


def _prefix(node: NodeProto) -> str:
    label = node.name or next((name for name in node.output if name), node.op_type)
    return f"{label}/"


def _spliced(
    case: Case, number: int, body: Sequence[NodeProto], initializers: Sequence[TensorProto],
    given: Mapping[str, str], results: Sequence[tuple[str, str]],
    sparse: Sequence[SparseTensorProto] = (),
) -> tuple[ModelProto, Renamer]:  # fmt: skip
    """The model with a body's nodes in place of a node. ``given`` are the body's inputs by what is passed for them,
    ``results`` the body's outputs with the names that they get outside."""
    model = case.copy()
    graph = model.graph
    node = graph.node[number]
    defined = {name for one in body for name in one.output if name}
    direct: dict[str, str] = {}
    for inner, outer in results:
        if inner in defined and inner not in direct:
            direct[inner] = outer
    rename = Renamer(_prefix(node), {**given, **direct}, case.origin, names_of(model))
    for inner, outer in direct.items():
        rename.origin[outer] = rename.origin.get(inner, inner)
    for name in (*(tensor.name for tensor in initializers), *(one.values.name for one in sparse)):
        rename.define(name)
    for name in _inner_names(body):
        rename.define(name)
    nodes = [rename.node(one) for one in body]
    for inner, outer in results:
        if outer and direct.get(inner) != outer:
            nodes.append(helper.make_node("Identity", [rename.names.get(inner, inner)], [outer]))
    nodes = [*graph.node[:number], *nodes, *graph.node[number + 1 :]]
    cases.refill(graph.node, nodes)
    for tensor in initializers:
        graph.initializer.append(tensor)
        graph.initializer[-1].name = rename.names[tensor.name]
    for one in sparse:
        graph.sparse_initializer.append(one)
        graph.sparse_initializer[-1].values.name = rename.names[one.values.name]
    live = cases.called(model, graph.node)
    cases.refill(model.functions, live)
    return model, rename


# -------------------------------------------------------------------------------------------------- the four kinds


def functions_inlined(reducer: Reducer) -> Case | None:
    """The case with the nodes of all local functions in place of their calls; None where ONNX cannot inline them."""
    try:
        data = reducer.values.bench.call("inlined", model=reducer.case.model.SerializeToString())
    except Fault:
        return None
    return reducer.case.with_model(ModelProto.FromString(data))


def branch_inlined(case: Case, number: int, name: str) -> Case | None:
    """The case with a branch in place of an If."""
    node = case.model.graph.node[number]
    graph = next((one.g for one in node.attribute if one.name == name), None)
    if graph is None:
        return None
    results = [(info.name, outer) for info, outer in zip(graph.output, node.output, strict=False) if outer]
    model, rename = _spliced(
        case, number, graph.node, graph.initializer, {}, results, graph.sparse_initializer
    )
    return case.with_model(model, origin=rename.origin)


def loop_inlined(reducer: Reducer, number: int, iteration: int) -> Case | None:
    """The case with one iteration in place of a Loop, and without what reads the Loop's results; None where the Loop
    makes no such iteration."""
    case = _ended(reducer, number)
    if case is None:
        return None
    at = len(case.model.graph.node) - 1
    node = case.model.graph.node[at]
    graph = next(one.g for one in node.attribute if one.name == "body")
    trips, _condition, *carried = [*node.input, "", ""][: max(len(node.input), 2)]
    most = (reducer.values.of(case, [trips]) or {}).get(trips) if trips else None
    if most is not None and iteration >= int(np.asarray(most).reshape(-1)[0]):
        return None
    state = dict.fromkeys(carried)
    if iteration:
        values = _after(reducer, case, at, iteration)
        if values is None:
            return None
        state = dict(zip(carried, values, strict=False))
    given: dict[str, str] = {}
    consts: list[TensorProto] = []
    inputs = [info.name for info in graph.input]
    consts.append(cases.tensor_of(inputs[0], np.array(iteration, np.int64)))
    if len(inputs) > 1:
        consts.append(cases.tensor_of(inputs[1], np.array(True)))
    fed: list[tuple[str, Any]] = []
    for inner, outer in zip(inputs[2:], carried, strict=False):
        if state[outer] is None:
            given[inner] = outer
        else:
            fed.append((inner, state[outer]))
    return _iterated(case, at, graph, given, consts, fed, graph.output[1:])


def scan_inlined(reducer: Reducer, number: int) -> Case | None:
    """The case with the first iteration in place of a Scan, and without what reads the Scan's results."""
    case = _ended(reducer, number)
    if case is None:
        return None
    at = len(case.model.graph.node) - 1
    node = case.model.graph.node[at]
    attributes = {one.name: one for one in node.attribute}
    if not {"num_scan_inputs", "body"} <= attributes.keys():
        return None
    count = attributes["num_scan_inputs"].i
    graph = attributes["body"].g
    states = len(node.input) - count
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0] * count
    backward = list(attributes["scan_input_directions"].ints) if "scan_input_directions" in attributes else []
    given = {info.name: name for info, name in zip(graph.input, node.input[:states], strict=False)}
    values = reducer.values.of(case, list(node.input[states:]))
    if values is None or not node.input:
        return None
    fed = []
    for place, (info, name) in enumerate(zip(graph.input[states:], node.input[states:], strict=False)):
        array = np.asarray(values[name])
        if not array.ndim or not array.shape[axes[place]]:
            return None
        first = -1 if place < len(backward) and backward[place] else 0
        fed.append((info.name, np.take(array, first, axes[place])))
    return _iterated(case, at, graph, given, [], fed, graph.output)


def _iterated(
    case: Case, at: int, graph: GraphProto, given: Mapping[str, str], consts: list[TensorProto],
    fed: list[tuple[str, Any]], outputs: Sequence[ValueInfoProto],
) -> Case:  # fmt: skip
    """The case with a body in place of its last node. ``fed`` are the body's inputs that become inputs of the model."""
    results: list[tuple[str, str]] = []
    constants = [*consts, *(cases.tensor_of(name, v) for name, v in fed if cases.makes_shapes(v))]
    model, rename = _spliced(case, at, graph.node, [*graph.initializer, *constants], given, results)
    inputs = dict(case.inputs)
    for name, value in fed:
        if cases.makes_shapes(value):
            continue
        new = f"{rename.prefix}{name}"
        for node in model.graph.node[at:]:
            for one in walk.nodes([node]):
                _rename(one.input, {name: new})
        rename.origin[new] = name
        model.graph.input.append(cases.info_of(new, value))
        inputs[new] = value
    del model.graph.output[:]
    made = cases.producers(model.graph)
    for info in outputs:
        name = rename.names.get(info.name, info.name)
        if name in made:
            model.graph.output.append(ValueInfoProto(name=name, type=info.type))
    return case.with_model(model, inputs=inputs, origin=rename.origin)


def _ended(reducer: Reducer, number: int) -> Case | None:
    """The case up to a node, which comes last, with all its results as outputs."""
    graph = reducer.case.model.graph
    names = [name for name in graph.node[number].output if name]
    kept = cases.upstream(graph, names)
    found = reducer.part(kept, outputs=names)
    if found is None or found.model.graph.node[-1].output[:] != graph.node[number].output[:]:
        return None
    return found


def _after(reducer: Reducer, case: Case, at: int, iteration: int) -> list[Any] | None:
    """The values that a Loop carries after so many iterations."""
    model = case.copy()
    node = model.graph.node[at]
    trips = f"{_prefix(node)}trips"
    model.graph.initializer.append(cases.tensor_of(trips, np.array(iteration, np.int64)))
    node.input[0] = trips
    carried = len(node.input) - 2
    names = [name or f"{trips}.{place}" for place, name in enumerate(node.output[:carried])]
    node.output[:carried] = names
    del model.graph.output[:]
    model.graph.output.extend(ValueInfoProto(name=name) for name in names)
    reply = reducer.values.run(case.with_model(model))
    return [reply.values[name] for name in names] if not reply.error else None
