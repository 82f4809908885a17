"""What tells tensors apart that are made differently: equal identities are equal tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from onnxfix.files.walk import attribute_graphs, domain_of, subgraphs
from onnxfix.graph.signatures import schema_of
from onnxfix.proof.symbolic.evaluate import RANDOM, Table
from onnxfix.proof.symbolic.tensor import Weights, identify


def identify_tensor(proto: TensorProto, weights: Weights) -> bytes:
    """An identity of a constant's elements, which begins with that of these elements in any shape (``flat``)."""
    kind = str(proto.data_type).encode()
    return identify(b"tensor", kind, weights.content(proto)) + repr(list(proto.dims)).encode()


def flat(identity: bytes) -> bytes:
    """What two constants of the same elements have in common, whatever their shapes."""
    return identity[:16]


def _attributes(
    node: NodeProto, name_of: dict[str, bytes], weights: Weights, depth: int = 0
) -> Iterator[bytes]:
    for attribute in sorted(node.attribute, key=lambda one: one.name):
        if graphs := attribute_graphs(attribute):
            inner = [_identify_graph(one, name_of, weights, depth + 1) for one in graphs]
            yield attribute.name.encode() + b"".join(inner)
        elif attribute.type == AttributeProto.TENSOR:
            yield attribute.name.encode() + identify_tensor(attribute.t, weights)
        else:
            yield attribute.SerializeToString(deterministic=True)


def _identify_graph(graph: GraphProto, outer: dict[str, bytes], weights: Weights, depth: int) -> bytes:
    """An identity of a subgraph: what it computes of the names around it, whatever its own names are."""
    names = dict(outer)
    for place, name in enumerate([one.name for one in graph.input] + [one.name for one in graph.initializer]):
        names[name] = b"own %d %d" % (depth, place)
    made = 0
    parts = [str(len(graph.input)).encode(), *(identify_tensor(one, weights) for one in graph.initializer)]
    for node in graph.node:
        for output in filter(None, node.output):
            made += 1
            names[output] = b"made %d %d" % (depth, made)
        parts += [
            node.domain.encode(),
            node.op_type.encode(),
            *(names.get(one, b"") for one in node.input),
        ]
        parts += [*_attributes(node, names, weights, depth), *(names.get(one, b"") for one in node.output)]
    return identify(*parts, *(names.get(one.name, b"?") for one in graph.output))


def _draws(node: NodeProto) -> bool:
    """Whether a node, or one of its subgraphs, may draw random numbers: then two like it are not the same."""
    return node.op_type in RANDOM or any(_draws(inner) for graph in subgraphs(node) for inner in graph.node)


def identify_node(
    node: NodeProto, table: Table, ids: Mapping[str, bytes], versions: Mapping[str, int], weights: Weights
) -> bytes:
    """An identity of what a node computes of tensors of which it has the identities."""
    domain = domain_of(node.domain)
    if (
        node.op_type == "Constant"
        and not domain
        and len(node.attribute) == 1
        and node.attribute[0].type == AttributeProto.TENSOR
    ):
        return identify_tensor(node.attribute[0].t, weights)
    version = versions.get(domain, 0)
    schema = schema_of(node.op_type, version, domain)
    since = str(schema.since_version if schema is not None else version).encode()
    if subgraphs(node):
        since = repr(sorted(versions.items())).encode()  # the operators inside are of these
    drawn = [name.encode() for name in node.output] if _draws(node) else []
    inner = {name: ids[name] for name in table.needs(node)}
    inputs = [str((len(node.input), len(node.output))).encode()]
    inputs += [ids[name] if name else b"" for name in node.input]
    return identify(
        domain.encode(), node.op_type.encode(), since, *drawn, *inputs, *_attributes(node, inner, weights)
    )
