"""Errors along a model, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from onnxfix.report.render.html.charts import power, svg
from onnxfix.report.render.html.markup import Html, tag
from onnxfix.report.render.numbers import number

WIDTH, HEIGHT = 1060, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 30, 58
_APART = 18
"""Pixels between the scale and the lines of 0 and infinity."""
_SMALLEST = 1e-12
"""Errors below this are drawn as this."""


class Point(NamedTuple):
    """A node by its number: its own error, the error at its output, and its name."""

    node: int
    own: float | None
    whole: float | None
    name: str


def depth_chart(points: Sequence[Point], total: int, blamed: Collection[int], label: str) -> Html:
    """The errors of nodes; ``label`` says what it is for those who do not see it.

    Args:
        points: in the order of computation.
        total: nodes of the model.
        blamed: numbers of the nodes that are to blame.
        label: what is shown.
    """
    scale = _Scale(points, total)
    blame = [_line(scale.x(one), _TOP - _APART, HEIGHT - _BOTTOM + _APART) for one in blamed]
    line = [f"{scale.x(one.node):.1f} {scale.y(one.whole):.1f}" for one in points if one.whole is not None]
    curve = tag("path", d=Html(f"M{'L'.join(line)}"), class_="whole") if len(line) > 1 else None
    parts = [*scale.marks(), *blame, *([curve] if curve else []), *_dots(points, scale, blamed)]
    return svg(WIDTH, HEIGHT, label, parts)


class _Scale:
    """Where nodes and errors are in the picture. 0 and infinity have lines of their own."""

    def __init__(self, points: Sequence[Point], total: int) -> None:
        every = [value for one in points for value in (one.own, one.whole) if value is not None]
        values = [max(value, _SMALLEST) for value in every if value and math.isfinite(value)]
        self.endless = not all(map(math.isfinite, every))
        self.low = math.floor(math.log10(min(values, default=1e-7)))
        self.high = max(math.ceil(math.log10(max(values, default=1.0))), self.low + 1)
        self.last = max(total - 1, 1)

    def x(self, node: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * node / self.last

    def y(self, value: float) -> float:
        if not value:
            return HEIGHT - _BOTTOM + _APART
        if not math.isfinite(value):
            return _TOP - _APART
        where = math.log10(min(max(value, 10.0**self.low), 10.0**self.high))
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (self.high - where) / (self.high - self.low)

    def marks(self) -> Iterator[Html]:
        """Lines and labels of both axes."""
        step = max(1, (self.high - self.low) // 6)
        for exponent in range(self.low, self.high + 1, step):
            yield from self._level(10.0**exponent, power(exponent), "grid")
        yield from self._level(0.0, "0", "grid apart")
        if self.endless:
            yield from self._level(math.inf, "∞", "grid apart")
        for quarter in range(5):
            at = self.last * quarter // 4
            yield tag("text", f"{at:,}", x=f"{self.x(at):.1f}", y=HEIGHT - 18, class_="tick")
        yield tag("text", "node, in the order of computation", x=WIDTH // 2, y=HEIGHT - 2, class_="tick")

    def _level(self, value: float, name: str, kind: str) -> Iterator[Html]:
        y = self.y(value)
        yield tag("path", d=f"M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}", class_=kind)
        yield tag("text", name, x=_LEFT - 8, y=f"{y + 4:.1f}", class_="tick end")


def _line(x: float, top: float, bottom: float) -> Html:
    return tag("path", d=f"M{x:.1f} {top}V{bottom}", class_="blame")


def _dots(points: Sequence[Point], scale: _Scale, blamed: Collection[int]) -> Iterator[Html]:
    for one in points:
        for value, kind, what in ((one.whole, "whole", "error"), (one.own, "own", "own error")):
            if value is not None:
                hover = tag("title", f"{one.name}: {what} {number(value)}")
                place = {"cx": f"{scale.x(one.node):.1f}", "cy": f"{scale.y(value):.1f}"}
                yield tag("circle", hover, r=3.5 if one.node in blamed else 2.2, class_=kind, **place)
