"""Edits that bring graphs with them: in several rounds, several in one round, and on random nested graphs. Fixes
whose edits are made when they are wanted: seldom, of what is still there, and as they would have been early.

Costs are counted in calls, and compared between two sizes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, parser

from onnxfix.errors import EditError, ShadowedError
from onnxfix.files import walk
from onnxfix.files.walk import copied
from onnxfix.graph.overlay import Node, Scope
from onnxfix.model import Model
from onnxfix.rewrite import edits as ed
from onnxfix.rewrite import engine
from onnxfix.rewrite.changes import footprint
from onnxfix.rewrite.edits import AddInitializer, AddNode, Draft, Edit
from onnxfix.rewrite.engine import fix
from onnxfix.rewrite.registry import registry
from onnxfix.rewrite.transaction import Transaction, commit
from onnxfix.rule import Fix, Match, Rule, Safety, rule
from onnxfix.verbs import contract
from support import nested_models
from support.lanes import seeds
from support.nested_models import BRANCHES, RandomIfs, text, told
from support.overlay_links import CHAIN, assert_links, node_at, proto_of
from support.toy_rules import writes
from test_edits import add_branches

HIDING = """g (float[N] x, bool c) => (float[N] y) { a = Neg(x)  y = If (c) <
    then_branch = t () => (float[N] a) { a = Abs(x) }, else_branch = e () => (float[N] q) { q = Exp(x) }> }"""


def copy_of(node: Node) -> NodeProto:
    proto = walk.copied(node.proto)
    return proto


def test_what_came_with_a_node_is_edited_and_removed_in_later_rounds() -> None:
    model = Model(proto_of(CHAIN))
    commit(model, [add_branches(model)], "TST001")
    inner = node_at(model, "n11")
    assert inner.place == "n1.then_branch / n2.body / n11"
    assert [use.node.first_output for use in model.main.values["w"].uses] == ["d", "n11"]
    assert model.main.values["b"].pinned
    draft = Draft(inner)
    draft.set_input(inner, 1, draft.add("Neg", ["n3"]))
    draft.edits.append(ed.SetOutput(node_at(model, "n5"), 0, "n5 renamed"))
    commit(model, [draft.edits], "TST002")
    assert [node.proto.op_type for node in inner.scope.nodes] == ["Identity", "Neg", "Mul", "Sub"]
    assert_links(model)
    d = node_at(model, "d")
    commit(model, [[ed.SetInput(d, 0, "b")]])
    assert [node.op_type for node in model.main.nodes] == ["Neg", "Abs", "Mul", "If"]
    assert not model.main.values["b"].pinned
    assert_links(model)


def test_names_that_came_with_a_node_are_taken() -> None:
    model = Model(proto_of(CHAIN))
    commit(model, [add_branches(model)])
    for edit in (
        ed.AddNode(model.main, parser.parse_node("n11 = Neg(x)")),
        ed.AddInitializer(model.main, helper.make_tensor("n11", 1, [1], [0.0])),
    ):
        with pytest.raises(EditError):
            commit(model, [[edit]])
    commit(model, [[ed.AddNode(node_at(model, "p").scope, parser.parse_node("n11 = Neg(x)"))]])
    assert_links(model)


def test_fixes_of_one_round_do_not_hide_each_other_s_names() -> None:
    for order in ((0, 1), (1, 0)):
        model = Model(proto_of(CHAIN))
        transaction = Transaction(model)
        branch = node_at(model, "p").scope
        inner = parser.parse_node("u = If (c) <then_branch = t () => (float[N] new) { new = Neg(x) }>")
        edits = [ed.AddNode(branch, inner), ed.AddNode(model.main, parser.parse_node("new = Neg(x)"))]
        transaction.apply([edits[order[0]]])
        with pytest.raises(EditError):
            transaction.apply([edits[order[1]]])
        transaction.close()
        assert_links(model)


def test_a_body_that_hides_a_value_is_not_moved() -> None:
    model = Model(proto_of(HIDING))
    y = node_at(model, "y")
    before = model.proto.SerializeToString(deterministic=True)
    with pytest.raises(ShadowedError):
        commit(model, [[ed.RemoveNode(y), ed.AddNode(model.main, copied(y.proto))]])
    assert model.proto.SerializeToString(deterministic=True) == before
    assert_links(model)


def test_a_branch_does_not_capture_what_goes_in_the_same_fix() -> None:
    model = Model(proto_of("g (float[N] x, bool c) => (float[N] y) { a = Neg(x) y = Abs(x) }"))
    a = node_at(model, "a")
    for body, result in (("i = Neg(a)", "i"), ("", "a")):
        node = parser.parse_node(f"n = If (c) <then_branch = t () => (float[N] {result}) {{ {body} }}>")
        with pytest.raises(EditError):
            commit(model, [[ed.RemoveNode(a), ed.AddNode(model.main, node)]])
        assert_links(model)


def test_a_removed_branch_gives_up_each_value_once() -> None:
    """A branch that returns a value goes, then the branch around it, in one round; another one still returns it."""
    text = """g (float[N] x, bool c) => (float[N] y) { a = Neg(x)
        k = If (c) <then_branch = t () => (float[N] s) {
            l = If (c) <then_branch = t2 () => (float[N] a) { }, else_branch = e2 () => (float[N] u) { u = Exp(x) }>
            s = Abs(x) }, else_branch = e () => (float[N] r) { r = Exp(x) }>
        y = If (c) <then_branch = t3 () => (float[N] a) { }, else_branch = e3 () => (float[N] v) { v = Exp(x) }> }"""
    model = Model(proto_of(text))
    commit(model, [[ed.RemoveNode(node_at(model, "l"))], [ed.RemoveNode(node_at(model, "k"))]])
    assert model.main.values["a"].pinned
    assert_links(model)


def test_what_was_added_in_a_round_goes_with_what_holds_it() -> None:
    model = Model(proto_of(CHAIN))
    branch = node_at(model, "p").scope
    node = parser.parse_node("""n = If (c) <then_branch = t () => (float[N] a) { },
        else_branch = e () => (float[N] m) { m = Neg(b) }>""")
    transaction = Transaction(model)
    transaction.apply([ed.AddNode(branch, node)])
    y = node_at(model, "y")
    new = parser.parse_node("y = Identity(x)")
    transaction.apply([ed.RemoveNode(y), ed.AddNode(model.main, new)])
    transaction.close()
    assert [node.op_type for node in model.main.nodes] == ["Identity"]
    assert_links(model)
    original = proto_of(CHAIN)
    assert not contract.untouched_changes(original, model.proto, transaction.names)


@pytest.mark.parametrize("way", ["an input is set", "a node is added"])
def test_a_body_that_is_copied_keeps_what_another_fix_of_the_round_did_in_it(way: str) -> None:
    """The copy was made before: it waits a round, or the other fix would be carried out in vain."""

    @rule("TST001", per="scope")
    def inside(scope: Scope, model: Model) -> Iterator[Match]:
        if scope.attr != "then_branch" or model.main.values["a"].uses:
            return
        edit: ed.Edit = ed.SetInput(scope.nodes[0], 0, "a")
        if way == "a node is added":
            edit = ed.AddNode(scope, parser.parse_node("new = Neg(a)"))
        yield Match("", scope=scope, fix=Fix(way, [edit]))

    @rule("TST002", ops=["If"])
    def whole(node: Node, model: Model) -> Iterator[Match]:
        if not node.name:
            moved = copied(node.proto)
            moved.name = "moved"
            yield Match("", node=node, fix=Fix("move", [ed.RemoveNode(node), ed.AddNode(node.scope, moved)]))

    text = """g (float[N] x, bool c) => (float[N] y) { a = Neg(x)  y = If (c) <
        then_branch = t () => (float[N] p) { p = Exp(x) }, else_branch = e () => (float[N] q) { q = Abs(x) }> }"""
    model = Model(proto_of(text))
    run = engine.fix(model, [inside, whole])
    assert [item.key.code for item in run.applied] == ["TST001", "TST002"]
    assert not run.problems
    assert [use.node.scope.path for use in model.main.values["a"].uses] == ["moved.then_branch"]
    assert_links(model)


# ------------------------------------------------------------------------------------------- random graphs


def seen_before(node: Node) -> list[str]:
    """The values that may be read where ``node`` stands."""
    names: list[str] = []
    scope, at = node.scope, node
    while True:
        names += [v.name for v in scope.values.values() if v.producer is None and v.name != "c"]
        for other in scope.nodes:
            if other is at:
                break
            names += [v.name for v in other.outputs if v is not None]
        if scope.parent is None or scope.owner is None:
            return names
        scope, at = scope.parent, scope.owner


def random_fix(model: Model, rng: random.Random, number: int) -> list[ed.Edit]:
    """A change that leaves an acyclic graph, if it is carried out."""
    node = rng.choice(list(model.nodes()))
    known = seen_before(node)
    output = node.outputs[0]
    assert output is not None
    kind = rng.choice(["move", "wrap", "inside", "replace", "rename", "remove"])
    if kind == "move":
        return [ed.RemoveNode(node), ed.AddNode(node.scope, copied(node.proto), node)]
    if kind in ("wrap", "inside"):
        maker = RandomIfs(rng)
        maker.count = 1000 * (number + 1)
        depth = 2 if kind == "wrap" else 1
        branches: dict[str, Any] = {k: maker.graph(known, depth) for k in ("then_branch", "else_branch")}
        new = helper.make_node("If", ["c"], [maker.name()], **branches)
        edits: list[ed.Edit] = [ed.AddNode(node.scope, new, node)]
        if node.op_type != "If":
            edits.append(ed.SetInput(node, 0, new.output[0]))
        return edits
    if kind == "replace":
        return [ed.ReplaceUses(output, rng.choice(known))]
    if kind == "rename" and node.op_type != "If":  # a scope is called after the If that it was read with
        return [ed.SetOutput(node, 0, f"renamed {number} {rng.random()}")]
    return [ed.RemoveNode(node)]


def broken(scope: Scope) -> ed.Edit:
    return ed.AddNode(scope, NodeProto(op_type="Neg", input=["no such value"], output=["never"]))


@pytest.mark.parametrize("seed", seeds(150))
def test_random_edits_of_nested_graphs_leave_true_links(seed: int) -> None:
    """Rounds of fixes, some of them refused half way: the links are those of the graph, and the graph is valid."""
    rng = random.Random(seed)
    model = Model(RandomIfs(rng).model())
    for number in range(4):
        transaction = Transaction(model)
        original = walk.copied(model.proto)
        written: set[object] = set()
        for edits in [random_fix(model, rng, 10 * number + turn) for turn in range(4)]:
            changes = footprint.touched(edits) | footprint.rewired(edits)
            if not written.isdisjoint(changes):
                continue  # as the engine has it
            written |= changes
            try:
                transaction.apply([*edits, broken(model.main)] if rng.random() < 0.3 else edits)
            except EditError:
                continue
        transaction.close()
        assert_links(model)
        assert all(scope.topological() == scope.nodes for scope in model.scopes)
        assert not contract.untouched_changes(original, model.proto, transaction.names)


NAMESAKE = """<ir_version: 10, opset_import: ["" : 21]>
g (uint8[2] x, bool k) => (float[2] y) { f = Cast <to = 1> (x)  y = Neg (f) }
<domain: "", opset_import: ["" : 17]> Cast (a) => (b) { b = Expand <to = 9> (a) }"""


@pytest.mark.parametrize(
    "text",
    [
        "n = Cast <to = 7> (x)",
        "n = If (k) <then_branch = t () => (u) { u = Cast <to = 7> (x) }, else_branch = e () => (v) { v = Neg (x) }>",
    ],
)
def test_a_new_node_calls_no_function_of_the_model(text: str) -> None:
    """A rule that adds a Cast means ONNX's: here it would be a call, exact on paper only."""
    model = Model(parser.parse_model(NAMESAKE))
    before = model.proto.SerializeToString()
    with pytest.raises(ShadowedError, match="Cast is a local function"):
        commit(model, [[ed.AddNode(model.main, parser.parse_node(text))]])
    assert model.proto.SerializeToString() == before
    assert_links(model)
    commit(model, [[ed.AddNode(model.main, parser.parse_node(text.replace("Cast <to = 7>", "Abs")))]])
    assert_links(model)


def test_rules_do_not_chase_a_function_that_is_called_like_an_operator() -> None:
    run = engine.fix(Model(parser.parse_model(NAMESAKE)), registry().rules)
    assert run.rounds < 4
    assert run.problems == ()


def late(made: list[str], fault: type[Exception] | None = None, code: str = "TST103") -> Rule:
    @rule(code, ops=["If", "Neg"], safety=Safety.EXACT)
    def writes(node: Node, model: Model) -> Iterator[Match]:
        """Anything, of which an Exp is made."""

        def edits() -> list[Edit]:
            made.append(node.first_output)
            if fault is not None:
                raise fault("no edits")
            draft = Draft(node)
            draft.remove(node)
            name = draft.add("Exp", [model.main.inputs[0]], hint="e")
            draft.add("Abs", [name], output=node.first_output)
            return draft.edits

        yield Match("here", node=node, fix=Fix("write Exp", edits, replaces=node))

    return writes


def test_edits_are_not_made_of_what_another_fix_of_the_round_changed() -> None:
    """What is copied is in the middle of an edit then: nodes are listed here and not yet there."""

    @rule("AAA001", ops=["Neg"], safety=Safety.EXACT)
    def adds(node: Node, model: Model) -> Iterator[Match]:
        """A Neg, deep inside, which becomes a product."""
        draft = Draft(node)
        draft.remove(node)
        draft.add("Mul", [node.input(0), draft.constant(np.float32(-1.0))], output=node.first_output)
        yield Match("a Neg", node=node, fix=Fix("write Mul", draft.edits))

    run = fix(Model(told(3)), [adds, registry().get("CTL010")])
    assert run.problems == ()
    assert [(item.key.code, item.round) for item in run.applied] == [
        *(("AAA001", 1) for _ in range(3)),
        *(("CTL010", number) for number in (2, 3, 4)),
    ]


def test_a_rule_that_fails_as_it_makes_edits_is_reported_and_the_others_go_on() -> None:
    model = Model(text(nested_models.CHAIN))
    run = fix(model, [late([], ZeroDivisionError, "TST100"), writes("TST102", "Neg", "Abs")])
    assert [str(one) for one in run.problems] == ["rule TST100 failed at b: ZeroDivisionError: no edits"]
    assert [item.key.code for item in run.applied] == ["TST102"]


def test_edits_that_are_made_late_have_the_names_that_they_had_early() -> None:
    """Values in branches beside each other may have one name: a fix does not see those of its round."""
    body = """g (float[N] x, bool c) => (float[N] y) {
        y = If(c)<then_branch = p () => (float[N] u) { r = Neg(x)  u = Exp(r) },
                  else_branch = q () => (float[N] v) { r = Neg(x)  v = Abs(r) }> }"""
    one = replace(late([]), ops=(("", "Neg"),))
    model = Model(text(body))
    run = fix(model, [one])
    assert run.rounds == 2
    assert [[node.first_output for node in scope.nodes] for scope in model.scopes[1:]] == [
        ["r_e", "r", "u"],
        ["r_e", "r", "v"],
    ]
    assert "r_e" in model.names


def test_fixes_that_are_written_one_after_the_other_have_names_of_their_own() -> None:
    """Who commits fixes as they come may write each when those before it are done."""
    model = Model(text(nested_models.CHAIN))
    node = model.main.nodes[1]

    def fixes() -> Iterator[list[Edit]]:
        for _ in range(3):
            draft = Draft(node)
            draft.set_input(node, 0, draft.add("Tanh", [node.input(0)]))
            yield draft.edits

    commit(model, fixes())
    assert [one.first_output for one in model.main.nodes][1:4] == ["b_tanh", "b_tanh_2", "b_tanh_3"]


def test_a_fix_that_is_refused_leaves_nothing_behind_for_the_next() -> None:
    """Fixes of one round may copy what others were refused for: not even at the end of a list something stays."""
    proto = text(BRANCHES)
    model = Model(proto)
    branch = model.scopes[1]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    before = proto.SerializeToString()
    transaction = Transaction(model)
    with pytest.raises(EditError):
        transaction.apply(
            [
                AddInitializer(branch, weight),
                AddNode(branch, helper.make_node("Add", ["a", "w"], ["s"])),
                AddNode(branch, helper.make_node("Add", ["nowhere", "w"], ["t"])),
            ]
        )
    assert proto.SerializeToString() == before
    transaction.apply(
        [AddInitializer(branch, weight), AddNode(branch, helper.make_node("Add", ["a", "w"], ["s"]))]
    )
    transaction.close()
    assert [node.output[0] for node in branch.proto.node] == ["u", "s"]  # type: ignore[union-attr]
    assert [tensor.name for tensor in branch.proto.initializer] == ["w"]  # type: ignore[union-attr]


def test_a_body_with_a_cycle_by_way_of_what_it_holds_is_refused() -> None:
    model = Model(text("g (float[N] x, bool c) => (float[N] y) { y = Exp(x) }"))
    body = text(
        """g (float[N] x, bool c) => (float[N] o) {
        o = If(c)<then_branch = p () => (float[N] u) { a = Neg(x)
            b = If(c)<then_branch = p1 () => (float[N] u1) { u1 = Neg(x) },
                      else_branch = q1 () => (float[N] v1) { v1 = Abs(x) }>  u = Add(a, b) },
                  else_branch = q () => (float[N] v) { v = Abs(x) }> }"""
    ).graph.node[0]
    outer = body.attribute[0].g
    outer.node[0].input[0] = "b"  # a needs b, and b's branch needs a
    outer.node[1].attribute[0].g.node[0].input[0] = "a"
    with pytest.raises(EditError, match="cycle"):
        commit(model, [[AddNode(model.main, body)]])
    assert [node.op_type for node in model.main.nodes] == ["Exp"]
