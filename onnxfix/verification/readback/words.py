"""What ONNX Runtime says of a model that it does not take: whose fault that is, and at which node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, defs

from onnxfix import walk
from onnxfix.place import Place

#: It has no kernel (or one that does not know all attributes, which its constructor says), or is older than the model:
#: no word on the model itself.
_LACKS = re.compile(
    r"NOT_IMPLEMENTED|Exception during initialization|Could not find an implementation|is under development|"
    r"Unsupported model IR version|"
    r"out of memory|bad_alloc|Failed to allocate memory",
    re.I,
)
_UNREGISTERED = re.compile(
    r"No Op registered for (?P<op>\S+) with domain_version of|(?P<full>\S+) is not a registered function/op"
)
_ATTRIBUTE = re.compile(r"Unrecognized attribute: (?P<name>\w+) for operator (?P<op>\w+)")
_STATUS = re.compile(
    r"\A(?:\w+: )?(?:\[ONNXRuntimeError\] : \d+ : \w+ : )?(?:Load model from \S+ failed:\s*)?(?:Fatal error: )?"
)
#: Operators that read of a tensor no more than its shape.
_OF_SHAPE = ("Shape", "Size")
_NAMED = (
    re.compile(r"Name:'(?P<name>[^']*)'"),
    re.compile(r"in node \((?P<name>[^)]*)\)"),
    re.compile(r"of node \((?P<name>[^)]*)\)"),
    re.compile(r"In Node, \(\"(?P<name>[^\"]*)\""),
    re.compile(r"Node ?\((?P<name>[^)]*)\) Op ?\("),
    re.compile(r"Node:\s?(?P<name>\S*)\s"),
)
_MADE = (re.compile(r"output arg \((?P<out>[^)]*)\)"), re.compile(r"-> \(\"(?P<out>[^\"]*)\""))
_KIND = (
    re.compile(r"running (?P<op>\w+) node"),
    re.compile(r"operator \((?P<op>\w+)\)"),
    re.compile(r"Op ?\((?P<op>\w+)\)"),
    re.compile(r"No Op registered for (?P<op>\w+)"),
    re.compile(r"Fatal error: \S*?(?P<op>\w+)\(-?\d+\) is not a registered"),
)


def lacks(words: str, graph: GraphProto) -> bool:
    """Whether ONNX Runtime lacks something, and the model is not at fault: a kernel, a newer operator, memory."""
    if _LACKS.search(words) or _is_newer(words, graph):
        return True
    if _UNREGISTERED.search(words) is None:
        return False
    node = node_of(words, graph)
    return (
        node is None
        or node.domain in ("", "ai.onnx")
        or node.domain.startswith(("ai.onnx.", "com.microsoft"))
    )


def _is_newer(words: str, graph: GraphProto) -> bool:
    """Whether it does not know an attribute that ONNX has: it is older than the model's opset."""
    match = _ATTRIBUTE.search(words)
    node = node_of(words, graph) if match is not None else None
    if match is None or node is None or node.domain not in ("", "ai.onnx") or not defs.has(match["op"]):
        return False
    return match["name"] in defs.get_schema(match["op"]).attributes


def told(words: str) -> str:
    """The words without the status and the path at their beginning."""
    found = _STATUS.sub("", words, count=1)
    return found or words


def node_of(words: str, graph: GraphProto) -> NodeProto | None:
    """The node of the main graph that the words are about, or that holds it; None where they name none."""
    for node, inner in _all(graph):
        if any(inner.name and inner.name == match["name"] for match in _found(_NAMED, words)):
            return node
    for node, inner in _all(graph):
        if any(match["out"] and match["out"] in inner.output for match in _found(_MADE, words)):
            return node
    kinds = {match["op"] for match in _found(_KIND, words)}
    alike = [node for node, inner in _all(graph) if inner.op_type in kinds]
    return alike[0] if alike and all(node is alike[0] for node in alike) else None


def _found(patterns: tuple[re.Pattern[str], ...], words: str) -> Iterator[re.Match[str]]:
    return (match for pattern in patterns if (match := pattern.search(words)) is not None)


def _all(graph: GraphProto) -> Iterator[tuple[NodeProto, NodeProto]]:
    """Every node with the one of the main graph around it."""
    for node in graph.node:
        yield from ((node, inner) for inner in walk.nodes([node]))


def place_of(node: NodeProto | None, graph: GraphProto) -> Place:
    """The place of a node of the main graph, as reports show it; an empty one for None."""
    if node is None:
        return Place()
    index = next(number for number, one in enumerate(graph.node) if one is node)
    output = next((name for name in node.output if name), "")
    return Place((), node.name, node.op_type, output, index)


#: Operators whose result has another type than what they read: integers or truth values of floats.
_TURNS = frozenset(
    (
        "ArgMax",
        "ArgMin",
        "BitCast",
        "Cast",
        "CastLike",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "IsInf",
        "IsNaN",
        "Less",
    )
) | frozenset(("LessOrEqual", "NonZero", "QuantizeLinear", "TopK", "Unique"))
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def settled(words: str, graph: GraphProto) -> bool:
    """Whether a model of static shape fails whatever it is fed: at a node whose integers hang on no input's values."""
    node = node_of(words, graph)
    return node is not None and _static(graph) and _chosen(graph).isdisjoint(node.input)


def _given(graph: GraphProto) -> list[ValueInfoProto]:
    defaults = {tensor.name for tensor in graph.initializer}
    return [info for info in graph.input if info.name not in defaults]


def _static(graph: GraphProto) -> bool:
    shapes = [
        info.type.tensor_type.shape for info in _given(graph) if info.type.tensor_type.HasField("shape")
    ]
    known = all(dim.HasField("dim_value") for shape in shapes for dim in shape.dim)
    return known and len(shapes) == len(_given(graph))


def _chosen(graph: GraphProto) -> set[str]:
    """The values of the main graph, other than floats, that hang on the values of an input, and not on shapes."""
    fed = {info.name for info in _given(graph)}
    found = {info.name for info in _given(graph) if info.type.tensor_type.elem_type not in _FLOATS}
    for node in graph.node:
        reads = set(walk.reads(node))
        if node.op_type in _OF_SHAPE or reads.isdisjoint(fed):
            continue
        made = [name for name in node.output if name]
        fed.update(made)
        if node.op_type in _TURNS or not reads.isdisjoint(found):
            found.update(made)
    return found
