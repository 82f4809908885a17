"""Renders pages by the templates of this folder.

Whatever a template prints is escaped, and control and direction characters in it are spelled out. Only the templates
themselves, and what their macros return, are markup.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from onnxfix._version import __version__
from onnxfix.names import RUNGS
from onnxfix.report.findings import OPTIONS, Box, Neighborhood, describe_source, find_spot
from onnxfix.report.render import ui
from onnxfix.report.render.checks import power
from onnxfix.report.render.details import STATUSES
from onnxfix.report.render.findings import alike, describe_item
from onnxfix.report.render.lines import Line, counted, seconds
from onnxfix.report.render.lines import number as short_number
from onnxfix.report.render.report import before_and_after, report_page
from onnxfix.report.render.stream import printable
from onnxfix.report.report import Errors, Report
from onnxfix.rule import Rule

LETTER = 6.7
"""Pixels of a character in a box."""
TITLE, LINE = 30.0, 16.0
"""Pixels of a box's title with its name, and of each line below it."""
ROW, GAP = 46.0, 24.0
"""Pixels between rows, and between boxes of a row."""
MARGIN = 14.0
_NARROW, _WIDE = 84.0, 250.0
_SWEEPS = 6
"""Times that rows are put in order, down and up in turn."""
Point = tuple[float, float]


@dataclass
class Spot:
    """A box with its place: ``x`` and ``y`` are its top left corner. Without a box: where a long wire passes a row."""

    box: Box | None
    row: int
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    @property
    def middle(self) -> float:
        """The middle of its width."""
        return self.x + self.width / 2


@dataclass(frozen=True)
class Layout:
    """The spots of all boxes, the way of each wire (top to bottom), labels between two points of a wire (one for each
    value), and the size of it all in pixels."""

    spots: tuple[Spot, ...]
    ways: tuple[tuple[Point, ...], ...]
    labels: tuple[tuple[Point, Point, str], ...]
    width: float
    height: float


def lay_out(nodes: Neighborhood) -> Layout:
    """Rows by the longest way from above; in a row, boxes are near the middle of what they are connected to."""
    spots = [Spot(box, row, *_size(box)) for box, row in zip(nodes.boxes, _rows(nodes), strict=True)]
    chains = [_chain(spots, wire.source, wire.target) for wire in nodes.wires]
    order = _arrange(spots)
    y = MARGIN + 8
    for row in order:
        tallest = max(spots[number].height for number in row)
        for number in row:
            spots[number].y = y + (tallest - spots[number].height) / 2
        y += tallest + ROW
    ways = []
    for first, *between, last in chains:
        points = [(spots[number].middle, spots[number].y) for number in between]
        start = spots[first].middle, spots[first].y + spots[first].height
        ways.append((start, *points, (spots[last].middle, spots[last].y)))
    labels, labeled = [], set()
    for wire, way in zip(nodes.wires, ways, strict=True):
        if wire.label and (wire.source, wire.value) not in labeled:  # one label for each value
            labels.append((way[0], way[1], wire.label))
        labeled.add((wire.source, wire.value))
    width = max((spot.x + spot.width for spot in spots), default=0.0) + MARGIN
    return Layout(tuple(spots[: len(nodes.boxes)]), tuple(ways), tuple(labels), width, y - ROW + MARGIN + 8)


def _size(box: Box) -> tuple[float, float]:
    if box.kind != "node":
        return min(max(len(box.title) * LETTER + 26, _NARROW), _WIDE), 24.0
    longest = max((len(line) for line in (box.title, shorten(box.name), *box.lines)), default=0)
    below = LINE * len(box.lines) + (10 if box.lines else 0)
    return min(max(longest * LETTER + 22, _NARROW), _WIDE), TITLE + 14 * bool(box.name) + below


def shorten(name: str, most: int = 30) -> str:
    """The end of a long name, which tells nodes of one block apart."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _rows(nodes: Neighborhood) -> list[int]:
    """The row of each box: one below the lowest of those that it reads; what is read by one box only is right above."""
    rows = [0] * len(nodes.boxes)
    wires = sorted(nodes.wires, key=lambda wire: wire.source)
    for _ in nodes.boxes:  # boxes are in the order of computation, but outputs' boxes come last
        for wire in wires:
            rows[wire.target] = max(rows[wire.target], rows[wire.source] + 1)
    read = {wire.target for wire in wires}
    for number in reversed(range(len(rows))):
        below = [rows[wire.target] for wire in wires if wire.source == number]
        if below and number not in read:
            rows[number] = min(below) - 1
    return rows


def _chain(spots: list[Spot], source: int, target: int) -> list[int]:
    """A wire as spots from row to row; new ones where it passes a row."""
    chain = [source]
    for row in range(spots[source].row + 1, spots[target].row):
        spots.append(Spot(None, row, 6.0, 0.0))
        chain.append(len(spots) - 1)
    chain.append(target)
    for above, below in pairwise(chain):
        spots[above].after.append(below)
        spots[below].before.append(above)
    return chain


def _arrange(spots: Sequence[Spot]) -> list[list[int]]:
    """The spots of each row from left to right, with their x: row after row, down and up, each goes to the mean place
    of those that it is connected to, as far as there is room."""
    rows = range(max((spot.row for spot in spots), default=-1) + 1)
    order = [[number for number, spot in enumerate(spots) if spot.row == row] for row in rows]
    for row in order:
        _place(spots, row, dict.fromkeys(row, 0.0))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in order if down else reversed(order):
            wanted = {}
            for number in row:
                spot = spots[number]
                near = [*spot.before, *spot.after]
                if sweep < _SWEEPS // 2:
                    near = spot.before if down else spot.after
                middles = [spots[one].middle for one in near] or [spot.middle]
                wanted[number] = sum(middles) / len(middles) - spot.width / 2
            row.sort(key=lambda number: wanted[number] + spots[number].width / 2)
            _place(spots, row, wanted)
    left = min((spot.x for spot in spots), default=0.0)
    for spot in spots:
        spot.x += MARGIN - left
    return order


def _place(spots: Sequence[Spot], row: Sequence[int], wanted: Mapping[int, float]) -> None:
    """Set the x of a row's spots: nothing overlaps, and on average all are where they are wanted."""
    x = wanted[row[0]]
    for number in row:
        spots[number].x = max(x, wanted[number])
        x = spots[number].x + spots[number].width + GAP
    shift = sum(wanted[number] - spots[number].x for number in row) / len(row)
    for number in row:
        spots[number].x += shift


WIDTH, HEIGHT = 1060, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 58
_APART = 18
"""Pixels between the scale and the lines of 0 and infinity."""
_SMALLEST = 1e-12
"""Errors below this are drawn as this."""


def plot_depths(depths: ui.Depths) -> dict[str, object]:
    """The picture of the errors of nodes: ``levels`` are lines with their labels (apart from the scale: 0 and
    infinity), ``ticks`` numbers of nodes, ``blamed`` the nodes to blame. ``dots`` are errors: x, y, "whole" (of the
    whole run) or "own", label, to blame."""
    points = depths.points
    every = [value for one in points for value in (one.own_error, one.output_error) if value is not None]
    values = [max(value, _SMALLEST) for value in every if value and math.isfinite(value)]
    low = math.floor(math.log10(min(values, default=1e-7)))
    high = max(math.ceil(math.log10(max(values, default=1.0))), low + 1)
    last = max(max(depths.total, 1) - 1, 1)

    def at_x(node: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * node / last, 1)

    def at_y(value: float) -> float:
        if not value:
            return HEIGHT - _BOTTOM + _APART
        if not math.isfinite(value):
            return _TOP - _APART
        where = math.log10(min(max(value, 10.0**low), 10.0**high))
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (high - where) / (high - low), 1)

    def dots() -> Iterator[tuple[float, float, str, str, bool]]:
        for one in points:
            name = f"{one.op_type} {one.output}"
            blamed = one.output in depths.blamed
            for value, kind, what in (
                (one.output_error, "whole", "error"),
                (one.own_error, "own", "own error"),
            ):
                if value is not None:
                    yield at_x(one.number), at_y(value), kind, f"{name}: {what} {short_number(value)}", blamed

    exponents = range(low, high + 1, max(1, (high - low) // 6))
    levels = [(at_y(10.0**exponent), power(exponent), False) for exponent in exponents]
    levels += [(at_y(0.0), "0", True)]
    levels += [] if all(map(math.isfinite, every)) else [(at_y(math.inf), "∞", True)]
    ticks = [(at_x(node), f"{node:,}") for node in (last * quarter // 4 for quarter in range(5))]
    line = [
        f"{at_x(one.number):.1f} {at_y(one.output_error):.1f}"
        for one in points
        if one.output_error is not None
    ]
    curve = Markup(f"M{'L'.join(line)}" if len(line) > 1 else "")
    marks = [at_x(one.number) for one in points if one.output in depths.blamed]
    return {
        "levels": levels,
        "ticks": ticks,
        "blamed": marks,
        "curve": curve,
        "dots": [*dots()],
        "width": WIDTH,
        "height": HEIGHT,
    }


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
