"""Whether the original and the fixed model are valid ONNX: the checker's part of the rung ``contract``, and GRA013."""
# Long because: each way in which an original can be invalid has its own line and verdict

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxfix
from onnxfix.proof import validity
from onnxfix.proof import verify as proving
from onnxfix.proof.validity import Checked
from onnxfix.proof.verdict import RungResult
from onnxfix.report.report import Report
from onnxfix.rewrite.registry import registry
from support.ended import ended
from support.models import of_opset, write
from support.paths import FIXTURES

TIMEOUT = 120.0


made = of_opset(19, 9)


@pytest.fixture
def contract(tmp_path: Path) -> Callable[..., RungResult]:
    """Runs the rung ``contract`` on an original and a fixed model, whose interface nobody looks at."""

    def run(original: ModelProto, fixed: ModelProto, **more: Any) -> RungResult:
        paths = tmp_path / "original.onnx", tmp_path / "fixed.onnx"
        for path, model in zip(paths, (original, fixed), strict=True):
            write(path, model)
        rungs = ["contract"]
        verdict = proving.verify(*paths, exact=True, contract=lambda a, b: [], rungs=rungs, **more)
        found = verdict.rung("contract")
        assert "\n" not in found.reason
        return found

    return run


def ask(path: Path) -> Checked:
    return validity.ask([path], timeout=TIMEOUT, memory_mb=None)[0]


PASSES = "the interface is unchanged and onnx.checker passes"
NEG = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
TYPES = "g (float[2] x, int64[2] k) => (float[2] y) { y = Add(x, k) }"
UNSORTED = "g (float[2] x) => (float[2] y) { y = Neg(a)  a = Exp(x) }"

EXTRA = "g (float[2] x) => (float[2] y) { y = Neg<extra = 1>(x) }"

# ---------------------------------------------------------------------------------------------- what a fix breaks

FLOAT8 = "g (float8e4m3fn[2,1] x) => (float8e4m3fn[2] y) <int64[1] k = {%d}> { y = %s(x, k) }"


def test_an_operator_that_does_not_take_the_type(contract: Callable[..., RungResult]) -> None:
    """Reshape-19 takes float8, Squeeze-13, which opset 19 has, does not. onnx.checker alone accepts both."""
    reshape, squeeze = made(FLOAT8 % (2, "Reshape")), made(FLOAT8 % (1, "Squeeze"))
    onnx.checker.check_model(squeeze)
    found = ended("failed", contract(reshape, squeeze))
    assert "full_check" in found.reason
    assert "Squeeze" in found.reason
    assert (found.checks[0].complete, bool(found.checks[1].inference)) == (True, True)
    assert contract(squeeze, reshape).status == "passed"


def test_what_the_original_does_not_pass_is_not_asked_of_the_fixed_model(
    contract: Callable[..., RungResult],
) -> None:
    found = ended("passed", contract(made(TYPES), made(TYPES.replace("Add", "Mul"))))
    assert "does not pass onnx.checker with full_check" in found.reason
    assert "the new model does not, either" in found.reason
    found = contract(made(TYPES), made("g (float[2] x, int64[2] k) => (float[2] y) { y = Add(x, x, k) }"))
    assert (found.status, "does not pass onnx.checker: " in found.reason) == ("failed", True)


CLAIMED = """g (float[1,1,5,5] x) => (float[1,1,5,8] y)
    <float[2] o = {1, 1}, float[2] k = {1, 1.5}, float[4] f = {1, 1, 1, 1.5}>"""


def test_a_wrong_claim_that_comes_to_light_is_no_fault_of_the_fix(
    contract: Callable[..., RungResult],
) -> None:
    """Inference knows what comes of constant scales, and did not know before that the output's shape is wrong."""
    original = made(f"{CLAIMED} {{ s = Concat<axis = 0>(o, k)  y = Resize(x, , s) }}")
    onnx.checker.check_model(original, full_check=True)
    fixed = made(f"{CLAIMED} {{ y = Resize(x, , f) }}")
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.checker.check_model(fixed, full_check=True)
    assert contract(original, fixed).reason == PASSES


def test_what_inference_needs_claims_for(contract: Callable[..., RungResult]) -> None:
    """Without declared shapes inference takes a vector of unknown length for an empty one."""
    text = """g (float[1,1,5,5] x, int64[N] k) => (float[1,1,A,B] y, float[%d] z) <float[3] c = {1, 2, 3}>
        { s = Concat<axis = 0>(k, k)  y = Resize(x, , , s)  %s }"""
    original, fixed = (made(text % (3, f"z = {one}(c)")) for one in ("Neg", "Abs"))
    for model in (original, fixed):
        model.graph.value_info.append(helper.make_tensor_value_info("s", TensorProto.INT64, [4]))
    assert contract(original, fixed).reason == PASSES
    fixed.graph.output[1].type.tensor_type.shape.dim[
        0
    ].dim_value = 4  # a wrong claim, which alone is no fault
    found = ended("passed", contract(original, fixed))
    assert "full_check" in found.reason
    assert found.notes[0].startswith("whether the original passes full_check is not known: ")


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.onnx")), ids=lambda path: path.stem)
def test_exports_pass(path: Path) -> None:
    report = onnxfix.apply(path, verify=False)
    assert report.changed
    assert not report.withdrawn
    assert rung_of(report).reason == PASSES


def test_a_sparse_initializer_is_an_initializer(contract: Callable[..., RungResult]) -> None:
    model = made("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 2]), "")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.checker.check_model(model, full_check=True)
    assert contract(model, model).reason == PASSES


def test_claims_inside_bodies_and_functions(contract: Callable[..., RungResult]) -> None:
    body = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c)<then_branch = t () => (float[5] p) { q = Neg(x)  p = Neg(q) },
                  else_branch = e () => (float[2] r) { r = Abs(x) }> }"""
    model = made(body)
    inner = model.graph.node[0].attribute[0].g
    inner.value_info.append(helper.make_tensor_value_info("q", TensorProto.FLOAT, [7]))
    assert contract(model, model).reason == PASSES
    inner.value_info[0].type.tensor_type.elem_type = TensorProto.INT64  # types are no claims
    assert "full_check" in contract(model, model).reason


# ----------------------------------------------------------------------------------------------- weights stay away


def reshaped(folder: Path, *, external: bool) -> Path:
    """A Reshape whose shape, in a file beside it or not, only inference reads; and a large weight."""
    model = made("g (float[2,3] x) => (float[A,B] y) { a = Reshape(x, s)  y = Neg(a) }")
    tensors = [numpy_helper.from_array(np.array([3, 2]), "s")]
    tensors += [numpy_helper.from_array(np.zeros(1 << 20, np.float32), "w")]
    tensors += [numpy_helper.from_array(np.zeros(1 << 17, np.int64), "n")]
    model.graph.initializer.extend(tensors)
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=external, size_threshold=0)
    return path


@pytest.mark.parametrize("external", [False, True])
def test_inference_reads_shapes_wherever_they_are(tmp_path: Path, external: bool) -> None:
    path = reshaped(tmp_path, external=external)
    assert ask(path) == Checked()
    model = onnx.load(path)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([-1, -1]), "s"))
    onnx.save(model, path, save_as_external_data=external, size_threshold=0)
    assert "Reshape" in ask(path).inference


# -------------------------------------------------------------------------------------- inference that ends badly


def _hang(*_: Any, **__: Any) -> None:
    time.sleep(1000)


def _crash(*_: Any, **__: Any) -> None:
    os.abort()


def _eat(*_: Any, **__: Any) -> None:
    raise MemoryError


def _fail(*_: Any, **__: Any) -> None:
    raise ValueError("Invalid tensor data type 99.")


def where(monkeypatch: pytest.MonkeyPatch, ending: Callable[..., None], operator: str = "") -> None:
    """Let full_check end so, for models that begin with ``operator`` where one is given."""
    real = onnx.checker.check_model

    def check(name: str, *, full_check: bool) -> None:
        if full_check and operator in ("", onnx.load(name).graph.node[0].op_type):
            ending()
        real(name, full_check=full_check)

    monkeypatch.setattr(onnx.checker, "check_model", check)


@pytest.mark.parametrize("ending", [pytest.param(_hang, marks=pytest.mark.slow), _crash, _eat, _fail])
def test_how_inference_ends_refutes_nobody(
    contract: Callable[..., RungResult], monkeypatch: pytest.MonkeyPatch, ending: Callable[..., None]
) -> None:
    where(monkeypatch, ending)
    limits = proving.Limits(step=3.0 if ending is _hang else TIMEOUT)
    found = contract(made(NEG), made(RELU), limits=limits)
    assert (found.status, found.reason) == ("passed", PASSES)
    assert len(found.notes) == 1
    assert found.notes[0].startswith("onnx.checker ran without full_check: ")
    invalid = made("g (float[2] x) => (float[2] y) { y = Relu(x, x) }")
    assert contract(made(NEG), invalid, limits=limits).status == "failed"


def test_only_the_model_at_which_inference_crashes_goes_without(
    contract: Callable[..., RungResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    where(monkeypatch, _crash, "Neg")
    found = contract(made(NEG), made(TYPES))
    assert found.status == "passed"  # what the original would have passed is not known
    assert "but not with full_check" in found.reason
    assert found.notes[0].startswith("whether the original passes full_check is not known: ")


def test_a_node_at_which_inference_is_known_to_hang(contract: Callable[..., RungResult]) -> None:
    model = made('g (float[2,2] x) => (float[A] y) { y = Einsum<equation = "i.j->">(x) }')
    found = ended("passed", contract(model, model))
    assert "may hang or crash" in found.notes[0]


# ------------------------------------------------------------------------------- an original that is not valid ONNX


@pytest.mark.parametrize(("text", "severity"), [(EXTRA, "warning"), (UNSORTED, "info"), (TYPES, "info")])
def test_an_invalid_original_is_named(contract: Callable[..., RungResult], text: str, severity: str) -> None:
    found = ended("passed", contract(made(text), made(NEG)))
    assert "the original " in found.reason
    assert found.reason.endswith(("; the new model is", "; the new model does"))
    rules = registry().choose(["GRA013"], None)
    (match,) = rules[0].generate(found.checks[0], found.checks[1])
    assert match.message in found.reason
    assert match.severity.name.lower() == severity
    assert not list(rules[0].generate(found.checks[1], found.checks[1]))


def rung_of(report: Report) -> RungResult:
    found = report.verdict.rung("contract")
    assert found is not None
    return found


@pytest.mark.parametrize("verify", [False, True])
def test_apply_says_so(verify: bool) -> None:
    report = onnxfix.apply(made(UNSORTED), rungs=["ort-cpu"], verify=verify)
    assert [one.code for one in report.applied] == ["GRA004"]
    (finding,) = (one for one in report.findings if one.code == "GRA013")
    assert (finding.severity, finding.place.text, finding.name) == ("info", "the graph", "invalid-original")
    assert finding.message.startswith("the original is not valid ONNX: ")
    assert finding.message.endswith("; the new model is")
    assert rung_of(report).reason == f"the interface is unchanged; {finding.message}"
    assert report.exit_code == 0
    quiet = onnxfix.apply(made(UNSORTED), rungs=["ort-cpu"], verify=verify, ignore=["GRA013"])
    assert (quiet.exit_code, quiet.findings) == (0, ())
    assert rung_of(quiet).reason == rung_of(report).reason
    again = onnxfix.apply(report.model, rungs=["ort-cpu"], verify=verify)
    assert (again.findings, again.changed) == ((), False)


def test_an_unsorted_original_is_judged_by_the_reference() -> None:
    """In subgraphs and functions too, and by values that nodes inside read of nodes that come later."""
    text = """<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g (float[2] x, bool k) => (float[2] y) {
        y = d.f(c)  c = If(k)<then_branch = t () => (float[2] p) { p = Neg(q)  q = Abs(a) },
                              else_branch = e () => (float[2] r) { r = Abs(x) }>  a = Exp(x) }
        <domain: "d", opset_import: ["" : 18]> f (u) => (w) { w = Neg(v)  v = Exp(u) }"""
    report = onnxfix.apply(made(text), rungs=["reference"])
    assert [one.code for one in report.applied].count("GRA004") == 3
    ended("passed", report.verdict.rung("reference"))


def test_a_valid_original_is_not_named() -> None:
    report = onnxfix.apply(
        made("g (float[N] x) => (float[N] y) { a = Identity(x)  y = Neg(a) }"), verify=False
    )
    assert report.changed
    assert not report.findings
    assert rung_of(report).reason == PASSES


def test_an_original_of_which_not_all_is_repaired() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Relu(b, b)  a = Exp(x)  b = Neg(a) }"
    report = onnxfix.apply(made(text), verify=False)
    assert "GRA004" in {one.code for one in report.applied}
    (finding,) = (one for one in report.findings if one.code == "GRA013")
    assert "; the new model is not, either: " in finding.message
    assert rung_of(report).status == "passed"


def test_a_raised_operator_set_leaves_the_interface_and_claims_no_valid_original() -> None:
    report = onnxfix.apply(
        made("g (float[2] x) => (float[2] y) { y = Sum(a, a)  a = Exp(x) }", 6),
        verify=False,
        select=["GRA004", "GRA020", "GRA013"],
    )
    assert rung_of(report).reason.startswith("the interface is unchanged; the original is not valid ONNX: ")
