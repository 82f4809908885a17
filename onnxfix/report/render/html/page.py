"""The page around the reports: its head, its index of models, and what it may load, which is nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from onnxfix._version import __version__
from onnxfix.report.render.html.markup import Content, Html, join, tag
from onnxfix.report.render.html.model import model_section
from onnxfix.report.report import Report
from onnxfix.rule import Severity

_HERE = Path(__file__).parent


def render_html(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    severity: Severity | None = Severity.WARNING,
) -> str:
    """One page for the whole call, with an index where it is about several models.

    Args:
        reports: the reports, in the order of the models.
        errors: ``(path, message)`` of the models without a report.
        warnings: about the installation, such as a broken rule pack.
        severity: the least severity of a finding that fails a run; None: no finding does.
    """
    title = reports[0].path if len(reports) == 1 and not errors else f"{len(reports) + len(errors)} models"
    sections = [model_section(report, number, severity) for number, report in enumerate(reports)]
    return page(f"onnxfix: {title}", join(_failures(errors), _warnings(warnings), sections))


def page(title: str, body: Content) -> str:
    """A page with the style and the script of all reports."""
    style, script = ((_HERE / name).read_text("utf-8") for name in ("style.css", "script.js"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"onnxfix {__version__}"),
        tag("title", title),
        tag("style", Html(style)),
    )
    content = tag("body", tag("main", body), tag("script", Html(script)))
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and only this page's own style and script count: what a model's names hold does not."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _failures(errors: Sequence[tuple[str, str]]) -> Content:
    return [tag("p", tag("strong", path), " ", message, class_="failure") for path, message in errors]


def _warnings(warnings: Sequence[str]) -> Content:
    return [tag("p", "warning: ", one, class_="warning") for one in warnings]
