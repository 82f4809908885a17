"""What replaces Casts in branches has names of its own: TensorRT refuses two quantizers of one name."""

from __future__ import annotations

from onnx import parser

from onnxfix.files.walk import subgraphs
from onnxfix.model import Model
from onnxfix.rewrite.engine import fix
from onnxfix.rewrite.registry import registry
from onnxfix.targets import target_named

BRANCH = "{name}_branch = {name}s () => (float[N] y) {{ q = Cast<to = 17>(x)  y = Cast<to = 1>(q) }}"
TEXT = f"""<ir_version: 9, opset_import: ["" : 19]> g (float[N] x, bool c) => (float[N] z) {{
    z = If(c)<{BRANCH.format(name="then")}, {BRANCH.format(name="else")}> }}"""


def test_quantizers_of_two_branches_have_different_names() -> None:
    model = Model(parser.parse_model(TEXT))
    model.target = target_named(None)
    run = fix(model, [rule for rule in registry().rules if rule.code == "QDQ013"])
    nodes = [node for graph in subgraphs(model.proto.graph.node[0]) for node in graph.node]
    assert len(run.applied) == len(nodes) == 4
    assert {node.op_type for node in nodes} == {"QuantizeLinear", "DequantizeLinear"}
    assert len({node.name for node in nodes} - {""}) == 4
