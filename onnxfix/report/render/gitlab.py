"""Reports as GitLab's code quality JSON: a list that a merge request compares with that of its target branch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onnxfix.report.render.issues import Issue, errors_of, issues_of, marks_of, repository_path
from onnxfix.report.report import FailOn, Report

_SEVERITIES = {"error": "critical", "warning": "major", "info": "info"}


def render_gitlab(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: FailOn = "",
) -> str:
    """An array with an object for each issue.

    GitLab tells issues apart by fingerprint alone, so that these depend on the model's path in the repository. It knows
    neither warnings of the installation nor ``fail_on``.
    """
    models = [
        (one.path, tuple(each for each in issues_of(one) if each.sort != "unproven")) for one in reports
    ]
    models += [(one.path, (one,)) for one in errors_of(errors)]
    entries = [entry for path, issues in models for entry in _entries(repository_path(path), issues)]
    return json.dumps(entries, indent=2)


def _entries(path: str, issues: Sequence[Issue]) -> list[dict[str, Any]]:
    path = path or "."
    return [
        {
            "description": issue.text,
            "check_name": issue.title,
            "fingerprint": mark,
            "severity": _severity(issue),
            "location": {"path": path, "lines": {"begin": 1}},
        }
        for issue, mark in zip(issues, marks_of(issues, path), strict=True)
    ]


def _severity(issue: Issue) -> str:
    """A finding has the severity of its rule; what fails the run whatever the rules say is worse."""
    if issue.sort != "finding" and issue.severity == "error":
        return "blocker"
    return _SEVERITIES[issue.severity]
