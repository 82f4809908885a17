"""Local functions in place of their calls: their nodes are counted before anything unfolds them."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper, inliner

from onnxfix.errors import ModelError
from onnxfix.files import walk
from onnxfix.graph import order
from onnxfix.graph.order import too_many, unfolded
from onnxfix.proof import validity
from support.cli import run
from support.models import model, write


def calling(count: int, times: int, last: str = "Neg") -> ModelProto:
    """``count`` functions, of which each calls the next one ``times`` times and the last one calls an operator."""
    found = model("g (float[4] x) => (float[4] y) { y = own.F0(x) }", domains={"own": 1})
    for number in range(count):
        end = number + 1 == count
        names = ["a", *(f"t{step}" for step in range(times - 1)), "b"]
        nodes = [
            helper.make_node(last if end else f"F{number + 1}", [one], [two], domain="" if end else "own")
            for one, two in pairwise(names)
        ]
        imports = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
        found.functions.append(helper.make_function("own", f"F{number}", ["a"], ["b"], nodes, imports))
    return found


@pytest.mark.parametrize(("count", "times"), [(1, 1), (1, 5), (3, 2), (2, 7), (6, 3)])
def test_nodes_are_counted_as_they_are_unfolded(
    count: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is that of the calls, and of what stands in their place."""
    found = calling(count, times)
    nodes = sum(times**depth for depth in range(count + 1))
    assert len(inliner.inline_local_functions(found).graph.node) == times**count
    monkeypatch.setattr(order, "MOST", nodes)
    assert too_many(found) == ""
    assert len(unfolded(found).graph.node) == times**count
    monkeypatch.setattr(order, "MOST", nodes - 1)
    assert (
        too_many(found) == f"with its functions in place of their calls it has more than {nodes - 1:,} nodes"
    )
    with pytest.raises(ModelError, match="in place of their calls"):
        unfolded(found)


def test_calls_in_branches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = model(
        """<ir_version: 10, opset_import: ["" : 20, "own" : 1]> g (bool c, float[4] x) => (float[4] y) {
        y = If(c) <then_branch = t () => (float[4] u) { u = own.F(x) },
                   else_branch = e () => (float[4] v) { v = own.F(x) }> }
        <domain: "own", opset_import: ["" : 20]> F (a) => (b) { t = Neg(a)  b = Abs(t) }"""
    )
    monkeypatch.setattr(order, "MOST", 7)
    assert too_many(found) == ""
    monkeypatch.setattr(order, "MOST", 6)
    assert too_many(found)


def test_chains_and_circles_end() -> None:
    """A chain is longer than Python's stack; a circle, which is no valid model, is counted once."""
    assert too_many(calling(3000, 1)) == ""
    assert too_many(calling(400, 2))
    circle = calling(2, 1)
    circle.functions[1].node[0].CopyFrom(circle.graph.node[0])
    assert too_many(circle) == ""


def test_other_overloads_and_the_other_name_of_the_domain() -> None:
    found = calling(40, 2)
    for function in found.functions:
        function.overload = "other"
    assert too_many(found) == ""
    found = calling(40, 2)
    for function in found.functions:
        function.domain = "ai.onnx"
    for node in walk.model_nodes(found):
        node.domain = ""
    assert too_many(found)


def test_a_model_without_functions_stays_as_it_is() -> None:
    found = model("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    assert unfolded(found) is found


def test_the_checker_says_why_it_infers_nothing(tmp_path: Path) -> None:
    """It took a minute, which no limit in ``full_check`` ends."""
    path = write(tmp_path / "model.onnx", calling(40, 2))
    told = validity.check(str(path), str(tmp_path))
    assert told == validity.Checked(
        skipped="with its functions in place of their calls it has more than 1,048,576 nodes"
    )
    onnx.save(calling(4, 2), path)
    assert validity.check(str(path), str(tmp_path)) == validity.Checked()


@pytest.mark.slow
def test_functions_that_double_40_times_hold_nobody(tmp_path: Path) -> None:
    found = calling(40, 2)
    found.graph.node.insert(0, helper.make_node("Cast", ["x"], ["c"], to=1))
    found.graph.node[1].input[0] = "c"
    began = sum(os.times()[:4])
    path = write(tmp_path / "model.onnx", found)
    code, out, err = run("apply", path, "-o", tmp_path / "out.onnx", "--no-verify", "-v")
    assert code == 0, out + err
    assert "fixed, 0 left" in out
    assert "onnx.checker ran without full_check: with its functions in place" in " ".join(out.split())
    code, out, err = run("diagnose", path, path)
    assert (code, len(err.splitlines())) == (2, 1), out + err
    assert "in place of their calls" in err
    assert sum(os.times()[:4]) - began < 30
