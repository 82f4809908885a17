"""Fewer nodes inside If, Loop and Scan, where the failure needs the node around them: what an inner node computes comes
from the main graph, with the value that the body has when it is inlined."""

from __future__ import annotations

from typing import Any

from onnx import GraphProto, NodeProto, helper

from onnxfix import walk
from onnxfix.reduction import case as cases
from onnxfix.reduction import inline
from onnxfix.reduction.case import Case
from onnxfix.reduction.search import Reducer


def shrink(reducer: Reducer) -> bool:
    """Leave out inner nodes, in groups that get smaller. Returns whether any was."""
    before = reducer.case
    for number, node in enumerate(reducer.case.model.graph.node):
        for name in [one.name for one in node.attribute if one.HasField("g")]:
            _shrink(reducer, number, name)
    return reducer.case is not before


def _shrink(reducer: Reducer, number: int, name: str) -> None:
    values = _values(reducer, number, name)
    size = max(1, len(_graph(reducer.case.model.graph.node[number], name).node) // 2)
    while size:
        start = 0
        while start < (count := len(_graph(reducer.case.model.graph.node[number], name).node)):
            removed = set(range(start, min(start + size, count)))
            if not reducer.attempt(_without(reducer, number, name, removed, values), "fewer nodes inside"):
                start += size
        size //= 2


def _graph(node: NodeProto, name: str) -> GraphProto:
    return next(one.g for one in node.attribute if one.name == name)


def _values(reducer: Reducer, number: int, name: str) -> dict[str, Any]:
    """The values of a body's own tensors by name, as far as it can be run when it is inlined."""
    case, node = reducer.case, reducer.case.model.graph.node[number]
    names = [out for one in _graph(node, name).node for out in one.output if out]
    inlined: Case | None = None
    if node.op_type == "If":
        inlined = inline.branch_inlined(case, number, name)
    elif node.op_type == "Loop":
        inlined = inline.loop_inlined(reducer, number, 0)
    elif node.op_type == "Scan":
        inlined = inline.scan_inlined(reducer, number)
    if inlined is None:
        return {}
    made = set(cases.producers(inlined.model.graph))
    by_inner = {
        inlined.origin[new]: new for new in made if new in inlined.origin and inlined.origin[new] in names
    }
    found = {}
    reducer.values.forget()  # an outer tensor has the value of the branch that is taken
    for inner, new in by_inner.items():
        value = (reducer.values.of(inlined, [new]) or {}).get(new)
        if value is not None:
            found[inner] = value
    reducer.values.forget()
    return found


def _without(
    reducer: Reducer, number: int, name: str, removed: set[int], values: dict[str, Any]
) -> Case | None:
    """The case without some nodes of a body; None where a value that is needed is not known."""
    model = reducer.case.copy()
    body = _graph(model.graph.node[number], name)
    gone = {out for place in removed for out in body.node[place].output if out}
    left = [one for place, one in enumerate(body.node) if place not in removed]
    read = {one for node in left for one in walk.reads(node)}
    results = [info.name for info in body.output if info.name in gone]
    missing = sorted(gone & (read | set(results)))
    if any(values.get(one) is None for one in missing):
        return None
    cases.refill(body.node, left)
    inputs = dict(reducer.case.inputs)
    taken = {one for node in walk.model_nodes(model) for one in (*node.input, *node.output)}
    for one in missing:
        outer = f"{name}/{one}"
        while outer in taken:
            outer += "_"
        if cases.makes_shapes(values[one]):
            model.graph.initializer.append(cases.tensor_of(outer, values[one]))
        else:
            model.graph.input.append(cases.info_of(outer, values[one]))
            inputs[outer] = values[one]
        for node in body.node:
            for inner in walk.nodes([node]):
                inner.input[:] = [outer if read_ == one else read_ for read_ in inner.input]
        if one in results:
            body.node.append(helper.make_node("Identity", [outer], [one]))
    return reducer.case.with_model(model, inputs=inputs)
