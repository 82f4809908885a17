"""What tools that track issues show of a report: its findings, and whatever else makes it fail, in one form."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from onnxfix.place import NOWHERE, Place
from onnxfix.report.fingerprint import fingerprints
from onnxfix.report.render.proof import NOT_COMPARED
from onnxfix.report.render.words import required_option
from onnxfix.report.report import Finding, Report
from onnxfix.report.summary import SEVERITIES

if TYPE_CHECKING:
    from onnxfix.rule import Severity
    from onnxfix.verification.verdict import Verdict

#: "finding": of a rule. "check": a rung of the verification did not pass. "unproven": all that ran passed, and nothing
#: compared values. "fix": one was withdrawn. "step": a whole-model step was dropped. "problem": the run is incomplete.
#: "error": there is no report on the model.
Sort = Literal["finding", "check", "unproven", "fix", "step", "problem", "error"]


ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Where GitHub and GitLab say which folder is the repository."""


@dataclass(frozen=True)
class Issue:
    """One issue. ``code`` is the rule's, or the name of the check or step, or "problem" or "error"; ``name`` is the
    rule's. ``path`` is that of the model, as the user gave it ("" for the whole call). ``remedy`` says what helps, ""
    where that is unknown; ``confirmed`` who confirms a finding ("by TensorRT", "on the engine"). The ``fingerprint``
    does not depend on the path.
    """

    sort: Sort
    path: str
    code: str
    severity: str
    message: str
    place: Place = NOWHERE
    name: str = ""
    remedy: str = ""
    confirmed: str = ""
    fingerprint: str = ""

    @property
    def what(self) -> str:
        """What it is, who confirms it, and what helps."""
        confirmed = f" (confirmed {self.confirmed})" if self.confirmed else ""
        return f"{self.message}{confirmed}{f' [{self.remedy}]' if self.remedy else ''}"

    @property
    def text(self) -> str:
        """The same, and where."""
        return f"{self.place.short}: {self.what}" if self.place.known else self.what

    @property
    def title(self) -> str:
        """The code, and the name where there is one."""
        return f"{self.code} {self.name}".strip()

    def fails(self, fail_on: Severity | None) -> bool:
        """Whether it makes the run fail, for a finding by its severity."""
        if self.sort != "finding":
            return self.severity == "error"
        order = list(reversed(SEVERITIES))
        return fail_on is not None and order.index(self.severity) >= fail_on


def issues_of(report: Report) -> tuple[Issue, ...]:
    """All issues of a report: first what is not a rule's finding, then the findings, the worst first."""
    findings = _marked([_finding(report, one) for one in report.findings])
    return (
        *_marked(list(_others(report))),
        *sorted(findings, key=lambda one: SEVERITIES.index(one.severity)),
    )


def errors_of(errors: Sequence[tuple[str, str]]) -> tuple[Issue, ...]:
    """The models without a report as issues."""
    named = ((path, message.removeprefix(f"{path}: ") if path else message) for path, message in errors)
    return _marked([Issue("error", path, "error", "error", message) for path, message in named])


def marks_of(issues: Sequence[Issue], path: str = "") -> tuple[str, ...]:
    """The fingerprint of each issue of one model; those of findings are the same as in a baseline if ``path`` is ""."""
    return fingerprints(map(_Mark.of, issues), path)


class _Mark(NamedTuple):
    """What identifies an issue. A finding without a place is identified by its message."""

    code: str
    place: Place
    message: str

    @classmethod
    def of(cls, issue: Issue) -> _Mark:
        if issue.sort == "finding":
            return cls(issue.code, issue.place, issue.message)
        return cls(f"{issue.sort} {issue.code}", issue.place, "")


def _marked(issues: Sequence[Issue]) -> tuple[Issue, ...]:
    marks = marks_of(issues)
    return tuple(replace(one, fingerprint=mark) for one, mark in zip(issues, marks, strict=True))


def repository_path(path: str) -> str:
    """A model's path as CI systems expect it: below the repository's folder, with slashes. Paths elsewhere become
    absolute, and URLs stay as they are.

    The repository's folder is what GitHub or GitLab names, otherwise the current one.
    """
    if not path or "://" in path:
        return path
    absolute = Path(os.path.abspath(path))
    for root in (*(os.environ.get(name) for name in ROOTS), os.getcwd()):
        if root and absolute.is_relative_to(os.path.abspath(root)):
            return absolute.relative_to(os.path.abspath(root)).as_posix()
    return absolute.as_posix()


def _finding(report: Report, one: Finding) -> Issue:
    confirmed = "by TensorRT" if one.confirmed and one.confirmed not in one.message else ""
    return Issue(
        "finding",
        report.path,
        one.code,
        one.severity,
        one.message,
        one.place,
        one.name,
        remedy=one.pointer
        or (f"fix: {one.fix} ({one.safety}{required_option(one.safety)})" if one.fix else ""),
        confirmed="on the engine" if one.on_engine else confirmed,
    )


def _others(report: Report) -> Iterator[Issue]:
    path = report.path
    if report.verdict is not None:
        yield from _checks(path, report.verdict)
    if report.summary.proof == "not compared":
        yield Issue("unproven", path, "verification", "warning", NOT_COMPARED)
    for one in report.withdrawn:
        yield Issue(
            "fix", path, one.code, "error", f"the fix was withdrawn ({one.fix}): {one.reason}", one.place
        )
    for step in report.steps:
        if step.status == "dropped":
            message = f"the result of {step.name} was dropped: {step.reason}"
            yield Issue("step", path, step.name, "error", message)
    for problem in report.problems:
        yield Issue("problem", path, problem.rule or "problem", "error", str(problem))


def _checks(path: str, verdict: Verdict) -> Iterator[Issue]:
    """The rungs that did not pass and should have, and a verdict that rests on nothing."""
    for rung in verdict.rungs:
        required = rung.name in verdict.required and rung.status != "passed"
        if rung.status in ("failed", "broke") or required:
            severity = "error" if rung.refutes or required else "warning"
            origin = ", as for the original" if rung.inherited else ""
            need = " and is required" if required and rung.status != "failed" else ""
            yield Issue(
                "check", path, rung.name, severity, f"{rung.name} {rung.status}{origin}{need}: {rung.reason}"
            )
    for name in verdict.required:
        if verdict.rung(name) is None:
            yield Issue("check", path, name, "error", f"{name} is required and did not run")
    if not verdict.passed and not verdict.failed:
        yield Issue("check", path, "verification", "error", "not verified: no check could run the model")
