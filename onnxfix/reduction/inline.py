"""Bodies in place of the model: the branch of an If, one iteration of a Loop or a Scan, on the values that it gets; and
the bodies of local functions in place of their calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, ValueInfoProto

from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.iterations import ENTERED, Body, Unknown, iterations
from onnxfix.errors import Fault
from onnxfix.files import lazy, walk
from onnxfix.reduction import case as cases
from onnxfix.reduction.case import Case
from onnxfix.reduction.search import Reducer

_ITERATIONS = 8
"""Iterations that are tried."""


def opened(reducer: Reducer) -> bool:
    """Take whatever body keeps the failure. Returns whether any did."""
    before = reducer.case
    while any(_attempt(reducer, what, candidate) for what, candidate in _candidates(reducer)):
        reducer.values.forget()  # of a branch that is not taken, or of another iteration
    return reducer.case is not before


def _attempt(reducer: Reducer, what: str, candidate: Case | None) -> bool:
    """Try a case with a body in it: the failure may be at a node that was inside, or has another operator now."""
    if candidate is None:
        return False
    before = {name: node.op_type for node in reducer.case.model.graph.node for name in node.output}
    nodes = candidate.model.graph.node
    new = {name for node in nodes for name in node.output if before.get(name) != node.op_type}
    return reducer.attempt(candidate, what, new)


def _candidates(reducer: Reducer) -> Iterator[tuple[str, Case | None]]:
    if reducer.case.model.functions:
        yield "the bodies of functions", _functions_inlined(reducer)
    for number, node in enumerate(reducer.case.model.graph.node):
        if node.op_type not in ENTERED or node.domain:
            continue
        names = ["body"]
        if node.op_type == "If":
            names = ["then_branch", "else_branch"]
            value = (reducer.values.of(reducer.case, [node.input[0]]) or {}).get(node.input[0])
            if value is not None and not np.asarray(value).reshape(-1)[:1].all():
                names.reverse()  # the branch that is taken comes first
        for name in names:
            for candidate in bodies(reducer, number, name):
                yield "one branch" if node.op_type == "If" else "one iteration", candidate


def _functions_inlined(reducer: Reducer) -> Case | None:
    """The case with the nodes of all local functions in place of their calls; None where ONNX cannot inline them."""
    try:
        data = reducer.values.bench.call("inlined", model=reducer.case.model.SerializeToString())
    except Fault:
        return None
    return reducer.case.with_model(ModelProto.FromString(data))


def bodies(reducer: Reducer, number: int, name: str) -> Iterator[Case]:
    """The graph ``name`` of a node as a case of its own: of a Loop or Scan one case for each iteration."""
    case = reducer.case
    node = case.model.graph.node[number]
    alone = cases.part(case.model, {number}, [ValueInfoProto(name=one) for one in node.output if one])
    for tensor in walk.model_tensors(alone):
        tensor.CopyFrom(lazy.with_payload(tensor))
    graph = Graph(alone)
    known = reducer.known([one for one in graph.reads[0] if not graph.is_constant(one)])
    if known is None:
        return
    fixed = cases.fixed_values(case.model.graph)
    try:
        body = Body(graph, 0, known, name)
        # The number of a Loop's iteration and its condition.
        fixed |= set(body.formal[:2]) if node.op_type == "Loop" else set()
        for now in itertools.islice(iterations(body, reducer.values.bench), _ITERATIONS):
            feed = {one: np.asarray(value) for one, value in body.feed(now.formal).items()}
            inputs = {k: v for k, v in feed.items() if k not in fixed and not cases.makes_shapes(v)}
            model = body.model(feed, inputs).proto
            del model.graph.value_info[:]
            cases.refill(model.graph.input, [cases.info_of(*one) for one in inputs.items()])
            made = cases.producers(model.graph)
            outputs = model.graph.output[node.op_type == "Loop" :]
            cases.refill(model.graph.output, [info for info in outputs if info.name in made])
            yield case.with_model(model, inputs=inputs)
    except (Unknown, IndexError, KeyError, ValueError):
        return
