"""Several models: how they did, each in a line, with every check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onnxfix.names import RUNGS
from onnxfix.report.render.html.markup import Content, Html, tag
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
        *map(_vertical, rungs),
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


def _vertical(name: str) -> Content:
    return tag("span", name, class_="vertical")


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
