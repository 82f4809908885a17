"""Puts a body into a branch of an If, a Loop, a Scan or a local function. It captures what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from onnxfix.files import walk
from onnxfix.files.walk import copied
from random_models.pieces import Body, Host, Value, declared, dims_of, rename, tensor_info

DOMAIN = "random.models"
"""The domain of the functions that are made here."""


def graph_of(name: str, inputs: Sequence[ValueInfoProto], body: Body) -> GraphProto:
    """A body as a graph."""
    graph = GraphProto(name=name)
    graph.node.extend(body.nodes)
    graph.initializer.extend(body.initializers)
    graph.input.extend(inputs)
    graph.output.extend(body.outputs)
    graph.value_info.extend(body.infos)
    return graph


def through_identities(host: Host, body: Body) -> Body:
    """The body with an Identity for each output that none of its nodes computes, or that comes twice."""
    nodes, outputs, seen = list(body.nodes), [], set[str]()
    produced = body.produced
    for info in body.outputs:
        name = info.name
        if name not in produced or name in seen:
            name = host.fresh("same")
            nodes.append(helper.make_node("Identity", [info.name], [name]))
        seen.add(name)
        outputs.append(declared(name, info.type))
    return Body(nodes, body.initializers, outputs, body.infos)


def _tensors(body: Body) -> bool:
    return bool(body.outputs) and all(
        one.type.HasField("tensor_type") and one.type.tensor_type.elem_type for one in body.outputs
    )


def in_if(host: Host, body: Body) -> Body:
    """In both branches of an If, with the same names in both. Weights are inside or outside."""
    if not body.outputs:
        return body
    body = through_identities(host, body)
    outside: list[TensorProto] = []
    if host.chance(0.4):
        outside, body = body.initializers, Body(body.nodes, [], body.outputs, body.infos)
    condition, before = _condition(host)
    then, other = graph_of(host.fresh("then"), [], body), copied(graph_of(host.fresh("else"), [], body))
    for tensor in other.initializer:  # the branches may differ
        if tensor.data_type == TensorProto.FLOAT and host.chance(0.3):
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(0.5), tensor.name)
            )
    outputs = [declared(host.fresh("if"), info.type) for info in body.outputs]
    node = helper.make_node(
        "If", [condition], [info.name for info in outputs], then_branch=then, else_branch=other
    )
    return Body([*before, node], outside, outputs)


def _condition(host: Host) -> tuple[str, list[NodeProto]]:
    """A boolean scalar: an input, a weight, or computed."""
    kind = host.rng.choice(("input", "input", "weight", "computed"))
    if kind == "input":
        return host.add_input(TensorProto.BOOL, (), host.fresh("condition")), []
    if kind == "weight":
        return host.constant(np.array(host.chance(0.5))), []
    size, found = host.fresh("size"), host.fresh("condition")
    six = host.constant(np.array(6, np.int64))
    nodes = [
        helper.make_node("Size", [host.any_float().name], [size]),
        helper.make_node("Equal", [size, six], [found]),
    ]
    return found, nodes


def in_loop(host: Host, body: Body) -> Body:
    """In a Loop of a few turns, with a state that the body may read; each output becomes one of a stack."""
    if not _tensors(body):
        return body
    body = through_identities(host, body)
    turn, go, state = host.fresh("turn"), host.fresh("go"), host.fresh("state")
    went, moved, one = host.fresh("went"), host.fresh("state"), host.fresh("one")
    _read_state(host, body, state)
    more = [helper.make_node("Identity", [go], [went]), helper.make_node("Add", [state, one], [moved])]
    inputs = [
        tensor_info(turn, TensorProto.INT64, ()),
        tensor_info(go, TensorProto.BOOL, ()),
        tensor_info(state, TensorProto.FLOAT, ()),
    ]
    ends = [tensor_info(went, TensorProto.BOOL, ()), tensor_info(moved, TensorProto.FLOAT, ())]
    step = numpy_helper.from_array(np.array(0.25, np.float32), one)
    inside = Body([*body.nodes, *more], [*body.initializers, step], [*ends, *body.outputs], body.infos)
    graph = graph_of(host.fresh("loop"), inputs, inside)
    trips = host.constant(np.array(host.rng.randint(1, 3), np.int64))
    start = host.constant(np.array(0.5, np.float32))
    last = tensor_info(host.fresh("last"), TensorProto.FLOAT, ())
    outputs = [last, *(_stack(host, info, None) for info in body.outputs)]
    go_on = host.constant(np.array(True)) if host.chance(0.4) else ""
    node = helper.make_node("Loop", [trips, go_on, start], [info.name for info in outputs], body=graph)
    return Body([node], [], outputs)


def _stack(host: Host, info: ValueInfoProto, length: int | str | None) -> ValueInfoProto:
    """The declaration of a value for each turn."""
    dims = dims_of(info)
    return tensor_info(
        host.fresh("stack"), info.type.tensor_type.elem_type, None if dims is None else (length, *dims)
    )


def _read_state(host: Host, body: Body, state: str) -> None:
    """Add the loop's state to one of the floats that the body captures, so that turns differ."""
    found = [host.values[name] for name in captured(host, body) if name in host.values]
    floats = [one for one in found if one.elem == TensorProto.FLOAT]
    if not floats or host.chance(0.4):
        return
    old, new = host.rng.choice(floats).name, host.fresh("moved")
    for node in body.nodes:
        node.input[:] = [new if name == old else name for name in node.input]
        for graph in walk.subgraphs(node):
            rename(graph, lambda name: new if name == old else name)
    body.nodes.insert(0, helper.make_node("Add", [old, state], [new]))


def in_scan(host: Host, body: Body) -> Body:
    """In a Scan over one of the inputs that it reads, which gets a dimension more."""
    found = _scanned(host, body)
    if found is None or not _tensors(body) or host.opset < 9:
        return in_loop(host, body)
    body = through_identities(host, body)
    length = host.rng.choice((1, 2, 3))
    each = host.fresh("each")
    for node in body.nodes:
        node.input[:] = [each if name == found.name else name for name in node.input]
        for graph in walk.subgraphs(node):
            rename(graph, lambda name: each if name == found.name else name)
    dims = (length, *(found.dims or ()))
    for info in host.inputs:
        if info.name == found.name:
            info.CopyFrom(tensor_info(found.name, found.elem, dims))
    host.values[found.name] = Value(found.name, found.elem, dims)
    if found.name in host.hints:
        host.hints[found.name] = np.stack([host.hints[found.name]] * length)
    graph = graph_of(host.fresh("scan"), [tensor_info(each, found.elem, found.dims)], body)
    outputs = [_stack(host, info, length) for info in body.outputs]
    node = helper.make_node(
        "Scan", [found.name], [info.name for info in outputs], body=graph, num_scan_inputs=1
    )
    return Body([node], [], outputs)


def _scanned(host: Host, body: Body) -> Value | None:
    """A graph input that only this body reads."""
    inputs = {info.name for info in host.inputs} - {one.name for one in host.initializers}
    elsewhere = {name for node in walk.nodes(host.nodes) for name in node.input}
    found = [
        host.values[name]
        for name in captured(host, body)
        if name in inputs - elsewhere and name in host.values
    ]
    found = [one for one in found if one.dims is not None]
    return host.rng.choice(found) if found else None


def in_function(host: Host, body: Body) -> Body:
    """In a local function, which may be called twice; weights become Constant nodes or arguments."""
    if not body.outputs:
        return body
    body = through_identities(host, body)
    function = FunctionProto(name=host.fresh("Block"), domain=DOMAIN)
    arguments = captured(host, body)
    outside: list[TensorProto] = []
    for tensor in body.initializers:
        if host.chance(0.3):
            outside.append(tensor)
            arguments.append(tensor.name)
        else:
            function.node.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
    function.node.extend(body.nodes)
    inner = [f"arg{number}" for number in range(len(arguments))]  # names that other functions have, too
    change = dict(zip(arguments, inner, strict=True))
    rename(function, lambda name: change.get(name, name))
    function.input.extend(inner)
    function.output.extend(info.name for info in body.outputs)
    given = _by_attribute(host, function) if host.chance(0.25) else {}
    host.functions.append(function)
    host.imports[DOMAIN] = 1
    nodes, outputs = [], []
    for _ in range(1 + host.chance(0.25)):
        names = [declared(host.fresh("call"), info.type) for info in body.outputs]
        nodes.append(
            helper.make_node(function.name, arguments, [info.name for info in names], domain=DOMAIN, **given)
        )
        outputs += names
    return Body(nodes, outside, outputs)


_PLAIN = (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.INTS)


def _by_attribute(host: Host, function: FunctionProto) -> dict[str, Any]:
    """Have the caller set an attribute of one of the function's nodes; the caller's value is the node's own."""
    every = [one for node in function.node for one in node.attribute]
    found = [one for one in every if one.type in _PLAIN and not one.ref_attr_name]
    if not found:
        return {}
    attribute = host.rng.choice(found)
    value = helper.get_attribute_value(attribute)
    if isinstance(value, list) and not value:
        return {}
    name, kind = attribute.name, attribute.type
    attribute.Clear()
    attribute.name, attribute.type, attribute.ref_attr_name = name, kind, "given"
    function.attribute.append("given")
    return {"given": value}


def captured(host: Host, body: Body) -> list[str]:
    """The names of the main graph that a body reads, in the order in which it does."""
    main, own = host.names, body.produced | {one.name for one in body.initializers}
    names = [name for node in walk.nodes(body.nodes) for name in node.input]
    names += [info.name for node in body.nodes for graph in walk.subgraphs(node) for info in graph.output]
    names += [info.name for info in body.outputs]
    return [name for name in dict.fromkeys(names) if name in main and name not in own]


PLACES: dict[str, Callable[[Host, Body], Body]] = {
    "If": in_if,
    "Loop": in_loop,
    "Scan": in_scan,
    "Function": in_function,
}
