"""Small models, and ones with subgraphs in subgraphs, deeper than ONNX's text format and protobuf's parser go."""

from __future__ import annotations

from onnx import ModelProto

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
