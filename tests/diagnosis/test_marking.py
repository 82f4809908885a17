"""Bisection with engines that are ONNX Runtime on a model with a planted fault."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto, helper

from onnxfix.diagnosis.bench import Bench, Clock
from onnxfix.diagnosis.engines import Execution
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.marking import CUTS, FEW, WINDOW
from onnxfix.diagnosis.rows import Walk, is_beyond
from onnxfix.diagnosis.sides import itself
from support.fake_engine import FakeEngines, Fault, fused, swapped
from support.models import model

X = np.linspace(0.1, 1, 6, dtype=np.float32).reshape(2, 3)


def chain(length: int) -> ModelProto:
    """Node n0 reads x, node n5 makes t5."""
    proto = model("g (float[2,3] x) => (float[2,3] t) { t = Neg(x) }")
    del proto.graph.node[:]
    proto.graph.node.extend(
        helper.make_node("Neg", [f"t{i - 1}" if i else "x"], [f"t{i}"], f"n{i}") for i in range(length)
    )
    proto.graph.output[0].name = f"t{length - 1}"
    return proto


class Tried:
    """One run of an execution."""

    def __init__(
        self,
        bench: Bench,
        proto: ModelProto,
        fault: Fault,
        *,
        shy: Collection[str] = (),
        refused: Collection[str] = (),
        seconds: float | None = None,
        **feed: object,
    ) -> None:
        graph = Graph(proto)
        self.engines = FakeEngines(graph, bench, fault, shy, refused)
        like = itself(graph, "", "")
        side = replace(like, runner=self.engines.part, kernels=2e-5)
        bench.clock = Clock(seconds)
        self.execution = Execution(bench, graph, replace(side, engines=self.engines), lambda text: None)
        held = {"x": X, **feed}
        self.walk: Walk = self.execution.run(held, held)
        self.marked = self.engines.builds[1:]

    @property
    def found(self) -> list[str]:
        rows = self.walk.rows.values()
        return [row.name for row in sorted(rows, key=lambda row: row.number) if is_beyond(row)]

    @property
    def believed(self) -> list[bool]:
        return [one.believed for one in self.execution.markings]


@pytest.mark.parametrize("place", [0, 1, 77, 149, 298, 299])
def test_a_chain_takes_few_builds(bench: Bench, place: int) -> None:
    tried = Tried(bench, chain(300), swapped(f"n{place}", "Tanh"))
    assert tried.found == [f"t{place}"]
    assert 0 < len(tried.marked) <= 6
    assert all(len(names) <= CUTS * FEW for names in tried.marked)
    assert all(one.believed and one.unchanged for one in tried.execution.markings)
    assert tried.engines.parts <= 2


@pytest.mark.parametrize("place", [37, 75])
def test_a_mark_that_changes_the_result_is_not_believed(bench: Bench, place: int) -> None:
    """Where the fault hides from the first places that are chosen, others are."""
    plain = Tried(bench, chain(200), swapped(f"n{place}", "Tanh"))
    shy = {name for names in plain.marked[:1] for name in names}
    tried = Tried(bench, chain(200), swapped(f"n{place}", "Tanh"), shy=shy)
    assert tried.found == [f"t{place}"]
    assert not tried.believed[0]
    assert "not" in tried.execution.markings[0].reason
    assert not tried.execution.markings[0].unchanged
    assert any(tried.believed)
    for marking in tried.execution.markings:
        assert marking.believed == shy.isdisjoint(marking.tensors)


def test_marks_with_which_no_engine_is_built(bench: Bench) -> None:
    plain = Tried(bench, chain(200), swapped("n60", "Tanh"))
    refused = set(plain.marked[0][:1])
    tried = Tried(bench, chain(200), swapped("n60", "Tanh"), refused=refused)
    assert tried.found == ["t60"]
    for marking in tried.execution.markings:
        assert marking.believed == refused.isdisjoint(marking.tensors)
        assert marking.reason == ("" if marking.believed else "no engine")


def test_a_fault_that_hides_from_every_mark(bench: Bench) -> None:
    names = {f"t{i}" for i in range(99)}
    tried = Tried(bench, chain(100), swapped("n50", "Tanh"), shy=names)
    assert not any(tried.believed)
    assert len(tried.marked) <= 14
    assert any("ended early" in note for note in tried.execution.notes)
    assert tried.found == ["t50"]  # the whole model is measured apart


def test_no_node_alone_but_two_together(bench: Bench) -> None:
    tried = Tried(bench, chain(60), fused("n30", "n31", "Tanh"), shy={"t30"})
    assert any("together" in note for note in tried.execution.notes)
    assert len(tried.found) == 1
    region = tried.walk.rows[tried.found[0]].region
    assert {30, 31} <= set(region.nodes)
    assert len(region.nodes) <= WINDOW


def wide(branches: int, *, abreast: bool = False) -> ModelProto:
    """Two chains of 30 with ``branches`` parallel ones of 10 between them. ``abreast``: computed in turns, so that no
    few tensors cut them."""
    proto = chain(30)
    nodes = proto.graph.node
    places = [(branch, i) for branch in range(branches) for i in range(10)]
    for branch, i in sorted(places, key=lambda one: one[1]) if abreast else places:
        last = f"b{branch}_{i - 1}" if i else "t29"
        nodes.append(helper.make_node("Neg", [last], [f"b{branch}_{i}"], f"m{branch}_{i}"))
    nodes.append(helper.make_node("Sum", [f"b{branch}_9" for branch in range(branches)], ["s"], "sum"))
    last = "s"
    for i in range(30):
        nodes.append(helper.make_node("Neg", [last], [f"u{i}"], f"o{i}"))
        last = f"u{i}"
    proto.graph.output[0].name = last
    return proto


def test_a_stretch_that_few_tensors_do_not_cut_is_cut_bit_by_bit(bench: Bench) -> None:
    """What was seen to be right is not marked again, so that the rest of a wide place fits into a later build."""
    tried = Tried(bench, wide(FEW + 4, abreast=True), swapped("m3_7", "Tanh"))
    assert tried.found == ["b3_7"]
    names = [name for names in tried.marked for name in names]
    assert names
    assert len(names) == len(set(names))
    assert all(len(names) <= CUTS * FEW for names in tried.marked)


def test_a_stretch_that_few_tensors_cut(bench: Bench) -> None:
    for abreast in (False, True):
        tried = Tried(bench, wide(3, abreast=abreast), swapped("m1_7", "Tanh"))
        assert tried.found == ["b1_7"]
        assert not tried.execution.notes


def test_shapes_are_not_marked(bench: Bench) -> None:
    """Integers of few elements stay on the host, and are no marks."""
    proto = chain(40)
    proto.graph.node.insert(20, helper.make_node("Shape", ["t19"], ["shape"], "shape"))
    for node in proto.graph.node:
        if node.name == "n39":
            node.op_type = "Reshape"
            node.input.append("shape")
    tried = Tried(bench, proto, swapped("n25", "Tanh"))
    assert tried.found == ["t25"]
    assert all("shape" not in names for names in tried.marked)


def test_the_search_ends_when_time_is_over(bench: Bench) -> None:
    tried = Tried(bench, chain(300), swapped("n150", "Tanh"), seconds=0.0)
    assert not tried.walk.complete
    assert not tried.marked


def test_an_engine_that_is_not_built(bench: Bench) -> None:
    class Refusing(FakeEngines):
        def whole(self, marks: object) -> object:  # type: ignore[override]
            return replace(super().whole(()), error="no engine")

    graph = Graph(chain(20))
    engines = Refusing(graph, bench, swapped("n5", "Tanh"))
    side = replace(itself(graph, "", ""), runner=engines.part)
    held = {"x": X}
    walk = Execution(bench, graph, replace(side, engines=engines), lambda text: None).run(held, held)  # type: ignore[arg-type]
    assert (walk.stopped, walk.failed, walk.other) == ("no engine", "", {})
    assert list(walk.truth) == ["t19"]
