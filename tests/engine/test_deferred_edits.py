"""Fixes whose edits are made when they are wanted: seldom, of what is still there, and as they would have been early.

Costs are counted in calls, and compared between two sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxfix.errors import EditError
from onnxfix.graph.overlay import Node
from onnxfix.model import Model
from onnxfix.rewrite import transaction as commit
from onnxfix.rewrite.edits import AddInitializer, AddNode, Draft, Edit
from onnxfix.rewrite.engine import fix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Fix, Match, Rule, Safety, rule
from support.nested_models import BRANCHES, CHAIN, text, told
from support.toy_rules import writes


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
    model = Model(text(CHAIN))
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
    model = Model(text(CHAIN))
    node = model.main.nodes[1]

    def fixes() -> Iterator[list[Edit]]:
        for _ in range(3):
            draft = Draft(node)
            draft.set_input(node, 0, draft.add("Tanh", [node.input(0)]))
            yield draft.edits

    commit.commit(model, fixes())
    assert [one.first_output for one in model.main.nodes][1:4] == ["b_tanh", "b_tanh_2", "b_tanh_3"]


def test_a_fix_that_is_refused_leaves_nothing_behind_for_the_next() -> None:
    """Fixes of one round may copy what others were refused for: not even at the end of a list something stays."""
    proto = text(BRANCHES)
    model = Model(proto)
    branch = model.scopes[1]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    before = proto.SerializeToString()
    transaction = commit.Transaction(model)
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
        commit.commit(model, [[AddNode(model.main, body)]])
    assert [node.op_type for node in model.main.nodes] == ["Exp"]
