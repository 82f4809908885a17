"""The whole of a reduction: one case after the other, from large cuts to small ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from onnx import GraphProto, NodeProto, helper

from onnxfix.files import walk
from onnxfix.reduction import case as cases
from onnxfix.reduction import trim
from onnxfix.reduction.case import Case
from onnxfix.reduction.search import OutOfTime, Reducer

Ended = Literal["complete", "interrupted", "out of time"]
_ROUNDS = 4


def reduce(reducer: Reducer) -> Ended:
    """Reduce the reducer's case in place. Returns how the search ended; unless it came to its end, the case is the
    smallest so far."""
    try:
        _search(reducer)
    except KeyboardInterrupt:
        return "interrupted"
    except OutOfTime:
        return "out of time"
    return "complete"


def _search(reducer: Reducer) -> None:
    if not by_place(reducer) and not by_operators(reducer):
        by_outputs(reducer)
    if reducer.alters:
        trim.static(reducer)
    trim.constants(reducer)
    by_place(reducer)
    for _ in range(_ROUNDS):
        changed = shrink(reducer)
        if reducer.alters:
            changed |= trim.opened(reducer) or shrink_inner(reducer)
        if not changed:
            break
    if reducer.alters:
        trim.cleaned(reducer)
        trim.sizes(reducer)
        trim.weights(reducer)
        trim.attributes(reducer)
        shrink(reducer)
        trim.cleaned(reducer)
    trim.declared(reducer)


_RINGS = (0, 1, 2, 4, 8)
_GROUPS = 256
"""Nodes from which on single ones are not tried: groups that cannot be removed would be too many."""


def shrink(reducer: Reducer) -> bool:
    """All of it, until nothing more can be removed. Returns whether anything was."""
    before = reducer.case.count
    by_outputs(reducer)
    by_halves(reducer)
    by_groups(reducer)
    by_outputs(reducer)
    return reducer.case.count < before


def by_place(reducer: Reducer) -> bool:
    """The node that the failure names, alone or with its neighbors."""
    place = reducer.failure.place
    outer = place.around.output if place.around is not None else ""
    graph = reducer.case.model.graph
    start = node_at(graph, outer) if outer else node_at(graph, place.output)
    if start is None and 0 <= place.index < len(graph.node):
        start = place.index
    if start is None:
        return False
    for kept in _around(graph, start):
        what = "the failing node and others" if len(kept) > 1 else "the failing node"
        if _taken(reducer, kept, what if reducer.place else "what leads to the output that differs"):
            return True
    return False


_ALONE = 24
"""Nodes that are tried alone."""


def by_operators(reducer: Reducer) -> bool:
    """One node alone, the first of each operator, then the second, and so on, of rare operators first: where a failure
    names no node, the cause is often one operator."""
    graph = reducer.case.model.graph
    numbers: dict[tuple[str, str], list[int]] = {}
    for number, node in enumerate(graph.node):
        numbers.setdefault((node.domain, node.op_type), []).append(number)
    ranked = [(rank, len(same), one) for same in numbers.values() for rank, one in enumerate(same)]
    suspects = [number for _, _, number in sorted(ranked)[:_ALONE]]
    read = {name for number in suspects for name in cases.reads_of(graph.node[number])}
    reducer.values.of(reducer.case, sorted(read & set(cases.producers(graph))))  # all of them in one run
    return len(graph.node) > 1 and any(_taken(reducer, {number}, "one node alone") for number in suspects)


def node_at(graph: GraphProto, output: str) -> int | None:
    """Position of the node that computes a value, or that holds the node that does; None where there is none."""
    if not output:
        return None
    for number, node in enumerate(graph.node):
        if output in node.output:
            return number
    inside = (
        n for n, node in enumerate(graph.node) if any(output in one.output for one in walk.nodes([node]))
    )
    return next(inside, None)


def _around(graph: GraphProto, start: int) -> Iterator[set[int]]:
    """Sets of nodes: within so many steps upstream, then both ways."""
    made = cases.producers(graph)
    reads = [{made[name] for name in cases.reads_of(node) if name in made} for node in graph.node]
    readers: list[set[int]] = [set() for _ in reads]
    for number, sources in enumerate(reads):
        for source in sources:
            readers[source].add(number)
    for radius in _RINGS:
        up = _reach(start, radius, reads)
        yield up
        if radius:
            yield up | _reach(start, radius, readers)
    everything = cases.upstream(graph, graph.node[start].output)
    yield everything


def _reach(start: int, radius: int, edges: list[set[int]]) -> set[int]:
    found, frontier = {start}, {start}
    for _ in range(radius):
        frontier = {other for one in frontier for other in edges[one]} - found
        found |= frontier
    return found


def by_outputs(reducer: Reducer) -> bool:
    """Fewer outputs, and the nodes alone that they depend on."""
    before = reducer.case
    place = reducer.failure.place
    wanted = [name for name in reducer.case.outputs if name in (place.output, place.label)]
    for names in (wanted, *([name] for name in reducer.case.outputs[:16])):
        if names and len(reducer.case.outputs) > 1 and _only(reducer, names):
            return True
    size = len(reducer.case.outputs) // 2
    while size:
        outputs = reducer.case.outputs
        groups = (outputs[start : start + size] for start in range(0, len(outputs), size))
        tried = (_only(reducer, [one for one in outputs if one not in group]) for group in groups)
        if len(outputs) < 2 or not any(tried):
            size //= 2
    return reducer.case is not before


def _only(reducer: Reducer, names: list[str]) -> bool:
    if not names or set(names) == set(reducer.case.outputs):
        return False
    kept = cases.upstream(reducer.case.model.graph, names)
    return _taken(reducer, kept, "fewer outputs", outputs=names)


def by_halves(reducer: Reducer) -> bool:
    """Cut off the beginning, or the end, in parts that get smaller: half of the nodes first."""
    before = reducer.case
    changed = True
    while changed:
        changed = False
        for front in (False, True):
            size = len(reducer.case.model.graph.node) // 2
            while size:
                count = len(reducer.case.model.graph.node)
                kept = set(range(size, count)) if front else set(range(count - size))
                if kept and _taken(reducer, kept, "without the beginning" if front else "without the end"):
                    changed = True
                    size = min(size, len(reducer.case.model.graph.node) // 2)
                else:
                    size //= 2
    return reducer.case is not before


def by_groups(reducer: Reducer) -> bool:
    """Leave out groups of neighboring nodes, in parts that get smaller."""
    before = reducer.case
    size = len(reducer.case.model.graph.node) // 2
    while size:
        start, removed = 0, False
        while start < len(reducer.case.model.graph.node):
            count = len(reducer.case.model.graph.node)
            kept = set(range(count)) - set(range(start, start + size))
            if kept and _taken(reducer, kept, "without some nodes"):
                removed = True
            else:
                start += size
        count = len(reducer.case.model.graph.node)
        if not removed or size == 1:
            size = size // 2 if size > 1 or not removed else 0
        size = min(size, count // 2) if count > 1 else 0
        if size and count // size > _GROUPS:
            break
    return reducer.case is not before


def _taken(reducer: Reducer, kept: set[int], what: str, outputs: list[str] | None = None) -> bool:
    """Try these nodes alone; again with all computed tensors as inputs where the first has initializers instead."""
    strict = reducer.part(kept, outputs=outputs or ())
    if reducer.attempt(strict, what):
        return True
    loose = reducer.part(kept, outputs=outputs or (), loose=True)
    return reducer.attempt(loose, what)


# ----------------------------------------------------------------------------------- nodes inside other nodes


def shrink_inner(reducer: Reducer) -> bool:
    """Leave out nodes inside If, Loop and Scan, in groups that get smaller. Returns whether any was.

    What an inner node computes comes from the main graph then, with the value that the body has in its first iteration.
    """
    before = reducer.case
    for number, node in enumerate(reducer.case.model.graph.node):
        for name in [one.name for one in node.attribute if one.HasField("g")]:
            _shrink_body(reducer, number, name)
    return reducer.case is not before


def _shrink_body(reducer: Reducer, number: int, name: str) -> None:
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
    """The values of a body's own tensors by name, as far as it can be run alone."""
    inner = next(trim.bodies(reducer, number, name), None)
    if inner is None:
        return {}
    reducer.values.forget()  # an outer tensor has the value of the branch that is taken
    names = [out for one in inner.model.graph.node for out in one.output if out]
    found = {one: (reducer.values.of(inner, [one]) or {}).get(one) for one in names}
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
        while outer in taken:  # the same name in each try: the search ends where a cut was tried before
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
