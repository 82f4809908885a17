"""The page around the reports: its head, its index of models, and what it may load, which is nothing."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from onnxfix._version import __version__
from onnxfix.names import RUNGS
from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.html.model import model_section
from onnxfix.report.render.html.parts import (
    DASH,
    SEVERITIES,
    SIGNS,
    STATUSES,
    chip,
    many,
    row,
    seconds,
    section,
    table,
)
from onnxfix.report.render.html.verdict import Words, outcome
from onnxfix.report.report import FailOn, Report
from onnxfix.report.summary import Summary

_HERE = Path(__file__).parent
KEYS = (
    ("j", "next finding"),
    ("k", "previous finding"),
    ("Enter", "open or close it"),
    ("/", "search findings"),
    ("e", "expand or collapse everything"),
    ("t", "light or dark"),
    ("[", "previous section"),
    ("]", "next section"),
    ("?", "this list"),
)
"""Keys that the script listens to, and what they do."""


def render_html(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    severity: FailOn = "",
) -> str:
    """One page for the whole call, with an index where it is about several models.

    Args:
        reports: the reports, in the order of the models.
        errors: ``(path, message)`` of the models without a report.
        warnings: about the installation, such as a broken rule pack.
        severity: the least severity of a finding that fails a run; None: no finding does; "": each report has its own.
    """
    facts = [(report, report.summary) for report in reports]
    alone = len(reports) + len(errors) == 1
    name = reports[0].path if reports and alone else many(len(reports) + len(errors), "model")
    sections = [
        model_section(report, summary, number, severity, alone=alone)
        for number, (report, summary) in enumerate(facts)
    ]
    body = [_failures(errors), _warnings(warnings), index_section(facts, errors, severity), sections]
    return page(f"{name} – onnxfix", body, name)


def page(title: str, body: Content, name: str) -> str:
    """A page with the style and the script of all reports; ``name`` stands in its bar."""
    style, script = ((_HERE / file).read_text("utf-8") for file in ("style.css", "script.js"))
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
    content = tag(
        "body",
        tag("a", "Skip to the report", href="#report", class_="skip"),
        _bar(name),
        tag("main", body, id="report"),
        _keys(),
        tag("script", Html(script)),
    )
    return f"<!doctype html>\n{tag('html', head, content, lang='en')}\n"


def _bar(name: str) -> Html:
    """The bar at the top. Its buttons are the script's, and hidden without it."""
    return tag(
        "header",
        tag("strong", "onnxfix", class_="brand"),
        tag("span", name, class_="of"),
        tag("nav", id="sections", aria_label="Sections"),
        tag(
            "div",
            tag("button", "Expand", type="button", id="expand", title="Expand or collapse everything (e)"),
            tag("button", "Theme", type="button", id="theme", title="Light or dark (t)"),
            tag("button", "?", type="button", id="help", title="Keys (?)", aria_label="Keys"),
            class_="buttons",
            hidden=True,
        ),
        class_="bar",
    )


def _keys() -> Html:
    rows = [tag("div", tag("dt", tag("kbd", key)), tag("dd", what)) for key, what in KEYS]
    close = tag("button", "Close", type="button", id="close")
    return tag(
        "dialog",
        tag("h2", "Keys", id="keys-title"),
        tag("dl", rows),
        close,
        id="keys",
        aria_labelledby="keys-title",
    )


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and only this page's own style and script count: what a model's names hold does not."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _failures(errors: Sequence[tuple[str, str]]) -> Content:
    """The models without a report, and why."""
    if not errors:
        return None
    entries = [
        tag("li", tag("strong", path or "onnxfix"), ": ", message.removeprefix(f"{path}: "))
        for path, message in errors
    ]
    head = tag("p", chip("bad", f"{many(len(errors), 'model')} without a report"), class_="outcome")
    return tag("div", head, tag("ul", entries, class_="plain"), class_="card hero bad")


def _warnings(warnings: Sequence[str]) -> Content:
    if not warnings:
        return None
    entries = [tag("li", one) for one in warnings]
    return tag(
        "div",
        tag("h2", "About this installation"),
        tag("ul", entries, class_="plain"),
        class_="card hero warn",
    )


def index_section(
    reports: Sequence[tuple[Report, Summary]], errors: Sequence[tuple[str, str]], severity: FailOn
) -> Content:
    """The index; nothing for one model."""
    if len(reports) + len(errors) < 2:
        return None
    checked = any(report.verdict is not None for report, _ in reports)
    rungs = RUNGS if checked else ()
    head = (
        "Model",
        "Result",
        "#Errors",
        "#Warnings",
        "#Notes",
        "#Fixed",
        "#Compute nodes",
        *(tag("span", name, class_="vertical") for name in rungs),
        "#Time",
    )
    words = [outcome(report, summary, severity) for report, summary in reports]
    rows = [_line(number, *reports[number], one, rungs) for number, one in enumerate(words)]
    missing = [tag("span", DASH, class_="right")] * (len(head) - 2)
    rows += [row(path, chip("bad", "no report"), *missing) for path, _ in errors]
    kinds = Counter(one.kind for one in words)
    counts = [chip(kind, f"{kinds[kind]:,}") for kind in ("bad", "warn", "good") if kinds[kind]]
    count = many(len(reports) + len(errors), "model")
    return section("index", count, table(head, rows, "Models", "index"), aside=counts)


def _line(number: int, report: Report, summary: Summary, words: Words, rungs: Sequence[str]) -> Html:
    results = {rung.name: rung for rung in summary.rungs}
    marks = [_mark(name, results[name].status if name in results else "") for name in rungs]
    nodes: Content = "–"
    if summary.compute is not None:
        nodes = (
            f"{summary.compute.before:,} → {summary.compute.after:,}"
            if summary.compute.changed
            else f"{summary.compute.after:,}"
        )
    return row(
        tag("a", report.path, href=f"#m{number}"),
        chip(words.kind, words.title),
        *(_count(summary.severities[name], kind) for name, kind in SEVERITIES.items()),
        len(report.applied),
        tag("span", nodes, class_="right"),
        *marks,
        tag("span", seconds(report.seconds), class_="right"),
    )


def _count(number: int, kind: str) -> Html:
    return tag("span", f"{number:,}", class_=f"right count-{kind if number else 'none'}")


def _mark(name: str, status: str) -> Html:
    kind = STATUSES.get(status, "none")
    words = f"{name}: {status or 'not requested'}"
    return tag(
        "span",
        tag("span", SIGNS[kind], aria_hidden="true"),
        tag("span", words, class_="hidden"),
        class_=f"mark {kind}",
        title=words,
    )
