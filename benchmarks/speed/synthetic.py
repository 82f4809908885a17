"""Models of any number of nodes: chains, DAGs, nested Ifs, and chains where every third node is a finding.

All take ``x``, float32[N, 4], and give ``y`` of the same type and shape. Values stay finite however long the model is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from speed.models import BASE, SIZES

#: What protobuf's parser for Python takes: 100 nested messages, three to an If.
IF_LEVELS = 30
_OPSET, _IR = 18, 9


def chain(count: int, spare: int) -> ModelProto:
    """Mul, Add and Relu in turn; where ``spare`` is n, every n-th node is a pair of Casts that changes nothing."""
    nodes, last = _chain("x", "v", count, spare)
    return _model([*nodes, _node("Identity", [last], "y")], "chain")


def _chain(first: str, prefix: str, count: int, spare: int) -> tuple[list[NodeProto], str]:
    """``count`` nodes and the name of what the last one gives."""
    nodes: list[NodeProto] = []
    last = first
    turn = 0
    while len(nodes) < count:
        turn += 1
        if turn % spare == 0:
            nodes.append(_node("Cast", [last], f"{prefix}{len(nodes)}", to=TensorProto.DOUBLE))
            last = nodes[-1].output[0]
            nodes.append(_node("Cast", [last], f"{prefix}{len(nodes)}", to=TensorProto.FLOAT))
        else:
            op, *more = (("Mul", "half"), ("Add", "one"), ("Relu",))[turn % 3]
            nodes.append(_node(op, [last, *more], f"{prefix}{len(nodes)}"))
        last = nodes[-1].output[0]
    return nodes, last


def dag(count: int) -> ModelProto:
    """Means of two of the fifty values before, every tenth through a pair of Casts; each value has about two uses."""
    draw = random.Random(0)
    nodes: list[NodeProto] = []
    values = ["x"]
    while len(nodes) < count - 1:
        number = len(nodes)
        near = values[-50:]
        if number % 10 == 9:
            nodes.append(_node("Cast", [near[-1]], f"c{number}", to=TensorProto.DOUBLE))
            nodes.append(_node("Cast", [f"c{number}"], f"v{number}", to=TensorProto.FLOAT))
        else:
            nodes.append(_node("Mean", [near[-1], draw.choice(near)], f"v{number}"))
        values.append(f"v{number}")
    return _model([*nodes, _node("Identity", [values[-1]], "y")], "dag")


def nested(count: int, levels: int = IF_LEVELS) -> ModelProto:
    """Ifs in Ifs, each body a chain that begins with a value of the body around it."""
    each = max(2, count // levels - 1)
    graph: GraphProto | None = None
    for level in reversed(range(levels)):
        prefix = f"l{level}_"
        nodes, last = _chain("x" if level == 0 else f"l{level - 1}_{each // 2}", prefix, each, 10)
        result = "y" if level == 0 else f"{prefix}y"
        if graph is None:
            nodes.append(_node("Identity", [last], result))
        else:
            other = helper.make_graph([_node("Identity", [last], f"{prefix}e")], f"else{level}", [], [])
            other.output.add().CopyFrom(_value(f"{prefix}e"))
            nodes.append(_node("If", ["yes"], result, then_branch=graph, else_branch=other))
        if level == 0:
            return _model(nodes, "nested")
        graph = helper.make_graph(nodes, f"then{level}", [], [_value(result)])
    raise ValueError("levels: at least 1")


def _node(op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


def _value(name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4])


def _model(nodes: list[NodeProto], name: str) -> ModelProto:
    constants = [
        helper.make_tensor("half", TensorProto.FLOAT, [4], [0.5, 0.25, 0.5, 0.75]),
        helper.make_tensor("one", TensorProto.FLOAT, [4], [1.0, -0.5, 0.25, -1.0]),
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
    ]
    read = {name for node in _all(nodes) for name in node.input}
    graph = helper.make_graph(
        nodes, name, [_value("x")], [_value("y")], [one for one in constants if one.name in read]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)


def _all(nodes: list[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all(list(attribute.g.node))


def made(name: str) -> ModelProto:
    """The model of a name such as ``chain.10k``."""
    kind, size = name.split(".")
    count = 1 if name == BASE else SIZES[size]
    if kind == "chain":
        return chain(count, 10)
    if kind == "findings":
        return chain(count, 2)
    return dag(count) if kind == "dag" else nested(count)
