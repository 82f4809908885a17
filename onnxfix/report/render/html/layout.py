"""Where the boxes of a neighborhood go: in rows, each below all that it reads, with few crossings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from onnxfix.report.neighborhood import Box, Neighborhood

LETTER = 6.7
"""Pixels of a character in a box."""
TITLE, LINE = 30.0, 16.0
"""Pixels of a box's title with its name, and of each line below it."""
ROW, GAP = 46.0, 24.0
"""Pixels between rows, and between boxes of a row."""
MARGIN = 14.0
_NARROW, _WIDE = 84.0, 250.0
_SWEEPS = 6
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


def lay_out(found: Neighborhood) -> Layout:
    """Rows by the longest way from above; in a row, boxes are near the middle of what they are connected to."""
    rows = _rows(found)
    spots = [Spot(box, row, *_size(box)) for box, row in zip(found.boxes, rows, strict=True)]
    ways = [_chain(spots, wire.source, wire.target) for wire in found.wires]
    order = _ordered(spots)
    _set_x(spots, order)
    height = _set_y(spots, order)
    left = min((spot.x for spot in spots), default=0.0)
    for spot in spots:
        spot.x += MARGIN - left
    width = max((spot.x + spot.width for spot in spots), default=0.0) + MARGIN
    points = tuple(tuple(_points(spots, way)) for way in ways)
    first = {(wire.source, wire.value): at for at, wire in reversed([*enumerate(found.wires)])}
    labels = tuple(
        (points[at][0], points[at][1], found.wires[at].label)
        for at in sorted(first.values())
        if found.wires[at].label
    )
    return Layout(tuple(spots[: len(found.boxes)]), points, labels, width, height)


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


def _rows(found: Neighborhood) -> list[int]:
    """The row of each box: one below the lowest of those that it reads; what is read by one box only is right above."""
    rows = [0] * len(found.boxes)
    wires = sorted(found.wires, key=lambda wire: wire.source)
    for wire in wires:  # boxes are in the order of computation, but outputs' boxes come last
        rows[wire.target] = max(rows[wire.target], rows[wire.source] + 1)
    for _ in found.boxes:
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


def _ordered(spots: Sequence[Spot]) -> list[list[int]]:
    """The spots of each row from left to right: by the mean place of their neighbors, row after row, down and up."""
    order = [
        [number for number, spot in enumerate(spots) if spot.row == row]
        for row in range(max((spot.row for spot in spots), default=-1) + 1)
    ]
    best, fewest = [list(row) for row in order], _crossings(spots, order)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in order if down else reversed(order):
            where = {number: place for line in order for place, number in enumerate(line)}

            def mean(number: int, where: dict[int, int] = where, down: bool = down) -> float:
                near = spots[number].before if down else spots[number].after
                return sum(where[one] for one in near) / len(near) if near else float(where[number])

            row.sort(key=mean)
        crossings = _crossings(spots, order)
        if crossings < fewest:
            best, fewest = [list(row) for row in order], crossings
    return best


def _crossings(spots: Sequence[Spot], order: Sequence[Sequence[int]]) -> int:
    count = 0
    for row, below in pairwise(order):
        where = {number: place for place, number in enumerate(below)}
        wires = [(place, where[one]) for place, number in enumerate(row) for one in spots[number].after]
        count += sum(a < c and b > d for a, b in wires for c, d in wires)
    return count


def _set_x(spots: Sequence[Spot], order: Sequence[Sequence[int]]) -> None:
    """Side by side at first; then each row moves towards what it is connected to, as far as there is room."""
    for row in order:
        _place(spots, row, [0.0] * len(row))
    for sweep in range(_SWEEPS):
        for row in order if sweep % 2 == 0 else reversed(order):
            _place(spots, row, [_wanted(spots, number) for number in row])


def _wanted(spots: Sequence[Spot], number: int) -> float:
    """The x at which a spot would be in the middle of its neighbors."""
    spot = spots[number]
    near = [spots[one].middle for one in (*spot.before, *spot.after)]
    return (sum(near) / len(near) if near else spot.middle) - spot.width / 2


def _place(spots: Sequence[Spot], row: Sequence[int], wanted: Sequence[float]) -> None:
    """Set the x of a row's spots: nothing overlaps, and on average all are where they are wanted."""
    x = wanted[0]
    for number, want in zip(row, wanted, strict=True):
        spots[number].x = max(x, want)
        x = spots[number].x + spots[number].width + GAP
    shift = sum(want - spots[number].x for number, want in zip(row, wanted, strict=True)) / len(row)
    for number in row:
        spots[number].x += shift


def _set_y(spots: Sequence[Spot], order: Sequence[Sequence[int]]) -> float:
    """Rows from top to bottom; the height of it all."""
    y = MARGIN + 8
    for row in order:
        tallest = max(spots[number].height for number in row)
        for number in row:
            spot = spots[number]
            spot.y = y + (tallest - spot.height) / 2
        y += tallest + ROW
    return y - ROW + MARGIN + 8


def _points(spots: Sequence[Spot], chain: Sequence[int]) -> list[Point]:
    first, last = spots[chain[0]], spots[chain[-1]]
    between = [(spots[number].middle, spots[number].y) for number in chain[1:-1]]
    return [(first.middle, first.y + first.height), *between, (last.middle, last.y)]
