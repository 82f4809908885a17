"""Edits: links stay right, a refused fix leaves no trace, and only what was meant changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, parser

from onnxfix.errors import EditError
from onnxfix.model import Model
from onnxfix.rewrite import edits as ed
from onnxfix.rewrite.edits import Draft
from onnxfix.rewrite.transaction import Transaction, commit
from support import models
from support.overlay_links import CHAIN, assert_links, chain, node_at, proto_of


def bypass_b(model: Model) -> list[ed.Edit]:
    draft = Draft(node_at(model, "b"))
    draft.bypass(draft.anchor, model.main.values["a"])
    return draft.edits


def insert_before_d(model: Model) -> list[ed.Edit]:
    draft = Draft(node_at(model, "d"))
    doubled = draft.add("Mul", [model.main.values["b"], draft.constant(np.array([2.0], np.float32))])
    draft.set_input(draft.anchor, 0, doubled)
    return draft.edits


def rename_d(model: Model) -> list[ed.Edit]:
    return [ed.SetOutput(node_at(model, "d"), 0, "renamed")]


def drop_else(model: Model) -> list[ed.Edit]:
    draft = Draft(node_at(model, "q"))
    draft.set_input(draft.anchor, 0, model.main.values["x"])
    return draft.edits


def kill_w(model: Model) -> list[ed.Edit]:
    draft = Draft(node_at(model, "d"))
    draft.set_input(draft.anchor, 1, model.main.values["x"])
    return draft.edits


def set_and_drop(model: Model) -> list[ed.Edit]:
    node = node_at(model, "a")
    return [
        ed.SetAttribute(node, "alpha", helper.make_attribute("alpha", 1.0)),
        ed.SetAttribute(node, "beta", helper.make_attribute("beta", 1.0)),
        ed.SetAttribute(node, "alpha", None),
        ed.RenameNode(node, "first"),
    ]


def add_branches(model: Model) -> list[ed.Edit]:
    """A new If that captures values and returns one, with a loop in a branch that captures through both."""
    node = parser.parse_node("""n1 = If (c) <
        then_branch = t1 () => (float[N] n2) <float[1] n3 = {1}, int64 n4 = {2}> {
            n5 = Add(a, n3)
            n2 = Loop(n4, c, n5) <body = l1 (int64 n6, bool n7, float[N] n8) => (bool n9, float[N] n10) {
                n9 = Identity(n7) n11 = Mul(n8, w) n10 = Sub(n11, n5) }> },
        else_branch = e1 () => (float[N] b) { }>""")
    d = node_at(model, "d")
    return [ed.AddNode(model.main, node, d), ed.SetInput(d, 0, "n1")]


def move_branches(model: Model) -> list[ed.Edit]:
    """The If goes and comes back to another place, with one branch more than before reading its condition."""
    y = node_at(model, "y")
    moved = NodeProto()
    moved.CopyFrom(y.proto)
    return [ed.RemoveNode(y), ed.AddNode(model.main, moved)]


def branches_in_a_branch(model: Model) -> list[ed.Edit]:
    """A new If inside the then branch, which returns a value of that branch and one of the graph."""
    node = parser.parse_node("""o1, o2 = If (c) <
        then_branch = t2 () => (float[N] u, float[N] a) { },
        else_branch = e2 () => (float[N] o3, float[N] o4) { o3 = Neg(u) o4 = Neg(d) }>""")
    draft = Draft(node_at(model, "p"))
    draft.add("Sub", ["b", "d"], output="u")
    draft.edits.append(ed.AddNode(draft.anchor.scope, node, draft.anchor))
    draft.set_input(draft.anchor, 0, "o1")
    draft.set_input(draft.anchor, 1, "o2")
    return draft.edits


def drop_sparse(model: Model) -> list[ed.Edit]:
    return [ed.RemoveInitializer(model.main.values["sparse"])]


FIXES = [
    bypass_b,
    insert_before_d,
    rename_d,
    drop_else,
    kill_w,
    set_and_drop,
    add_branches,
    move_branches,
    branches_in_a_branch,
    drop_sparse,
]


@pytest.mark.parametrize("make", FIXES)
def test_links_after_a_fix(make: Callable[[Model], list[ed.Edit]]) -> None:
    model = Model(chain())
    before = model.proto.SerializeToString(deterministic=True)
    commit(model, [make(model)], "TST001")
    assert model.proto.SerializeToString(deterministic=True) != before
    assert_links(model)


@pytest.mark.parametrize("make", FIXES)
def test_refused_fix_leaves_no_trace(make: Callable[[Model], list[ed.Edit]]) -> None:
    model = Model(chain())
    before = model.proto.SerializeToString(deterministic=True)
    names = set(model.names)
    broken = [*make(model), ed.SetInput(node_at(model, "a"), 0, "no such value")]
    transaction = Transaction(model)
    with pytest.raises(EditError):
        transaction.apply(broken, "TST001")
    assert model.names == names
    assert not transaction.names
    transaction.close()
    assert model.proto.SerializeToString(deterministic=True) == before
    assert_links(model)


@pytest.mark.parametrize("first", FIXES)
@pytest.mark.parametrize("second", FIXES)
def test_refused_fix_spares_its_neighbor(
    first: Callable[[Model], list[ed.Edit]], second: Callable[[Model], list[ed.Edit]]
) -> None:
    alone, both = Model(chain()), Model(chain())
    commit(alone, [first(alone)], "TST001")
    transaction = Transaction(both)
    broken = [*second(both), ed.SetInput(node_at(both, "a"), 0, "no such value")]
    transaction.apply(first(both), "TST001")
    with pytest.raises(EditError):
        transaction.apply(broken, "TST001")
    transaction.close()
    assert both.proto.SerializeToString(deterministic=True) == alone.proto.SerializeToString(
        deterministic=True
    )
    assert_links(both)


def test_what_nobody_reads_any_more_goes() -> None:
    model = Model(proto_of(CHAIN))
    draft = Draft(node_at(model, "q"))
    for use in model.main.values["d"].uses:
        draft.set_input(use.node, use.index, model.main.values["x"])
    commit(model, [draft.edits])
    assert [n.op_type for n in model.main.nodes] == ["Neg", "Abs", "If"]
    assert not model.proto.graph.initializer
    assert_links(model)


def test_initializer_that_is_an_output_or_pinned_stays_when_nobody_reads_it() -> None:
    text = """g (float[N] x) => (float[N] y, float[1] v) <float[1] v = {1}, float[1] w = {1}> {
        a = Mul(x, v) y = Add(a, w) }"""
    proto = proto_of(text)
    proto.graph.quantization_annotation.add(tensor_name="w")
    model = Model(proto)
    draft = Draft(node_at(model, "y"))
    draft.set_input(node_at(model, "a"), 1, model.main.values["x"])
    draft.set_input(node_at(model, "y"), 1, model.main.values["x"])
    commit(model, [draft.edits])
    assert [t.name for t in proto.graph.initializer] == ["v", "w"]


def test_removing_a_branch_unpins_what_it_returned() -> None:
    text = """g (float[N] x, bool c) => (float[N] y) {
        a = Neg(x)
        d = If (c) <then_branch = t () => (float[N] a) { }, else_branch = e () => (float[N] q) { q = Abs(a) }>
        y = Identity(x) }"""
    model = Model(proto_of(text))
    assert model.main.values["a"].pinned
    commit(model, [[ed.RemoveNode(node_at(model, "d"))]])
    assert [n.op_type for n in model.main.nodes] == ["Identity"]
    transaction = Transaction(model := Model(proto_of(text)))
    with pytest.raises(EditError):
        transaction.apply(
            [ed.RemoveNode(node_at(model, "d")), ed.SetInput(node_at(model, "a"), 0, "nowhere")]
        )
    assert model.main.values["a"].pinned


def test_dead_before_stays() -> None:
    text = "g (float[N] x) => (float[N] y) { dead = Neg(x) a = Abs(x) y = Identity(a) }"
    model = Model(proto_of(text))
    draft = Draft(node_at(model, "y"))
    draft.set_input(draft.anchor, 0, model.main.values["x"])
    commit(model, [draft.edits])
    assert [n.first_output for n in model.main.nodes] == ["dead", "y"]


def test_graph_output_keeps_its_name_when_bypassed() -> None:
    model = Model(proto_of("g (float[N] x) => (float[N] y) { a = Neg(x) b = Abs(a) y = Identity(a) }"))
    node = node_at(model, "y")
    draft = Draft(node)
    draft.bypass(node, model.main.values["a"])
    commit(model, [draft.edits])
    assert [(n.op_type, n.first_output) for n in model.main.nodes] == [("Neg", "y"), ("Abs", "b")]
    assert model.main.nodes[1].inputs[0] is model.main.values["y"]
    assert_links(model)


REFUSED: dict[str, Callable[[Model], ed.Edit]] = {
    "used": lambda m: ed.RemoveNode(node_at(m, "a")),
    "output": lambda m: ed.RemoveNode(node_at(m, "y")),
    "rename output": lambda m: ed.SetOutput(node_at(m, "y"), 0, "z"),
    "uses of output": lambda m: ed.ReplaceUses(m.main.values["y"], "x"),
    "clash": lambda m: ed.AddNode(m.main, NodeProto(op_type="Neg", input=["x"], output=["a"])),
    "clash outside": lambda m: ed.AddNode(
        node_at(m, "p").scope, NodeProto(op_type="Neg", input=["x"], output=["a"])
    ),
    "initializer clash": lambda m: ed.AddInitializer(m.main, helper.make_tensor("p", 1, [1], [0.0])),
    "initializer in use": lambda m: ed.RemoveInitializer(m.main.values["w"]),
    "gap": lambda m: ed.SetInput(node_at(m, "a"), 3, "x"),
    "inner name": lambda m: ed.SetInput(node_at(m, "a"), 0, "p"),
    "new name that a branch has": lambda m: ed.AddNode(m.main, parser.parse_node("p = Neg(x)")),
    "branch hides a value": lambda m: ed.AddNode(m.main, if_node("a = Neg(x)", "a")),
    "branch has the name of its own node's output": lambda m: ed.AddNode(m.main, if_node("new = Neg(x)", "new")),
    "branch reads its own node": lambda m: ed.AddNode(m.main, if_node("i = Neg(new)", "i")),
    "branch reads nothing": lambda m: ed.AddNode(m.main, if_node("i = Neg(nowhere)", "i")),
    "branch reads what another branch has": lambda m: ed.AddNode(m.main, if_node("i = Neg(p)", "i")),
    "branch returns nothing": lambda m: ed.AddNode(m.main, if_node("i = Neg(x)", "j")),
    "branch defines twice": lambda m: ed.AddNode(m.main, if_node("i = Neg(x) i = Abs(x)", "i")),
    "branch goes in circles": lambda m: ed.AddNode(m.main, if_node("i = Neg(j) j = Abs(i)", "i")),
    "graph as an attribute": lambda m: ed.SetAttribute(
        node_at(m, "a"), "g", helper.make_attribute("g", helper.make_graph([], "g", [], []))
    ),
}  # fmt: skip


def if_node(body: str, result: str) -> NodeProto:
    """A node ``new`` with one branch of these nodes that returns ``result``."""
    return parser.parse_node(f"new = If (c) <then_branch = t () => (float[N] {result}) {{ {body} }}>")


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_harm_is_refused(make: Callable[[Model], ed.Edit]) -> None:
    model = Model(chain())
    before = model.proto.SerializeToString(deterministic=True)
    with pytest.raises(EditError):
        commit(model, [[make(model)]])
    assert model.proto.SerializeToString(deterministic=True) == before
    assert_links(model)


def test_touched_nodes_are_marked_from_ir_10_on() -> None:
    for ir_version, wanted in ((10, [{}, {"onnxfix": "TST001,TST002"}]), (9, [{}, {}])):
        proto = proto_of("g (float[N] x) => (float[N] y) { a = Neg(x) y = Abs(a) }")
        proto.ir_version = ir_version
        model = Model(proto)
        for code in ("TST002", "TST001", "TST001"):
            commit(model, [[ed.RenameNode(node_at(model, "y"), code)]], code)
        marks = [{p.key: p.value for p in node.metadata_props} for node in proto.graph.node]
        assert marks == wanted


def test_constants_in_functions_and_old_models_are_nodes() -> None:
    text = """g (float[N] x) => (float[N] y) { y = my.f(x) }
    <opset_import: ["" : 18], domain: "my"> f (x) => (y) { y = Neg(x) }"""
    model = Model(models.model(text, 18, domains={"my": 1}))
    draft = Draft(next(n for n in model.nodes() if n.op_type == "Neg"))
    draft.set_input(draft.anchor, 0, draft.constant(np.ones(1, np.float32)))
    commit(model, [draft.edits])
    assert [n.op_type for n in model.functions[0].nodes] == ["Constant", "Neg"]
    old = proto_of("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    old.ir_version = 3
    model = Model(old)
    draft = Draft(node_at(model, "y"))
    draft.set_input(draft.anchor, 0, draft.constant(np.ones(1, np.float32)))
    commit(model, [draft.edits])
    assert [n.op_type for n in old.graph.node] == ["Constant", "Neg"]


def test_sorting_moves_only_what_must_move() -> None:
    model = Model(
        proto_of("g (float[N] x) => (float[N] y) { c = Neg(b) a = Abs(x) b = Exp(a) y = Add(c, a) }")
    )
    commit(model, [[ed.SortNodes(model.main)]])
    assert [n.output[0] for n in model.proto.graph.node] == ["a", "b", "c", "y"]
    onnx.checker.check_model(model.proto)


def test_value_info_of_removed_values_goes_and_of_others_stays() -> None:
    proto = onnx.shape_inference.infer_shapes(proto_of(CHAIN))
    assert {info.name for info in proto.graph.value_info} >= {"a", "b", "d"}
    model = Model(proto)
    commit(model, [bypass_b(model)])
    assert "b" not in {info.name for info in proto.graph.value_info}
    assert {info.name for info in proto.graph.value_info} >= {"a", "d"}


def test_a_loop_keeps_the_place_of_a_condition_that_is_left_out() -> None:
    """It has at least two inputs; any other operator's left-out ones go from the end of the list."""
    model = Model(
        proto_of(
            """g (float[2] x, int64 n, bool c, float m) => (float[K,2] y, float[2] z) {
            y = Loop(n, c)<body = b (int64 i, bool on) => (bool more, float[2] w) { more = Identity(on)  w = Neg(x) }>
            z = Clip(x, , m) }"""
        )
    )
    commit(model, [[ed.SetInput(node_at(model, "y"), 1, ""), ed.SetInput(node_at(model, "z"), 2, "")]])
    assert list(node_at(model, "y").proto.input) == ["n", ""]
    assert list(node_at(model, "z").proto.input) == ["x"]
    assert_links(model)
    onnx.checker.check_model(model.proto, full_check=True)


def test_what_a_constant_was_is_not_remembered_when_it_is_another_or_none() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) {
        c = Constant<value = float[2] {1, 2}>()  y = Add(x, c)  z = Mul(x, c) }"""
    seven = helper.make_attribute("value", helper.make_tensor("t", TensorProto.FLOAT, [2], [7.0, 8.0]))
    model = Model(proto_of(text))
    value, node = model.main.values["c"], model.main.nodes[0]
    assert value.constant().tolist() == [1, 2]  # type: ignore[union-attr]
    commit(model, [[ed.SetAttribute(node, "value", seven)]])
    assert value.constant().tolist() == [7, 8]  # type: ignore[union-attr]
    neg = ed.AddNode(model.main, helper.make_node("Neg", ["x"], ["c"]), node)
    with pytest.raises(EditError):
        commit(model, [[ed.RemoveNode(node), neg, ed.SetInput(model.main.nodes[1], 0, "nowhere")]])
    assert value.constant().tolist() == [7, 8]  # type: ignore[union-attr]
    commit(model, [[ed.RemoveNode(node), neg]])
    assert model.main.values["c"] is value
    assert value.constant() is None


@pytest.mark.parametrize("name", [None, "", "first"])
def test_a_replaced_node_keeps_its_name_or_has_none(name: str | None) -> None:
    """A node without a name is not written with an empty one: the file would differ where nothing was asked for."""
    proto = models.model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    if name is not None:
        proto.graph.node[0].name = name
    before = proto.SerializeToString(deterministic=True)
    model = Model(proto)
    (node,) = model.main.nodes
    draft = Draft(node)
    draft.replace_node(node)
    commit(model, [draft.edits])
    assert proto.SerializeToString(deterministic=True) == before
