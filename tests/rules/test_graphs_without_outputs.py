"""Graphs, branches and functions that declare no outputs: no fix empties them, and the user is told."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxfix.rewrite.engine import fix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import findings, fixed, overlay
from onnxfix_rules.gra.hygiene import dead_node
from support.models import of_opset
from support.overlay_links import assert_links
from support.real_tensorrt import REAL, built

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
