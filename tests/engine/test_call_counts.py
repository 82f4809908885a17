"""What a check and a run cost, in calls and never in seconds: nothing is asked twice or grows faster than the model.

Each count is compared with what it should be or between two sizes; what is computed is the matter of other tests.
"""
# Long because: what is counted spans rules, rounds and edits, on models that all of them share.

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto, helper

from onnxfix.graph.fingerprint import fingerprint
from onnxfix.graph.overlay import Node
from onnxfix.graph.shared import elem_types, every_node
from onnxfix.model import Model
from onnxfix.rewrite import engine
from onnxfix.rewrite import transaction as commit
from onnxfix.rewrite.edits import AddNode, RemoveNode, SetInput, SetValueInfo
from onnxfix.rewrite.engine import check, fix
from onnxfix.rewrite.registry import BUILT_IN, registry, rules_of
from onnxfix.rule import Rule, Safety
from onnxfix.testing import model_of, overlay
from support.nested_models import CHAIN, nested, text
from support.paths import ROOT

FIXTURES = sorted((ROOT / "fixtures").glob("*.onnx"))


# -- what is worked out once ------------------------------------------------------------------------------------------


def test_element_types_are_those_of_all_scopes_and_those_that_casts_ask_for() -> None:
    body = """g (float[N] x, bool c) => (float[N] y) { i = Cast<to = 7>(x)
        y = If(c)<then_branch = p () => (float[N] u) { h = Cast<to = 10>(x)  u = Cast<to = 1>(h) },
                  else_branch = q () => (float[N] v) { v = Cast<to = 1>(i) }> }"""
    types = elem_types(Model(text(body)))
    assert types == {TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64, TensorProto.FLOAT16}
    deep = nested(80)  # deeper than shapes are followed
    graph = deep.graph
    while graph.node[0].op_type == "If":
        graph = graph.node[0].attribute[1].g
    graph.node[0].CopyFrom(helper.make_node("Cast", ["x"], graph.node[0].output, to=TensorProto.INT8))
    model = Model(deep)
    assert {model.shapes.elem_type(value) for node in model.nodes() for value in node.outputs} == {None, 1}
    assert TensorProto.INT8 in elem_types(model)


# -- who is asked -----------------------------------------------------------------------------------------------------


def test_types_rule_out_nothing_that_a_built_in_rule_would_find() -> None:
    """The types that a rule names are for speed: without them it finds the same, on the examples of all rules."""
    rules = list(rules_of(BUILT_IN))
    typed = [one for one in rules if one.types]
    assert {one.code for one in typed} >= {
        "PRC003",
        "OPS032",
        "OPS054",
        "INT006",
        "QDQ012",
        "QDQ013",
        "IFC002",
        "IFC003",
    }
    untyped = [replace(one, types=()) for one in typed]
    ops = {operator for one in typed for operator in one.ops}
    seen = 0
    for family in rules:
        for example in family.examples[:: 1 if family.types else 3]:
            model = overlay(model_of(example), example.target)
            if family.types or not ops.isdisjoint(every_node(model).operators):
                seen += 1
                assert _said(model, typed) == _said(model, untyped), f"{family.code} ({example.why})"
    assert seen > 300


def _said(model: Model, rules: list[Rule]) -> list[tuple[str, str, str]]:
    return [(item.rule.code, item.match.place.text, item.match.message) for item in check(model, rules, [])]


# -- rounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: str(path.stem))
def test_fingerprints_kept_from_round_to_round_are_those_of_the_model(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []

    def compared(model: Model, digests: dict[Node, bytes]) -> bytes:
        kept = fingerprint(model, digests)
        assert kept == fingerprint(model, {})
        states.append(kept)
        return kept

    monkeypatch.setattr(engine, "fingerprint", compared)
    proto = ModelProto()
    proto.ParseFromString(path.read_bytes())
    model = Model(proto, path.parent)
    model.target = overlay(text(CHAIN)).target
    run = fix(model, registry().choose(), safety=Safety.UNSAFE)
    assert (
        len(set(states)) == run.rounds
    )  # the first state, and one after each round but the last, which does nothing


def test_fingerprints_see_every_kind_of_change() -> None:
    def mark(source: str) -> bytes:
        return fingerprint(Model(text(source)), {})

    base = "g (float[N] x) => (float[N] y) <float w = {1}> { a = Mul(x, w)  y = Elu<alpha = 1.0>(a) }"
    assert mark(base) == mark(base)
    for old, new in (
        ("alpha = 1.0", "alpha = 2.0"),
        ("Mul", "Add"),
        ("Mul(x, w)", "Mul(w, x)"),
        ("float w", "float v"),
        ("float w = {1}", "float[1] w = {1}"),
        ("<float w = {1}>", "<float w = {1}, float[N] a>"),
        ("a = Mul(x, w)", "[n] a = Mul(x, w)"),
    ):
        changed = base.replace(old, new).replace("(x, w)", "(x, v)" if new == "float v" else "(x, w)")
        assert mark(changed) != mark(base), new
    one, other = (f"g (float[N] x) => (float[N] y) {{ {nodes} y = Add(a, b) }}" for nodes in (
        "a = Exp(x)  b = Neg(x) ", "b = Neg(x)  a = Exp(x) "
    ))  # fmt: skip
    assert mark(one) != mark(other)


def test_fingerprints_see_what_a_node_with_a_body_says_itself() -> None:
    def mark(axis: int) -> bytes:
        body = "body = b (float a) => (float c) { c = Neg(a) }"
        scan = f"Scan<num_scan_inputs = 1, scan_input_axes = [{axis}], {body}>(x)"
        return fingerprint(Model(text(f"g (float[2] x) => (float[2] y) {{ y = {scan} }}")), {})

    assert mark(0) == mark(0) != mark(-1)


# -- edits ------------------------------------------------------------------------------------------------------------


def test_a_transaction_names_the_nodes_that_it_changed() -> None:
    model = Model(text(CHAIN))
    a, b, c, d, y = model.main.nodes
    transaction = commit.Transaction(model)
    transaction.apply([SetInput(c, 0, "a")])
    with pytest.raises(commit.EditError):
        transaction.apply([SetInput(d, 0, "nowhere")])
    transaction.apply([
        RemoveNode(y), AddNode(model.main, helper.make_node("Tanh", ["d"], ["y"]), y)
    ])  # fmt: skip
    transaction.close()
    assert {node.op_type for node in transaction.changed} == {"Exp", "Tanh"}
    assert c in transaction.changed
    assert transaction.changed.isdisjoint((a, b, d))


def test_a_transaction_names_the_values_whose_declaration_it_changed() -> None:
    model = Model(text(CHAIN))
    kind = TypeProto(tensor_type=TypeProto.Tensor(elem_type=1))
    transaction = commit.Transaction(model)
    with pytest.raises(commit.EditError):
        transaction.apply([
            SetValueInfo(model.main, "b", ValueInfoProto(name="b", type=kind)),
            SetInput(model.main.nodes[1], 0, "nowhere"),
        ])  # fmt: skip
    transaction.apply([SetValueInfo(model.main, "a", ValueInfoProto(name="a", type=kind))])
    transaction.close()
    assert transaction.names == {"a"}
