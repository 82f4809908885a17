"""The section of one model."""

from __future__ import annotations

from onnxfix.report.render.html.markup import Html, tag
from onnxfix.report.report import Report
from onnxfix.rule import Severity


def model_section(report: Report, number: int, severity: Severity | None) -> Html:
    """Everything about one model, the worst first."""
    findings = [
        tag("li", item.severity, " ", item.code, " ", item.place.text, ": ", item.message)
        for item in report.findings
    ]
    return tag(
        "section",
        tag("h1", report.path),
        tag("ul", findings),
        id=f"model-{number}",
        data_exit=report.exit_code_for(severity),
    )
