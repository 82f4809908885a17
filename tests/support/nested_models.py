"""Small models, and ones with subgraphs in subgraphs, deeper than ONNX's text format and protobuf's parser go."""

from __future__ import annotations

import random
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from support.models import of_opset

CHAIN = "g (float[N] x) => (float[N] y) { a = Exp(x)  b = Neg(a)  c = Exp(b)  d = Abs(c)  y = Exp(d) }"
BRANCHES = """g (float[N] x, bool c) => (float[N] y) {
    a = Neg(x)
    y = If(c)<then_branch = p () => (float[N] u) { u = Exp(a) },
              else_branch = q () => (float[N] v) { b = Neg(a)  v = Abs(b) }> }"""


text = of_opset(18)


def nested(depth: int) -> ModelProto:
    """Ifs inside each other; made in place, since copies of deep messages recurse."""
    model = text("g (float[N] x, bool c) => (float[N] o0) { o0 = Neg(x) }")
    graph = model.graph
    del graph.node[:]
    for level in range(depth):
        node = graph.node.add(op_type="If", input=["c"], output=[f"o{level}"], name=f"if{level}")
        for kind, inner in (("else_branch", f"e{level}"), ("then_branch", f"o{level + 1}")):
            graph = node.attribute.add(name=kind, type=5).g
            graph.output.add(name=inner).type.tensor_type.elem_type = 1
            if kind == "else_branch":
                graph.node.add(op_type="Neg", input=["x"], output=[inner])
    graph.node.add(op_type="Abs", input=["x"], output=[f"o{depth}"])
    return model


def told(depth: int) -> ModelProto:
    """The same with a weight as condition, and so that each level reads something of the one around it."""
    model = nested(depth)
    del model.graph.input[1]
    model.graph.initializer.add(name="c", data_type=9, raw_data=b"\x01")
    graph = model.graph
    for level in range(depth):
        graph.node.add(op_type="Exp", input=[f"a{level - 1}" if level else "x"], output=[f"a{level}"])
        graph = graph.node[0].attribute[1].g
    graph.node[0].input[0] = f"a{depth - 1}"
    return model


class RandomIfs:
    """Random graphs of Negs, Adds and nested Ifs, whose branches return their own values and outer ones.

    ``shuffled``: nodes stand in any order.
    """

    def __init__(self, rng: random.Random, *, shuffled: bool = False) -> None:
        self.rng = rng
        self.shuffled = shuffled
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def graph(self, visible: list[str], depth: int) -> GraphProto:
        known, nodes, own = list(visible), [], []
        weights = []
        if self.rng.random() < 0.4:
            weights.append(helper.make_tensor(self.name(), TensorProto.FLOAT, [1], [1.0]))
            known.append(weights[0].name)
        for _ in range(self.rng.randint(0 if depth else 2, 5)):
            nodes.append(self.node(known, depth))
            own.append(nodes[-1].output[0])
            known.append(own[-1])
        result = self.rng.choice(own if own and (not depth or self.rng.random() < 0.7) else visible)
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, ["N"])
        if self.shuffled:
            self.rng.shuffle(nodes)
        return helper.make_graph(nodes, self.name(), [], [output], weights)

    def node(self, known: list[str], depth: int) -> NodeProto:
        if depth < 3 and self.rng.random() < 0.4:
            branches: dict[str, Any] = {
                key: self.graph(known, depth + 1) for key in ("then_branch", "else_branch")
            }
            return helper.make_node("If", ["c"], [self.name()], **branches)
        if self.rng.random() < 0.5:
            return helper.make_node("Neg", [self.rng.choice(known)], [self.name()])
        return helper.make_node("Add", self.rng.choices(known, k=2), [self.name()])

    def model(self) -> ModelProto:
        graph = self.graph(["x"], 0)
        graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"]))
        graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
