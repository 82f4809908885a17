"""Some nodes of a graph as a model of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from onnx import FunctionProto, ModelProto, NodeProto

from onnxfix import walk
from onnxfix.errors import UsageError
from onnxfix.files import tensors
from onnxfix.graph.overlay import Node, Scope, Value
from onnxfix.model import Model

SMALL = 1 << 10
"""Bytes up to which a constant stays one; a larger one becomes an input of its type and shape."""
_FAN = 8
"""Consumers of one value that are looked at."""


def around(seeds: Collection[Node], distance: int) -> list[Node]:
    """These nodes and those of their graph that are at most ``distance`` values away, constants left out."""
    found = dict.fromkeys(seeds)
    edge = list(seeds)
    for _ in range(distance):
        edge = [one for node in edge for one in dict.fromkeys(neighbors(node, _FAN)) if one not in found]
        found.update(dict.fromkeys(edge))
    return list(found)


def neighbors(node: Node, fan: int) -> Iterator[Node]:
    """The nodes that it reads, without constants, then up to ``fan`` of those that read each output; in its graph."""
    for value in node.inputs:
        producer = value.producer if value is not None and not value.is_constant else None
        if producer is not None and producer.scope is node.scope:
            yield producer
    for made in node.outputs:
        for use in made.uses[:fan] if made is not None else ():
            if use.node.scope is node.scope:
                yield use.node


def extract(model: Model, nodes: Collection[Node], notes: dict[Node, str], title: str) -> ModelProto:
    """A model of ``nodes``, which are of one graph, in their order.

    What they read and none of them computes becomes an input, and what anything else reads an output, each with the
    type and the dimensions that are known. ``notes`` go into the documentation of nodes, ``title`` into that of the
    graph.

    Raises:
        UsageError: a node has an attribute of the local function that it is in, or reads or computes a value whose type
            or rank depends on the call of that function.
    """
    scope = next(iter(nodes)).scope
    kept = set(nodes)
    ordered = [node for node in model.orders[scope] if node in kept]
    part = ModelProto(ir_version=model.ir_version, producer_name="onnxfix view")
    for domain, version in scope.imports().items():
        part.opset_import.add(domain=domain, version=version)
    part.functions.extend(_called(model, ordered))
    part.graph.name, part.graph.doc_string = "part", title
    made = {name for node in ordered for name in node.proto.output if name}
    for value in _read(ordered, scope, made):
        _bring(part, model, value)
    for node in ordered:
        part.graph.node.append(node.proto)
        _refuse_references(node)
        if node in notes:
            part.graph.node[-1].doc_string = notes[node]
    for node in ordered:
        part.graph.output.extend(
            model.describe(one) for one in node.outputs if one is not None and _leaves(one, kept)
        )
    for info in (*part.graph.input, *part.graph.output):
        tensor = info.type.tensor_type if info.type.WhichOneof("value") in (None, "tensor_type") else None
        if scope.root is not model.main and tensor is not None and not tensor.HasField("shape"):
            what = "rank" if tensor.elem_type else "type"
            raise UsageError(_by_call(ordered[0], f"the {what} of {info.name}"))
    return part


def _called(model: Model, nodes: Collection[Node]) -> Iterator[FunctionProto]:
    """The local functions, if any of the nodes calls one."""
    names = model.function_names
    calls = any((one.domain, one.op_type) in names for node in nodes for one in walk.nodes([node.proto]))
    return iter(model.proto.functions if calls else ())


def _read(nodes: Collection[Node], scope: Scope, made: Collection[str]) -> list[Value]:
    """The values from outside that nodes, and the graphs in them, read."""
    found: dict[Value, None] = {}
    for node in nodes:
        for name in walk.reads(node.proto):
            value = scope.lookup(name) if name and name not in made else None
            if value is not None:
                found[value] = None
    return list(found)


def _bring(part: ModelProto, model: Model, value: Value) -> None:
    """Add a value that is read: as the constant that it is, where that is small, or as an input."""
    base = model.base_dir
    if value.is_constant and value.initializer is not None and tensors.nbytes(value.initializer) <= SMALL:
        tensor = value.initializer
        if base is not None and tensors.is_external(tensor):
            tensor = tensors.embedded(tensor, base)
        part.graph.initializer.append(tensor)
    elif value.is_constant and value.producer is not None and _small(value.producer.proto):
        part.graph.node.append(value.producer.proto)
    else:
        part.graph.input.append(model.describe(value))


def _small(node: NodeProto) -> bool:
    stored = list(walk.node_tensors([node]))
    return not any(map(tensors.is_external, stored)) and sum(map(tensors.nbytes, stored)) <= SMALL


def _refuse_references(node: Node) -> None:
    for one in walk.nodes([node.proto]):
        for attribute in one.attribute:
            if attribute.ref_attr_name:
                raise UsageError(_by_call(node, f"its attribute {attribute.name}"))


def _by_call(node: Node, what: str) -> str:
    return f"{node.place}: {what} is set by each call of the function; it cannot be shown alone"


def _leaves(value: Value, kept: Collection[Node]) -> bool:
    """Whether anything but the kept nodes reads a value, or nothing does."""
    inside = [use for use in value.uses if use.node in kept]
    return value.is_output or value.pinned or len(inside) < value.use_count or not inside
