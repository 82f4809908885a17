"""Where the errors of nodes are in a picture of the errors by depth. 0 and infinity have lines of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from onnxfix.report.render.sections import ui
from onnxfix.report.render.sections.checks import power
from onnxfix.report.render.words import number

WIDTH, HEIGHT = 1060, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 58
_APART = 18
"""Pixels between the scale and the lines of 0 and infinity."""
_SMALLEST = 1e-12
"""Errors below this are drawn as this."""


@dataclass(frozen=True)
class Dot:
    """An error of a node. ``kind`` is "whole" (of the whole run) or "own"."""

    x: float
    y: float
    kind: str
    label: str
    blamed: bool


@dataclass(frozen=True)
class Plot:
    """``levels`` are lines with their labels, ``ticks`` numbers of nodes, ``blamed`` the nodes to blame."""

    width: int
    height: int
    levels: tuple[tuple[float, str, bool], ...]
    ticks: tuple[tuple[float, str], ...]
    blamed: tuple[float, ...]
    curve: Markup
    dots: tuple[Dot, ...]


def plot_depths(found: ui.Depths) -> Plot:
    """The picture of the errors of nodes."""
    every = [value for one in found.points for value in (one.own, one.whole) if value is not None]
    values = [max(value, _SMALLEST) for value in every if value and math.isfinite(value)]
    low = math.floor(math.log10(min(values, default=1e-7)))
    high = max(math.ceil(math.log10(max(values, default=1.0))), low + 1)
    last = max(max(found.total, 1) - 1, 1)

    def at_x(node: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * node / last, 1)

    def at_y(value: float) -> float:
        if not value:
            return HEIGHT - _BOTTOM + _APART
        if not math.isfinite(value):
            return _TOP - _APART
        where = math.log10(min(max(value, 10.0**low), 10.0**high))
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (high - where) / (high - low), 1)

    def levels() -> Iterator[tuple[float, str, bool]]:
        for exponent in range(low, high + 1, max(1, (high - low) // 6)):
            yield at_y(10.0**exponent), power(exponent), False
        yield at_y(0.0), "0", True
        if not all(map(math.isfinite, every)):
            yield at_y(math.inf), "∞", True

    line = [f"{at_x(one.node):.1f} {at_y(one.whole):.1f}" for one in found.points if one.whole is not None]
    dots = tuple(
        Dot(at_x(one.node), at_y(value), kind, f"{one.name}: {what} {number(value)}", one.blamed)
        for one in found.points
        for value, kind, what in ((one.whole, "whole", "error"), (one.own, "own", "own error"))
        if value is not None
    )
    quarters = [last * quarter // 4 for quarter in range(5)]
    return Plot(
        WIDTH,
        HEIGHT,
        tuple(levels()),
        tuple((at_x(node), f"{node:,}") for node in quarters),
        tuple(at_x(one.node) for one in found.points if one.blamed),
        Markup(f"M{'L'.join(line)}" if len(line) > 1 else ""),
        dots,
    )
