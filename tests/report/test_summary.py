"""The facts about a report that its renderers share: counts, also by rule over the models of a run, what was proven,
what changed, what is left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxfix
from onnxfix.inputs.feeds.plan import Feed
from onnxfix.place import Place
from onnxfix.proof.verdict import Executed, FeedResult, RungResult, Verdict
from onnxfix.report.render.rules import statistics, statistics_lines
from onnxfix.report.report import AppliedFix, Finding, Report, Withdrawn
from onnxfix.report.summary import summarize
from onnxfix.tensorrt.records import Outside, Partition, TrtBuild
from support.cli import output, run
from support.models import model
from support.paths import ROOT
from support.reports import at

CHECKED = Report("m.onnx", "check", "trt11")
APPLIED = Report("m.onnx", "apply", "trt11", changed=True, safety="exact")


def finding(code: str, severity: str, place: str = "y", safety: str = "") -> Finding:
    return Finding(code, code.lower(), severity, at(place), "message", "fix" if safety else "", safety)


def ran(name: str, *statuses: Any, status: Any = "passed") -> RungResult:
    feeds = [FeedResult(f"feed {n}", Feed({"N": n}, "normal", 0), one) for n, one in enumerate(statuses, 1)]
    return RungResult(name, status, feeds=tuple(feeds))


CONTRACT, PROVEN = RungResult("contract", "passed"), ran("ort-cpu", "identical")
SKIPPED = RungResult("ort-cuda", "skipped", "no NVIDIA driver found", cause="no-gpu")


@pytest.mark.parametrize(
    ("report", "proof", "compared"),
    [
        (CHECKED, "", None),
        (replace(APPLIED, verdict=Verdict((CONTRACT, PROVEN, SKIPPED))), "verified", True),
        (replace(APPLIED, verdict=Verdict((CONTRACT,))), "not compared", False),
        (replace(APPLIED, verdict=Verdict((CONTRACT, RungResult("trt-build", "passed")))), "not compared", False),
        (replace(APPLIED, verdict=Verdict((CONTRACT, SKIPPED))), "unproven", False),
        (replace(APPLIED, verdict=Verdict((PROVEN,), required=("trt-gpu",))), "unproven", True),
        (replace(APPLIED, verdict=Verdict((ran("ort-cpu", "different", status="failed"),))), "failed", True),
        (replace(APPLIED, changed=False, verdict=Verdict((CONTRACT,), settled=True)), "unchanged", None),
        (replace(APPLIED, verdict=Verdict((CONTRACT, PROVEN), without_unsafe=True)), "partly", None),
    ],
)  # fmt: skip
def test_what_was_proven(report: Report, proof: str, compared: bool | None) -> None:
    assert (report.summary.proof, report.summary.values_compared) == (proof, compared)


BUILD = TrtBuild("accepted", package="tensorrt", version="11.2.0")
ASKED = RungResult("trt-build", "passed", builds=(BUILD, BUILD))
GPU = Executed("tensorrt", "11.2.0", "NVIDIA T4", "7.5", True, "float32", "agree", "")
DONE = replace(
    APPLIED,
    output="o.onnx",
    verdict=Verdict((CONTRACT, PROVEN, ASKED, RungResult("trt-gpu", "passed", executed=GPU))),
)
CUT = Partition(9, 2, 8, (Outside("parse", "error", "no importer"),))
FAILED = ran("ort-cpu", "different", status="failed")


VERIFY = "onnxfix verify m.onnx o.onnx --require trt-gpu"
NUMERIC = (finding("A", "warning", safety="numeric"), finding("B", "info", safety="numeric"))
REFUSED = replace(ASKED, builds=(BUILD, replace(BUILD, status="refused")))
READ = ("only read", "no TensorRT")


@pytest.mark.parametrize(
    ("report", "ready", "doubts", "command"),
    [
        (DONE, "yes", (), ""),
        (replace(DONE, partition_after=CUT), "open", ("cut",), ""),
        (replace(DONE, target="trt10"), "open", ("other TensorRT",), ""),
        (replace(DONE, withdrawn=(Withdrawn("A", at("y"), "f", "r"),)), "open", ("withdrawn",), ""),
        (replace(DONE, findings=(finding("A", "error"),)), "no", ("errors",), "onnxfix explain A"),
        (replace(DONE, findings=NUMERIC), "open", ("warnings",), "onnxfix apply m.onnx --numeric-fixes"),
        (replace(DONE, verdict=Verdict((PROVEN, ASKED))), "open", ("no engine",), VERIFY),
        (replace(DONE, verdict=Verdict((PROVEN,))), "open", ("no TensorRT",), "onnxfix doctor"),
        (
            replace(DONE, verdict=Verdict((CONTRACT,))),
            "open", ("not compared", "no TensorRT"), "onnxfix verify m.onnx o.onnx",
        ),
        (replace(DONE, verdict=Verdict((PROVEN, REFUSED))), "no", ("refused", "no engine"), ""),
        (replace(APPLIED, verdict=Verdict((), ("trt-gpu",))), "no", ("unproven",), "onnxfix doctor"),
        (replace(APPLIED, verdict=Verdict((SKIPPED,))), "no", ("unproven",), "onnxfix check m.onnx --inputs-help"),
        (replace(APPLIED, verdict=Verdict((FAILED,))), "no", ("failed",), ""),
        (replace(DONE, verdict=Verdict((FAILED,))), "no", ("failed",), "onnxfix diagnose m.onnx o.onnx"),
        (CHECKED, "open", READ, "onnxfix check m.onnx --trt"),
        (replace(CHECKED, findings=(finding("A", "info", safety="exact"),)), "open", READ, "onnxfix apply m.onnx"),
    ],
)  # fmt: skip
def test_may_it_be_shipped(report: Report, ready: str, doubts: tuple[str, ...], command: str) -> None:
    summary = report.summary
    assert (summary.ready, summary.doubts, summary.next) == (ready, doubts, command)


def test_rungs_in_short() -> None:
    rungs = (CONTRACT, ran("reference", "identical", "within", "not counted"), PROVEN, SKIPPED)
    summary = replace(APPLIED, verdict=Verdict(rungs)).summary
    passed = [one for one in summary.rungs if one.status == "passed"]
    assert [(one.name, one.agreement, one.feeds, one.shapes) for one in passed] == [
        ("contract", "", 0, 0),
        ("reference", "within", 2, 2),
        ("ort-cpu", "identical", 1, 1),
    ]
    (skipped,) = (one for one in summary.rungs if one not in passed)
    assert (skipped.name, skipped.cause, skipped.reason) == ("ort-cuda", "no-gpu", "no NVIDIA driver found")


def test_the_command_that_fixes_what_is_left() -> None:
    left = (
        finding("AAA001", "info", "a", "exact"),
        finding("BBB001", "warning", "b", "numeric"),
        finding("CCC001", "error", "c", "unsafe"),
        finding("DDD001", "error", "d"),
    )
    exact, numeric, unsafe = replace(CHECKED, path="my model.onnx", findings=left).summary.remedies
    assert exact.command == "onnxfix apply 'my model.onnx'"
    assert (exact.errors, exact.warnings, exact.notes) == (0, 0, 1)
    assert numeric.command.endswith(" --numeric-fixes")
    assert (numeric.errors, numeric.warnings, numeric.notes) == (0, 1, 1)
    assert unsafe.command.endswith(" --numeric-fixes --unsafe-fixes")
    assert (unsafe.errors, unsafe.warnings, unsafe.notes) == (1, 1, 1)
    # What a run was allowed to apply and did not, another run would not apply either.
    assert [one.safety for one in replace(APPLIED, findings=left).summary.remedies] == ["numeric", "unsafe"]
    (plain, *_) = replace(CHECKED, path="-m.onnx", findings=left).summary.remedies
    assert plain.command == "onnxfix apply ./-m.onnx"  # pasted, it is a file and no option
    (unsafe,) = replace(APPLIED, findings=left, safety="numeric").summary.remedies
    assert unsafe.command == "onnxfix apply m.onnx --numeric-fixes --unsafe-fixes"
    assert (unsafe.errors, unsafe.warnings) == (1, 0)
    withdrawn = (Withdrawn("BBB001", at("b"), "fix", "reason"),)
    report = replace(APPLIED, findings=left[:2], withdrawn=withdrawn)
    assert report.summary.remedies == ()


def test_a_real_run() -> None:
    path = ROOT / "fixtures" / "mixed_precision.legacy.op17.onnx"
    report = onnxfix.apply(path, rungs=["contract", "ort-cpu"])
    assert report.operators_before.compute + report.operators_before.constants == report.nodes_before
    assert report.operators_after.compute + report.operators_after.constants == report.nodes_after
    assert report.operators_before.constants == 3
    assert "Constant" not in report.operators_before.operators
    assert report.operators_before.operators["Cast"] > report.operators_after.operators.get("Cast", 0)
    assert report.bytes_before == path.stat().st_size
    assert report.bytes_after == 0
    assert report.safety == "exact"
    data = json.loads(json.dumps(report.to_json()))
    assert data["summary"]["proof"] == "verified"
    assert data["summary"]["values_compared"] is True
    assert data["operators_before"]["compute"] == summarize(report).compute.before
    assert [(one["name"], one["status"]) for one in data["summary"]["rungs"]] == [
        ("contract", "passed"),
        ("ort-cpu", "passed"),
    ]


def left(code: str, severity: str, safety: str = "") -> Finding:
    return Finding(code, f"name-of-{code}", severity, Place(output="y"), "message", safety=safety)


def fixed(code: str, safety: str) -> AppliedFix:
    return AppliedFix(code, f"name-of-{code}", "info", Place(output="y"), "message", "fix", safety, 1)


FIRST = Report(
    "a", "apply", "trt11", findings=(left("B1", "warning", "numeric"),) * 2, applied=(fixed("B1", "exact"),)
)
SECOND = Report("b", "apply", "trt11", findings=(left("B1", "info"), left("A1", "error"), left("C1", "info")))


def test_rules_are_counted_over_models_the_most_frequent_first() -> None:
    keys = ("code", "name", "severity", "safety", "left", "fixed", "models", "count")
    assert [tuple(row[key] for key in keys) for row in statistics([FIRST, SECOND])] == [
        ("B1", "name-of-B1", "warning", ["exact", "numeric"], 3, 1, 2, 4),
        ("A1", "name-of-A1", "error", [], 1, 0, 1, 1),
        ("C1", "name-of-C1", "info", [], 1, 0, 1, 1),
    ]


def test_text_has_a_column_for_fixes_where_there_are_some() -> None:
    assert [str(each).split() for each in statistics_lines([FIRST, SECOND])] == [
        ["fixed", "left"],
        ["1", "3", "B1", "name-of-B1", "warning", "exact/numeric", "fix"],
        ["0", "1", "A1", "name-of-A1", "error", "no", "fix"],
        ["0", "1", "C1", "name-of-C1", "note", "no", "fix"],
    ]
    assert next(str(each).split()[:2] for each in statistics_lines([SECOND])) == ["1", "A1"]
    assert [str(each) for each in statistics_lines([])] == ["no findings"]


@pytest.fixture
def cast(tmp_path: Path) -> Path:
    path = tmp_path / "cast.onnx"
    onnx.save(model("m (float[N,4] x) => (float[N,4] y) { c = Cast<to: int = 1>(x)\n y = Relu(c) }"), path)
    return path


def test_check_prints_counts_instead_of_findings(cast: Path) -> None:
    out = output(1, "check", cast, "--statistics", "--fail-on", "info")
    assert out.split()[:3] == ["1", "CST002", "no-op-cast"]
    assert len(out.splitlines()) == 1
    code, out, error = run("check", cast, cast.with_name("none.onnx"), "--statistics", "--format", "json")
    document = json.loads(out)
    assert (code, document["statistics"][0]["count"], len(document["errors"])) == (2, 1, 1)
    assert "no such file" in error
    assert run("check", cast, "--statistics", "--format", "junit")[0] == 2


def test_apply_says_what_was_written_and_counts(cast: Path) -> None:
    fixed = cast.with_name("fixed.onnx")
    out = output(0, "apply", cast, "--no-verify", "--statistics", "-o", fixed)
    assert f"→ {fixed}" in out.splitlines()[0]
    assert out.splitlines()[2].split()[:3] == ["1", "0", "CST002"]
