"""Renders pages by the templates of this folder.

Whatever a template prints is escaped, and control and direction characters in it are spelled out. Only the templates
themselves, and what their macros return, are markup.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from onnxfix._version import __version__
from onnxfix.names import RUNGS
from onnxfix.report.findings import AppliedFix, Finding
from onnxfix.report.render import ui
from onnxfix.report.render.details import STATUSES
from onnxfix.report.render.findings import KINDS, describe_item, describe_remedy
from onnxfix.report.render.html.pictures import Point, lay_out, plot_depths, shorten
from onnxfix.report.render.report import before_and_after, item_drawings, item_facts, report_page
from onnxfix.report.render.stream import printable
from onnxfix.report.render.words import counted, seconds
from onnxfix.report.report import Errors, Report

SIGNS = {"good": "✓", "bad": "✗", "warn": "!", "note": "i", "none": ui.DASH}
"""What a chip shows besides its color."""
GROUNDS = {"good": "#1f7a3d", "warn": "#8a5a00", "bad": "#b3261e", "note": "#57606a", "none": "#57606a"}
"""White has a contrast of 5 and more on these."""
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
_TEMPLATES = Path(__file__).parent / "templates"
_SURROGATES = re.compile("[\ud800-\udfff]")


def render_html(reports: Sequence[Report], errors: Errors = (), warnings: Sequence[str] = ()) -> str:
    """One page for the whole call, with an index where it is about several models."""
    count = len(reports) + len(errors)
    name = reports[0].path if reports and count == 1 else counted(count, "model")
    pages = [report_page(report) for report in reports]
    index = _index(reports, pages, errors) if count > 1 else None
    return _render(name, pages, errors=errors, warnings=warnings, index=index, many=True, folded=count != 1)


def render_page(page: ui.Page) -> str:
    """A page of its own about one result."""
    name = f"{page.path} against {page.against}" if page.against else page.path
    return _render(name, [page])


def render_cell(page: ui.Page, report: Report) -> str:
    """The page of a report in short, for the cell of a notebook."""
    written = f"written: {report.output}" if report.output and report.command == "apply" else ""
    target = f"target {report.target}" if report.target else ""
    aside = " · ".join(filter(None, (written, target, f"{report.seconds:.1f} s")))
    return "".join(str(_macros("cell.html.j2").cell(page, aside)).splitlines())  # a line in a notebook's file


def _render(
    name: str,
    pages: Sequence[ui.Page],
    *,
    errors: Errors = (),
    warnings: Sequence[str] = (),
    index: ui.Section | None = None,
    many: bool = False,
    folded: bool = False,
) -> str:
    style, script = ((_TEMPLATES / file).read_text("utf-8") for file in ("style.css", "script.js"))
    # Only this page's own style and script count: what a model's names hold does not.
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    macros = _macros("blocks.html.j2", "charts.html.j2")
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            name=name,
            pages=pages,
            errors=errors,
            index=index,
            many=many,
            folded=folded,
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            version=__version__,
            keys=KEYS,
            missing=ui.Chip("bad", f"{counted(len(errors), 'model')} without a report"),
            warnings=ui.Items(warnings) if warnings else None,
            show=macros.show,
            section=macros.section,
            body=macros.body,
            title=macros.title,
        )
    )
    return str(text)


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _index(reports: Sequence[Report], pages: Sequence[ui.Page], errors: Errors) -> ui.Section:
    """The outcome, the counts and the checks of each model."""
    ran = {check.name for report in reports for check in report.checks}
    checks = [name for name in RUNGS if name in ran]
    head = ("Model", "Result", "#Errors", "#Warnings", "#Notes", "#Fixed", "#Compute nodes")
    rows: list[Sequence[ui.Content]] = []
    for number, (report, page) in enumerate(zip(reports, pages, strict=True)):
        summary = report.summary
        statuses = {check.name: check.status for check in summary.rungs}
        rows.append(
            (
                ui.Link(report.path, f"m{number}"),
                page.outcome,
                *(summary.severities[name] for name in KINDS),
                len(report.applied),
                before_and_after(summary.compute) if summary.compute is not None else ui.DASH,
                *(_mark(name, statuses.get(name, "")) for name in checks),
                seconds(report.seconds),
            )
        )
    missing = [ui.DASH] * (len(head) - 1 + len(checks))
    rows += [(path, ui.Chip("bad", "no report"), *missing) for path, _ in errors]
    table = ui.Table((*head, *(f"|{name}" for name in checks), "#Time"), rows, "Models", "index")
    kinds = Counter(page.outcome.kind for page in pages)
    counts = [ui.Chip(kind, f"{kinds[kind]:,}") for kind in ("bad", "warn", "good") if kinds[kind]]
    return ui.Section("index", counted(len(rows), "model"), (table,), counts)


def _mark(name: str, status: str) -> ui.Mark:
    return ui.Mark(STATUSES.get(status, "none"), f"{name}: {status or 'not requested'}")


# ------------------------------------------------------------------------------------------------------ templates


class _Macros:
    """The macros of some templates, by name. ``show`` renders content by the macro that has the name of its form."""

    def __init__(self, *names: str) -> None:
        self._macros: dict[str, Callable[..., Markup]] = {}
        for name in names:
            self._macros.update(vars(_environment().get_template(name).make_module({"show": self.show})))

    def __getattr__(self, name: str) -> Callable[..., Markup]:
        return self._macros[name]

    def show(self, content: ui.Content) -> Markup:
        """Content as markup: text is escaped, numbers get separators of thousands."""
        if content is None:
            return Markup()
        if isinstance(content, str):
            return escape(_spell(content))
        if isinstance(content, (int, float)):
            return Markup(f"{content:,.0f}")
        if isinstance(content, (list, tuple)):
            return Markup("").join(map(self.show, content))
        return self._macros[type(content).__name__](content)


_macros = cache(_Macros)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_spell,
    )
    environment.globals.update(
        signs=SIGNS, grounds=GROUNDS, most_rules=20, most_places=10, bad=lambda text: ui.Chip("bad", text)
    )
    environment.filters.update(
        alike=_alike,
        curve=_curve,
        drawings=item_drawings,
        facts=item_facts,
        laid_out=lay_out,
        plotted=plot_depths,
        plural=counted,
        px=lambda value: f"{value:.0f}",
        said=describe_item,
        short=_short,
        tail=shorten,
    )
    return environment


def _spell(value: Any) -> Any:
    """Text as it may stand in a page: control and direction characters, and invalid Unicode, are spelled out."""
    if value is None:
        return ""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(_SURROGATES.sub(lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", value))


def _alike(items: Iterable[Finding | AppliedFix]) -> list[tuple[str, list[Finding | AppliedFix]]]:
    """Findings or fixes by what is said of them."""
    groups: dict[str, list[Finding | AppliedFix]] = {}
    for item in items:
        remedy = describe_remedy(item)
        words = f"{describe_item(item)} [{remedy}]" if remedy else describe_item(item)
        groups.setdefault(words, []).append(item)
    return list(groups.items())


def _short(value: float) -> str:
    """A count in five characters; "" for 0."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}" if value else ""


def _curve(way: Sequence[Point]) -> Markup:
    """A line that leaves and enters each row straight down. Markup, since long paths are not shortened."""
    (x, y), *_ = way
    parts = [f"M{x:.0f} {y:.0f}"]
    for (x1, y1), (x2, y2) in pairwise(way):
        half = (y1 + y2) / 2
        straight = abs(x1 - x2) < 1
        parts.append(
            f"V{y2:.0f}" if straight else f"C{x1:.0f} {half:.0f} {x2:.0f} {half:.0f} {x2:.0f} {y2:.0f}"
        )
    return Markup("".join(parts))
