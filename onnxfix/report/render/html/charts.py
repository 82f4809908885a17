"""Bars and points as inline SVG. Sizes are attributes: the page's policy allows no inline style."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxfix.report.render.html.markup import Html, tag
from onnxfix.report.render.numbers import number

_BAR, _ROOM = 34, 110
_SMALLEST = 1e-12
"""Errors below this are drawn as this."""
_DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def bars(items: Sequence[tuple[str, float]], label: str, *, kinds: Sequence[str] = ()) -> Html:
    """A bar for each of ``(name, value)``, from left to right; the largest fills the height."""
    most = max((value for _, value in items), default=0.0) or 1.0
    width, height = len(items) * (_BAR + 6) + 12, _ROOM + 46
    parts = [tag("path", d=f"M6 {_ROOM + 20}H{width - 6}", class_="axis")]
    for index, (name, value) in enumerate(items):
        x, tall = 9 + index * (_BAR + 6), max(_ROOM * value / most, 1.5 if value else 0.0)
        kind = kinds[index] if kinds else "bar"
        middle = f"{x + _BAR / 2:.0f}"
        parts += [
            tag(
                "rect", x=x, y=f"{_ROOM + 20 - tall:.1f}", width=_BAR, height=f"{tall:.1f}", rx=2, class_=kind
            ),
            tag("text", _short(value), x=middle, y=f"{_ROOM + 14 - tall:.1f}", class_="value"),
            tag("text", name, x=middle, y=_ROOM + 36, class_="tick"),
        ]
    return _svg(width, height, label, parts)


def _short(value: float) -> str:
    """A count in five characters."""
    if not value:
        return ""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def power(exponent: int) -> str:
    """A power of 10."""
    return f"10{str(exponent).translate(_DIGITS)}"


def share_bar(before: float, after: float, most: float) -> Html:
    """Two thin bars, one above the other, as shares of the largest."""
    width = 160
    long = [max(width * value / most, 1.0 if value else 0.0) if most else 0.0 for value in (before, after)]
    parts = [
        tag("rect", x=0, y=2, width=f"{long[0]:.1f}", height=6, rx=2, class_="was"),
        tag("rect", x=0, y=10, width=f"{long[1]:.1f}", height=6, rx=2, class_="is"),
    ]
    return tag(
        "svg", parts, class_="share", width=width, height=18, viewBox=f"0 0 {width} 18", aria_hidden="true"
    )


def depth_chart(
    points: Sequence[tuple[int, float | None, float | None, str]],
    total: int,
    marked: Sequence[int],
    label: str,
) -> Html:
    """Errors along a model on a logarithmic scale.

    Args:
        points: node number, its own error, the error at its output, and its name.
        total: nodes of the model.
        marked: numbers of the nodes that are to blame.
        label: what it shows, for those who do not see it.
    """
    width, height, left, top = 920, 300, 62, 16
    room = height - top - 40
    values = [one for point in points for one in point[1:3] if one and math.isfinite(one)]
    low = math.floor(math.log10(max(min(values, default=1e-7), _SMALLEST)))
    high = max(math.ceil(math.log10(max(max(values, default=1.0), _SMALLEST))), low + 1)

    def x(number_of: int) -> float:
        return left + (width - left - 14) * number_of / max(total - 1, 1)

    def y(value: float) -> float:
        if not value:
            return top + room + 8.0
        where = math.log10(min(max(value, 10.0**low), 10.0**high)) if math.isfinite(value) else high
        return top + room * (high - where) / (high - low)

    parts: list[Html] = []
    for exponent in range(low, high + 1, max(1, (high - low) // 6)):
        parts.append(tag("path", d=f"M{left} {y(10.0**exponent):.1f}H{width - 14}", class_="grid"))
        parts.append(
            tag("text", power(exponent), x=left - 8, y=f"{y(10.0**exponent) + 4:.1f}", class_="tick end")
        )
    parts.append(tag("text", "0", x=left - 8, y=f"{y(0) + 4:.1f}", class_="tick end"))
    for number_of in marked:
        parts.append(tag("path", d=f"M{x(number_of):.1f} {top}V{top + room + 8}", class_="blame"))
    line = [f"{x(n):.1f} {y(out):.1f}" for n, _, out, _ in points if out is not None]
    if len(line) > 1:
        parts.append(tag("path", d=f"M{'L'.join(line)}", class_="whole"))
    for n, own, out, name in points:
        for value, kind in ((out, "whole"), (own, "own")):
            if value is not None:
                hover = tag("title", f"{name}: {'own error' if kind == 'own' else 'error'} {number(value)}")
                radius = 3.5 if n in marked else 2.2
                parts.append(
                    tag("circle", hover, cx=f"{x(n):.1f}", cy=f"{y(value):.1f}", r=radius, class_=kind)
                )
    last = max(total - 1, 1)
    for share in range(5):
        at = last * share // 4
        parts.append(tag("text", f"{at:,}", x=f"{x(at):.1f}", y=height - 18, class_="tick"))
    parts.append(
        tag("text", "node, in the order of computation", x=(width + left) // 2, y=height - 2, class_="tick")
    )
    return _svg(width, height, label, parts)


def _svg(width: int, height: int, label: str, parts: Sequence[Html]) -> Html:
    box = f"0 0 {width} {height}"
    return tag(
        "svg", tag("title", label), parts, class_="chart", role="img", width=width, height=height, viewBox=box
    )
