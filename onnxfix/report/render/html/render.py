"""Renders pages by the templates of this folder.

Whatever a template prints is escaped, and control and direction characters in it are spelled out. Only the templates
themselves, and what their macros return, are markup.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from onnxfix._version import __version__
from onnxfix.names import RUNGS
from onnxfix.report.render.html.layout import Point, lay_out, shorten
from onnxfix.report.render.html.plot import plot_depths
from onnxfix.report.render.sections import ui
from onnxfix.report.render.sections.checks import STATUSES
from onnxfix.report.render.sections.report import KINDS, before_and_after, report_page
from onnxfix.report.render.stream import printable
from onnxfix.report.render.words import counted
from onnxfix.report.report import FailOn, Report

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


def render_html(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: FailOn = "",
) -> str:
    """One page for the whole call, with an index where it is about several models.

    Args:
        reports: the reports, in the order of the models.
        errors: ``(path, message)`` of the models without a report.
        warnings: about the installation, such as a broken rule pack.
        fail_on: the least severity of a finding that fails a run; None: no finding does; "": each report has its own.
    """
    alone = len(reports) + len(errors) == 1
    name = reports[0].path if reports and alone else counted(len(reports) + len(errors), "model")
    pages = [report_page(report, fail_on) for report in reports]
    index = None if len(reports) + len(errors) < 2 else _index(reports, pages, errors)
    return _render(name, pages, errors=errors, warnings=warnings, index=index, many=True, folded=not alone)


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


def _render(name: str, pages: Sequence[ui.Page], **more: Any) -> str:
    style, script = ((_TEMPLATES / file).read_text("utf-8") for file in ("style.css", "script.js"))
    # Only this page's own style and script count: what a model's names hold does not.
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    given: dict[str, Any] = {"errors": (), "warnings": (), "index": None, "many": False, "folded": False}
    given.update(more)
    macros = _macros("blocks.html.j2", "charts.html.j2")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            given,
            name=name,
            pages=pages,
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            version=__version__,
            keys=KEYS,
            missing=ui.Chip("bad", f"{counted(len(given['errors']), 'model')} without a report"),
            warnings=ui.Items(tuple(given["warnings"])) if given["warnings"] else None,
            show=macros.show,
            section=macros.section,
            body=macros.body,
            title=macros.title,
        )
    )


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _index(
    reports: Sequence[Report], pages: Sequence[ui.Page], errors: Sequence[tuple[str, str]]
) -> ui.Section:
    """The outcome, the counts and the checks of each model."""
    checks = RUNGS if any(report.verdict is not None for report in reports) else ()
    head = ("Model", "Result", "#Errors", "#Warnings", "#Notes", "#Fixed", "#Compute nodes")
    rows = [
        tuple(_index_cells(number, *both, checks))
        for number, both in enumerate(zip(reports, pages, strict=True))
    ]
    missing = [ui.DASH] * (len(head) - 1 + len(checks))
    rows += [(path, ui.Chip("bad", "no report"), *missing) for path, _ in errors]
    table = ui.Table((*head, *(f"|{name}" for name in checks), "#Time"), tuple(rows), "Models", "index")
    kinds = Counter(page.outcome.kind for page in pages)
    counts = [ui.Chip(kind, f"{kinds[kind]:,}") for kind in ("bad", "warn", "good") if kinds[kind]]
    return ui.Section("index", counted(len(rows), "model"), (table,), counts)


def _index_cells(number: int, report: Report, page: ui.Page, checks: Sequence[str]) -> Iterator[ui.Content]:
    summary = report.summary
    yield ui.Link(report.path, f"m{number}")
    yield page.outcome
    yield from (summary.severities[name] for name in KINDS)
    yield len(report.applied)
    yield before_and_after(summary.compute) if summary.compute is not None else ui.DASH
    statuses = {check.name: check.status for check in summary.rungs}
    for name in checks:
        status = statuses.get(name, "")
        yield ui.Mark(STATUSES.get(status, "none"), f"{name}: {status or 'not requested'}")
    yield ui.seconds(report.seconds)


# ------------------------------------------------------------------------------------------------------ templates


class _Macros:
    """The macros of some templates, by name. ``show`` renders content by the macro that has the name of its form."""

    def __init__(self, environment: Environment, names: Iterable[str]) -> None:
        self._macros: dict[str, Callable[..., Markup]] = {}
        for name in names:
            self._macros.update(vars(environment.get_template(name).make_module({"show": self.show})))

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


@cache
def _macros(*names: str) -> _Macros:
    return _Macros(_environment(), names)


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
        laid_out=lay_out,
        plotted=plot_depths,
        plural=counted,
        px=lambda value: f"{value:.0f}",
        short=_short,
        signed=lambda value: f"{value:+,}".replace("-", "−") if value else "0",
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


def _alike(entries: Iterable[ui.Entry]) -> list[tuple[str, list[ui.Entry]]]:
    """Entries by what is said of them."""
    groups: dict[str, list[ui.Entry]] = {}
    for entry in entries:
        words = f"{entry.message} [{entry.remedy}]" if entry.remedy else entry.message
        groups.setdefault(words, []).append(entry)
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
