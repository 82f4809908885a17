"""Reports as GitLab's code quality JSON: a list that a merge request compares with that of its target branch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onnxfix.report.fingerprint import fingerprints
from onnxfix.report.render.issues import Issue, errors_of, issues_of, repository_path
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
    models = [(report.path, issues_of(report)) for report in reports]
    models += [(one.path, (one,)) for one in errors_of(errors)]
    entries = [entry for path, issues in models for entry in _entries(repository_path(path), issues)]
    return json.dumps(entries, indent=2)


def _entries(path: str, issues: Sequence[Issue]) -> list[dict[str, Any]]:
    return [
        {
            "description": issue.text,
            "check_name": issue.title,
            "fingerprint": mark,
            "severity": "blocker"
            if issue.sort != "finding" and issue.severity == "error"
            else _SEVERITIES[issue.severity],
            "location": {"path": path or ".", "lines": {"begin": 1}},
        }
        for issue, mark in zip(issues, fingerprints(issues, path or "."), strict=True)
    ]
