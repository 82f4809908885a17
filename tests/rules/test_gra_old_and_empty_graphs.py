"""GRA020 through a whole run, the old operators of the reference evaluator; graphs, branches and functions that declare
no outputs: no fix empties them, and the user is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxfix
from onnxfix.errors import EditError
from onnxfix.model import Model
from onnxfix.rewrite.edits import SetImport, SetInput
from onnxfix.rewrite.engine import fix
from onnxfix.rewrite.registry import registry
from onnxfix.rewrite.transaction import Transaction
from onnxfix.rule import Safety, Severity
from onnxfix.runtime.backends.reference import evaluator
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import findings, fixed, overlay
from onnxfix_rules.gra.hygiene import dead_node
from support.models import of_opset
from support.overlay_links import assert_links
from support.real_tensorrt import REAL, built

model = of_opset(6, 3)


PROBES = {
    "negative axis": "g (float[2,3,3] x, float[3] b) => (float[2,3,3] y) { y = Sub<broadcast=1, axis=-2>(x, b) }",
    "scalar": "g (float[2,3] x, float b) => (float[2,3] y) { y = Div<broadcast=1, axis=0>(x, b) }",
    "prelu": "g (float[1,2,2,2] x, float[2] s) => (float[1,2,2,2] y) { y = PRelu(x, s) }",
    "norm": """g (float[2,3,2,2] x, float[3] s, float[3] v) => (float[2,3,2,2] y) {
        a = BatchNormalization<is_test=1>(x, s, s, s, v)  y = Add(a, a) }""",
}


@pytest.mark.parametrize("name", PROBES)
def test_the_values_are_proven(name: str, tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(model(PROBES[name]), path)
    rungs = ["contract", "reference", "ort-cpu"]
    report = onnxfix.apply(path, out, rungs=rungs, select=["GRA020"])
    assert [(item.code, item.safety) for item in report.applied] == [("GRA020", "exact")]
    assert report.problems == ()
    assert report.verdict is not None
    assert report.verdict.passed
    reference, contract = report.verdict.rung("reference"), report.verdict.rung("contract")
    assert reference is not None
    assert contract is not None
    assert (reference.status, reference.reason.split()[0]) == ("passed", "identical")
    assert contract.status == "passed"
    fixed = onnx.load(out)
    assert [entry.version for entry in fixed.opset_import] == [7]
    onnx.checker.check_model(fixed)
    again = onnxfix.apply(out, tmp_path / "again.onnx", rungs=rungs, select=["GRA020"])
    assert again.applied == ()


def test_other_fixes_wait_for_another_round(tmp_path: Path) -> None:
    """A fix of the same round would have been written for the old operator set."""
    text = """g (float[2,3,3] x, float[3] b) => (float[2,3,3] y, float[2,3,3] z) {
        d = Cast<to=11>(x)  e = Cast<to=1>(d)  z = Neg(e)  y = Add<broadcast=1, axis=1>(x, b) }"""
    report = onnxfix.apply(model(text), verify=False, select=["CST", "GRA020"])
    rounds = {item.code[:3]: item.round for item in report.applied}
    assert set(rounds) == {"CST", "GRA"}
    assert rounds["GRA"] > rounds["CST"]
    assert report.model is not None
    onnx.checker.check_model(report.model)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("y = Add<broadcast=1, axis=1>(x, b)", (1, 20, 300), [1, 1, 20, 20, 300, 300]),
        ("y = Add<broadcast=1, axis=-2>(x, b)", (1, 20, 300), [1, 1, 20, 20, 300, 300]),
    ],
)
def test_the_evaluator_aligns_by_axis(text: str, values: tuple[int, ...], expected: list[int]) -> None:
    proto = model(f"g (float[1,3,2] x, float[3] b) => (float[1,3,2] y) {{ {text} }}")
    feed = {"x": np.zeros((1, 3, 2), np.float32), "b": np.array(values, np.float32)}
    (got,) = evaluator(proto).run(None, feed)
    assert got.ravel().tolist() == expected


@pytest.mark.parametrize(
    ("opset", "attributes"), [(6, "<is_test=1>"), (7, ""), (8, ""), (9, ""), (14, ""), (15, "")]
)
def test_the_evaluator_normalizes_by_the_given_statistics(opset: int, attributes: str) -> None:
    text = f"""g (float[2,1,2] x, float[1] s, float[1] b, float[1] m, float[1] v) => (float[2,1,2] y) {{
        y = BatchNormalization{attributes}(x, s, b, m, v) }}"""
    given = {"s": 2.0, "b": 1.0, "m": 3.0, "v": 4.0}
    feed = {name: np.array([value], np.float32) for name, value in given.items()}
    feed["x"] = np.array([[[3, 5]], [[7, -1]]], np.float32)
    (got,) = evaluator(model(text, opset)).run(None, feed)
    assert np.allclose(got.ravel(), [1, 3, 5, -3], atol=1e-4)


def test_an_import_that_is_set_can_be_taken_back() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Sum(x, x) }")
    before = proto.SerializeToString(deterministic=True)
    mine = Model(proto)
    transaction = Transaction(mine)
    with pytest.raises(EditError):  # the second cannot be done, so neither is
        transaction.apply([SetImport(mine.main, 7), _bad(mine)])
    transaction.close()
    assert proto.SerializeToString(deterministic=True) == before
    transaction = Transaction(mine)
    transaction.apply([SetImport(mine.main, 7)])
    transaction.close()
    assert mine.opset() == 7


def _bad(mine: Model) -> SetInput:
    return SetInput(mine.main.nodes[0], 0, "nosuchname")


RULES = [rule for rule in registry().rules if rule.per not in ("build", "network")]


model_of = of_opset(18, domains={"d": 1})


GRAPH = """g (float[2] x) => () <float[2] w = {1, 2}> {
    a = Exp(x)  b = Neg(a)  c = Identity(b)  d = Add(c, w)  e = Cast<to = 1>(d) }"""
ENDS = {
    "a Cast that does nothing": (GRAPH, {"e"}),
    "an Identity": ("g (float[2] x) => () { e = Identity(x) }", {"e"}),
    "constants alone": ("g () => () { a = Constant<value = float {2}>()  e = Exp(a) }", {"e"}),
    "the same twice": ("g (float[2] x) => () { e = Exp(x)  f = Exp(x) }", {"e", "f"}),
    "two outputs": ("g (float[4] x) => () { e, f = Split<axis = 0, num_outputs = 2>(x) }", {"e", "f"}),
    "one of them read": ("g (float[4] x) => () { s, t = Split<axis = 0, num_outputs = 2>(x)  e = Neg(s) }", {"e"}),
    "a branch": (
        """g (float[2] x) => () <bool k = {1}> { e = If(k)<then_branch = t () => (float[2] p) { p = Neg(x) },
            else_branch = r () => (float[2] q) { q = Exp(x) }> }""",
        {"e"},
    ),
    "a call": (
        """g (float[2] x) => () { e = d.f(x) }
        <domain: "d", opset_import: ["" : 18]> f (u) => (v) { v = Neg(u) }""",
        {"e"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("safety", list(Safety))
@pytest.mark.parametrize(("text", "ends"), ENDS.values(), ids=ENDS)
def test_what_a_graph_without_outputs_computes_last_stays(text: str, ends: set[str], safety: Safety) -> None:
    model = overlay(model_of(text))
    run = fix(model, RULES, safety=safety)
    assert not run.problems
    assert_links(model)
    result = model.proto
    assert ends <= {name for node in result.graph.node for name in node.output}
    onnx.checker.check_model(result, full_check=True)
    again, more = fixed(RULES, result, safety=safety)
    assert again.SerializeToString() == result.SerializeToString()
    assert not more.applied


def test_the_finding_stands_for_the_graph() -> None:
    [found] = findings(dead_node, model_of(GRAPH))
    assert found.match.node is None
    assert found.match.scope is not None
    assert found.match.place.text == "the graph"
    assert found.match.fix is None
    assert found.severity is Severity.ERROR
    assert "declares no outputs" in found.match.message


@pytest.mark.parametrize("text", ["g (float[2] x) => () { }", "g (float[2] x) => (float[2] x) { }"])
def test_a_graph_without_nodes_is_not_told_so(text: str) -> None:
    assert not findings(dead_node, model_of(text))


def test_dead_nodes_beside_the_ends_of_a_branch_go() -> None:
    """Branches have their own outputs; only those without any keep what they compute."""
    model = model_of("""g (float[2] x, bool k) => () {
        e = If(k)<then_branch = t () => (float[2] p) { p = Neg(x)  u = Exp(x) },
                  else_branch = r () => (float[2] q) { q = Exp(x) }> }""")
    result, run = fixed([dead_node], model)
    assert [item.key.place.text for item in run.applied] == ["e.then_branch / u"]
    assert len(result.graph.node) == 1


def test_branches_and_functions_that_return_nothing() -> None:
    model = model_of("""g (float[2] x, bool k) => (float[2] y) { y = Neg(x) }
        <domain: "d", opset_import: ["" : 18]> f (u) => () { a = Exp(u)  b = Neg(a) }""")
    branches = [
        parser.parse_graph(f"{name} () => () {{ {name}0 = Exp(x)  {name}1 = Neg({name}0) }}") for name in "pq"
    ]
    node = onnx.helper.make_node("If", ["k"], [], then_branch=branches[0], else_branch=branches[1])
    model.graph.node.append(node)
    result, run = fixed(RULES, model, safety=Safety.UNSAFE)
    assert not run.applied
    assert result.SerializeToString() == model.SerializeToString()


@REAL
def test_tensorrt_builds_no_network_without_outputs(tmp_path: Path) -> None:
    found = built(Worker(), model_of(GRAPH), tmp_path)
    assert found.status == "refused"
    assert found.stage == "build"
    assert "at least one output" in found.errors[0].text
