"""What people read: the headline first and the worst first, one line of proof, and counts instead of notes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import onnxfix
from onnxfix.place import Place
from onnxfix.proof.compare.compare import compare
from onnxfix.proof.verdict import FeedResult, RungResult, Verdict
from onnxfix.report.render.lines import GLUE, size, wrapped
from onnxfix.report.render.stream import _CONTROLS, escaped
from onnxfix.report.render.text import render_report, render_summary
from onnxfix.report.report import AppliedFix, Finding, NodeCounts, Report, StepDone, Withdrawn
from onnxfix.runtime.causes import Problem
from onnxfix.tensorrt.records import Issue, TrtBuild
from support.paths import ROOT
from support.reports import at

FEEDS = tuple(FeedResult(f"feed {number}", None, "identical") for number in range(4))
CONTRACT = RungResult("contract", "passed", "the interface is unchanged")
NO_GPU = RungResult("ort-cuda", "skipped", "no NVIDIA driver found", cause="no-gpu")
PROVEN = tuple(RungResult(name, "passed", feeds=FEEDS) for name in ("reference", "ort-cpu"))
VERIFIED = Verdict((CONTRACT, *PROVEN, NO_GPU))
CHECKED = Report("m.onnx", "check", "trt11")
APPLIED = Report(
    "m.onnx", "apply", "trt11", changed=True, safety="exact", verdict=VERIFIED, output="o.onnx",
    bytes_before=2000, bytes_after=1_234_567,
)  # fmt: skip


def shown(report: Report, **options: bool) -> list[str]:
    return [one.plain for one in render_report(report, **options)]


def begun(report: Report, label: str, **options: bool) -> list[str]:
    """What follows a label."""
    return [one[12:] for one in shown(report, **options) if one[2:12].rstrip() == label]


def finding(
    code: str, severity: str, place: str = "y (node)", message: str = "found", **more: Any
) -> Finding:
    return Finding(code, f"name-of-{code.lower()}", severity, at(place), message, **more)


def fixed(code: str, severity: str = "info", place: str = "y (node)", **more: Any) -> AppliedFix:
    safety = more.pop("safety", "exact")
    return AppliedFix(
        code, f"name-of-{code.lower()}", severity, at(place), "found", "mend it", safety, 1, **more
    )


def notes(code: str, count: int) -> list[Finding]:
    return [finding(code, "info", f"v{number}") for number in range(count)]


def test_verbose_shows_the_errors_of_the_output_that_is_furthest_off() -> None:
    truth = np.linspace(1, 2, 100, dtype=np.float32)
    pairs = (("far", truth + 0.02), ("near", truth + 1e-5), ("same", truth))
    metrics = tuple(one for name, other in pairs for one in compare(name, truth, other))
    check = RungResult(
        "ort-cpu", "failed", "far differs", feeds=(FeedResult("f", None, "different", "", metrics),)
    )
    report = replace(CHECKED, command="verify", output="n.onnx", verdict=Verdict((check,)))
    lines = shown(report, verbose=True)
    start = lines.index("absolute errors of far, the output with the largest")
    assert lines[start + 1] == "  ort-cpu different"
    assert f"    1e-2  {40 * '█'} 100" in lines[start:]
    assert not [line for line in shown(report) if "█" in line]


# --------------------------------------------------------------------------------------------------------- findings


def test_errors_and_warnings_come_first_and_in_full_and_notes_as_counts() -> None:
    report = replace(
        CHECKED,
        findings=(
            *notes("AAA001", 41),
            *notes("BBB001", 11),
            finding("CCC001", "warning"),
            finding("DDD001", "error"),
        ),
    )
    lines = shown(report)
    assert lines[0].startswith("m.onnx  1 error, 1 warning, 52 notes  (target trt11, ")
    assert lines[1:5] == [
        "  error     DDD001 name-of-ddd001",
        "    node: found",
        "  warning   CCC001 name-of-ccc001",
        "    node: found",
    ]
    assert begun(report, "notes") == ["AAA001 ×41  BBB001 ×11  (-v lists them)"]
    assert not any("v7" in one for one in lines)
    assert "      at v7" in shown(report, verbose=True)
    assert begun(report, "notes", verbose=True) == []
    assert shown(replace(report, findings=()))[0].startswith("m.onnx  no findings  (")


def test_one_message_at_many_nodes_is_said_once() -> None:
    places = [f"out{number} (/layers.{number}/Sqrt)" for number in range(60)]
    many = [finding("AAA001", "warning", place, fix="compute", safety="numeric") for place in places]
    other = finding("AAA001", "warning", "z (other)", "another message")
    lines = shown(replace(CHECKED, findings=(*many, other)))
    assert "  warning   AAA001 name-of-aaa001 ×61" in lines
    start = lines.index("    found")
    assert lines[start + 1] == "      fix: compute (numeric, with --numeric-fixes)"
    assert lines[start + 2] == "      at /layers.0/Sqrt"
    assert lines[start + 52] == "      … and at 10 more places  (-v lists them)"
    assert lines[start + 53] == "    other: another message"
    assert sum("/Sqrt" in one for one in shown(replace(CHECKED, findings=tuple(many)), verbose=True)) == 60


def test_a_node_has_one_name() -> None:
    assert Place(("If_1.then_branch",), "/node", "Add", "/sum").short == "If_1.then_branch / /node"
    assert Place((), "", "Add", "/sum", 1).short == "/sum"
    assert Place().short == Place().text
    twins = (finding("AAA001", "warning", "a (twin)"), finding("AAA001", "warning", "b (twin)"))
    lines = shown(replace(CHECKED, findings=twins))
    assert "      at a (twin)" in lines, "two nodes of one name are told apart"
    assert "      at b (twin)" in lines


def test_names_that_forge_lines_or_colors_are_harmless() -> None:
    evil = "a\n  VERIFIED: all\x1b[31m" + GLUE
    item = finding("AAA001", "error", message=evil, fix=evil, safety="exact")
    item = replace(item, place=Place((), evil, "Add", "y", 1))
    for report in (
        replace(CHECKED, findings=(item,)),
        replace(APPLIED, findings=(item,), applied=(fixed(evil),)),
    ):
        for verbose in (False, True):
            text = "\n".join(shown(report, verbose=verbose))
            assert "\x1b" not in text
            assert GLUE not in text
            assert "\n  VERIFIED: all" not in text


# ------------------------------------------------------------------------------------------------------------ proof


def test_one_line_of_proof() -> None:
    assert shown(APPLIED)[1:] == [
        "  VERIFIED: reference, ort-cpu bit-identical (4 feeds)",
        "  not run   ort-cuda (no GPU)",
        "  written   o.onnx  1.23 MB (was 2 kB)",
        "  ship it?  not yet: TensorRT was not asked",
        "  next      onnxfix doctor",
    ]
    close = replace(VERIFIED.rungs[2], feeds=(*FEEDS, FeedResult("f", None, "within")))
    both = replace(APPLIED, verdict=Verdict((*VERIFIED.rungs[:2], close)))
    assert begun(both, "VERIFIED:") == [
        "reference bit-identical (4 feeds), ort-cpu within tolerance (5 feeds)"
    ]
    counts = NodeCounts({"Add": 1}, weights={"float16": 900_000, "float": 300_000, "int64": 80, "bool": 1})
    words = "o.onnx  1.23 MB (was 2 kB); weights: float16 900 kB, float 300 kB"
    assert begun(replace(APPLIED, operators_after=counts), "written") == [words]
    assert [size(999), size(1), size(999_999), size(2_000_000_000)] == ["999 bytes", "1 byte", "1 MB", "2 GB"]


@pytest.mark.parametrize("quiet", [False, True])
def test_values_that_were_not_compared_are_the_headline(quiet: bool) -> None:
    report = replace(APPLIED, verdict=Verdict((CONTRACT,)))
    head = shown(report, quiet=quiet)[0]
    assert head.startswith("m.onnx  NOT VERIFIED (values were not compared); 0 fixed, 0 left  (")
    assert not any("VERIFIED:" in one for one in shown(report))
    assert report.to_json()["summary"]["proof"] == "not compared"
    assert shown(replace(APPLIED, verdict=replace(VERIFIED, without_unsafe=True)), quiet=quiet)[0].startswith(
        "m.onnx  NOT VERIFIED with the UNSAFE fixes; "
    )


def test_quiet_is_one_line() -> None:
    counts = {"operators_before": NodeCounts({"Add": 5}, 3), "operators_after": NodeCounts({"Add": 2}, 0)}
    report = replace(APPLIED, findings=(*notes("AAA001", 2), finding("BBB001", "warning")), **counts)
    (only,) = shown(report, quiet=True)
    assert only == (
        "m.onnx  VERIFIED; 0 fixed, 1 warning and 2 notes left, 5 → 2 compute nodes  (target trt11, 0.0 s) → o.onnx"
    )
    broke = RungResult("trt-network", "broke", "made up", cause="fault")
    worse = replace(report, verdict=Verdict((*VERIFIED.rungs, broke)), problems=(Problem("rule failed"),))
    assert shown(worse, quiet=True)[1:] == [
        "  broke     trt-network: made up (a bug in onnxfix, please report it)",
        "  problem   rule failed (a bug in onnxfix or in the rule)",
    ]


def test_a_failure_keeps_its_reasons() -> None:
    bad = RungResult("ort-cpu", "failed", "output y at [0] is 1.0 instead of 2.0", FEEDS)
    slow = RungResult("reference", "skipped", "the model is too large for the reference evaluator, by far")
    report = replace(
        APPLIED,
        output="",
        verdict=Verdict((CONTRACT, slow, bad)),
        withdrawn=(Withdrawn("CST002", at("y (cast)"), "remove it", "ort-cpu: output y"),),
        steps=(StepDone("--simplify", "onnxsim 1", "dropped", "it changes an output"),),
        applied=(fixed("AAA001"),),
    )
    lines = shown(report)
    assert lines[0].startswith("m.onnx  FAILED: ort-cpu; nothing was written, 1 withdrawn, 1 dropped  (")
    assert begun(report, "withdrawn") == ["CST002 at cast: remove it: ort-cpu: output y"]
    assert begun(report, "dropped") == ["--simplify (onnxsim 1): it changes an output"]
    assert begun(report, "failed") == ["ort-cpu: output y at [0] is 1.0 instead of 2.0"]
    assert begun(report, "not run") == [f"reference: {slow.reason}"]
    assert begun(report, "written") == ["nothing"]
    assert begun(report, "fixed") == [], "nothing was written"


def test_which_tensorrt_was_asked_is_said_once() -> None:
    build = TrtBuild(
        "accepted",
        layers=(("SHUFFLE", 9),),
        package="tensorrt-rtx",
        version="1.7.1.1",
        compute_capability="8.9",
    )
    note = "TensorRT-RTX 1.7.1 judged the model, not the target TensorRT 11.x: what it accepts may differ"
    rung = RungResult(
        "trt-build", "passed", "accepts it", builds=(build, replace(build, layers=(("SHUFFLE", 4),)))
    )
    for report in (
        replace(CHECKED, build=build, notes=(note, "another")),
        replace(APPLIED, verdict=Verdict((*VERIFIED.rungs, rung)), notes=(note, "another")),
    ):
        said = "RTX 1.7.1, not the target TensorRT 11.x, for compute capability 8.9: builds it; no engine was executed"
        assert begun(report, "TensorRT") == [said]
        assert "\n".join(shown(report)).count("TensorRT 11") == 1
        assert begun(report, "note") == ["another"]
    same = replace(APPLIED, target="rtx", verdict=Verdict((*VERIFIED.rungs, rung)))
    assert begun(same, "TensorRT")[0].startswith("RTX 1.7.1, for compute capability 8.9: builds it")
    assert "  TensorRT layers       9      4      −5" in shown(same)


def test_a_refusal_is_not_said_three_times() -> None:
    issue = Issue("parse", "error", "no INT32")
    build = TrtBuild("refused", "parse", (issue,), package="tensorrt-rtx", version="1.7.1.1")
    rung = RungResult(
        "trt-build", "failed", "TensorRT-RTX refuses it: no INT32", builds=(build,), inherited=True
    )
    report = replace(APPLIED, target="rtx", verdict=Verdict((*VERIFIED.rungs, rung)))
    assert begun(report, "failed") == ["trt-build: TensorRT-RTX refuses it: no INT32"]
    told = replace(report, findings=(finding("TRT001", "error", message="Relu: no INT32"),))
    assert begun(told, "failed") == []
    assert begun(told, "TensorRT") == ["RTX 1.7.1: refuses it"]
    known = replace(report, findings=(finding("INT006", "error", confirmed="Relu: no INT32"),))
    assert begun(known, "failed") == []
    worse = replace(told, verdict=Verdict((*VERIFIED.rungs, replace(rung, inherited=False))))
    assert begun(worse, "failed"), "why the run failed is always said"


# --------------------------------------------------------------------------------------------- changes and what is left


def test_a_table_of_what_changed() -> None:
    before = {"Cast": 1200, "Add": 30, **{f"Op{number}": 9 - number for number in range(8)}, "Same": 4}
    after = {"Cast": 0, "Add": 31, "Same": 4}
    report = replace(APPLIED, operators_before=NodeCounts(before, 500), operators_after=NodeCounts(after, 2))
    lines = shown(report)
    start = next(number for number, one in enumerate(lines) if one.split()[1:2] == ["before"])
    assert lines[start + 1 : start + 4] == [
        "  compute nodes   1,278     35  −1,243",
        "  Constant          500      2    −498",
        "  Cast            1,200      0  −1,200",
    ]
    assert lines[start + 9] == "  … and 4 more operators (-v lists them)"
    assert any(one.split() == ["Add", "30", "31", "+1"] for one in shown(report, verbose=True))
    assert not any("Same" in one for one in shown(report, verbose=True))
    same = replace(report, operators_after=report.operators_before)
    assert not any("before" in one for one in shown(same))


def test_fixes_as_counts_and_what_mattered_by_name() -> None:
    report = replace(
        APPLIED,
        applied=(
            *(fixed("AAA001", place=f"v{number}") for number in range(5)),
            fixed("BBB001", safety="numeric"),
            fixed("CCC001", "error", confirmed="no INT32"),
        ),
    )
    assert begun(report, "fixed") == ["CCC001 name-of-ccc001: mend it, at node (confirmed by TensorRT)"]
    assert "            AAA001 ×5  BBB001 ×1 (numeric)  (-v lists them)" in shown(report)
    full = shown(report, verbose=True)
    assert "    v3: mend it" in full
    assert "    node: mend it (confirmed by TensorRT): no INT32" in full
    assert begun(replace(report, applied=()), "fixed") == []


def test_what_is_left_and_the_command_that_fixes_it() -> None:
    left = (
        *(finding("AAA001", "warning", f"v{number}", fix="f", safety="numeric") for number in range(8)),
        finding("BBB001", "error"),
    )
    report = replace(APPLIED, findings=left)
    assert begun(report, "left") == [
        "8 warnings → rerun with --numeric-fixes",
        "1 error without an automatic fix",
    ]
    assert begun(report, "why") == ["onnxfix explain BBB001"]
    checked = replace(CHECKED, path="a b.onnx", findings=left)
    assert begun(checked, "fix") == ["8 warnings → onnxfix apply 'a b.onnx' --numeric-fixes"]
    assert begun(replace(APPLIED, applied=(fixed("CCC001"),)), "why") == ["onnxfix explain CCC001"]
    assert begun(CHECKED, "why") == []


# --------------------------------------------------------------------------------------------------- several models


def test_several_models_are_named_where_something_is_wrong() -> None:
    bad = Verdict((CONTRACT, RungResult("ort-cpu", "failed", "differs")))
    reports = [
        replace(APPLIED, path="fine.onnx", findings=tuple(notes("AAA001", 3))),
        replace(APPLIED, path="failed.onnx", verdict=bad, findings=(finding("AAA001", "error"),)),
        replace(APPLIED, path="wrong.onnx", findings=(finding("AAA001", "error"), *notes("AAA001", 2))),
        replace(APPLIED, path="less.onnx", withdrawn=(Withdrawn("A", at("y"), "f", "r"),)),
        replace(APPLIED, path="bare.onnx", verdict=Verdict((CONTRACT,))),
    ]
    lines = [one.plain for one in render_summary(reports, [("x.onnx", "x.onnx: not an ONNX model")])]
    assert lines == [
        "6 models, 0 fixed, 2 errors, 5 notes left, 1 not verified, "
        "1 without a comparison of values, 1 unreadable",
        "  x.onnx  no result  not an ONNX model",
        "  failed.onnx  FAILED: ort-cpu  1 error",
        "  less.onnx  1 withdrawn",
        "  wrong.onnx  1 error, 2 notes",
    ]


def test_a_check_of_several_says_nothing_of_fixes() -> None:
    reports = [replace(CHECKED, findings=tuple(notes("AAA001", 1200))), CHECKED]
    assert [one.plain for one in render_summary(reports, [])] == ["2 models, 1,200 notes"]
    assert [one.plain for one in render_summary([CHECKED, CHECKED], [])] == ["2 models, no findings"]
    many = [replace(CHECKED, path=f"{n}.onnx", findings=(finding("AAA001", "error"),)) for n in range(25)]
    *_, last = [one.plain for one in render_summary(many, [])]
    assert last == "  … and 5 more models"


# ------------------------------------------------------------------------------------------------------ real models


@pytest.mark.parametrize(
    "name", ["vit_fp16.legacy.op16", pytest.param("swin.legacy.op13", marks=pytest.mark.slow)]
)
def test_real_models_fit_on_a_screen(name: str) -> None:
    report = replace(onnxfix.check(ROOT / "fixtures" / f"{name}.onnx"), path=f"fixtures/{name}.onnx")
    found = [row.plain for one in render_report(report) for row in wrapped(one, 80)]
    assert len(found) < 26
    assert max(map(len, found)) <= 80
    assert len(list(render_report(report, verbose=True))) > len(report.findings)


def test_every_control_is_escaped_and_nothing_else() -> None:
    """Text that Python calls printable is not looked at: none of the controls may be."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    controls = set(re.findall(_CONTROLS, every))
    assert len(controls) > 2000
    assert [one for one in controls if not escaped(one).startswith("\\")] == []
    others = re.sub(_CONTROLS, "", every)
    assert escaped(others) == others
    assert escaped("×\u202e→") == "×\\u202e→"
