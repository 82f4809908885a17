"""Reports by hand: one for each reason to fail, and some that do not; with names that would break out of a format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnxfix.place import Place
from onnxfix.proof.verdict import RungResult, Verdict
from onnxfix.report.confirm import pointer_of
from onnxfix.report.findings import Finding, Suppressed, finding_of
from onnxfix.report.report import AppliedFix, Report, StepDone, Withdrawn
from onnxfix.rewrite.engine import check_build
from onnxfix.runtime.causes import Problem

#: A name that would end a command, a cell, an element, a code span or a line, or make a link, a mention or an image.
EVIL = "a|b`c`]]>\n::error::x%\r<b>&\x1b[31m @you #1 ![i](http://h/)\u202e,:\ud800\uffff"
PLACE = Place(graph=("y.then_branch",), node="n", op_type="Cast", output="t", index=3)


def finding(severity: str = "warning", place: Place = PLACE, **more: Any) -> Finding:
    given = {"message": "a message", "fix": "remove it", "safety": "numeric", **more}
    return Finding("CST004", "lossy-cast-round-trip", severity, place, **given)


def rung(name: str = "ort-cpu", status: Any = "passed", reason: str = "identical", **more: Any) -> RungResult:
    return RungResult(name, status, reason, **more)


def report(*findings: Finding, path: str = "m.onnx", **more: Any) -> Report:
    return Report(path, more.pop("command", "apply"), "trt11", findings=findings, **more)


CLEAN = report(verdict=Verdict((rung("contract"), rung(), rung("trt-gpu", "skipped", "no GPU found"))))
FIX = AppliedFix("CST002", "no-op-cast", "info", PLACE, "does nothing", "remove it", "exact", 1)
#: One report for each reason to fail, and some that do not.
REPORTS = {
    "clean": CLEAN,
    "check without findings": report(command="check"),
    "info": report(finding("info"), command="check"),
    "warning": report(finding(), command="check"),
    "error": report(finding("error"), finding("info"), command="check"),
    "fixed": replace(CLEAN, applied=(FIX,)),
    "failed": replace(CLEAN, verdict=Verdict((rung("contract"), rung(status="failed", reason="it differs")))),
    "broke": replace(CLEAN, verdict=Verdict((rung("contract"), rung(), rung("ort-cuda", "broke", "a bug")))),
    "required": replace(
        CLEAN, verdict=Verdict((rung(), rung("trt-gpu", "skipped", "no GPU found")), required=("trt-gpu",))
    ),
    "required, absent": replace(CLEAN, verdict=Verdict((rung(),), required=("trt-gpu",))),
    "unproven": replace(
        CLEAN, verdict=Verdict((rung("contract"), rung(status="skipped", reason="not there")))
    ),
    "withdrawn": replace(CLEAN, withdrawn=(Withdrawn("CST004", PLACE, "remove it", "values differ"),)),
    "dropped": replace(CLEAN, steps=(StepDone("--simplify", "onnxsim", "dropped", "outputs differ"),)),
    "problem": report(command="check", problems=(Problem("rule X failed", rule="X001"),)),
    "accepted": report(
        finding("info"),
        command="check",
        suppressed=(
            Suppressed(finding("error"), "configuration", f"known | {EVIL}", "onnxfix.toml", "2030-01-01"),
        ),
    ),
    "known": report(command="check", suppressed=(Suppressed(finding(), "baseline", "known", "b.json"),) * 2),
    "evil": report(
        finding(place=Place(node=EVIL, op_type=EVIL, output=EVIL), message=EVIL, fix=EVIL),
        path=EVIL.replace("\n", ""),
        verdict=Verdict((rung("contract"), rung(status="failed", reason=EVIL))),
    ),
}


def trt_findings(
    build: Any, rules: Any, own: Any = (), known: Any = (), reading: Any = None
) -> list[Finding]:
    """TensorRT's findings by these rules, with pointers to findings and rules."""
    matches = check_build(build, rules, reading=reading)
    codes = {rule.code for rule in (*rules, *known)}
    return [replace(finding_of(one), pointer=pointer_of(one, own, codes)) for one in matches]


def at(text: str) -> Place:
    """The place with this text: ``graph / graph / output (node)``, or ``the graph``. The node around is called like the
    first graph, up to the dot."""
    if text in ("", "the graph"):
        return Place()
    *graph, last = text.split(" / ")
    output, _, node = last.removesuffix(")").partition(" (")
    around = Place(output=graph[0].partition(".")[0]) if graph and not graph[0].startswith("fn ") else None
    return Place(tuple(graph), node, output=output, around=around)
