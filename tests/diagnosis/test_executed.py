"""The walk and the bisection where the other side is an engine. In place of TensorRT, ONNX Runtime runs what an
engine would be built of, with one operator computed wrong, or with parts that no engine is built of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from onnxfix.diagnosis.bench import Bench, Clock
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.diagnose import Case, diagnose
from onnxfix.diagnosis.engines import Engines, Execution, declare, prepared
from onnxfix.diagnosis.explain import Explainer
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.marking import CUTS, FEW, WINDOW
from onnxfix.diagnosis.records import Diagnosis
from onnxfix.diagnosis.rows import Walk, is_beyond
from onnxfix.diagnosis.sides import itself
from onnxfix.proof.checks.judge import Terms, judge
from onnxfix.tensorrt.engine import Ran
from support.fake_engine import FakeEngines, Fault, fused, swapped
from support.models import model

X = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)


class StandIn(Engines):
    """Engines that compute some operators as ``wrong`` says; ``refuse`` says why none is built of a part."""

    wrong: Mapping[str, str] = {}
    refuse: Callable[[ModelProto], str] = staticmethod(lambda part: "")
    built: list[ModelProto]

    def _run(self, model: ModelProto, feed: Mapping[str, Any]) -> Reply:
        self.builds += 1
        declare(model, self.types)
        assert all(info.type.tensor_type.elem_type for info in model.graph.output)
        self.built.append(model)
        why = self.refuse(model)
        if why:
            return Reply(error=why, cause="refused")
        twisted = ModelProto()
        twisted.CopyFrom(model)
        for node in twisted.graph.node:
            node.op_type = self.wrong.get(node.op_type, node.op_type)
        return self.bench.run(twisted, dict(feed))


def diagnosed(
    bench: Bench, graph: Graph, feed: Mapping[str, Any], kind: type[StandIn] = StandIn, **more: Any
) -> tuple[Diagnosis, StandIn]:
    engines = kind(graph, SimpleNamespace(product="stand-in"), SimpleNamespace(), bench)  # type: ignore[arg-type]
    engines.built = []
    for name, value in more.items():
        setattr(engines, name, value)
    side = prepared(engines, itself(graph, "", ""), "float32", "nothing")
    case = Case(graph, side, [feed], 1, False, Explainer("trt-gpu", graph, side, "m.onnx"))
    return diagnose(case, bench, Diagnosis("m.onnx", "trt-gpu", "", "unknown"), lambda text: None), engines


def test_the_operator_that_engines_compute_wrong(bench: Bench) -> None:
    graph = Graph(model("g (float[3,4] x) => (float[3,4] y) { a = Tanh(x)  b = Sqrt(a)  y = Mul(b, a) }"))
    found, _ = diagnosed(bench, graph, {"x": X}, wrong={"Sqrt": "Exp"})
    assert found.status == "differ"
    assert [one.error.place.output for one in found.culprits] == ["b"]


def test_a_node_that_reads_what_is_made_of_weights(bench: Bench) -> None:
    before = "  ".join(f"t{n + 1} = Neg(t{n})" for n in range(20))
    after = "  ".join(f"s{n + 1} = Neg(s{n})" for n in range(20))
    text = f"""g (float[3,4] x) => (float[3,4] y) {{
        c = Constant<value = float {{2.0}}>()  d = Neg(c)  t0 = Tanh(x)  {before}  b = Pow(t20, d)
        s0 = Relu(b)  {after}  y = Relu(s20) }}"""
    found, _ = diagnosed(bench, Graph(model(text)), {"x": X}, wrong={"Pow": "Add"})
    assert [one.error.place.output for one in found.culprits] == ["b"]
    assert not any("together" in note for note in found.notes)


def test_a_node_without_an_engine_of_its_own_is_measured_with_what_it_reads(bench: Bench) -> None:
    text = """g (float[3,4] x) => (float[3,4] y) {
        a = Tanh(x)  b = Neg(a)  c = Abs(b)  d = Sqrt(c)  y = Mul(d, a) }"""

    def alone(part: ModelProto) -> str:
        regions: dict[str, list[str]] = {}
        for node in part.graph.node:
            regions.setdefault(node.output[0].partition("/own/")[0], []).append(node.op_type)
        bad = any("Sqrt" in some and "Neg" not in some for some in regions.values())
        return "no engine of that" if bad and "/own/" in part.graph.node[0].output[0] else ""

    found, engines = diagnosed(bench, Graph(model(text)), {"x": X}, wrong={"Sqrt": "Exp"}, refuse=alone)
    assert [one.error.place.output for one in found.culprits] == ["d"]
    assert not any("does not compute alone" in note for note in found.notes)
    assert any(map(alone, engines.built))


def test_an_output_that_nothing_reads(bench: Bench) -> None:
    text = """g (float[3,4] x) => (float[3,2] y) {
        a = Tanh(x)  b, dead = Split<axis = 1, num_outputs = 2>(a)  c = Sqrt(b)  y = Relu(c) }"""
    found, _ = diagnosed(bench, Graph(model(text)), {"x": X}, wrong={"Sqrt": "Exp"})
    assert [one.error.place.output for one in found.culprits] == ["c"]


def test_bytes_are_no_constants_of_a_part(bench: Bench) -> None:
    text = "g (int8[2,3] x) => (int8[2,3] y) { a = Neg(x)  b = Abs(a)  y = Neg(b) }"
    data = np.arange(6, dtype=np.int8).reshape(2, 3)
    found, engines = diagnosed(bench, Graph(model(text)), {"x": data}, wrong={"Abs": "Sign"})
    assert [one.error.place.output for one in found.culprits] == ["b"]
    assert not any(one.graph.initializer for one in engines.built)


def test_where_only_the_whole_engine_is_wrong(bench: Bench) -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { a = Tanh(x)  b = Sqrt(a)  y = Mul(b, a) }"

    class Fused(StandIn):
        def _run(self, model: ModelProto, feed: Mapping[str, Any]) -> Reply:
            apart = any("/own/" in name for node in model.graph.node for name in node.output)
            self.wrong = {} if apart else {"Sqrt": "Exp"}
            return super()._run(model, feed)

    found, _ = diagnosed(bench, Graph(model(text)), {"x": X}, Fused)
    assert found.status == "unexplained"
    assert "it begins among 3 nodes, from Tanh a to Mul y, that compute right in engines" in found.reason


HALVES = """g (float[3,4] x) => (float[3,4] y) {
    h = Cast<to = 10>(x)  s = Sqrt(h)  f = Cast<to = 1>(s)  y = Mul(f, f) }"""


@pytest.mark.parametrize(("columns", "exit_code"), [(4, 1), (128, 0)])
def test_outputs_are_judged_as_the_rung_judges_them(bench: Bench, columns: int, exit_code: int) -> None:
    """Outputs of many elements may be off by what kernels cost; few are held to the tolerance of their type."""

    class Off(StandIn):
        def _run(self, model: ModelProto, feed: Mapping[str, Any]) -> Reply:
            reply = super()._run(model, feed)
            return Reply({n: one * np.float32(1.00015) for n, one in reply.values.items()})

    x = np.linspace(0.5, 2, 3 * columns, dtype=np.float32).reshape(3, columns)
    graph = Graph(model(f"g (float[3,{columns}] x) => (float[3,{columns}] y) {{ a = Tanh(x)  y = Neg(a) }}"))
    found, _ = diagnosed(bench, graph, {"x": x}, Off)
    y = -np.tanh(x)
    judged = judge(Terms(["y"]), "", None, Ran({"y": y}), None, Ran({"y": y * np.float32(1.00015)}))
    assert (found.exit_code, judged.finding) == (exit_code, "wrong" if exit_code else "agree")


def test_one_step_of_half_precision_inside_is_rounding(bench: Bench) -> None:
    class Stepped(StandIn):
        def _run(self, model: ModelProto, feed: Mapping[str, Any]) -> Reply:
            reply = super()._run(model, feed)
            moved = {name: held * np.float32(1.0005) for name, held in reply.values.items()}
            return Reply(moved)

    found, engines = diagnosed(bench, Graph(model(HALVES)), {"x": X}, Stepped)
    assert found.status == "rounding"
    assert len(engines.built) == 1


ROWS = np.linspace(0.1, 1, 6, dtype=np.float32).reshape(2, 3)


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
        held = {"x": ROWS, **feed}
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
    held = {"x": ROWS}
    walk = Execution(bench, graph, replace(side, engines=engines), lambda text: None).run(held, held)  # type: ignore[arg-type]
    assert (walk.stopped, walk.failed, walk.other) == ("no engine", "", {})
    assert list(walk.truth) == ["t19"]
