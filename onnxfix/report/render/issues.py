"""A report as a list of issues: its findings, and whatever else makes it fail. A format for tools starts from
``issues_of`` and ``errors_of``. This file makes GitHub's annotations, GitLab's JSON and JUnit's XML; SARIF has its own.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from onnxfix.place import NOWHERE, Place
from onnxfix.report.findings import (
    SEVERITIES,
    Finding,
    Spot,
    describe_source,
    find_spot,
    fingerprints,
    repository_path,
)
from onnxfix.report.render.findings import describe_confirmation, describe_remedy
from onnxfix.report.render.proof import NOT_COMPARED
from onnxfix.report.render.stream import escaped, printable
from onnxfix.report.report import Errors, Report, least_severity

#: "finding": of a rule. "check": a check did not pass. "unproven": all that ran passed, and nothing
#: compared values. "fix": one was withdrawn. "step": a whole-model step was dropped. "problem": the run is incomplete.
#: "error": there is no report on the model.
Sort = Literal["finding", "check", "unproven", "fix", "step", "problem", "error"]


@dataclass(frozen=True)
class Issue:
    """One issue. ``code`` is the rule's, or the name of the check or step, or "problem" or "error"; ``name`` is the
    rule's. ``path`` is that of the model, as the user gave it ("" for the whole call). ``remedy`` says what helps, such
    as "fix: remove it (exact)", "" where that is unknown. ``confirmed`` says who confirms a finding; it follows
    the message. The ``fingerprint`` does not depend on the path. ``source`` describes the code that the node comes
    from, and ``spot`` is its line in the repository.
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
    source: str = ""
    spot: Spot | None = None

    @property
    def what(self) -> str:
        """What it is, who confirms it, where it comes from, and what helps."""
        origin = f" (from {self.source})" if self.source else ""
        return f"{self.message}{self.confirmed}{origin}{f' [{self.remedy}]' if self.remedy else ''}"

    @property
    def file(self) -> str:
        """The file to show it in: that of the code in the repository, else the model's."""
        return self.spot.path if self.spot is not None else self.path

    @property
    def line(self) -> int:
        """The line in ``file``, 1 in a model."""
        return self.spot.line if self.spot is not None else 1

    @property
    def text(self) -> str:
        """The place, and ``what``."""
        return f"{self.place.short}: {self.what}" if self.place.known else self.what

    @property
    def title(self) -> str:
        """The code, and the name where there is one."""
        return f"{self.code} {self.name}".strip()

    @property
    def for_fingerprint(self) -> Issue:
        """What identifies the issue: the finding, or for other issues their sort, code and place."""
        if self.sort == "finding":
            return self
        return replace(self, code=f"{self.sort} {self.code}", message="")


def issues_of(report: Report) -> tuple[Issue, ...]:
    """All issues of a report: first the issues that are not findings, then the findings, worst first."""
    findings = _with_fingerprints([_issue_of_finding(report, finding) for finding in report.findings])
    return (
        *_with_fingerprints(list(_other_issues(report))),
        *sorted(findings, key=lambda issue: SEVERITIES.index(issue.severity)),
    )


def errors_of(errors: Errors) -> tuple[Issue, ...]:
    """An issue for each model without a report."""
    messages = ((path, message.removeprefix(f"{path}: ") if path else message) for path, message in errors)
    return _with_fingerprints([Issue("error", path, "error", "error", message) for path, message in messages])


def marks_of(issues: Sequence[Issue], path: str = "") -> tuple[str, ...]:
    """The fingerprints of one model's issues. If ``path`` is "", findings have the same as in baselines."""
    return fingerprints([issue.for_fingerprint for issue in issues], path)


def _with_fingerprints(issues: Sequence[Issue]) -> tuple[Issue, ...]:
    return tuple(
        replace(issue, fingerprint=mark) for issue, mark in zip(issues, marks_of(issues), strict=True)
    )


def _issue_of_finding(report: Report, finding: Finding) -> Issue:
    return Issue(
        "finding",
        report.path,
        finding.code,
        finding.severity,
        finding.message,
        finding.place,
        finding.name,
        remedy=describe_remedy(finding, pointer=""),
        # TensorRT's own messages need no confirmation.
        confirmed=""
        if finding.confirmed in finding.message and not finding.on_engine
        else describe_confirmation(finding),
        source=describe_source(finding.source),
        spot=find_spot(finding.source),
    )


def _other_issues(report: Report) -> Iterator[Issue]:
    """Issues that are not findings: checks that should have passed, and what makes the result incomplete."""
    path, verdict = report.path, report.verdict
    for check in report.checks:
        required = verdict is not None and check.name in verdict.required and check.status != "passed"
        if check.status in ("failed", "broke") or required:
            severity = "error" if check.refutes or required else "warning"
            origin = ", as for the original" if check.inherited else ""
            need = " and is required" if required and check.status != "failed" else ""
            message = f"{check.name} {check.status}{origin}{need}: {check.reason}"
            yield Issue("check", path, check.name, severity, message)
    if verdict is not None:
        for name in verdict.required:
            if verdict.rung(name) is None:
                yield Issue("check", path, name, "error", f"{name} is required and did not run")
        if not verdict.passed and not verdict.failed:
            message = "not verified: no check could run the model"
            yield Issue("check", path, "verification", "error", message)
    if report.summary.proof == "not compared":
        yield Issue("unproven", path, "verification", "warning", NOT_COMPARED)
    for fix in report.withdrawn:
        message = f"the fix was withdrawn ({fix.fix}): {fix.reason}"
        yield Issue("fix", path, fix.code, "error", message, fix.place)
    for step in report.steps:
        if step.status == "dropped":
            message = f"the result of {step.name} was dropped: {step.reason}"
            yield Issue("step", path, step.name, "error", message)
    for problem in report.problems:
        yield Issue("problem", path, problem.rule or "problem", "error", str(problem))


SHOWN = 5
"""Places that one annotation names."""
_CODE_QUALITY = {"error": "critical", "warning": "major", "info": "info"}


def render_github(reports: Sequence[Report], errors: Errors = (), warnings: Sequence[str] = ()) -> str:
    """Workflow commands, which become annotations of a run and of a pull request: one command a line, errors first,
    then a line for the log that counts them all.

    GitHub shows at most 10 errors, 10 warnings and 10 notices of a step. So there is one annotation for each rule and
    line of code, or each rule and model where the line is not in the repository. It is not for each node. The worst
    come first, and infos share one notice for each model.
    """
    issues = [*errors_of(errors), *(issue for report in reports for issue in issues_of(report))]
    groups: dict[tuple[str, str, str, int], list[Issue]] = {}
    notices: dict[str, Counter[str]] = {}
    for issue in issues:
        if issue.severity == "info":
            notices.setdefault(issue.path, Counter())[issue.title] += 1
        else:
            key = issue.severity, issue.file, issue.title, issue.line
            groups.setdefault(key, []).append(issue)
    lines = [
        _command(severity, path, f"onnxfix {title}", _annotation(group), line if group[0].spot else 0)
        for level in ("error", "warning")
        for (severity, path, title, line), group in groups.items()
        if severity == level
    ]
    lines += [_command("warning", "", "onnxfix", text) for text in warnings]
    for path, rules in notices.items():
        words = ", ".join(f"{printable(title)} ×{count}" for title, count in rules.most_common())
        lines.append(_command("notice", path, "onnxfix notes", words))
    counts = Counter(issue.severity for issue in issues)
    total = ", ".join(f"{counts[name]} {name}{'s' * (counts[name] != 1)}" for name in SEVERITIES)
    number = len(reports) + len(errors)
    return "\n".join([*lines, f"onnxfix: {number} model{'s' * (number != 1)}: {total}"])


def _annotation(group: Sequence[Issue]) -> str:
    """The message, then the places. If the messages differ, each place has its own."""
    if len(group) == 1:
        return printable(group[0].text)
    alike = len({issue.what for issue in group}) == 1
    head = f"{len(group)} places: {printable(group[0].what) if alike else ''}".rstrip()
    places = [printable(issue.place.short if alike else issue.text) for issue in group[:SHOWN]]
    more = [f"… and {len(group) - SHOWN} more"] if len(group) > SHOWN else []
    return "\n".join([head, *places, *more])


def _command(level: str, path: str, title: str, message: str, line: int = 0) -> str:
    """``::error file=...,title=...::message``. Without escapes a name could end the command or begin another one."""

    def escape(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    values = {"file": repository_path(path), "line": str(line or ""), "title": printable(title)}
    properties = ",".join(
        f"{key}={escape(value).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in values.items()
        if value
    )
    return f"::{level} {properties}::{escape(message)}"


def render_gitlab(reports: Sequence[Report], errors: Errors = (), warnings: Sequence[str] = ()) -> str:
    """GitLab's code quality JSON: a list of issues, which merge requests compare with the target branch's.

    GitLab distinguishes issues by fingerprint alone. Therefore fingerprints depend on the model's path in the
    repository. Warnings about the installation have no form in GitLab, and are left out.
    """
    models = [
        (report.path, [issue for issue in issues_of(report) if issue.sort != "unproven"])
        for report in reports
    ]
    models += [(issue.path, [issue]) for issue in errors_of(errors)]
    entries: list[dict[str, Any]] = []
    for path, issues in models:
        place = repository_path(path) or "."
        for issue, mark in zip(issues, marks_of(issues, place), strict=True):
            # An issue that fails the run regardless of rules is worse than any finding.
            fails = issue.sort != "finding" and issue.severity == "error"
            entries.append(
                {
                    "description": issue.text,
                    "check_name": issue.title,
                    "fingerprint": mark,
                    "severity": "blocker" if fails else _CODE_QUALITY[issue.severity],
                    "location": {
                        "path": repository_path(issue.file) or ".",
                        "lines": {"begin": issue.line},
                    },
                }
            )
    return json.dumps(entries, indent=2)


#: The element below a case that says what came of it; "" where it passed.
Result = Literal["", "failure", "error", "skipped"]
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


class _Case(NamedTuple):
    """A test case: ``message`` is its result in one line, ``details`` what belongs to it."""

    name: str
    result: Result = ""
    message: str = ""
    details: tuple[str, ...] = ()
    seconds: float = 0.0
    output: str = ""


def render_junit(reports: Sequence[Report], errors: Errors = (), warnings: Sequence[str] = ()) -> str:
    """One document. A suite has a failure or an error wherever the exit code of its model is not 0.

    A skipped check stays skipped, with its reason, unless it is required. Warnings about the installation are the
    output of a suite of their own.
    """
    suites = [_suite(report.path, list(_cases(report)), report) for report in reports]
    for one in errors_of(errors):
        suites.append(
            _suite(one.path or "onnxfix", [_Case("read" if one.path else "options", "error", one.message)])
        )
    if warnings:
        suites.append(_suite("onnxfix", [_Case("installation", output="\n".join(warnings))]))
    totals = {name: str(sum(int(suite.get(name, "0")) for suite in suites)) for name in ("tests", *_COUNTS)}
    seconds = sum(float(suite.get("time", "0")) for suite in suites)
    root = ET.Element("testsuites", {"name": "onnxfix", **totals, "time": f"{seconds:.3f}"})
    root.extend(suites)
    ET.indent(root)
    # ASCII with character references: right in whatever encoding standard output has.
    text = ET.tostring(root, encoding="us-ascii", xml_declaration=False).decode("ascii")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'


def _cases(report: Report) -> Iterator[_Case]:
    issues, least = issues_of(report), least_severity(report.fail_on)
    yield from _checks(report, {one.code: one for one in issues if one.sort == "check"})
    failing: dict[str, list[Issue]] = {}
    grave = SEVERITIES[: len(SEVERITIES) - least] if least is not None else ()
    for one in issues:
        if one.sort == "finding" and one.severity in grave:
            failing.setdefault(one.title, []).append(one)
    for title, group in failing.items():
        worst = group[0].severity
        message = f"{len(group)} {worst}{'s' * (len(group) != 1)}: {group[0].text}"
        yield _Case(title, "failure", message, tuple(one.text for one in group))
    if not failing and report.command != "verify":
        left = f", {len(report.findings)} below" if report.findings else ""
        level = f"at or above {least.name.lower()}{left}" if least is not None else "that fails the run"
        yield _Case("rules", output=f"no finding {level}")
    yield from _accepted(report)
    for one in issues:
        if one.sort == "unproven":
            yield _Case("values", "skipped", one.text)
        elif one.sort in ("fix", "step"):
            yield _Case(f"{one.sort} {one.code}", "failure", one.text)
        elif one.sort == "problem":
            yield _Case("problem", "error", one.text)


def _accepted(report: Report) -> Iterator[_Case]:
    """A skipped case for each rule and reason to accept its findings."""
    counts: dict[tuple[str, str, str], int] = {}
    for one in report.suppressed:
        key = (f"{one.finding.code} {one.finding.name}", one.by, one.reason)
        counts[key] = counts.get(key, 0) + 1
    for (title, by, reason), count in counts.items():
        words = "known to the baseline" if by == "baseline" else f"accepted: {reason}"
        yield _Case(f"{title} ({by})", "skipped", f"{count} {words}")


def _checks(report: Report, issues: dict[str, Issue]) -> Iterator[_Case]:
    """The checks, and what the verdict says of none of them."""
    for check in report.checks:
        issue = issues.pop(check.name, None)
        result: Result = "skipped" if check.status == "skipped" else ""
        if check.status == "broke":
            result = "error"
        elif issue is not None:
            result = "failure"
        if not result:
            yield _Case(check.name, seconds=check.seconds, output=check.reason)
            continue
        message = check.reason if issue is None or result == "error" else issue.message
        feeds = [
            f"{feed.label}: {feed.status}{f': {feed.reason}' if feed.reason else ''}" for feed in check.feeds
        ]
        yield _Case(check.name, result, message, tuple(feeds), check.seconds)
    for issue in issues.values():
        yield _Case(issue.code, "failure", issue.message)


def _suite(name: str, cases: Sequence[_Case], report: Report | None = None) -> ET.Element:
    counts = {key: sum(case.result == result for case in cases) for key, result in _COUNTS.items()}
    numbers = {key: str(value) for key, value in {"tests": len(cases), **counts}.items()}
    seconds = report.seconds if report is not None else sum(case.seconds for case in cases)
    suite = ET.Element("testsuite", {"name": escaped(name), "time": f"{seconds:.3f}", **numbers})
    if report is not None:
        properties = ET.SubElement(suite, "properties")
        facts = {
            "command": report.command,
            "target": report.target,
            "output": report.output,
            "proof": report.summary.proof,
            **report.versions,
        }
        for key, value in facts.items():
            if value:
                ET.SubElement(properties, "property", name=escaped(key), value=escaped(value))
    for case in cases:
        about = {"name": escaped(case.name), "classname": escaped(name), "time": f"{case.seconds:.3f}"}
        element = ET.SubElement(suite, "testcase", about)
        if case.result:
            result = ET.SubElement(element, case.result, message=escaped(case.message))
            if case.result != "skipped":
                result.set("type", case.name if case.name.isascii() else "check")
                result.text = "\n".join(map(escaped, case.details or (case.message,)))
        if case.output:
            ET.SubElement(element, "system-out").text = "\n".join(map(escaped, case.output.splitlines()))
    return suite
