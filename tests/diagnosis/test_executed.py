"""The walk where the other side is an engine. In place of TensorRT, ONNX Runtime runs what an engine would be built of,
with one operator computed wrong, or with parts that no engine is built of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxfix.diagnosis.bench import Bench
from onnxfix.diagnosis.child import Reply
from onnxfix.diagnosis.diagnose import Case, diagnose
from onnxfix.diagnosis.engines import Engines, declare, prepared
from onnxfix.diagnosis.explain import Explainer
from onnxfix.diagnosis.graph import Graph
from onnxfix.diagnosis.records import Diagnosis
from onnxfix.diagnosis.sides import itself
from onnxfix.proof.checks.judge import Terms, judge
from onnxfix.tensorrt.engine import Ran
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
