"""TRT005 and what is confirmed on an engine: from what the rung trt-gpu saw to findings. No engine is executed here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onnxfix.proof.verdict import Executed, RungResult, Verdict
from onnxfix.report import confirm
from onnxfix.report.render.text import render_report
from onnxfix.report.report import AppliedFix, Finding, Report
from onnxfix.rewrite.registry import registry
from onnxfix.tensorrt.reading import Misread, Place, Reading
from support.reports import at

RULES = registry().rules
ALIKE = Executed(
    "tensorrt-rtx",
    "1.6.1.120",
    "NVIDIA H100",
    "9.0",
    False,
    "float32",
    "alike",
    "it differs: 1 against 2",
    "y",
)
REPAIRED = replace(ALIKE, outcome="repaired", reason="the engine of the original is wrong")
MISREAD = Misread(
    "value", Place((), "n", "Abs", "b", 1), "tensor", "1.0", "0.0", (0,), "3 of 6 differ", name="b"
)
DIFFERS = Reading("differs", "", (MISREAD,), package="tensorrt-rtx", version="1.6.1.120")
AGREES = replace(DIFFERS, status="agrees", misreads=())


def fix(code: str, place: str = "b (n)", severity: str = "error") -> AppliedFix:
    return AppliedFix(code, code.lower(), severity, at(place), "found", "do it", "exact", 1)


def finding(code: str, fix: str = "do it", safety: str = "numeric") -> Finding:
    return Finding(code, code.lower(), "warning", at("norm"), "it overflows", fix, safety)


def report(executed: Executed | None, *networks: Reading, **more: Any) -> Report:
    rungs = [RungResult("trt-gpu", "passed", "", executed=executed)]
    if networks:
        rungs.insert(0, RungResult("trt-network", "passed", "", networks=networks))
    made = Report("m.onnx", "apply", "trt11", verdict=Verdict(tuple(rungs)), **more)
    return confirm.add_judgments(made, RULES, RULES)


def test_an_engine_that_stays_wrong_is_an_error() -> None:
    (found,) = report(ALIKE).findings
    assert (found.code, found.severity, found.place.text) == ("TRT005", "error", "y")
    assert found.message == "on NVIDIA H100, it differs: 1 against 2"
    assert (found.pointer, found.fix) == ("", "")
    assert report(ALIKE).exit_code == 1


@pytest.mark.parametrize("outcome", ["agree", "repaired"])
def test_an_engine_that_is_right_is_no_finding(outcome: Any) -> None:
    assert report(replace(ALIKE, outcome=outcome)).findings == ()
    assert report(None).findings == ()


def test_it_is_not_listed_where_it_was_not_chosen() -> None:
    made = Report(
        "m", "apply", "trt11", verdict=Verdict((RungResult("trt-gpu", "passed", "", executed=ALIKE),))
    )
    assert confirm.add_judgments(made, registry().choose(ignore=["TRT005"]), RULES).findings == ()


def test_half_precision_is_pointed_to_where_it_was_found() -> None:
    told = report(ALIKE, findings=(finding("PRC001"),)).findings
    assert [(item.code, item.pointer) for item in told] == [
        ("PRC001", ""),
        ("TRT005", "PRC001 may fix it, with --numeric-fixes"),
    ]
    other = report(ALIKE, findings=(finding("BRC001"),)).findings
    assert [item.pointer for item in other] == ["", ""]


def test_what_tensorrt_reads_differently_is_confirmed_and_said_once() -> None:
    (found,) = report(ALIKE, DIFFERS).findings
    assert (found.code, found.on_engine) == ("TRT004", True)
    assert "(confirmed on the engine)" in "\n".join(
        line.plain for line in render_report(report(ALIKE, DIFFERS))
    )
    (unseen,) = report(replace(ALIKE, outcome="agree"), DIFFERS).findings
    assert (unseen.code, unseen.on_engine) == ("TRT004", False)
    harmless = replace(DIFFERS, misreads=(replace(MISREAD, harmless=True),))
    told = report(ALIKE, harmless).findings
    assert [(item.code, item.on_engine) for item in told] == [("TRT004", False), ("TRT005", False)]


@pytest.mark.parametrize(
    ("applied", "networks", "marked"),
    [
        ([fix("OPS013"), fix("BRC001", "c", "info")], (DIFFERS, AGREES), ["OPS013"]),
        ([fix("OPS013"), fix("OPS014", "c")], (DIFFERS, AGREES), ["OPS013"]),
        ([fix("PRC001", "c"), fix("PRC001", "d"), fix("BRC001", "c", "info")], (), ["PRC001", "PRC001"]),
        ([fix("OPS013", "c"), fix("OPS014", "d")], (), []),  # one of the two, and nobody knows which
        ([fix("BRC001", "c", "info")], (), []),
    ],
)
def test_the_fix_that_repaired_the_engine_is_marked(
    applied: list[AppliedFix], networks: tuple[Reading, ...], marked: list[str]
) -> None:
    made = report(REPAIRED, *networks, applied=tuple(applied))
    assert [item.code for item in made.applied if item.on_engine] == marked
    other = report(ALIKE, *networks, applied=tuple(applied))
    assert not any(item.on_engine for item in other.applied)


def test_an_engine_that_is_not_the_same_twice_is_an_error_of_its_own() -> None:
    (found,) = report(replace(ALIKE, outcome="unsteady")).findings
    assert (found.code, found.severity, found.place.text) == ("TRT006", "error", "y")
    assert found.message == "on NVIDIA H100, it differs: 1 against 2"
