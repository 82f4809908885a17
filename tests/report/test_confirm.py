"""What TensorRT says as findings: its words at the right place, what it confirms, and what became of it by a fix."""
# Long because: a table of TensorRT's texts, and a test for each way in which it and a rule can meet.

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfix
from onnxfix.errors import UsageError
from onnxfix.place import Place
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.report import confirm
from onnxfix.report.confirm import build_problems, headline
from onnxfix.report.render.details import build_lines, flags
from onnxfix.report.render.text import render_report
from onnxfix.report.report import AppliedFix, Finding, Report
from onnxfix.rewrite.engine import check_build
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Match, Rule, rule
from onnxfix.runtime.causes import Problem
from onnxfix.runtime.nvidia import Missing
from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.build import attempt
from onnxfix.tensorrt.messages import without_missing_gpu
from onnxfix.tensorrt.records import Issue, Profile, TrtBuild, TrtOptions
from support.models import model
from support.real_tensorrt import FACT, REAL
from support.refused_models import CASES, FOLDER
from support.reports import at, trt_findings

RULES = registry().rules
TRT = [one for one in RULES if one.per == "build"]


def lines(report: Report, **options: bool) -> list[str]:
    return [line.plain for line in render_report(report, **options)]


def of_trt(report: Report) -> list[Finding]:
    """TensorRT's refusals, also those that are listed as the confirmation of a rule's finding."""
    found = trt_findings(report.builds[-1] if report.builds else None, RULES, report.findings, RULES)
    return [item for item in found if item.code in ("TRT001", "TRT002")]


# ----------------------------------------------------------------- the refused models, by the real TensorRT


@FACT
@REAL
@CASES
def test_check_lists_a_refusal_at_its_place(case: Any) -> None:
    report = onnxfix.check(FOLDER / f"{case.name}.onnx", trt=True)
    (found,) = of_trt(report)
    assert found.code == {"parse": "TRT001", "build": "TRT002"}[case.stage]
    assert (found.place.text, found.severity) == (case.place, "error")
    assert " ".join(case.words.split()) in found.message
    assert "cudaError" not in found.message
    assert report.headline.endswith("refuses it")
    assert report.exit_code == 1
    assert report.verdict is None
    assert report.build.status == "refused"
    assert [item.code for item in report.findings] == sorted(item.code for item in report.findings)
    assert json.dumps(report.to_json(), allow_nan=False)


@REAL
@CASES
def test_what_a_rule_repairs_is_accepted_and_the_headline(case: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    report = onnxfix.apply(FOLDER / f"{case.name}.onnx", out, unsafe_fixes=case.unsafe)
    rung = report.verdict.rung("trt-build")
    assert out.exists()
    head, second = lines(report)[:2]
    if not case.fix:
        if report.changed:
            return  # whether some rule will repair it one day is not this test's business
        assert (rung.status, report.exit_code) == ("failed", 1)
        assert report.headline.endswith(" refuses it")
        assert "nothing was written" not in "".join(lines(report))
        assert of_trt(report)
        return
    assert (rung.status, report.exit_code) == ("passed", 0)
    assert not of_trt(report)
    assert report.headline.endswith(" refused it and accepts the result")
    assert report.headline in head
    assert f"  before    {report.builds[0].errors[0].at.short}: " in second
    assert report.builds[0].errors[0].words in second
    fixes = [fix for fix in report.applied if fix.code == case.fix]
    assert fixes
    for fix in fixes:
        assert bool(fix.confirmed) == (fix.place.text == case.place), fix
        marked = any(
            f"{fix.place.short}: {fix.fix}" in line and "confirmed by TensorRT" in line
            for line in lines(report, verbose=True)
        )
        assert marked == bool(fix.confirmed)


@REAL
@pytest.mark.parametrize(
    ("name", "pointer"),
    [
        ("int32_relu", "INT006 fixes it"),
        ("int32_relu_in_a_branch", "INT006 fixes it"),
        ("allowzero_with_zero_and_minus_one", "RSH002 fixes it, with --unsafe-fixes"),
        ("hard_coded_batch", "RSH008 fixes it, with --unsafe-fixes"),
        ("unused_uint16_initializer", "GRA002 fixes it"),
        ("uint8_round_trip", "CST003 may fix it"),
        ("reduce_axes_from_range", "INT001 may fix it"),
        ("dead_uint16_chain", "GRA001 may fix it"),
        ("zero_beyond_rank", "see RSH006"),
        ("uint16_cast", "see CST004"),
        ("int32_relu_in_functions", "see INT006"),
        ("softmax_rank_1", "OPS023 fixes it"),
    ],
)
def test_a_refusal_points_to_the_rule_that_helps(name: str, pointer: str) -> None:
    report = onnxfix.check(FOLDER / f"{name}.onnx", trt=True)
    assert [item.pointer for item in of_trt(report)] == [pointer]
    listed = any(item.code in ("TRT001", "TRT002") for item in report.findings)
    assert (f"      help: {pointer}" in lines(report)) == listed


@REAL
def test_a_confirmed_finding_says_so() -> None:
    path = FOLDER / "int32_relu.onnx"
    report = onnxfix.check(path, trt=True)
    (own,) = [item for item in report.findings if item.code == "INT006"]
    assert "Found unsupported input type of INT32" in own.confirmed
    assert any(line.endswith(" (confirmed by TensorRT)") for line in lines(report))
    assert all(not item.confirmed for item in onnxfix.check(path).findings)
    assert f"      TensorRT: {own.confirmed}" in lines(report)


@REAL
def test_check_says_that_another_product_judged() -> None:
    asked = TrtOptions(package="tensorrt-rtx")
    (note,) = onnxfix.check(FOLDER / "int32_relu.onnx", trt=asked, target="trt10").notes
    assert "judged the model, not the target TensorRT 10" in note
    assert onnxfix.check(FOLDER / "int32_relu.onnx", trt=asked, target="rtx").notes == ()


@REAL
def test_what_tensorrt_still_refuses_is_written_and_no_contradiction(tmp_path: Path) -> None:
    text = "g (float[8] x) => (float[8] y) { a = Cast<to=1>(x)  b = Abs(a)  y = Softmax(b) }"
    out = tmp_path / "out.onnx"
    report = onnxfix.apply(model(text), out, ignore=["OPS023"])
    assert report.changed
    assert out.exists()
    assert report.exit_code == 1
    rung = report.verdict.rung("trt-build")
    assert (rung.status, rung.inherited) == ("failed", True)
    assert report.headline.endswith(" still refuses it")
    told = lines(report)
    assert report.headline in told[0]
    assert not any("nothing was written" in line or "did not verify" in line for line in told)
    assert any(line.startswith(f"  written   {out}  ") for line in told)


SQUEEZE = "g (float[N,1,4] x) => (float[N,4] y) { a = Abs(x)  [cut] y = Squeeze(a) }"
WARNED = {
    SQUEEZE: ("y (cut)", "warning", "RSH009"),
    "g (int64[4] x) => (float[4] y) { y = Cast<to=1>(x) }": ("x", "info", "INT005"),
    "g (float[2,4] x) => (int64[2] y) { [named] y = ArgMax<axis=1, keepdims=0>(x) }": ("y", "info", "INT005"),
    "g (float[2] x) => (float[2] y) { [n] a = Relu(x)  [n] y = Abs(a) }": ("y (n)", "warning", "GRA005"),
    "g (float[2] x, float[3] u) => (float[2] y) { y = Relu(x) }": ("u", "info", ""),
    'g (float[N,2,4] x) => (float[A,B,C] y) <int64[1] i = {0}, int64 two = {2}, int64[2] m = {-1, 4}> '
    "{ s = Shape(x)  n = Gather(s, i)  h = Div(n, two)  t = Concat<axis=0>(h, m)  y = Reshape(x, t) }": (
        "y",
        "warning",
        "RSH004",
    ),
}  # fmt: skip


@FACT
@REAL
@pytest.mark.parametrize("text", WARNED)
def test_a_warning_has_place_severity_and_rule(text: str) -> None:
    place, severity, code = WARNED[text]
    report = onnxfix.check(model(text), trt=True)
    assert report.build is not None
    found = [item for item in trt_findings(report.build, RULES, report.findings) if item.code == "TRT003"]
    assert {(item.place.text, item.severity) for item in found} == {(place, severity)}, found
    assert not any(
        re.match(r"(\w+: )?\w+\.[ch]pp:\d", item.message) for item in found
    )  # the parser's own source line
    assert code in found[0].pointer
    assert bool(found[0].pointer) == bool(code)
    confirmed = {item.code: item.confirmed for item in report.findings if item.confirmed}
    assert confirmed == ({code: found[0].message} if code else {})
    assert ("TRT003" in {item.code for item in report.findings}) == (not code), (
        "listed once, as the rule's finding"
    )


@REAL
def test_sizes_that_the_user_chose_are_warned_about_and_derived_ones_not() -> None:
    proto = model("g (float[N,4] x, float[M,4] w) => (float[A,4] y) { y = Add(x, w) }")
    given = TrtOptions(min_shapes=("x:1x4,w:1x4",), opt_shapes=("x:2x4,w:2x4",), max_shapes=("x:4x4,w:8x4",))
    report = onnxfix.check(proto, trt=given)
    assert report.build is not None
    (found,) = trt_findings(report.build, TRT)
    assert (found.place.text, found.severity) == ("y", "warning")
    assert "kMAX values are not self-consistent" in found.message
    assert [(item.code, item.confirmed) for item in report.findings] == [("BRC004", found.message)]
    assert not [item for item in onnxfix.check(proto, trt=True).findings if item.code == "TRT003"]


@REAL
def test_a_profile_that_tensorrt_does_not_take_is_its_builders_refusal(tmp_path: Path) -> None:
    onnx.save(model("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    bad = Profile({"x": ((1, 4), (3, 4), (2, 4))})
    with Worker() as worker:
        build = attempt(worker, tmp_path / "m.onnx", package="tensorrt-rtx", profiles=[bad])
    found = trt_findings(build, TRT)
    assert {item.code for item in found} == {"TRT002"}
    assert any("MIN<=OPT<=MAX" in item.message for item in found)
    assert not any("cudaError" in item.message for item in found)  # said in a line of its own there


@REAL
def test_an_error_that_names_an_operation_only_is_at_its_one_node() -> None:
    body = "{ y = Attention(q, k, v) }"
    tensors = "float[1,2,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v"
    report = onnxfix.check(model(f"g ({tensors}) => (float[1,2,3,8] y) {body}", 23, 11), trt=True)
    assert [(item.code, item.place.text) for item in of_trt(report)] == [("TRT002", "y")]


@REAL
def test_an_error_without_a_node_is_at_the_node_that_was_imported() -> None:
    text = (
        "g (float[3,3] x, int64[1,3] i, float[1,3] u) => (float[3,3] y) "
        '{ a = Relu(x)  [put] y = ScatterElements<reduction="add">(a, i, u) }'
    )
    report = onnxfix.check(model(text), trt=True)
    assert [(item.code, item.place.text) for item in of_trt(report)] == [("TRT001", "y (put)")]


@REAL
def test_what_the_parser_says_of_each_axis_is_one_finding() -> None:
    text = "g (float[1,1,8,8] x) => (float[1,1,A,B] y) { y = AveragePool<kernel_shape=[2,2], dilations=[2,2]>(x) }"
    (found,) = of_trt(onnxfix.check(model(text), trt=True))
    assert "dilations" in found.message
    assert found.message.endswith(" (2 times)")


# --------------------------------------------------------------------------------- without asking TensorRT


def issue(text: str, place: str = "y", around: str = "", stage: str = "parse", **more: Any) -> Issue:
    severity = more.pop("severity", "error")
    return Issue(
        stage,
        severity,
        text,
        replace(at(place), op_type="Relu", around=at(around) if around else None) if place else Place(),
        **more,
    )


def refused(*errors: Issue, warnings: Sequence[Issue] = (), status: Any = "refused") -> TrtBuild:
    stage = errors[0].stage if errors else ""
    return TrtBuild(status, stage, errors, tuple(warnings), package="tensorrt-rtx", version="1.7.1.116")


ACCEPTED = TrtBuild("accepted", package="tensorrt-rtx", version="1.7.1.116", compute_capability="8.9")
INT32 = "Assertion failed: status.is_success(): Found unsupported input type of INT32"


def finding(code: str, place: str = "y", severity: str = "error", fix: str = "", safety: str = "") -> Finding:
    return Finding(code, code.lower(), severity, at(place), "found", fix, safety or ("exact" if fix else ""))


INNER, OUTER = "y.then_branch / p", "y (branches)"
NEW = "Assertion failed: something new"


@pytest.mark.parametrize(
    ("item", "error", "confirmed"),
    [
        (finding("INT006"), issue(INT32), True),
        (finding("GRA001", severity="warning"), issue(INT32), True),  # the parser looks at dead nodes too
        (finding("INT006", place="z"), issue(INT32), False),
        (finding("INT006"), issue(INT32, place=""), False),
        # About something else at the same node.
        (finding("GRA005"), issue(INT32), False),
        (finding("RSH002"), issue(INT32), False),
        # A text that nobody knows confirms what claims a hazard there.
        (finding("XYZ001"), issue(NEW), True),
        (finding("XYZ001", severity="warning"), issue(NEW), True),
        (finding("XYZ001", severity="info"), issue(NEW), False),
        (finding("XYZ001", place="the graph"), issue(NEW, place=""), False),
        # The node around counts for rules that are known to look for it.
        (finding("INT006", place=INNER), issue(INT32, INNER, OUTER), True),
        (finding("GRA001", place=OUTER, severity="warning"), issue(INT32, INNER, OUTER), True),
        (finding("XYZ001", place=OUTER), issue(INT32, INNER, OUTER), False),
        (finding("XYZ001", place=OUTER), issue(NEW, INNER, OUTER), False),
    ],
)
def test_what_an_error_confirms(item: Finding, error: Issue, confirmed: bool) -> None:
    (result,) = confirm.confirm([item], check_build(refused(error), RULES))
    assert replace(result, confirmed="") == item
    assert bool(result.confirmed) == confirmed


def test_a_refusal_in_a_function_says_where_it_is_called() -> None:
    inner = issue(INT32, place="fn my::F / y (inner)", around="y (call)", stack=("my::F",))
    (found,) = trt_findings(refused(inner), TRT)
    assert (found.place.text, found.message) == (
        "fn my::F / y (inner)",
        f"Relu: {INT32} (called from y (call))",
    )


def test_a_message_without_a_place_is_about_its_layer_or_the_graph() -> None:
    build = refused(issue("first", place="", stage="build", layer="node_of_a"), issue("second", place=""))
    assert [(item.code, item.place.text) for item in trt_findings(build, TRT)] == [
        ("TRT001", "the graph"),
        ("TRT002", "layer node_of_a"),
    ]


@pytest.mark.parametrize("status", ["crash", "timeout", "refused"])
@pytest.mark.parametrize(
    ("stage", "code"), [("", "TRT001"), ("parse", "TRT001"), ("profile", "TRT002"), ("build", "TRT002")]
)
def test_every_end_of_a_build_is_a_finding_of_its_stage(status: str, stage: str, code: str) -> None:
    build = refused(issue("the child was stopped", place="", stage=stage), status=status)
    (found,) = trt_findings(build, TRT)
    assert (found.code, found.severity) == (code, "error")
    end = {"crash": "crash: ", "timeout": "timeout: ", "refused": ""}[status]
    assert found.message == f"{end}the child was stopped"
    assert list(build_problems(build)) == []


def test_a_lack_of_memory_is_no_fault_of_the_model() -> None:
    words = "the builder ran out of memory (memory is limited to 128 MiB: --memory-limit sets it)"
    build = refused(issue(words, place="", stage="build"), status="memory")
    assert trt_findings(build, TRT) == []
    told = f"TensorRT could not run: {words}"
    assert list(build_problems(build)) == [Problem(told, "memory", "tensorrt")]


def test_a_fault_of_the_installation_is_no_fault_of_the_model() -> None:
    build = refused(issue("ImportError: libnothing.so", place="", stage=""), status="error")
    assert trt_findings(build, TRT) == []
    assert headline([build], always=True) == ""
    told = "TensorRT could not run: ImportError: libnothing.so"
    assert list(build_problems(build)) == [Problem(told, "not-loadable", "tensorrt")]
    during = refused(issue("RuntimeError: nothing", place="", stage="build"), status="error")
    assert [item.code for item in trt_findings(during, TRT)] == ["TRT002"]
    assert list(build_problems(during)) == []


@REAL
def test_check_says_that_tensorrt_could_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    build = refused(issue("ImportError: libnothing.so", place="", stage=""), status="error")
    monkeypatch.setattr("onnxfix.proof.checks.builder.Builder.build", lambda *_, **__: build)
    report = onnxfix.check(FOLDER / "int32_relu.onnx", trt=True, ignore=["OPS"])
    told = "TensorRT could not run: ImportError: libnothing.so"
    assert report.problems == (Problem(told, "not-loadable", "tensorrt"),)
    assert report.exit_code == 2
    assert [item.code for item in report.findings] == ["INT006"]


# ----------------------------------------------------------------------------------------------- warnings

SAID = [
    ("Make sure input x has Int64 binding.", "info"),
    ("Make sure output y has Int64 binding.", "info"),
    ("Unused Input: like", "info"),
    ("[RemoveDeadLayers] Input Tensor x is unused or used only at compile-time, but is not being removed.", "info"),
    ("Detected layernorm nodes in FP16.", "info"),
    ("Empty initializer z was provided with non-empty data. Overriding data to nullptr", "info"),
    ("UINT8 data t is being converted to INT32.", "info"),
    ('Scatter was deprecated in Opset 11. Node: "s" will be converted to ScatterElements.', "info"),
    ("A node named node_of_p already exists, the output tensors of this new instance will not be queryable.", "info"),
    ("A node named p already exists, the output tensors of this new instance will not be queryable.", "warning"),
    ("node_of_y: Using attribute allowzero with opset < 14 is a TensorRT extension.", "warning"),
    ("n: IShuffleLayer with zeroIsPlaceHolder=true has reshape dimension at position 0 that might or might not be "
     "zero. TensorRT resolves it at runtime, but this may cause excessive memory consumption and is usually a sign of "
     "a bug in the network.", "warning"),
    ("TensorRT supports QuantizeLinear/DequantizeLinear with UINT8 zero_point only on DLA (version >= 3.16). "
     "Defaulting to INT8 instead. To import as UINT8, set the kIMPORT_UINT8_QUANTIZATION flag.", "warning"),
    ("Running layernorm after self-attention with FP16 Reduce or Pow may cause overflow. Forcing Reduce or Pow Layers "
     "in FP32 precision, or exporting the model to use INormalizationLayer can help preserving accuracy.", "warning"),
    ('TensorRT currently ignores the "seed" field in RandomUniform or RandomNormal op. Random seeds will be used.',
     "warning"),
    ("TensorRT supports ONNX graphs generated with at least opset 7. Models using older opsets are not guaranteed to "
     "work.", "warning"),
    ("For loop node  both a trip limit and a loop termination condition was set! If the number of iterations of the "
     "loop is less than the trip limit during runtime, scan output s may have the wrong shape.", "warning"),
    ("Weight at index 0: 1e+300 is out of range. Clamping to: 3.40282e+38", "warning"),
    ("One or more weights outside the range of FLOAT was clamped", "warning"),
    ("IElementWiseLayer with inputs X and Y: first input has type Half but second input has type Float.", "warning"),
    ("a text that nobody has seen yet", "warning"),
]  # fmt: skip
ONLY_OF_THE_MACHINE = [
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at checkMacros.cpp:250 "
    "(cudaError 35: CUDA driver version is insufficient for CUDA runtime version))",
    "CUDA initialization failure with error: 35",
    "CUDA lazy loading is not enabled. Enabling it can significantly reduce device memory usage",
    "Unable to determine GPU memory usage: no driver",
]
OF_A_PROFILE = [
    "Profile kMIN values are not self-consistent. n: dimensions not compatible for elementwise.",
    "Was not able to infer kOPT value(s) for tensor n. Using one(s).",
]


def warned(text: str, place: str = "y", *, derived: bool = True) -> list[Finding]:
    profile = Profile({"x": ((1,), (3,), (8,))}, derived=derived)
    build = replace(ACCEPTED, warnings=(issue(text, place, severity="warning"),), profiles=(profile,))
    return trt_findings(build, TRT)


@pytest.mark.parametrize(("text", "severity"), SAID, ids=lambda value: value[:40])
def test_severity_of_a_warning(text: str, severity: str) -> None:
    assert [(item.code, item.severity) for item in warned(text)] == [("TRT003", severity)]


@pytest.mark.parametrize("text", ONLY_OF_THE_MACHINE)
def test_remarks_on_the_machine_are_left_out(text: str) -> None:
    assert warned(text, place="") == []
    assert len(warned(text)) == 1  # said of a node: who knows what that is


@pytest.mark.parametrize("text", OF_A_PROFILE)
def test_remarks_on_a_profile_count_if_somebody_chose_it(text: str) -> None:
    assert warned(text) == []
    assert len(warned(text, derived=False)) == 1


def test_what_a_layer_requires_counts_for_every_profile() -> None:
    text = "Profile kMIN values are not self-consistent. y: ISqueezeLayer without an axes input requires dimension 0"
    assert [(item.code, item.severity) for item in warned(text)] == [("TRT003", "warning")]


def test_words_about_a_missing_gpu_are_cut_where_there_is_a_reason() -> None:
    noise = ONLY_OF_THE_MACHINE[0]
    assert without_missing_gpu(f"Invalid Node - y\nShape Error (reshaping [6] to [6,0])\n{noise}") == (
        "Invalid Node - y\nShape Error (reshaping [6] to [6,0])"
    )
    assert without_missing_gpu(noise) == ""
    other = noise.replace("cudaError 35", "cudaError 2")  # out of memory, on a machine that has a GPU
    assert without_missing_gpu(other) == other


WARNING = "Make sure input x has Int64 binding."


@pytest.mark.parametrize(
    ("own", "warnings", "listed"),
    [
        (finding("INT005", "x", "info"), [(WARNING, "x")], ["INT005"]),
        (finding("INT005", "x", "warning"), [(WARNING, "x")], ["INT005"]),
        (finding("INT005", "z", "info"), [(WARNING, "x")], ["INT005", "TRT003"]),
        (finding("GRA005", "x", "warning"), [(WARNING, "x")], ["GRA005", "TRT003"]),
        # A second text about the same thing is news.
        (finding("INT005", "x", "info"), [(WARNING, "x"), ("x has Int64 binding", "x")], ["INT005", "TRT003"]),
        # Nobody knows what it is about.
        (finding("GRA005", "y", "warning"), [("something new", "y")], ["GRA005", "TRT003"]),
        # It is graver than the finding.
        (finding("GRA005", "y", "info"), [("A node named y already exists", "y")], ["GRA005", "TRT003"]),
    ],
)  # fmt: skip
def test_a_warning_that_a_rule_gives_as_well_is_listed_once(
    own: Finding, warnings: list[tuple[str, str]], listed: list[str]
) -> None:
    said = tuple(issue(text, place, severity="warning") for text, place in warnings)
    result = confirm.merge_findings([own], replace(ACCEPTED, warnings=said), RULES, RULES, [])
    assert [item.code for item in result] == listed
    if listed == ["INT005"]:
        assert result == (replace(own, confirmed=f"Relu: {WARNING}"),)
    without = confirm.merge_findings([], replace(ACCEPTED, warnings=said), RULES, RULES, [])
    assert [item.code for item in without] == ["TRT003"] * len(said), "nobody else says it"


def test_what_tensorrt_refuses_and_a_rule_knows_is_one_finding() -> None:
    """At one node, for one reason. Elsewhere, for another reason, or where the rule warns only, there are two."""
    result = confirm.merge_findings([finding("INT006")], refused(issue(INT32)), RULES, RULES, [])
    assert [(item.code, item.confirmed) for item in result] == [("INT006", f"Relu: {INT32}")]
    for other in (
        finding("INT006", place="z"),
        finding("GRA005"),
        replace(finding("INT006"), severity="warning"),
    ):
        result = confirm.merge_findings([other], refused(issue(INT32)), RULES, RULES, [])
        assert [item.code for item in result] == [other.code, "TRT001"]


def test_a_refusal_without_a_node_is_one_finding_with_the_only_error_of_its_rule() -> None:
    text = "CHECK(static_cast<size_t>(i) < op->input_size()) failed"
    build = refused(replace(issue(text, ""), stage="build"))
    own = finding("CTL011")
    (only,) = confirm.merge_findings([own], build, RULES, RULES, [])
    assert (only.code, only.place, text in only.confirmed) == ("CTL011", own.place, True)
    for others in ([own, finding("CTL011", place="z")], [replace(own, severity="warning")]):
        result = confirm.merge_findings(others, build, RULES, RULES, [])
        assert [item.code for item in result] == [*(item.code for item in others), "TRT002"]


# ----------------------------------------------------------------------------------------------- pointers


def pointer(own: Sequence[Finding], text: str = INT32, known: Sequence[Rule] = RULES) -> str:
    (found,) = trt_findings(refused(issue(text)), TRT, own, known)
    return found.pointer


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([finding("INT006", fix="write Max")], "INT006 fixes it"),
        ([finding("INT006", fix="f", safety="numeric")], "INT006 fixes it, with --numeric-fixes"),
        ([finding("INT006", fix="f", safety="unsafe")], "INT006 fixes it, with --unsafe-fixes"),
        ([finding("INT006", fix="f", safety="unsafe"), finding("GRA001", fix="f")], "GRA001 fixes it"),
        ([finding("INT006"), finding("INT006", place="z", fix="f")], "see INT006"),
        ([finding("INT006", place="z", fix="f")], "INT006 may fix it"),
        ([finding("GRA005", fix="rename")], "see INT006"),
        ([], "see INT006"),
    ],
)
def test_pointer(own: list[Finding], expected: str) -> None:
    assert pointer(own) == expected


def test_pointer_of_a_text_that_nobody_knows() -> None:
    assert pointer([], "something new") == ""
    assert pointer([finding("XYZ001", fix="f")], "something new") == "XYZ001 may fix it"
    assert pointer([finding("XYZ001")], "something new") == "see XYZ001"


def test_pointers_lead_to_installed_rules_only() -> None:
    assert pointer([], known=()) == ""


# ------------------------------------------------------------------------------------- headline and report


def applied(*builds: TrtBuild, **more: Any) -> Report:
    status = "passed" if builds[-1].accepted else "failed"
    rung = RungResult("trt-build", status, builds=builds, inherited=not builds[0].accepted)
    verdict = Verdict((RungResult("contract", "passed"), RungResult("ort-cpu", "passed"), rung))
    return Report("m.onnx", "apply", "trt11", verdict=verdict, **more)


CRASHED = TrtBuild("crash", "build", (issue("killed by SIGSEGV", place=""),), package="tensorrt-rtx")


@pytest.mark.parametrize(
    ("builds", "expected"),
    [
        ([ACCEPTED, ACCEPTED], ""),
        ([ACCEPTED], ""),
        ([refused(issue(INT32)), ACCEPTED], "TensorRT-RTX 1.7.1 refused it and accepts the result"),
        ([CRASHED, ACCEPTED], "TensorRT-RTX 1.7.1 failed on it and accepts the result"),
        ([refused(issue(INT32)), refused(issue(INT32))], "TensorRT-RTX 1.7.1 still refuses it"),
        ([refused(issue(INT32)), CRASHED], "TensorRT-RTX 1.7.1 still fails on it"),
        ([CRASHED], "TensorRT-RTX fails on it"),
        ([refused(issue(INT32))], "TensorRT-RTX 1.7.1 refuses it"),
        ([ACCEPTED, refused(issue(INT32))], ""),
    ],
)
def test_headline(builds: list[TrtBuild], expected: str) -> None:
    assert headline(builds) == expected
    assert headline([ACCEPTED], always=True) == "TensorRT-RTX 1.7.1 accepts it"


def test_findings_are_of_the_result_and_fixes_of_the_original() -> None:
    fix = AppliedFix("INT006", "int006", "error", at("y"), "found", "write Max", "exact", 1)
    after = refused(issue(INT32, place="z"))
    report = applied(refused(issue(INT32)), after, applied=(fix,), findings=(finding("INT006", place="z"),))
    result = confirm.add_judgments(report, RULES, RULES)
    assert result.applied[0].confirmed == f"Relu: {INT32}"
    assert [(item.code, item.place.text, bool(item.confirmed)) for item in result.findings] == [
        ("INT006", "z", True)
    ]
    assert result.exit_code == 1
    assert confirm.add_judgments(replace(report, verdict=None), RULES, RULES) == replace(report, verdict=None)


def test_a_refusal_that_no_fix_is_to_blame_for_is_not_why_nothing_was_written() -> None:
    report = applied(refused(issue(INT32)), refused(issue(INT32)))
    assert report.verdict is not None
    missing = replace(report, verdict=replace(report.verdict, required=("ort-cuda",)))
    assert missing.exit_code == 3
    assert any("ort-cuda was required and could not be run" in line for line in lines(missing))
    assert not any("did not verify" in line for line in lines(missing))


def test_verbose_text_has_the_builds() -> None:
    profile = Profile({"x\x1b[2J": ((1, 3), (4, 3), (8, 3))}, {"n": ((2,), (2,), (2,))}, derived=True)
    after = replace(
        ACCEPTED,
        layers=(("SHUFFLE", 1), ("UNARY", 2)),
        profiles=(profile,),
        warnings=(issue("Unused Input: u", place="u", severity="warning", count=2),),
        parse_seconds=0.5,
        build_seconds=1.25,
        engine_bytes=14500,
    )
    report = applied(refused(issue(INT32)), after)
    assert not any("layers" in line for line in lines(report))
    told = [line.strip() for line in lines(report, verbose=True)]
    assert "original: refused (parse), 0 layers, 0 warnings, 0.00 s to parse" in told
    assert f"error y: Relu: {INT32}" in told
    assert (
        "new: accepted, 3 layers (1 SHUFFLE, 2 UNARY), 1 warning, 0.50 s to parse, "
        "1.25 s to build for compute capability 8.9, engine of 14,500 bytes"
    ) in told
    assert "profile 1 (derived): x\\x1b[2J 1x3..8x3, optimal 4x3, values of n 2" in told
    assert "warning u: Relu: Unused Input: u (2 times)" in told
    check = Report("m.onnx", "check", "trt11", build=after)
    assert any(line.startswith("  build: accepted, 3 layers") for line in lines(check, verbose=True))
    assert not any("layers" in line for line in lines(check))


# ---------------------------------------------------------------------------------------- rules and the API


def test_a_failing_rule_about_builds_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    @rule("XYZ001", per="build")
    def broken(build: TrtBuild) -> Iterator[Match]:
        """Breaks."""
        raise ValueError("no such thing")
        yield Match("never")

    problems: list[Problem] = []
    own = (finding("INT006"),)
    assert confirm.merge_findings(own, ACCEPTED, [broken], [broken], problems) == own
    raised = "ValueError: no such thing"
    assert problems == [Problem(f"rule XYZ001 failed: {raised}", rule="XYZ001", raised=raised)]


def test_an_explicit_request_without_tensorrt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "onnxfix.proof.checks.builder.builder",
        lambda options: Missing("not installed: pip install it", "not-installed"),
    )
    with pytest.raises(UsageError, match="pip install it"):
        onnxfix.check(FOLDER / "int32_relu.onnx", trt=True)
    with pytest.raises(UsageError, match="pip install it"):
        onnxfix.check("no such file", trt=TrtOptions())  # said before any work is done
    assert onnxfix.check(FOLDER / "int32_relu.onnx").headline == ""


def test_check_writes_no_engine() -> None:
    with pytest.raises(UsageError, match="writes no engine"):
        onnxfix.check(FOLDER / "int32_relu.onnx", trt=TrtOptions(save_engine="m.engine"))


def test_a_profile_has_the_flags_that_reproduce_it() -> None:
    profile = Profile({"x": ((1, 3), (4, 3), (8, 3))}, {"s": ((2,), (2,), (5,))})
    assert flags(profile, "trtexec") == [
        "--minShapes=x:1x3,s:2",
        "--optShapes=x:4x3,s:2",
        "--maxShapes=x:8x3,s:5",
    ]
    assert flags(profile, "polygraphy")[2] == "--trt-max-shapes x:[8,3] s:[5]"
    told = "\n".join(build_lines([replace(ACCEPTED, profiles=(profile,))]))
    assert "    trtexec --minShapes=x:1x3,s:2 --optShapes=" in told
    assert "    polygraphy --trt-min-shapes x:[1,3] s:[2] --trt-opt-shapes " in told
