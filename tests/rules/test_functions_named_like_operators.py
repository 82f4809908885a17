"""Local functions with a standard operator's name (OPS060), or with that of another one (OPS102): what TensorRT reads
before and after their bodies are written out.

No engine is executed: ``trt_reading`` reads the imported network back.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import onnxfix
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule
from onnxfix.runtime.sandbox import Worker
from onnxfix.testing import assert_interface_kept, findings, fixed
from onnxfix_rules.ops.misimports import _calls
from support import ort
from support.models import of_opset
from support.real_tensorrt import REAL
from support.trt_reading import reading

RULE, SHARED = (rule for rule in registry().rules if rule.code in ("OPS060", "OPS102"))
FUNCTION = '<domain: "my", opset_import: ["" : 18, "my" : 1]>'
X = np.array([0.5, -2.0], np.float32)


model = of_opset(18, domains={"my": 1})


def repaired(proto: ModelProto, rule: Rule = RULE, target: str | None = None) -> ModelProto:
    """The model with every call written out, in which the rule finds nothing more, nor on a second run."""
    result, run = fixed([rule], proto, target=target)
    assert run.applied
    assert not run.problems
    assert not run.remaining
    assert not findings(rule, result, target)
    assert_interface_kept(proto, result)
    onnx.checker.check_model(result)
    assert [f.SerializeToString() for f in proto.functions if not f.node] == []
    assert len(result.functions) == len(proto.functions)
    return result


CALLED = {
    "from the graph": f"""g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}
        {FUNCTION} Relu (a) => (b) {{ c = Abs(a)  b = Neg(c) }}""",
    "from a function that is called twice": f"""g (float[2] x) => (float[2] y) {{ z = my.F(x)  y = my.F(z) }}
        {FUNCTION} F (a) => (b) {{ c = Neg(a)  b = my.Abs(c) }}
        {FUNCTION} Abs (a) => (b) {{ c = Add(a, a)  b = Neg(c) }}""",
    "from a branch": f"""g (float[2] x, bool c) => (float[2] y) {{ y = If(c)<
            then_branch = p () => (float[2] u) {{ u = my.Relu(x) }},
            else_branch = q () => (float[2] v) {{ w = my.Relu(x)  v = Neg(w) }}> }}
        {FUNCTION} Relu (a) => (b) {{ c = Abs(a)  b = Add(c, a) }}""",
    "with an attribute": f"""g (float[2] x) => (float[2] y) {{ z = my.Relu<alpha = 0.5>(x)  y = my.Relu(z) }}
        {FUNCTION} Relu <alpha: float = 0.125> (a) => (b) {{
            k = Constant<value_float: float = @alpha>()  b = Mul(a, k) }}""",
    "with a second input that the operator has not": f"""g (float[2] x) => (float[2] y) {{ y = my.Neg(x, x) }}
        {FUNCTION} Neg (a, b) => (c) {{ c = Mul(a, b) }}""",
    "one inside the other": f"""g (float[2] x) => (float[2] y) {{ y = my.Relu(x) }}
        {FUNCTION} Relu (a) => (b) {{ c = my.Abs(a)  b = my.Abs(c) }}
        {FUNCTION} Abs (a) => (b) {{ k = Constant<value = float[2] {{3, 4}}>()  b = Sub(k, a) }}""",
}


@REAL
@pytest.mark.parametrize("name", CALLED)
def test_tensorrt_reads_the_function_after_the_fix(name: str, worker: Worker, tmp_path: Path) -> None:
    proto = model(CALLED[name])
    feed: dict[str, Any] = {"x": X}
    if "c" in [info.name for info in proto.graph.input]:
        feed["c"] = np.array(False)
    wanted = ort.run(proto, feed)[0]
    assert not np.array_equal(reading(worker, proto, tmp_path).run(**feed)["y"], wanted)
    result = repaired(proto)
    assert np.array_equal(ort.run(proto, feed)[0], ort.run(result, feed)[0])
    np.testing.assert_allclose(reading(worker, result, tmp_path).run(**feed)["y"], wanted, rtol=1e-6)


OVERLOAD = '<domain: "my", overload: "v2", opset_import: ["" : 18]>'
SHARING = {
    "an overload": f"""{OVERLOAD.replace("v2", "v1")} F (a) => (b) {{ b = Neg(a) }}
        {OVERLOAD} F (a) => (b) {{ b = Abs(a) }}""",
    "an overload after the function without one": f"""{OVERLOAD.replace("v2", "")} F (a) => (b) {{ b = Neg(a) }}
        {OVERLOAD} F (a) => (b) {{ b = Abs(a) }}""",
    "three, with attributes": "\n".join(
        f"""{OVERLOAD.replace("v2", name)} F <alpha: float = {factor}> (a) => (b) {{
            k = Constant<value_float: float = @alpha>()  b = Mul(a, k) }}"""
        for name, factor in (("v1", 0.5), ("v2", 0.25), ("v3", 0.125))
    ),
}


@REAL
@pytest.mark.parametrize("name", SHARING)
def test_tensorrt_calls_the_first_function_of_a_name(name: str, worker: Worker, tmp_path: Path) -> None:
    first = "my.F" if "without" in name else "my.F:v1"
    proto = model(f"""<ir_version: 10, opset_import: ["" : 18, "my" : 1]>
        g (float[2] x) => (float[2] y, float[2] z) {{ y = {first}(x)  z = my.F:v2(x) }} {SHARING[name]}""")
    wanted = ort.run(proto, {"x": X})
    read = reading(worker, proto, tmp_path).run(x=X)
    assert np.array_equal(read["y"], read["z"])
    assert not np.allclose(read["z"], wanted[1])
    result = repaired(proto, SHARED)
    assert result.graph.node[0].op_type == "F"  # the call that goes right stays
    for one, other, output in zip(wanted, ort.run(result, {"x": X}), "yz", strict=True):
        assert np.array_equal(one, other)
        np.testing.assert_allclose(reading(worker, result, tmp_path).run(x=X)[output], one, rtol=1e-6)


def test_every_call_is_written_out_for_a_target_without_functions() -> None:
    proto = model(f"""g (float[2] x) => (float[2] y) {{ y = my.G(x) }}
        {FUNCTION} G (a) => (b) {{ c = my.F(a)  b = my.F(c) }}
        {FUNCTION} F (a) => (b) {{ b = Exp(a) }}""")
    assert not findings(SHARED, proto)
    result = repaired(proto, SHARED, "trt8.6")
    assert [node.op_type for node in result.graph.node] == ["Exp", "Exp"]
    assert np.array_equal(ort.run(proto, {"x": X})[0], ort.run(result, {"x": X})[0])


REFUSED = {
    "a default behind an attribute that may be missing": f"""g (float[2] x) => (float[2] y) {{ y = my.F(x) }}
        {FUNCTION} F <beta> (a) => (b) {{ b = my.Relu<alpha: float = @beta>(a) }}
        {FUNCTION} Relu <alpha: float = 0.5> (a) => (b) {{ b = LeakyRelu<alpha: float = @alpha>(a) }}""",
    "an input that is left out comes back": f"""g (float[2] x) => (float[2] y, float[2] z) {{ y, z = my.Relu(x) }}
        {FUNCTION} Relu (a, b) => (c, b2) {{ c = Neg(a)  b2 = Identity(b) }}""",
    "a branch returns an input that is left out": f"""g (float[2] x) => (float[2] y) {{ y = my.Where(x) }}
        {FUNCTION} Where (a, b) => (c) {{ t = Constant<value = bool {{1}}>()
            c = If(t)<then_branch = p () => (u) {{ u = Identity(a) }}, else_branch = q () => (b) {{ }}> }}""",
    "more outputs than the function has": f"""g (float[2] x) => (float[2] y) {{ y, z = my.Relu(x) }}
        {FUNCTION} Relu (a) => (b) {{ b = Neg(a) }}""",
    "a function of a domain that the graph does not import": """g (float[2] x) => (float[2] y) { y = my.Relu(x) }
        <domain: "my", opset_import: ["" : 18, "your" : 1]> Relu (a) => (b) { b = your.F(a) }
        <domain: "your", opset_import: ["" : 18]> F (a) => (b) { b = Neg(a) }""",
    "a domain that the graph does not import": """g (float[2] x) => (float[2] y) { y = my.Relu(x) }
        <domain: "my", opset_import: ["" : 18, "its" : 1]> Relu (a) => (b) { b = its.Foo(a) }""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_left_alone(name: str) -> None:
    found = findings(RULE, model(REFUSED[name]))
    assert found
    assert not any(one.match.fix for one in found)


@pytest.mark.parametrize("depth", [50, 3000])
def test_functions_inside_functions(depth: int) -> None:
    text = "g (float[2] x) => (float[2] y) { y = my.Relu(x) }"
    names = ["Relu", *(f"F{k}" for k in range(depth))]
    for one, other in itertools.pairwise(names):
        text += f"\n{FUNCTION} {one} (a) => (b) {{ b = my.{other}(a) }}"
    text += f"\n{FUNCTION} {names[-1]} (a) => (b) {{ b = Neg(a) }}"
    assert [one.match.fix is None for one in findings(RULE, model(text))] == [depth > _calls.DEPTH_LIMIT]


def test_functions_that_stand_for_a_billion_nodes_are_not_counted_out() -> None:
    names = ["Relu", *(f"F{k}" for k in range(40))]
    text = "g (float[2] x) => (float[2] y) { y = my.Relu(x) }"
    for one, other in itertools.pairwise(names):
        text += f"\n{FUNCTION} {one} (a) => (b) {{ c = my.{other}(a)  b = my.{other}(c) }}"
    text += f"\n{FUNCTION} {names[-1]} (a) => (b) {{ b = Neg(a) }}"
    assert [one.match.fix for one in findings(RULE, model(text))] == [None]
    assert _calls.NODE_LIMIT < 2**40


# ------------------------------------------------------------------------------------------ random functions


def test_the_reference_evaluator_judges_no_overloads(tmp_path: Path) -> None:
    """It knows the last function of a name only: two models that call the two in another order are alike to it."""
    paths = []
    for number, (first, second) in enumerate((("Act:two", "Act"), ("Act", "Act:two"))):
        text = f"""<ir_version: 10, opset_import: ["" : 18, "a" : 1]> g (float[2,3] x) => (float[2,3] y) {{
            h = a.{first}(x)  y = a.{second}(h) }}
            <domain: "a", opset_import: ["" : 18]> Act (p) => (q) {{ q = Neg(p) }}
            <domain: "a", overload: "two", opset_import: ["" : 18]> Act (p) => (q) {{ q = Exp(p) }}"""
        paths.append(tmp_path / f"{number}.onnx")
        onnx.save(onnx.parser.parse_model(text), paths[-1])
    report = onnxfix.verify(*paths, rungs=["reference", "ort-cpu"])
    assert report.verdict is not None
    assert [one.status for one in report.verdict.rungs[1:]] == ["skipped", "failed"]
