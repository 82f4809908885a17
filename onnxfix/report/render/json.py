"""Reports as JSON: one document, or one line for each model. docs/schema/ describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from onnxfix.report.render.stream import as_json
from onnxfix.report.report import FailOn, Report


def render_json(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: FailOn = "",
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
    return as_json(document)


def render_jsonl(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: FailOn = "",
) -> str:
    """The same as lines of JSON: ``report_line`` for each report, then ``note_lines``."""
    return "\n".join([*(report_line(one, fail_on) for one in reports), *note_lines(errors, warnings)])


def report_line(report: Report, fail_on: FailOn = "") -> str:
    """A report on one line, with the keys of ``Report.to_json``."""
    return json.dumps(report.to_json(fail_on), allow_nan=False)


def note_lines(errors: Sequence[tuple[str, str]] = (), warnings: Sequence[str] = ()) -> Iterator[str]:
    """``{"path": ..., "error": message}`` for each error, and ``{"warning": text}`` for each warning, on one line."""
    for path, message in errors:
        yield json.dumps({"path": path, "error": message})
    for warning in warnings:
        yield json.dumps({"warning": warning})
