"""Why ONNX Runtime rejects a model: whether the model is to blame, and at which node."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, NodeProto, TensorProto, defs

from onnxfix.files import walk
from onnxfix.place import Place
from onnxfix.proof.readback.interface import inputs_of
from onnxfix.runtime.backends import ort_messages

#: Operators that read of a tensor no more than its shape.
_OF_SHAPE = ("Shape", "Size")


def lacks(text: str, graph: GraphProto) -> bool:
    """Whether ONNX Runtime lacks something, and the model is not at fault: a kernel, a newer operator, memory."""
    if ort_messages.is_gap(text):
        return True
    node, attribute = node_of(text, graph), ort_messages.unknown_attribute(text)
    if attribute is not None and node is not None and node.domain in ("", "ai.onnx"):
        # It is older than the model's opset if ONNX has that attribute.
        operator, name = attribute
        if defs.has(operator) and name in defs.get_schema(operator).attributes:
            return True
    if not ort_messages.is_unregistered(text):
        return False
    domains = ("ai.onnx.", "com.microsoft")
    return node is None or node.domain in ("", "ai.onnx") or node.domain.startswith(domains)


def node_of(text: str, graph: GraphProto) -> NodeProto | None:
    """The node of the main graph that the text is about, or that holds it; None where it names none."""
    clues = ort_messages.clues(text)
    for node, inner in _all(graph):
        if inner.name and inner.name in clues.names:
            return node
    for node, inner in _all(graph):
        if any(name and name in inner.output for name in clues.outputs):
            return node
    alike = [node for node, inner in _all(graph) if inner.op_type in clues.operators]
    return alike[0] if alike and all(node is alike[0] for node in alike) else None


def _all(graph: GraphProto) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Every node with the one of the main graph around it."""
    return ((node, inner) for node in graph.node for inner in walk.nodes([node]))


def place_of(node: NodeProto | None, graph: GraphProto) -> Place:
    """The place of a node of the main graph, as reports show it; an empty one for None."""
    if node is None:
        return Place()
    index = next(number for number, one in enumerate(graph.node) if one is node)
    output = next((name for name in node.output if name), "")
    return Place((), node.name, node.op_type, output, index)


#: Operators whose result has another type than what they read: integers or truth values of floats.
_TURNS = {"ArgMax", "ArgMin", "BitCast", "Cast", "CastLike", "Equal", "Greater", "GreaterOrEqual", "IsInf"}
_TURNS |= {"IsNaN", "Less", "LessOrEqual", "NonZero", "QuantizeLinear", "TopK", "Unique"}
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def settled(text: str, graph: GraphProto) -> bool:
    """Whether a model of static shape fails on any input: at a node whose integers depend on no input's values."""
    node = node_of(text, graph)
    kinds = [info.type.tensor_type for info in inputs_of(graph)]
    static = all(
        kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim) for kind in kinds
    )
    return node is not None and static and _chosen(graph).isdisjoint(node.input)


def _chosen(graph: GraphProto) -> set[str]:
    """The values of the main graph, other than floats, that depend on the values of an input, and not on shapes."""
    fed = {info.name for info in inputs_of(graph)}
    found = {info.name for info in inputs_of(graph) if info.type.tensor_type.elem_type not in _FLOATS}
    for node in graph.node:
        reads = set(walk.reads(node))
        if node.op_type in _OF_SHAPE or reads.isdisjoint(fed):
            continue
        made = [name for name in node.output if name]
        fed.update(made)
        if node.op_type in _TURNS or not reads.isdisjoint(found):
            found.update(made)
    return found
