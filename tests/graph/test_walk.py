"""The walk of the protobuf agrees with the overlay, goes to any depth, and in stored order."""

from __future__ import annotations

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxfix.files import walk
from onnxfix.model import Model
from support.models import model

NESTED = """<ir_version: 10, opset_import: ["" : 18, "f" : 1]>
g (float[N] x, bool c) => (float[N] y) <float[1] w = {1}> {
  a = If(c) <then_branch = p () => (float[N] b) { b = If(c) <
    then_branch = q () => (float[N] d) <float[1] v = {2}> { d = Add(x, v) },
    else_branch = r () => (float[N] e) { e = Abs(w) }> },
    else_branch = s () => (float[N] x2) { x2 = f.twice(x) }>
  y = Neg(a) }
<domain: "f", opset_import: ["" : 18]> twice (i) => (o) { k = Constant<value = float[1] {2}>()  o = Mul(i, k) }"""


def nested() -> ModelProto:
    return model(NESTED)


def test_graphs_are_those_of_the_overlay_in_its_order() -> None:
    proto = nested()
    assert [graph.name for graph in walk.graphs(proto.graph)] == ["g", "p", "q", "r", "s"]
    assert [scope.proto.name for scope in Model(proto).main.walk()] == ["g", "p", "q", "r", "s"]


def test_nodes_are_followed_by_those_inside_them() -> None:
    proto = nested()
    assert [node.op_type for node in walk.nodes(proto.graph.node)] == [
        "If",
        "If",
        "Add",
        "Abs",
        "twice",
        "Neg",
    ]
    assert [node.op_type for node in walk.model_nodes(proto)][-2:] == ["Constant", "Mul"]
    assert len(list(walk.model_nodes(proto))) == Model(proto).node_count


def test_reads_go_to_any_depth_and_count_what_branches_return() -> None:
    proto = nested()
    assert set(walk.reads(proto.graph.node[0])) == {"c", "x", "v", "w", "b", "d", "e", "x2"}
    producers = {name: node for node in proto.graph.node for name in node.output}
    assert walk.ancestors(producers, ["y"]) >= {"y", "a", "x", "w", "c"}


def test_tensors_are_those_of_initializers_attributes_and_functions() -> None:
    assert sorted(tensor.name for tensor in walk.model_tensors(nested())) == ["", "v", "w"]


def test_an_attribute_holds_its_graph_and_then_its_list() -> None:
    graphs = [GraphProto(name=name) for name in "abc"]
    both = AttributeProto(name="x", type=AttributeProto.GRAPHS, g=graphs[0], graphs=graphs[1:])
    assert [graph.name for graph in walk.attribute_graphs(both)] == ["a", "b", "c"]
    assert [graph.name for graph in walk.subgraphs(NodeProto(attribute=[both]))] == ["a", "b", "c"]
    missing = AttributeProto(name="x", type=AttributeProto.GRAPH)
    assert [graph.name for graph in walk.attribute_graphs(missing)] == [""]
    assert not walk.attribute_graphs(
        helper.make_attribute("x", helper.make_tensor("t", TensorProto.INT64, [], [1]))
    )


def test_the_walk_does_not_recurse() -> None:
    root = graph = GraphProto()
    for _ in range(2000):
        attribute = graph.node.add(op_type="If").attribute.add(name="body", type=AttributeProto.GRAPH)
        graph = attribute.g
    graph.node.add(op_type="Neg", input=["x"])
    assert list(walk.reads(root.node[0])) == ["x"]
