"""Counts by rule over the models of a run, as data, text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from onnxfix.place import Place
from onnxfix.report.findings import Finding
from onnxfix.report.render.rules import statistics, statistics_lines
from onnxfix.report.report import AppliedFix, Report
from support.cli import output, run
from support.models import model


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
