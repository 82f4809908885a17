"""What a check and a run cost, in calls and never in seconds: nothing is asked twice or grows faster than the model.

Each count is compared with what it should be or between two sizes; what is computed is the matter of other tests.
"""
# Long because: what is counted spans rules, rounds and edits, on models that all of them share.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto, helper

from onnxfix import engine
from onnxfix import transaction as commit
from onnxfix.changes import messages
from onnxfix.edits import AddNode, Draft, Edit, RemoveNode, SetInput, SetValueInfo
from onnxfix.engine import FixKey, check, fix
from onnxfix.graph.fingerprint import fingerprint
from onnxfix.graph.imported import imported, imported_nodes
from onnxfix.graph.overlay import Node
from onnxfix.graph.shared import Listing, elem_types, every_node, shared
from onnxfix.model import Model
from onnxfix.registry import BUILT_IN, registry, rules_of
from onnxfix.rule import Fix, Match, Per, Rule, Safety, rule
from onnxfix.testing import model_of, overlay
from onnxfix_rules.brc import _common as brc
from support.nested_models import BRANCHES, CHAIN, nested, text
from support.paths import ROOT

FIXTURES = sorted((ROOT / "fixtures").glob("*.onnx"))


def chain(count: int) -> ModelProto:
    """``count`` Adds of one constant of a lower rank: each is a finding of BRC001."""
    adds = "  ".join(f"v{i + 1} = Add(v{i}, w)" for i in range(count))
    return text(f"g (float[N,4] v0) => (float[N,4] v{count}) <float[4] w = {{1,2,3,4}}> {{ {adds} }}")


# -- what is worked out once ------------------------------------------------------------------------------------------


def test_what_is_shared_is_made_once_for_each_state_of_the_model() -> None:
    model = Model(text(CHAIN))
    made: list[int] = []

    def count_nodes(of: Model) -> int:
        made.append(of.node_count)
        return of.node_count

    assert [shared(model, count_nodes) for _ in range(3)] == [5, 5, 5]
    assert made == [5]
    exp = model.main.nodes[0]
    draft = Draft(exp)
    draft.bypass(exp, model.main.inputs[0])
    commit.commit(model, [draft.edits])
    assert shared(model, count_nodes) == 4
    assert made == [5, 4]


def test_what_cannot_be_made_is_asked_for_again_and_not_kept() -> None:
    model = Model(text(CHAIN))

    def fails(of: Model) -> int:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            shared(model, fails)


def test_a_listing_gives_nodes_of_several_operators_in_order_and_asks_once_for_each_operator() -> None:
    model = Model(text(CHAIN))
    asked: Counter[tuple[str, str]] = Counter()

    def wanted(operator: tuple[str, str]) -> bool:
        asked[operator] += 1
        return operator[1] in ("Exp", "Abs")

    listing = every_node(model)
    assert [node.first_output for node in listing.of(wanted)] == ["a", "c", "d", "y"]
    assert asked == {("", "Exp"): 1, ("", "Neg"): 1, ("", "Abs"): 1}
    assert [node.first_output for node in listing.of(lambda operator: operator[1] == "Exp")] == [
        "a",
        "c",
        "y",
    ]
    assert listing.of(lambda operator: False) == []
    assert list(listing) == list(model.nodes())
    assert Listing([]).of(lambda operator: True) == []


def test_what_the_parser_imports_is_listed_once_for_all_rules() -> None:
    model = Model(text(BRANCHES))
    listing = imported(model)
    assert imported(model) is listing
    assert [node.first_output for node in listing] == ["a", "y", "b", "v", "u"]
    assert imported_nodes(model) == set(model.nodes())


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


@pytest.mark.parametrize("count", [20, 200])
def test_broadcasts_of_one_form_are_judged_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = []
    made = brc.Form.__init__
    monkeypatch.setattr(brc.Form, "__init__", lambda self, operands: forms.append(made(self, operands)))
    model = Model(chain(count))
    model.target = overlay(model.proto).target
    found = check(model, [rule for rule in registry().rules if rule.code.startswith("BRC")])
    assert Counter(item.rule.code for item in found)["BRC001"] == count
    assert len(forms) == 1


@pytest.mark.parametrize("count", [20, 200])
def test_operands_are_listed_where_a_form_says_something(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each form, and for each node only where there is something to say of its broadcast."""
    listed = []
    real = brc._operands
    monkeypatch.setattr(brc, "_operands", lambda *call: listed.append(call) or real(*call))
    body = "  ".join(f"v{i + 1} = Add(v{i}, v{i // 2})" for i in range(count))
    model = Model(text(f"g (float[N,4] v0) => (float[N,4] v{count}) {{ {body} }}"))
    model.target = overlay(model.proto).target
    assert not check(model, [rule for rule in registry().choose() if rule.code.startswith("BRC")])
    assert len(listed) == 1


# -- who is asked -----------------------------------------------------------------------------------------------------


def counted(asked: list[str], types: tuple[int, ...] = (), ops: tuple[str, ...] = ("Neg", "Abs")) -> Rule:
    @rule("TST100", ops=ops, types=types)
    def asks(node: Node, model: Model) -> Iterator[Match]:
        """Notes where it is asked."""
        asked.append(node.first_output)
        yield Match("here", node=node)

    return asks


def test_a_rule_is_asked_about_its_operators_alone_in_the_order_of_the_nodes() -> None:
    asked: list[str] = []
    found = check(Model(text(CHAIN)), [counted(asked)])
    assert asked == ["b", "d"]
    assert [item.match.place.text for item in found] == ["b", "d"]


@pytest.mark.parametrize(
    ("types", "wanted"),
    [((), ["b", "d"]), ((TensorProto.FLOAT, 99), ["b", "d"]), ((TensorProto.FLOAT16,), [])],
)
def test_a_rule_about_types_that_are_not_there_is_not_asked(
    types: tuple[int, ...], wanted: list[str]
) -> None:
    asked: list[str] = []
    assert len(check(Model(text(CHAIN)), [counted(asked, types)])) == len(wanted)
    assert asked == wanted


@pytest.mark.parametrize("per", ["scope", "model"])
def test_so_it_is_of_rules_about_more_than_nodes(per: Per) -> None:
    asked: list[object] = []

    def asks(*given: object) -> Iterator[Match]:
        """Notes that it is asked."""
        asked.append(given)
        yield Match("here")

    for types, wanted in (((), 1), ((TensorProto.FLOAT, 99), 1), ((TensorProto.FLOAT16,), 0)):
        asked.clear()
        assert len(check(Model(text(CHAIN)), [rule("TST102", per=per, types=types)(asks)])) == wanted
        assert len(asked) == wanted


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


@rule("TST102", ops=["Neg"], safety=Safety.EXACT)
def neg_to_abs(node: Node, model: Model) -> Iterator[Match]:
    """Neg, of which two that stand one behind the other cannot go in one round."""
    draft = Draft(node)
    draft.remove(node)
    draft.add("Abs", [node.input(0)], output=node.first_output)
    yield Match("a Neg", node=node, fix=Fix("write Abs", draft.edits))


def test_leave_is_asked_for_fixes_that_would_be_applied_and_no_others() -> None:
    """A key holds a place, which is written for nobody where the fix has to wait anyhow."""
    asked: list[FixKey] = []
    model = Model(text("g (float[N] x) => (float[N] y) { a = Neg(x)  b = Neg(a)  y = Neg(b) }"))
    run = fix(model, [neg_to_abs], allow=lambda key: asked.append(key) or key.place.text != "b")
    assert [item.key.place.text for item in run.applied] == ["a", "y"]
    assert len(asked) <= run.rounds + len(run.applied)
    assert [item.match.place.text for item in run.remaining] == ["b"]


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


@pytest.mark.parametrize("count", [3, 30])
def test_taking_back_a_declaration_does_not_look_at_the_others(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    real = messages.remove_where
    monkeypatch.setattr(messages, "remove_where", lambda *args: looked.append(real(*args)))
    proto = text(CHAIN)
    model = Model(proto)
    kind = TypeProto(tensor_type=TypeProto.Tensor(elem_type=1))
    transaction = commit.Transaction(model)
    before = proto.SerializeToString()
    for _ in range(count):
        edits: list[Edit] = [
            SetValueInfo(model.main, name, ValueInfoProto(name=name, type=kind)) for name in ("a", "b")
        ]
        with pytest.raises(commit.EditError):
            transaction.apply([*edits, SetInput(model.main.nodes[1], 0, "nowhere")])
        assert proto.SerializeToString() == before
    assert not looked
    transaction.apply([SetValueInfo(model.main, "a", ValueInfoProto(name="a", type=kind))])
    transaction.close()
    assert [info.name for info in proto.graph.value_info] == ["a"]


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
