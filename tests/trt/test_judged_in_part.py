"""Of a model with operators that only the judge lacks, TensorRT judges the rest; what the target has and the TensorRT
at hand lacks is a note."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfix
from onnxfix.proof.checks.build import judge
from onnxfix.proof.checks.builder import Builder
from onnxfix.rewrite.registry import registry
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.package import Choice
from onnxfix.tensorrt.records import Issue, TargetOnly, TrtBuild, TrtOptions
from support.cli import output, run
from support.models import model, write
from support.paths import FIXTURES
from support.real_tensorrt import REAL
from support.reports import trt_findings

REDUCED = "ReduceSum<keepdims = 1>"
CASES = FIXTURES / "cases"
TRT11 = TrtOptions(target="trt11")
#: Model -> the nodes that are judged, all of them, and what is not.
IN_PART = {
    "masked_assignment": (6, 7, "NonZero ×1"),
    "efficient_nms_plugin": (2, 3, "EfficientNMS_TRT ×1"),
    "suppression_in_if": (23, 36, "NonZero ×2, NonMaxSuppression ×1, and 10 nodes around them,"),
}
#: A head with boxes and scores: the boxes above a threshold, the ten best, and those that suppression leaves.
PLACES = """
    g (float[N, 4] x) => (float[M] y) { nz = NonZero(x)  t = Transpose<perm = [1, 0]>(nz)  y = GatherND(x, t) }
"""
DETECTOR = """
    g (float[N, 60, 5] p) => (float[K, 4] kept, float[10] best, float[S, 4] chosen)
    <float thr = {0.3}, int64[1] ten = {10}, int64[1] zero = {0}, int64[1] four = {4}, int64[1] five = {5},
     int64[1] axis = {2}, int64[1] most = {20}, float[1] iou = {0.5}, float[1] low = {0.1}, int64[2] rows = {-1, 4},
     int64[1] flat = {-1}, int64[1] last = {2}>
    {
        boxes = Slice(p, zero, four, axis)
        logits = Slice(p, four, five, axis)
        scores = Sigmoid(logits)
        top = ReduceMax<keepdims = 0>(scores, axis)
        mask = Greater(top, thr)
        where = NonZero(mask)
        at = Transpose<perm = [1, 0]>(where)
        kept = GatherND(boxes, at)
        line = Reshape(top, flat)
        best, places = TopK(line, ten)
        classes = Transpose<perm = [0, 2, 1]>(scores)
        found = NonMaxSuppression(boxes, classes, most, iou, low)
        index = Gather<axis = 1>(found, last)
        list = Reshape(index, flat)
        table = Reshape(boxes, rows)
        chosen = Gather<axis = 0>(table, list)
    }
"""
#: NonZero, then a matrix of which TensorRT has no determinant.
FAULT = """
    g (float[N, 4] x) => (float[M] y, float d) <float[3, 3] e = {1, 2, 3, 4, 5, 6, 7, 8, 10}>
    {
        nz = NonZero(x)  t = Transpose<perm = [1, 0]>(nz)  y = GatherND(x, t)
        s = ReduceSum<keepdims = 0>(x)  m = Mul(e, s)  d = Det(m)
    }
"""
TRIANGLE = """
    g (float[N, 4, 4] x) => (float[M] y)
    { u = Trilu<upper = 1>(x)  nz = NonZero(u)  t = Transpose<perm = [1, 0]>(nz)  y = GatherND(u, t) }
"""


@REAL
@pytest.mark.parametrize("name", IN_PART)
def test_check_judges_the_rest_and_says_so(name: str) -> None:
    nodes, count, lacking = IN_PART[name]
    report = onnxfix.check(CASES / f"{name}.onnx", target="trt11", trt=True)
    assert report.exit_code == 0
    assert report.build is not None
    assert report.build.part is not None
    assert (report.build.accepted, report.build.part.nodes, report.build.part.of) == (True, nodes, count)
    assert report.network is not None
    assert report.network.status == "agrees"
    words = f"in part ({nodes} of {count} nodes; {lacking} not judged)"
    assert report.headline.endswith(words)
    assert words in str(report)
    # Nothing is said of inputs that only the rest has, or that nothing but the cut node reads.
    assert {one.severity for one in report.findings if one.code.startswith("TRT")} == {"info"}
    data = report.to_dict()
    assert data["build"]["part"]["nodes"] == nodes
    assert "in part" in report.to_html()


@REAL
def test_required_checks_take_in_part_where_the_target_has_it(tmp_path: Path) -> None:
    name = "suppression_in_if"
    nodes, count, lacking = IN_PART[name]
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    required = ("--require", "trt-build", "--require", "trt-network")
    text = output(0, "apply", CASES / f"{name}.onnx", "-o", out, *required, "--report", report, "-v")
    assert out.exists()
    assert text.count(f"  in part, {nodes} of {count} nodes; {lacking} not judged: ") == 2
    rungs = {one["name"]: one for one in json.loads(report.read_text())["reports"][0]["verdict"]["rungs"]}
    for check in ("trt-build", "trt-network"):
        assert (rungs[check]["status"], rungs[check]["part"]["nodes"]) == ("passed", nodes)
        assert {one["place"]["op_type"] for one in rungs[check]["part"]["lacking"]} == set(
            re.findall(r"(\w+) ×", lacking)
        )
    assert rungs["contract"]["part"] is None


@REAL
def test_they_do_not_where_the_target_lacks_it(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    path = write(tmp_path / "places.onnx", PLACES)
    report = onnxfix.apply(path, out, target="rtx", require=["trt-build"])
    assert report.exit_code == 3
    assert not out.exists()
    assert (report.verdict.rung("trt-build").status, report.verdict.rung("trt-build").part) == (
        "failed",
        None,
    )


@REAL
def test_a_detector_without_kernels_for_suppression(tmp_path: Path) -> None:
    """TensorRT-RTX imports NonMaxSuppression and has no kernel for it; TensorRT has."""
    path = write(tmp_path / "detector.onnx", DETECTOR)
    report = onnxfix.apply(path, tmp_path / "out.onnx", require=["trt-build", "trt-network"])
    assert report.exit_code == 0
    for check in ("trt-build", "trt-network"):
        part = report.verdict.rung(check).part
        assert part is not None
        assert part.words == "14 of 16 nodes; NonZero ×1, NonMaxSuppression ×1 not judged"
    assert report.verdict.rung("trt-network").networks[-1].shapes > 1
    assert {one.place.output for one in report.findings if one.code == "TRT001"} == {"where", "found"}
    assert onnxfix.check(path, target="rtx", trt=True).errors


@REAL
def test_a_network_with_suppression_is_still_read_as_a_whole(tmp_path: Path) -> None:
    """Only its build lacks a kernel. For several classes it has another order, as with any TensorRT."""
    text = """
        g (float[1, 60, 4] b, float[1, 4, 60] s) => (float[R, 3] y)
        <int64[1] most = {20}, float[1] iou = {0.5}, float[1] low = {0.1}>
        { n = NonMaxSuppression(b, s, most, iou, low)  y = Cast<to = 1>(n) }
    """
    report = onnxfix.check(write(tmp_path / "nms.onnx", text), trt=True)
    assert report.build is not None
    assert report.build.part is not None
    assert (report.build.accepted, report.build.part.nodes) == (True, 1)
    assert [one.code for one in report.errors] == ["TRT004"]


@REAL
def test_a_fault_in_the_rest_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "fault.onnx", FAULT)
    report = onnxfix.check(path, trt=True)
    [error] = report.errors
    assert (error.code, error.place.output, bool(error.confirmed)) == ("OPS056", "d", True)
    assert report.build is not None
    assert report.build.errors[0].place.index == 5  # as in the whole model
    kept = onnxfix.apply(path, tmp_path / "kept.onnx")
    assert (kept.verdict.rung("trt-build").status, kept.verdict.rung("trt-build").inherited) == (
        "failed",
        True,
    )
    assert "in part" in kept.verdict.rung("trt-build").reason
    fixed = onnxfix.apply(path, tmp_path / "fixed.onnx", numeric_fixes=True, require=["trt-build"])
    assert fixed.exit_code == 0
    assert [build.accepted for build in fixed.builds] == [False, True]
    assert "refused it and accepts the result in part" in fixed.headline


@REAL
@pytest.mark.parametrize("text", [TRIANGLE, TRIANGLE.replace("GatherND(u", "GatherND(x")])
def test_a_fixed_model_whose_rest_is_read_differently_is_refuted(text: str, tmp_path: Path) -> None:
    """TensorRT-RTX takes a Trilu without ``upper`` for the lower triangle; ONNX means the upper one. Also where nothing
    but NonZero reads it."""
    original = write(tmp_path / "original.onnx", text)
    wrong = write(tmp_path / "wrong.onnx", text.replace("<upper = 1>", ""))
    assert onnxfix.verify(original, original, trt=TRT11, require=["trt-network"]).exit_code == 0
    report = onnxfix.verify(original, wrong, trt=TRT11, require=["trt-build"])
    assert report.exit_code == 3
    assert report.verdict.rung("ort-cpu").status == "passed"
    network = report.verdict.rung("trt-network")
    assert (network.status, network.inherited) == ("failed", False)
    assert [one.place.output for one in network.networks[-1].grave] == ["u"]
    assert network.reason.startswith("in part, 3 of 4 nodes; NonZero ×1 not judged: ")


@REAL
@pytest.mark.parametrize(
    ("text", "why"),
    [
        # inside of the only node
        (
            "g (float[N] x, bool c) => (int64[1, K] y) { y = If (c) <then_branch = t () => (int64[1, K] o) "
            "{ o = NonZero(x) }, else_branch = e () => (int64[1, K] p) { n = Neg(x) p = NonZero(n) }> }",
            "nothing is left",
        ),
        # ONNX Runtime does not have it, so that nobody knows the values
        (
            "g (float[N, 60, 4] b, float[N, 60, 9] s) => (float[N, 50, 4] y) "
            '{ k, d, t, l = TRT.EfficientNMS_TRT<max_output_boxes = 50, plugin_version = "1">(b, s) y = Abs(d) }',
            "the values at the cuts are unknown: ONNX Runtime does not compute them",
        ),
        # inside of a function that nobody calls, with the name of a value that TensorRT is to judge
        (
            "g (float[N] x) => (float[M] y) { u = Relu(x) n = NonZero(u) t = Transpose(n) y = GatherND(u, t) }"
            '<domain: "f", opset_import: ["" : 20]> F (a) => (u) { u = NonZero(a) }',
            "NonZero is inside of ",
        ),
        ("g (float[N] x) => (int64[1, K] y) { y = NonZero(x) }", "nothing is left"),
    ],
)
def test_where_no_rest_can_be_judged_the_note_stays_and_says_why(text: str, why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", model(text, domains={"TRT": 1, "f": 1}))
    report = onnxfix.check(path, trt=True)
    assert report.exit_code == 0
    assert report.build is not None
    assert (report.build.accepted, report.build.part) == (False, None)
    assert not report.headline
    why = f"and was not asked; no part is judged: {why}"
    assert why in report.build.reason
    shown = output(3, "apply", path, "-o", tmp_path / "out.onnx", "--require", "trt-build")
    assert why in " ".join(shown.split())


@REAL
def test_weights_in_other_files_and_inputs_of_the_user(tmp_path: Path) -> None:
    proto = model(
        "g (float[N, 64] x) => (float[M] y)"
        "{ a = MatMul(x, w)  nz = NonZero(a)  t = Transpose<perm = [1, 0]>(nz)  y = GatherND(a, t) }",
        w=np.eye(64, dtype=np.float32),
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="model.data", size_threshold=0)
    feeds = [{"x": np.full((rows, 64), rows, np.float32)} for rows in (2, 5)]
    report = onnxfix.verify(path, path, trt=TRT11, require=["trt-build", "trt-network"], inputs=feeds)
    assert report.exit_code == 0
    network = report.verdict.rung("trt-network")
    assert network.part is not None
    assert network.part.nodes == 3
    assert [feed.label for feed in network.feeds] == ["inputs 1 of 2", "inputs 2 of 2"]


@REAL
def test_no_engine_is_saved_of_a_part(tmp_path: Path) -> None:
    out, engine = tmp_path / "out.onnx", tmp_path / "out.engine"
    assert run("apply", write(tmp_path / "places.onnx", PLACES), "-o", out, "--save-engine", engine)[0] == 3
    assert not out.exists()
    assert not engine.exists()


@REAL
def test_a_model_that_is_specialized(tmp_path: Path) -> None:
    """The fixed model has no input k any more."""
    text = """
        g (float[N, 4] x, int64 k) => (float[M] y)
        { f = Cast<to = 1>(k)  a = Mul(x, f)  nz = NonZero(a)  t = Transpose<perm = [1, 0]>(nz)  y = GatherND(a, t) }
    """
    path = write(tmp_path / "m.onnx", text)
    fixes = ("--fix-input", "k=2", "--fix-dim", "N=3")
    required = ("--require", "trt-build", "--require", "trt-network")
    text = output(0, "apply", path, "-o", tmp_path / "out.onnx", *fixes, *required, "-v")
    assert text.count("  in part, 3 of 4 nodes; NonZero ×1 not judged: ") == 2


@REAL
def test_one_of_two_is_fixed_away(tmp_path: Path) -> None:
    """The rest of the fixed model has the inputs that the original has, also those that it does not read."""
    text = """
        g (float[N, 4] x) => (float[M] y, float z)
        {{
            a = Relu(x)  n = NonZero(a)  t = Transpose<perm = [1, 0]>(n)  y = GatherND(a, t)
            b = Exp(x)  {}  z = Cast<to = 1>(s)
        }}
    """
    both = write(tmp_path / "both.onnx", text.format("k = NonZero(b)  s = Size(k)"))
    one = write(
        tmp_path / "one.onnx", text.format("c = Size(b)  i = Constant<value = int64 {2}>()  s = Mul(c, i)")
    )
    report = onnxfix.verify(both, one, trt=TRT11, require=["trt-build", "trt-network"])
    assert report.exit_code == 0
    network = report.verdict.rung("trt-network")
    assert network.part is not None
    assert network.part.words == "8 of 9 nodes; NonZero ×1 not judged"


@REAL
def test_models_that_cut_otherwise_are_not_compared_in_part(tmp_path: Path) -> None:
    """What NonZero computes is not the same in both, so that the one's values are no inputs of the other."""
    text = """g (float[N, 4] x) => (float[1] y) {{
        {before}  n = NonZero({of})  t = Transpose<perm = [1, 0]>(n)  q = GatherND({of}, t)  y = ReduceSum(q) }}"""
    original = write(tmp_path / "a.onnx", text.format(before="", of="x").replace("ReduceSum", REDUCED))
    turned = text.format(before="z = Transpose<perm = [1, 0]>(x)", of="z").replace("ReduceSum", REDUCED)
    report = onnxfix.verify(original, write(tmp_path / "b.onnx", turned), trt=TRT11)
    found = report.verdict.rung("trt-network")
    assert (report.exit_code, found.status, found.cause) == (0, "skipped", "refused")


@REAL
def test_what_only_the_new_model_computes_is_said_to_be_compared_with_nothing(tmp_path: Path) -> None:
    text = "g (float[N, 4] x) => (int64[2, K] n, float[N, 4] y) {{ {mask}  n = NonZero(m)  y = Exp(x) }}"
    original = write(tmp_path / "a.onnx", text.format(mask="m = Relu(x)"))
    new = write(tmp_path / "b.onnx", text.format(mask="z = Relu(x)  f = Cast<to = 9>(z)  m = Identity(f)"))
    found = onnxfix.verify(original, new, trt=TRT11).verdict.rung("trt-network")
    assert found.status == "passed"
    assert "engines are not compared in values that are not the same in both models: m" in found.notes


@REAL
def test_two_plugins_without_a_first_output_are_cut_alike(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18, "TRT" : 1]>
        g (float[1, 9, 4] b, float[1, 9, 2] s) => (float[1, 9, 4] y) {
            , d, t, l = TRT.EfficientNMS_TRT(b, s)  , e, u, m = TRT.EfficientNMS_TRT(b, s)  y = Abs(b) }"""
    report = onnxfix.check(write(tmp_path / "m.onnx", text), target="trt11", trt=True)
    assert [found.code for found in report.errors] == []


@REAL
def test_what_only_the_judge_lacks_is_a_note() -> None:
    """For the target that has it; for TensorRT-RTX itself it is an error. A plugin is in test_judged_in_part.py."""
    path = CASES / "masked_assignment.onnx"
    report = onnxfix.check(path, target="trt11", trt=True)
    [said] = [finding for finding in report.findings if finding.code == "TRT001"]
    assert (said.severity, said.place.op_type) == ("info", "NonZero")
    assert "lacks it; the target TensorRT 11.x has it" in said.message
    assert report.exit_code == 0
    assert onnxfix.check(path, target="rtx", trt=True).exit_code == 1


@REAL
def test_what_the_target_lacks_too_is_an_error(tmp_path: Path) -> None:
    det = write(tmp_path / "det.onnx", "m (float[3,3] x) => (float y) { y = Det(x) }")
    assert onnxfix.check(det, target="trt11", trt=True).exit_code == 1


@REAL
def test_types_choose_the_capability_unless_the_user_does(tmp_path: Path) -> None:
    model = CASES / "nvfp4_weights.onnx"
    report = onnxfix.check(model, trt=True)
    assert report.exit_code == 0
    assert report.build is not None
    assert report.build.accepted
    assert report.build.compute_capability.startswith("12.")
    mine = TrtOptions(compute_capability="8.9")
    assert onnxfix.check(model, trt=mine).exit_code == 1
    applied = onnxfix.apply(model, tmp_path / "out.onnx")
    assert [(one.accepted, one.compute_capability[:3]) for one in applied.builds] == [(True, "12.")]


@pytest.mark.parametrize(("before", "status"), [("accepted", "failed"), ("refused", "skipped")])
def test_a_fix_that_brings_such_an_operator_fails(before: str, status: str) -> None:
    """Where TensorRT built the original, the result is to be built as well."""
    unsupported = TrtBuild("refused", "parse", (TargetOnly("parse", "error", "not here"),))
    first = TrtBuild("accepted") if before == "accepted" else unsupported
    builder = Builder(Choice("tensorrt-rtx", "1.7.1", "8.9"), TrtOptions(target="trt11"), Worker())
    result = judge((first, unsupported), builder, inherit=True)
    assert (result.status, result.inherited) == (status, False)


def test_beside_an_error_about_the_model_it_is_still_a_note() -> None:
    errors = TargetOnly("build", "error", "not here"), Issue("build", "error", "wrong")
    found = trt_findings(TrtBuild("refused", "build", errors), registry().rules)
    assert [(one.code, one.severity, one.message) for one in found] == [
        ("TRT001", "info", "not here"),
        ("TRT002", "error", "wrong"),
    ]


def test_one_error_about_the_model_makes_it_refused() -> None:
    unsupported, other = TargetOnly("parse", "error", "not here"), Issue("parse", "error", "wrong")
    assert not TrtBuild("refused", "parse", (unsupported,)).judged
    assert TrtBuild("refused", "parse", (unsupported, other)).judged
