"""Building and ordering a model costs what its nodes cost, however deep they are nested, and gives what it gave. The
walk of the protobuf agrees with the overlay, goes to any depth, and in stored order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxfix.errors import ModelError
from onnxfix.files import walk
from onnxfix.graph.build import MAX_NESTING
from onnxfix.graph.overlay import Node, Scope
from onnxfix.model import Model
from onnxfix.rewrite import engine
from onnxfix.rewrite.registry import registry
from onnxfix.runtime.causes import Problem
from support.cli import errors, run
from support.lanes import seeds
from support.models import model
from support.nested_models import RandomIfs, nested
from support.overlay_links import assert_links
from support.shape_oracle import parse
from support.wire import field, whole


def test_an_inner_name_hides_an_outer_one_and_only_inside() -> None:
    model = Model(
        parse(
            """g (float[N] x, bool c) => (float[] y) { a = Neg(x)
            y = If (c) <then_branch = t () => (float[] p) { x = Abs(a) p = Relu(x) },
                        else_branch = e () => (float[] q) { q = Relu(x) }> }"""
        )
    )
    inner, outer = model.scopes[1].values["x"], model.main.values["x"]
    assert [use.node.first_output for use in inner.uses] == ["p"]
    assert [use.node.first_output for use in outer.uses] == ["a", "q"]


def test_what_a_branch_defines_is_not_seen_beside_it() -> None:
    text = """g (float[N] x, bool c) => (float[] y) {
        y = If (c) <then_branch = t () => (float[] p) { p = Abs(x) },
                    else_branch = e () => (float[] q) { q = Relu(p) }> }"""
    with pytest.raises(ModelError, match=r"input 'p' of node .* is produced by no node"):
        Model(parse(text))


# ---- the order itself, against the plain way to find it


def plainly(scope: Scope) -> list[Node]:
    """Depth first through the producers of each node, those that its subgraphs read included."""
    done: list[Node] = []

    def visit(node: Node) -> None:
        if node in done:
            return
        inside = [value for sub in node.subgraphs for value in sub.captures()]
        for value in (*node.inputs, *inside):
            if value is not None and value.producer is not None and value.scope is scope:
                visit(value.producer)
        done.append(node)

    for node in scope.nodes:
        visit(node)
    return done


@pytest.mark.parametrize("seed", seeds(60))
def test_order_is_the_one_found_plainly(seed: int) -> None:
    model = Model(RandomIfs(random.Random(seed), shuffled=seed % 3 > 0).model())
    assert tuple(model.orders) == model.scopes
    for scope, found in model.orders.items():
        assert found == plainly(scope) == scope.topological()
        assert seed % 3 or found == scope.nodes


def test_a_cycle_by_way_of_a_branch_is_refused() -> None:
    text = """g (float[N] x, bool c) => (float[] y) { a = Neg(y)
        y = If (c) <then_branch = t () => (float[] p) { p = If (c) <then_branch = u () => (float[] r) { r = Abs(a) },
                                                                   else_branch = v () => (float[] s) { s = Abs(x) }> },
                    else_branch = e () => (float[] q) { q = Abs(x) }> }"""
    with pytest.raises(ModelError, match=r"cycle through .*"):
        Model(parse(text))


# ---- two hundred levels, as the benchmark has them, and more


def test_two_hundred_levels_are_checked_and_fixed() -> None:
    model = Model(nested(200))
    inner = model.scopes[-1] if model.scopes[-1].attr == "then_branch" else model.scopes[-2]
    graph = inner.proto
    assert isinstance(graph, GraphProto)
    del graph.node[:]
    for name, source, kind in (("a", "x", TensorProto.DOUBLE), ("b", "a", TensorProto.FLOAT)):
        node = graph.node.add(op_type="Cast", input=[source], output=[f"{name}"])
        node.attribute.add(name="to", type=AttributeProto.INT, i=kind)
    graph.node.add(op_type="Relu", input=["b"], output=[graph.output[0].name])
    graph.node.add(op_type="Neg", input=["x"], output=["dead"])
    model = Model(model.proto)
    problems: list[Problem] = []
    found = engine.check(model, registry().choose(), problems)
    assert {item.rule.code for item in found} == {"CST003", "GRA001"}
    run = engine.fix(model, registry().choose())
    assert {item.key.code for item in run.applied} == {"CST003", "GRA001"}
    assert not any(node.op_type == "Cast" for node in model.nodes())
    assert (problems, run.problems, run.remaining) == ([], (), ())
    assert_links(model)


def test_more_levels_than_are_followed_are_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match=rf"^subgraphs are nested deeper than {MAX_NESTING} levels at .*"):
        Model(nested(MAX_NESTING + 10))


# ---- files, which protobuf parses to a depth of 100 messages


def nested_file(levels: int) -> bytes:
    """A ModelProto with Ifs in Ifs: protobuf writes none that is too deep, so this one is put together by hand."""
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "b", [], [result]).SerializeToString()
    for level in range(levels):
        leaf = helper.make_graph([helper.make_node("Abs", ["x"], [f"e{level}"])], "e", [], [])
        leaf.output.add().name = f"e{level}"
        branches = [("then_branch", body), ("else_branch", leaf.SerializeToString())]
        attributes = b"".join(
            field(5, field(1, name.encode()) + field(6, graph) + whole(20, AttributeProto.GRAPH))
            for name, graph in branches
        )
        node = field(1, b"c") + field(2, f"r{level}".encode()) + field(4, b"If") + attributes
        result.name = f"r{level}"
        body = field(1, node) + field(2, b"g") + field(12, result.SerializeToString())
    for name, elem in (("x", TensorProto.FLOAT), ("c", TensorProto.BOOL)):
        body += field(11, helper.make_tensor_value_info(name, elem, []).SerializeToString())
    opset = helper.make_opsetid("", 18).SerializeToString()
    return whole(1, 9) + field(7, body) + field(8, opset)


@pytest.mark.parametrize(
    "command", [["check"], ["apply", "--no-verify", "-o", "out.onnx"]], ids=lambda c: c[0]
)
def test_a_file_that_is_nested_too_deeply_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep.onnx").write_bytes(nested_file(30))
    assert run(*command, "deep.onnx")[0] == 0
    Path("out.onnx").unlink(missing_ok=True)
    for levels in (40, 200, 2000):
        Path("deep.onnx").write_bytes(nested_file(levels))
        err = errors(2, *command, "deep.onnx")
        assert err.count("\n") == 1
        assert "nested deeper than 100 levels" in err
        assert not Path("out.onnx").exists()


NESTED = """<ir_version: 10, opset_import: ["" : 18, "f" : 1]>
g (float[N] x, bool c) => (float[N] y) <float[1] w = {1}> {
  a = If(c) <then_branch = p () => (float[N] b) { b = If(c) <
    then_branch = q () => (float[N] d) <float[1] v = {2}> { d = Add(x, v) },
    else_branch = r () => (float[N] e) { e = Abs(w) }> },
    else_branch = s () => (float[N] x2) { x2 = f.twice(x) }>
  y = Neg(a) }
<domain: "f", opset_import: ["" : 18]> twice (i) => (o) { k = Constant<value = float[1] {2}>()  o = Mul(i, k) }"""


def with_everything() -> ModelProto:
    return model(NESTED)


def test_graphs_are_those_of_the_overlay_in_its_order() -> None:
    proto = with_everything()
    assert [graph.name for graph in walk.graphs(proto.graph)] == ["g", "p", "q", "r", "s"]
    assert [scope.proto.name for scope in Model(proto).main.walk()] == ["g", "p", "q", "r", "s"]


def test_nodes_are_followed_by_those_inside_them() -> None:
    proto = with_everything()
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
    proto = with_everything()
    assert set(walk.reads(proto.graph.node[0])) == {"c", "x", "v", "w", "b", "d", "e", "x2"}
    producers = {name: node for node in proto.graph.node for name in node.output}
    assert walk.ancestors(producers, ["y"]) >= {"y", "a", "x", "w", "c"}


def test_tensors_are_those_of_initializers_attributes_and_functions() -> None:
    assert sorted(tensor.name for tensor in walk.model_tensors(with_everything())) == ["", "v", "w"]


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
