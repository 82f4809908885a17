"""Renders pages by the templates of this folder.

Whatever a template prints is escaped, and control and direction characters in it are spelled out. Only the templates
themselves, and what their macros return, are markup.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from onnxfix._version import __version__
from onnxfix.names import RUNGS
from onnxfix.report.findings import OPTIONS
from onnxfix.report.render import ui
from onnxfix.report.render.details import STATUSES
from onnxfix.report.render.findings import alike, describe_item
from onnxfix.report.render.html.pictures import Point, lay_out, plot_depths, shorten
from onnxfix.report.render.lines import Line
from onnxfix.report.render.report import before_and_after, report_page
from onnxfix.report.render.stream import printable
from onnxfix.report.render.words import counted, seconds
from onnxfix.report.report import Errors, Report
from onnxfix.report.sources import describe_source, find_spot
from onnxfix.rule import Rule

SIGNS = {"good": "✓", "bad": "✗", "warn": "!", "note": "i", "none": ui.DASH}
"""What a chip shows besides its color."""
_TEMPLATES = Path(__file__).parent / "templates"
_SURROGATES = re.compile("[\ud800-\udfff]")


def render_html(reports: Sequence[Report], errors: Errors = (), warnings: Sequence[str] = ()) -> str:
    """One page for the whole call, with an index where it is about several models."""
    count = len(reports) + len(errors)
    name = reports[0].path if reports and count == 1 else counted(count, "model")
    return _render(name, [report_page(report) for report in reports], reports, errors, warnings)


def render_page(page: ui.Page) -> str:
    """A page of its own about one result."""
    return _render(f"{page.path} against {page.against}" if page.against else page.path, [page])


def render_cell(page: ui.Page, report: Report) -> str:
    """The page of a report in short, for the cell of a notebook."""
    written = f"written: {report.output}" if report.output and report.command == "apply" else ""
    target = f"target {report.target}" if report.target else ""
    aside = " · ".join(filter(None, (written, target, f"{report.seconds:.1f} s")))
    cell = _macros("cell.html.j2")["cell"](page, aside)
    return "".join(str(cell).splitlines())  # a line in a notebook's file


def render_lines(lines: Iterable[Line]) -> str:
    """Lines of the command line, for the cell of a notebook."""
    return str(_macros("cell.html.j2")["lines"]([line.parts for line in lines]))


def render_rules(rules: Sequence[Rule]) -> str:
    """A table of rules, for the cell of a notebook."""
    return str(_macros("cell.html.j2")["rules"](rules))


def _render(
    name: str,
    pages: Sequence[ui.Page],
    reports: Sequence[Report] = (),
    errors: Errors = (),
    warnings: Sequence[str] = (),
) -> str:
    style, script = ((_TEMPLATES / file).read_text("utf-8") for file in ("style.css", "script.js"))
    ran = {check.name for report in reports for check in report.checks}
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            **_macros("blocks.html.j2", "charts.html.j2"),
            name=name,
            pages=pages,
            reports=reports,
            checks=[name for name in RUNGS if name in ran],
            errors=errors,
            warnings=warnings,
            # Only this page's own style and script count: what a model's names hold does not.
            allowed=(_digest(style), _digest(script)),
            style=Markup(style),
            script=Markup(script),
            version=__version__,
        )
    )
    return str(text)


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


# ------------------------------------------------------------------------------------------------------ templates


@cache
def _macros(*names: str) -> dict[str, Callable[..., Markup]]:
    """The macros of some templates, by name, and ``show``, which renders content by the macro that has the name of its
    form."""
    macros: dict[str, Callable[..., Markup]] = {}

    def show(content: Any) -> Markup:
        """Content as markup: text is escaped, numbers get separators of thousands."""
        if isinstance(content, (int, float)):
            return Markup(f"{content:,.0f}")
        if isinstance(content, (list, tuple)):
            return Markup("").join(map(show, content))
        macro = macros.get(type(content).__name__)
        return macro(content) if macro is not None else escape(_spell(content))

    for name in names:
        macros |= vars(_environment().get_template(name).make_module({"show": show}))
    return {**macros, "show": show}


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
    environment.globals.update(signs=SIGNS, statuses=STATUSES, options=OPTIONS)
    environment.filters.update(
        alike=lambda items: [*alike(items).items()],
        changed=before_and_after,
        coded=find_spot,
        curve=_curve,
        laid_out=lay_out,
        plotted=plot_depths,
        plural=counted,
        px=lambda value: f"{value:.0f}",
        said=describe_item,
        seconds=seconds,
        sourced=describe_source,
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
