"""Reports as JUnit XML: a suite for each model, a case for each check and for each rule that fails the run."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from onnxfix.report.findings import SEVERITIES
from onnxfix.report.render.issues import Issue, errors_of, issues_of
from onnxfix.report.render.stream import escaped
from onnxfix.report.report import Errors, Report, least_severity

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
