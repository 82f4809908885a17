"""Bars and points as inline SVG. Sizes are attributes: the page's policy allows no inline style."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfix.report.render.html.markup import Html, tag

_BAR, _ROOM = 34, 110
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
    return svg(width, height, label, parts)


def pair_bars(items: Sequence[tuple[str, float, float]], label: str) -> Html:
    """Two bars for each of ``(name, one, other)``, side by side, to one scale."""
    most = max((max(one, other) for _, one, other in items), default=0.0) or 1.0
    width, height = len(items) * (_BAR + 6) + 30, _ROOM + 46
    parts = [tag("path", d=f"M6 {_ROOM + 20}H{width - 6}", class_="axis")]
    for index, (name, *values) in enumerate(items):
        x = 9 + index * (_BAR + 6)
        for side, (value, kind) in enumerate(zip(values, ("was", "bar"), strict=True)):
            tall = max(_ROOM * value / most, 1.5 if value else 0.0)
            hover = tag(
                "title", f"from {name}: {value:,.0f} {'on the other side' if side else 'in the truth'}"
            )
            left, y = x + side * _BAR // 2, f"{_ROOM + 20 - tall:.1f}"
            bar = tag("rect", hover, x=left, y=y, width=_BAR // 2, height=f"{tall:.1f}", class_=kind)
            parts.append(bar)
        if index % 2 == 0:
            parts.append(tag("text", name, x=x, y=_ROOM + 36, class_="tick start"))
    return svg(width, height, label, parts)


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


def svg(width: int, height: int, label: str, parts: Sequence[Html]) -> Html:
    """A chart with its description."""
    box = f"0 0 {width} {height}"
    return tag(
        "svg", tag("title", label), parts, class_="chart", role="img", width=width, height=height, viewBox=box
    )
