"""Reports as JUnit XML: a suite for each model, a case for each check and for each rule that fails the run."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from onnxfix.report.render.issues import Issue, errors_of, issues_of
from onnxfix.report.render.stream import escaped
from onnxfix.report.report import FailOn, Report

#: The element below a case that says what came of it; "" where it passed.
Result = Literal["", "failure", "error", "skipped"]


@dataclass(frozen=True)
class _Case:
    """A test case: ``message`` is its result in one line, ``details`` what belongs to it."""

    name: str
    result: Result = ""
    message: str = ""
    details: tuple[str, ...] = ()
    seconds: float = 0.0
    output: str = ""


def render_junit(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: FailOn = "",
) -> str:
    """One document. A suite has a failure or an error wherever the exit code of its model is not 0.

    A skipped check stays skipped, with its reason, unless it is required. Warnings about the installation are the
    output of a suite of their own.
    """
    suites = [_suite(report.path, list(_cases(report, fail_on)), report) for report in reports]
    suites += [
        _suite(one.path or "onnxfix", [_Case("read" if one.path else "options", "error", one.message)])
        for one in errors_of(errors)
    ]
    if warnings:
        suites.append(_suite("onnxfix", [_Case("installation", output="\n".join(warnings))]))
    root = ET.Element("testsuites", {"name": "onnxfix", **_totals(suites)})
    root.extend(suites)
    ET.indent(root)
    # ASCII with character references: right in whatever encoding standard output has.
    text = ET.tostring(root, encoding="us-ascii", xml_declaration=False).decode("ascii")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'


def _cases(report: Report, fail_on: FailOn) -> Iterator[_Case]:
    issues, least = issues_of(report), report.least(fail_on)
    yield from _checks(report, [one for one in issues if one.sort == "check"])
    failing: dict[str, list[Issue]] = {}
    for one in issues:
        if one.sort == "finding" and one.fails(least):
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
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in report.suppressed:
        key = (f"{one.finding.code} {one.finding.name}", one.by, one.reason)
        groups.setdefault(key, []).append(one.finding.place.short)
    for (title, by, reason), places in groups.items():
        words = "known to the baseline" if by == "baseline" else f"accepted: {reason}"
        yield _Case(f"{title} ({by})", "skipped", f"{len(places)} {words}")


def _checks(report: Report, issues: Sequence[Issue]) -> Iterator[_Case]:
    """The rungs, and what the verdict says of none of them."""
    reasons = {one.code: one for one in issues}
    for rung in report.checks:
        issue = reasons.pop(rung.name, None)
        result: Result = "skipped" if rung.status == "skipped" else ""
        if rung.status == "broke":
            result = "error"
        elif issue is not None:
            result = "failure"
        message = rung.reason if issue is None or result == "error" else issue.message
        feeds = tuple(
            f"{one.label}: {one.status}{f': {one.reason}' if one.reason else ''}" for one in rung.feeds
        )
        yield _Case(
            rung.name,
            result,
            message if result else "",
            feeds if result in ("failure", "error") else (),
            rung.seconds,
            "" if result else rung.reason,
        )
    for one in reasons.values():
        yield _Case(one.code, "failure", one.message)


def _suite(name: str, cases: Sequence[_Case], report: Report | None = None) -> ET.Element:
    counts = {
        "tests": len(cases),
        "failures": sum(case.result == "failure" for case in cases),
        "errors": sum(case.result == "error" for case in cases),
        "skipped": sum(case.result == "skipped" for case in cases),
    }
    seconds = report.seconds if report is not None else sum(case.seconds for case in cases)
    numbers = {key: str(value) for key, value in counts.items()}
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
    suite.extend(_element(name, case) for case in cases)
    return suite


def _element(model: str, case: _Case) -> ET.Element:
    element = ET.Element(
        "testcase", name=escaped(case.name), classname=escaped(model), time=f"{case.seconds:.3f}"
    )
    if case.result:
        result = ET.SubElement(element, case.result, message=escaped(case.message))
        if case.result != "skipped":
            result.set("type", case.name if case.name.isascii() else "check")
            result.text = "\n".join(map(escaped, case.details or (case.message,)))
    if case.output:
        ET.SubElement(element, "system-out").text = "\n".join(map(escaped, case.output.splitlines()))
    return element


def _totals(suites: Sequence[ET.Element]) -> dict[str, str]:
    names = ("tests", "failures", "errors", "skipped")
    totals = {name: str(sum(int(suite.get(name, "0")) for suite in suites)) for name in names}
    return {**totals, "time": f"{sum(float(suite.get('time', '0')) for suite in suites):.3f}"}
