"""Pictures: where the boxes of a neighborhood go, and the errors of nodes by depth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup

from onnxfix.report.neighborhood import Box, Neighborhood
from onnxfix.report.render import ui
from onnxfix.report.render.checks import power
from onnxfix.report.render.words import number as short_number

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
    """Width and height of a box, by its text."""
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


# --------------------------------------------------------------------------------------------------- errors by depth

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
