"""The engine with toy rules: rounds, overlap, fixpoint, determinism, failures of rules; one finding for one cause at
one node, whichever rules see it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.graph.overlay import Node, Scope
from onnxfix.graph.shared import fingerprint
from onnxfix.model import Model
from onnxfix.rewrite.edits import Draft, RenameNode, SetInput
from onnxfix.rewrite.engine import check, fix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Fix, Match, Safety, Severity, rule
from onnxfix.runtime.causes import Problem
from onnxfix.testing import fixed
from support.models import model, of_opset
from support.toy_rules import drops, writes

proto_of = of_opset(18, domains={"my": 1})


@rule("TST001", ops=["Neg"], safety=Safety.EXACT)
def double_negation(node: Node, model: Model) -> Iterator[Match]:
    """Neg of Neg."""
    source = node.input(0)
    if source is not None and source.producer is not None and source.producer.op_type == "Neg":
        inner = source.producer.input(0)
        assert inner is not None
        draft = Draft(node)
        draft.bypass(node, inner)
        yield Match("Neg of Neg", node=node, fix=Fix("drop both", draft.edits), reads=(source.producer,))


abs_to_relu, relu_to_abs = writes("TST002", "Abs", "Relu"), writes("TST003", "Relu", "Abs")


@rule("TST004", ops=["Exp"])
def raises(node: Node, model: Model) -> Iterator[Match]:
    """A rule with a fault."""
    raise ValueError("no\nluck")
    yield


@rule("TST005", ops=["Exp"])
def impossible(node: Node, model: Model) -> Iterator[Match]:
    """A rule whose fix cannot be carried out."""
    yield Match("bad", node=node, fix=Fix("point at nothing", [SetInput(node, 0, "nowhere")]))


@rule("TST006", ops=["Cast"])
def asks_for_to(node: Node, model: Model) -> Iterator[Match]:
    """Any Cast."""
    yield Match(f"to {node.attr('to')}", node=node)


@rule("TST007", per="scope")
def every_scope(scope: Scope, model: Model) -> Iterator[Match]:
    """Any scope."""
    yield Match(f"{len(scope.nodes)} nodes", scope=scope)


def negs(count: int) -> str:
    body = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(count))
    return f"g (float[N] v0) => (float[N] y) {{ {body} y = Identity(v{count}) }}"


def test_chain_shrinks_to_a_fixpoint_in_few_rounds() -> None:
    result, run = fixed([double_negation], proto_of(negs(64)))
    assert [n.op_type for n in result.graph.node] == ["Identity"]
    assert not run.problems
    assert run.rounds <= 8, "non-overlapping fixes must go together, or long chains take as many rounds"


def test_same_input_gives_same_bytes_and_twice_is_once() -> None:
    once, _ = fixed([double_negation], proto_of(negs(9)))
    again, _ = fixed([double_negation], proto_of(negs(9)))
    twice, run = fixed([double_negation], once)
    assert once.SerializeToString() == again.SerializeToString() == twice.SerializeToString()
    assert not run.applied


def test_fixes_are_named_by_the_places_that_check_names() -> None:
    """The first fix gives the If around the second one's node another output, within the same round."""
    text = """g (float[2] x, bool c) => (float[2] y) {
        i = If(c)<then_branch = t () => (float[2] r) { p = Cast<to = 1>(x)  r = Abs(p) },
                  else_branch = e () => (float[2] u) { u = Abs(x) }>
        y = Cast<to = 1>(i) }"""
    rules = registry().choose(["CST002"], None)
    found = [
        (one.match.place.text, str(one.match.place.around)) for one in check(Model(proto_of(text)), rules)
    ]
    run = fix(Model(proto_of(text)), rules)
    assert [one.round for one in run.applied] == [1, 1]
    assert [(one.key.place.text, str(one.key.place.around)) for one in run.applied] == found


def test_rules_that_undo_each_other_are_stopped_and_named() -> None:
    result, run = fixed([abs_to_relu, relu_to_abs], proto_of("g (float[N] x) => (float[N] y) { y = Abs(x) }"))
    assert any("TST002" in p.text or "TST003" in p.text for p in run.problems)
    assert run.rounds <= 3
    onnx.checker.check_model(result)


@rule("TST009", ops=["Add"])
def swap_inputs_of_a_producer(node: Node, model: Model) -> Iterator[Match]:
    """Adds Sub's operands the other way round, reading Sub as it stands."""
    source = node.input(0)
    if source is not None and source.producer is not None and source.producer.op_type == "Sub":
        draft = Draft(node)
        left, right = source.producer.inputs
        minus = draft.add("Neg", [draft.add("Sub", [right, left])])
        draft.set_input(node, 0, minus)
        yield Match("x", node=node, fix=Fix("negate", draft.edits), reads=(source.producer,))


@rule("TST010", ops=["Sub"])
def subtract_nothing(node: Node, model: Model) -> Iterator[Match]:
    """A Sub that does not read the graph's input twice."""
    if node.input(0) is not node.input(1):
        draft = Draft(node)
        draft.set_input(node, 1, node.input(0))
        yield Match("x", node=node, fix=Fix("x - x", draft.edits))


def test_fix_waits_for_one_that_changes_what_it_read() -> None:
    """Both fixes of one round would mix the Sub before with the Sub after; each on its own is what was asked for."""
    text = "g (float[N] x, float[N] z) => (float[N] y) { a = Sub(x, z) y = Add(a, x) }"
    result, run = fixed([swap_inputs_of_a_producer, subtract_nothing], proto_of(text))
    assert [item.round for item in run.applied[:2]] == [1, 2]
    assert not run.problems
    sub = next(n for n in result.graph.node if n.op_type == "Sub")
    assert len(set(sub.input)) == 1


def test_bound_on_rounds_is_reported() -> None:
    model = Model(proto_of(negs(64)))
    run = fix(model, [double_negation], max_rounds=1)
    assert run.problems
    assert "TST001" in run.problems[0].text


def test_rule_that_raises_does_not_stop_the_others() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Exp(x) b = Neg(a) y = Neg(b) }"
    result, run = fixed([raises, double_negation], proto_of(text))
    assert [str(one) for one in run.problems] == ["rule TST004 failed at a: ValueError: no luck"]
    assert len(run.applied) == 1
    assert len(result.graph.node) == 1


def test_fix_that_is_refused_is_a_problem_not_a_loop() -> None:
    _, run = fixed([impossible], proto_of("g (float[N] x) => (float[N] y) { y = Exp(x) }"))
    assert len(run.problems) == 1
    assert "nowhere" in run.problems[0].text
    assert not run.applied


def test_unknown_attribute_silences_a_rule() -> None:
    text = """g (float[N] x) => (float[N] y) { a = Cast<to = 1>(x) y = my.cast <to: int = 1> (a) }
    <opset_import: ["" : 18], domain: "my"> cast <to> (x) => (y) { y = Cast <to: int = @to> (x) }"""
    found = check(Model(proto_of(text)), [asks_for_to])
    assert [f.match.message for f in found] == ["to 1"]


def test_local_function_is_not_taken_for_the_operator_it_hides() -> None:
    text = """g (float[N] x) => (float[N] y) { a = Neg(x) y = Neg(a) }
    <opset_import: ["" : 18], domain: ""> Neg (x) => (y) { y = Abs(x) }"""
    assert not check(Model(proto_of(text)), [double_negation])


@pytest.mark.parametrize(
    "inner", ["<float[3] c = {10, 20, 30}> {", "<float[3] k = {10, 20, 30}> { c = Neg(k) "]
)
@pytest.mark.parametrize("outer", ["<float[3] c = {1, 2, 3}> {", "{ c = Exp(x)"])
def test_nothing_is_fixed_where_a_subgraph_hides_a_name(inner: str, outer: str) -> None:
    """ONNX's checker lets an initializer pass, and ONNX Runtime reads the outer c."""
    text = f"""g (float[2,3] x, bool b) => (float[2,3] y) {outer} y = If(b)<
        then_branch = t () => (float[2,3] u) {inner} u = Add(x, c) }},
        else_branch = e () => (float[2,3] v) <float[3] d = {{4, 5, 6}}> {{ v = Mul(x, d) }}> }}"""
    after, run = fixed(registry().rules, proto_of(text))
    assert "'c' in y.then_branch hides the value of that name" in run.problems[0].text
    assert after == proto_of(text)
    assert fixed(registry().rules, proto_of(text.replace(outer, outer.replace("c =", "o ="))))[1].applied


def test_other_domain_is_not_taken_for_onnx() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Neg(x) y = my.Neg(a) }"
    assert not check(Model(proto_of(text)), [double_negation])


def test_findings_come_by_code_then_by_place() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Cast<to = 1>(x) b = Neg(a) c = Neg(b) y = Cast<to = 1>(c) }"
    found = check(Model(proto_of(text)), [every_scope, asks_for_to, double_negation])
    assert [(f.rule.code, f.match.place.text) for f in found] == [
        ("TST001", "c"),
        ("TST006", "a"),
        ("TST006", "y"),
        ("TST007", "the graph"),
    ]


def test_safety_level_is_respected() -> None:
    unsafe = writes("TST008", "Neg", "Abs", Safety.UNSAFE)
    proto = proto_of("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    for level, count in ((Safety.EXACT, 0), (Safety.NUMERIC, 0), (Safety.UNSAFE, 1)):
        assert len(fixed([unsafe], proto, safety=level)[1].applied) == count


def test_allow_withholds_a_fix_by_its_key() -> None:
    model = Model(proto_of(negs(4)))
    keys = [item.key for item in fix(Model(proto_of(negs(4))), [double_negation]).applied]
    run = fix(model, [double_negation], allow=lambda key: key != keys[0])
    assert keys[0] not in [item.key for item in run.applied]
    assert run.applied


def test_touched_names_cover_every_difference() -> None:
    from onnxfix.verbs.contract import untouched_changes

    before = proto_of(negs(9))
    result, run = fixed([double_negation], before)
    assert untouched_changes(before, result, run.touched) == []
    assert untouched_changes(before, result, set()) != []
    assert np.all([len(line.splitlines()) == 1 for line in untouched_changes(before, result, set())])


@rule("TST020", ops=["Neg"], severity=Severity.WARNING, general=True)
def any_negation(node: Node, model: Model) -> Iterator[Match]:
    """Neg."""
    yield Match("a Neg", node=node)


@rule("TST021", ops=["Neg"])
def known_negation(node: Node, model: Model) -> Iterator[Match]:
    """Neg of x, which is more or less grave than Neg."""
    grave = {"a": Severity.INFO, "b": Severity.WARNING, "c": Severity.ERROR}.get(node.first_output)
    if grave is not None:
        yield Match("that Neg", node=node, severity=grave)


def test_general_findings_give_way_to_graver_ones_about_the_same_node() -> None:
    model = Model(
        proto_of("g (float[2] x) => (float[2] d) { a = Neg(x)  b = Neg(a)  c = Neg(b)  d = Neg(c) }")
    )
    places = [
        (item.rule.code, item.match.place.text) for item in check(model, [any_negation, known_negation])
    ]
    assert places == [
        ("TST020", "a"), ("TST020", "d"), ("TST021", "a"), ("TST021", "b"), ("TST021", "c"),
    ]  # fmt: skip
    assert len(check(model, [any_negation])) == 4


@rule("TST022", ops=["Abs"], severity=Severity.ERROR)
def any_abs(node: Node, model: Model) -> Iterator[Match]:
    """Abs."""
    yield Match("an Abs", node=node)


def test_an_error_where_the_parser_never_comes_is_a_warning() -> None:
    branches = """<then_branch = t () => (float[2] a) { a = Abs(x) },
        else_branch = e () => (float[2] b) { b = Abs(x) }>"""
    text = f"""g (float[2] x, bool c) => (float[2] y, float[2] z, float[2] w) <bool k = {{1}}> {{
        y = If(k){branches.replace(" a)", " a1)").replace("a =", "a1 =").replace(" b)", " b1)").replace("b =", "b1 =")}
        z = If(c){branches}  w = my.F(x) }}
        <domain: "my", opset_import: ["" : 18]> F (i) => (o) {{ o = Abs(i) }}
        <domain: "my", opset_import: ["" : 18]> G (i) => (p) {{ p = Abs(i) }}"""
    found = check(Model(proto_of(text)), [any_abs])
    assert {item.match.node.first_output: item.severity.name for item in found if item.match.node} == {
        "a1": "ERROR", "b1": "WARNING", "a": "ERROR", "b": "ERROR", "o": "ERROR", "p": "WARNING",
    }  # fmt: skip


@rule("TST111", ops=["Exp", "Abs"], safety=Safety.EXACT)
def names_nodes(node: Node, model: Model) -> Iterator[Match]:
    """An Exp or Abs without a name; for an Abs, every Neg was read."""
    if node.name != "done":
        reads = tuple(one for one in model.nodes() if one.op_type == "Neg" and node.op_type == "Abs")
        yield Match("no name", node=node, fix=Fix("name it", [RenameNode(node, "done")]), reads=reads)


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Neg(x)  y = Exp(a)",  # the first fix gives the Exp another input, the second one changes it
        "a = Neg(x)  b = Tanh(a)  c = Tanh(b)  y = Abs(c)",  # the second fix read what the first one removes
    ],
)
def test_a_fix_waits_for_one_that_changes_its_node_or_what_it_read(nodes: str) -> None:
    """What reads a Neg reads something else after its fix."""
    _, run = fixed(
        [drops("TST110", "Neg"), names_nodes], proto_of(f"g (float[N] x) => (float[N] y) {{ {nodes} }}")
    )
    assert [(item.key.code, item.round) for item in run.applied] == [("TST110", 1), ("TST111", 2)]


@rule("TST112", ops=["Clip"])
def bounds(node: Node, model: Model) -> Iterator[Match]:
    """A match for each bound that a Clip has, lower first; it asks for the output first of all."""
    node.require_output()
    for index in (1, 2):
        yield Match(f"bound {node.require(index).name}", node=node)


@pytest.mark.parametrize(
    ("inputs", "bound"), [("x, a, b", ["a", "b"]), ("x, a", ["a"]), ("x, , b", []), ("x", [])]
)
def test_matches_stay_that_were_found_before_something_was_unknown(inputs: str, bound: list[str]) -> None:
    model = Model(proto_of(f"g (float[N] x, float a, float b) => (float[N] y) {{ y = Clip({inputs}) }}"))
    problems: list[Problem] = []
    assert [one.match.message for one in check(model, [bounds], problems)] == [
        f"bound {name}" for name in bound
    ]
    assert problems == []


def test_fingerprints_see_every_kind_of_change() -> None:
    def mark(source: str) -> bytes:
        return fingerprint(Model(proto_of(source)), {})

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


RELU = "g (int32[4] x) => (int32[4] y) { y = Relu(x) }"
REDUCE = "g (int64[4] x) => (int64[1] y) { y = ReduceL2(x) }"
NORM = """g (float[2,8] x, float[8] s) => (float[2,8] y, float[2,1] d) {
    y, m, d = LayerNormalization(x, s) }"""
STRINGS = 'g (float[2] x) => (float[2] y) <string[1] c = {"a"}> { y = Neg(x) }'


@pytest.mark.parametrize(
    ("text", "listed", "other"),
    [
        (RELU, "INT006", "OPS050"),  # its fix is exact
        (REDUCE, "OPS050", "INT006"),  # only this one has a fix
        (NORM, "OPS050", "OPS021"),
        (STRINGS, "GRA002", "GRA008"),
    ],
    ids=lambda one: one[:6],
)
def test_the_finding_with_the_safest_fix_is_listed(text: str, listed: str, other: str) -> None:
    found = [item for item in onnxfix.check(model(text)).findings if item.severity == "error"]
    assert [item.code for item in found] == [listed]
    assert found[0].fix
    alone = [item.code for item in onnxfix.check(model(text), select=[other]).findings]
    assert alone == [other]


def test_elsewhere_the_other_rule_is_listed() -> None:
    text = "g (int32[4] x, int64[4] v) => (int32[4] y, int64[1] z) { y = Relu(x)  z = ReduceL2(v) }"
    found = [item for item in onnxfix.check(model(text)).findings if item.severity == "error"]
    assert [(item.code, item.place.output) for item in found] == [("INT006", "y"), ("OPS050", "z")]
