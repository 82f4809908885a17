"""Reports as SARIF 2.1.0, for GitHub's code scanning and other tools that track issues.

The physical location of a result is the line of code that the node comes from, if it is in the repository, and the
model is a related location. Otherwise it is the model, which is a binary file. The logical location is the node, by its
name and the graphs around it. Fingerprints depend only on the rule and the node's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from onnxfix._version import __version__
from onnxfix.place import Place
from onnxfix.report.findings import repository_path
from onnxfix.report.render.details import MEANINGS
from onnxfix.report.render.issues import Issue, errors_of, issues_of
from onnxfix.report.render.stream import escaped
from onnxfix.report.report import Errors, Report
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "onnxfixPlace/v1"
"""onnxfix's name of the fingerprint. GitHub reads ``primaryLocationLineHash``, or computes it from the file's lines."""
LONGEST = 1024
"""Most characters of a rule's description that GitHub shows."""
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_PROBLEMS = {"error": "error", "warning": "warning", "info": "recommendation"}
_BASE = "%SRCROOT%"


def render_sarif(reports: Sequence[Report], errors: Errors = (), warnings: Sequence[str] = ()) -> str:
    """One log with one run.

    Results are the remaining findings and the failed checks. Applied fixes, and findings that a configuration or a
    baseline accepts, are not results. Unreadable models, incomplete runs and warnings are notifications of the
    invocation. The log is ASCII.
    """
    issues = [issue for report in reports for issue in issues_of(report)]
    results = [issue for issue in issues if issue.sort in ("finding", "check", "fix", "step")]
    faults = [*errors_of(errors), *(issue for issue in issues if issue.sort == "problem")]
    unproven = [issue for issue in issues if issue.sort == "unproven"]
    codes = list(dict.fromkeys(issue.code for issue in results))
    driver = {
        "name": "onnxfix",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_descriptor(code, results) for code in codes],
    }
    invocation = {
        "executionSuccessful": not faults,
        "exitCode": max([2 * bool(errors), *(report.exit_code for report in reports)]),
        "toolExecutionNotifications": [
            *(_notification(issue) for issue in (*faults, *unproven)),
            *({"level": "warning", "message": {"text": escaped(text)}} for text in warnings),
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "artifacts": [
            {"location": _file(path), "roles": ["analysisTarget"], "mimeType": "application/octet-stream"}
            for path in dict.fromkeys(report.path for report in reports)
        ],
        "results": [_result(issue, codes) for issue in results],
        "columnKind": "unicodeCodePoints",
        "properties": {"models": [_model(report) for report in reports]},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False)


def _result(issue: Issue, rules: Sequence[str]) -> dict[str, Any]:
    location = _location(issue.file, issue.line)
    model = {"relatedLocations": [_location(issue.path) | {"id": 1, "message": {"text": "the model"}}]}
    if issue.place.known:
        location["logicalLocations"] = [_logical(issue.place)]
    properties = {"sort": issue.sort, "operator": issue.place.op_type, "remedy": issue.remedy}
    return {
        "ruleId": issue.code,
        "ruleIndex": rules.index(issue.code),
        "kind": "fail",
        "level": _LEVELS[issue.severity],
        "message": {"text": escaped(issue.text)},
        "locations": [location],
        **(model if issue.spot is not None else {}),
        "partialFingerprints": {
            FINGERPRINT: issue.fingerprint,
            "primaryLocationLineHash": f"{issue.fingerprint}:1",
        },
        "properties": {key: escaped(value) for key, value in properties.items() if value},
    }


def _location(path: str, line: int = 1) -> dict[str, Any]:
    """A line of a file. GitHub requires a line, so a model's is 1."""
    return {"physicalLocation": {"artifactLocation": _file(path), "region": {"startLine": line}}}


def _file(path: str) -> dict[str, str]:
    """The location of a file: its path in the repository, or an absolute URI outside of the repository."""
    found = repository_path(path)
    if "://" in found:
        return {"uri": quote(_bytes(found), safe=":/?#[]@!$&'()*+,;=%")}
    quoted = quote(_bytes(found))
    if quoted.startswith("/"):
        return {"uri": f"file://{quoted}"}
    return {"uri": quoted, "uriBaseId": _BASE}


def _bytes(path: str) -> bytes:
    """A path as the system stores it. File names may contain bytes that are not valid UTF-8."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogatepass")


def _logical(place: Place) -> dict[str, str]:
    name = place.layer or place.node or place.label or "/".join(place.graph)
    kind = "layer" if place.layer else "node" if place.op_type else "value" if place.output else "graph"
    path = "/".join((*place.graph, *([name] if place.node or place.label or place.layer else [])))
    return {"name": escaped(name), "fullyQualifiedName": escaped(path), "kind": kind}


def _notification(issue: Issue) -> dict[str, Any]:
    notification: dict[str, Any] = {
        "level": _LEVELS[issue.severity],
        "message": {"text": escaped(issue.text)},
    }
    if issue.path:
        notification["locations"] = [{"physicalLocation": {"artifactLocation": _file(issue.path)}}]
    return notification


def _model(report: Report) -> dict[str, Any]:
    """Facts about a model, besides its results."""
    return {
        "path": escaped(report.path),
        "command": report.command,
        "target": report.target,
        "exitCode": report.exit_code,
        "proof": report.summary.proof,
        "fixed": len(report.applied),
        "suppressed": len(report.suppressed),
        "output": escaped(report.output),
        "checks": {check.name: check.status for check in report.checks},
        "versions": report.versions,
    }


def _descriptor(code: str, results: Sequence[Issue]) -> dict[str, Any]:
    """The SARIF descriptor of a rule with its documentation, or of a check."""
    rule = next((one for one in registry().rules if one.code == code), None)
    if rule is not None:
        return _rule(rule)
    severity = next(issue.severity for issue in results if issue.code == code)
    text = f"What {code} reports ({MEANINGS[code]})." if code in MEANINGS else f"What {code} reports."
    return {
        "id": code,
        "shortDescription": {"text": text},
        "fullDescription": {"text": text},
        "help": {"text": f"{text} 'onnxfix doctor' shows which checks this machine can run."},
        **_describe_severity(severity, "very-high", ["verification"]),
    }


def _describe_severity(severity: str, precision: str, tags: Sequence[str]) -> dict[str, Any]:
    """The severity and the precision of a rule's findings, in the terms of SARIF and GitHub."""
    properties = {"tags": tags, "problem.severity": _PROBLEMS[severity], "precision": precision}
    return {"defaultConfiguration": {"level": _LEVELS[severity]}, "properties": properties}


def _rule(rule: Rule) -> dict[str, Any]:
    page = f"# {rule.code} {rule.name}\n\n{rule.doc}\n\n`onnxfix explain {rule.code}` shows examples, too."
    safety = [rule.safety.name.lower()] if rule.safety is not None else []
    descriptor = {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": _shorten(_reason(rule.doc) or rule.summary)},
        "help": {"text": rule.doc, "markdown": page},
        "helpUri": _help(rule),
        **_describe_severity(rule.severity.name.lower(), "high", [rule.code.rstrip("0123456789"), *safety]),
    }
    return {key: value for key, value in descriptor.items() if value}


def _reason(doc: str) -> str:
    """The first paragraph of the section "Why it matters"."""
    section = doc.partition("## Why it matters")[2].partition("\n## ")[0]
    return " ".join(section.strip().partition("\n\n")[0].split())


def _shorten(text: str) -> str:
    """The text, cut to the length that GitHub shows, at the end of a sentence if there is one."""
    if len(text) <= LONGEST:
        return text
    sentences = text[:LONGEST].rpartition(". ")[0]
    return f"{sentences}." if sentences else f"{text[: LONGEST - 1]}…"


def _help(rule: Rule) -> str:
    """The first page that the rule refers to; "" for none."""
    found = re.search(r"https?://[^\s)>,;]+[^\s)>,;:.\"]", rule.doc)
    return found[0] if found else ""
