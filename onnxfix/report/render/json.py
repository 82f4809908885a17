"""Reports as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from onnxfix.report.report import Report
from onnxfix.rule import Severity


def render_json(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: Severity | None = Severity.WARNING,
) -> str:
    """One document for the whole call: ``{"reports": [...], "errors": [{"path", "message"}], "warnings": [...]}``.

    Keys of a report are those of ``Report.to_json``; warnings are about the installation, such as a broken rule pack.
    Errors of the call as a whole have an empty path. All in ASCII: names may be no valid Unicode, and the reader's
    encoding is unknown.
    """
    document = {
        "reports": [report.to_json(fail_on) for report in reports],
        "errors": [{"path": path, "message": message} for path, message in errors],
        "warnings": list(warnings),
    }
    return json.dumps(document, indent=2, allow_nan=False)
