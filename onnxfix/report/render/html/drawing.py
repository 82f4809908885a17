"""Neighborhoods as inline SVG. Colors and fonts are classes of the page's style, so that they follow its theme."""

from __future__ import annotations

from itertools import pairwise

from onnxfix.report.neighborhood import Box, Neighborhood
from onnxfix.report.render.html.layout import LINE, Point, Spot, placed, shortened
from onnxfix.report.render.html.markup import Html, join, tag

_MARKS = {"removed": "removed", "added": "added", "changed": "changed"}


def drawing(found: Neighborhood, label: str) -> Html:
    """The picture; ``label`` says what it is for those who do not see it."""
    layout = placed(found)
    wires = [tag("path", d=_curve(way), class_="wire") for way in layout.ways]
    labels = [
        _label(way, wire.label)
        for number, (way, wire) in enumerate(zip(layout.ways, found.wires, strict=True))
        if wire.label
        and not any(one.source == wire.source and one.value == wire.value for one in found.wires[:number])
    ]
    boxes = [_box(spot) for spot in layout.spots]
    return tag(
        "svg",
        tag("title", label),
        wires,
        boxes,
        labels,
        class_="graph",
        viewBox=f"0 0 {layout.width:.0f} {layout.height:.0f}",
        width=f"{layout.width:.0f}",
        height=f"{layout.height:.0f}",
        role="img",
    )


def _box(spot: Spot) -> Html:
    box = spot.box
    assert box is not None  # only ways of wires have none
    kinds = ["box", box.kind, *([_MARKS[box.mark]] if box.mark else []), *(["focus"] if box.focus else [])]
    left = f"{spot.x:.0f}"
    middle = f"{spot.x + spot.width / 2:.0f}"
    content: list[Html] = [
        tag("title", _spoken(box)),
        tag(
            "rect",
            x=left,
            y=f"{spot.y:.0f}",
            width=f"{spot.width:.0f}",
            height=f"{spot.height:.0f}",
            rx=_radius(box),
        ),
    ]
    if box.kind == "node":
        y = spot.y + 20
        content.append(tag("text", box.title, x=middle, y=f"{y:.0f}", class_="op"))
        if box.name:
            y += 14
            content.append(tag("text", shortened(box.name), x=middle, y=f"{y:.0f}", class_="id"))
        if box.lines:
            y += 8
            content.append(tag("path", d=f"M{spot.x:.0f} {y:.0f}h{spot.width:.0f}", class_="rule"))
            for number, line in enumerate(box.lines):
                content.append(
                    tag(
                        "text",
                        line,
                        x=f"{spot.x + 9:.0f}",
                        y=f"{y + LINE * (number + 1) - 3:.0f}",
                        class_="line",
                    )
                )
    else:
        content.append(tag("text", shortened(box.title, 34), x=middle, y=f"{spot.y + 16:.0f}", class_="end"))
    return join(_stubs(spot, box), tag("g", content, class_=" ".join(kinds)))


def _radius(box: Box) -> int:
    return 6 if box.kind == "node" else 12


def _spoken(box: Box) -> str:
    """What a pointer that rests on the box shows."""
    what = box.title if box.kind == "node" else f"{box.kind} {box.title}"
    mark = f" ({box.mark})" if box.mark else ""
    return f"{what}{f' {box.name}' if box.name else ''}{mark}"


def _stubs(spot: Spot, box: Box) -> list[Html]:
    """Short ends of what is left out, above and below."""
    ends = []
    if box.above:
        x = spot.x + spot.width - 16
        ends.append(tag("path", d=f"M{x:.0f} {spot.y:.0f}v-9", class_="stub"))
        ends.append(tag("text", f"+{box.above}", x=f"{x + 4:.0f}", y=f"{spot.y - 3:.0f}", class_="more"))
    if box.below:
        x, y = spot.x + spot.width - 16, spot.y + spot.height
        ends.append(tag("path", d=f"M{x:.0f} {y:.0f}v9", class_="stub"))
        ends.append(tag("text", f"+{box.below}", x=f"{x + 4:.0f}", y=f"{y + 10:.0f}", class_="more"))
    return ends


def _curve(way: tuple[Point, ...]) -> str:
    """A line that leaves and enters each row straight down."""
    (x, y), *_ = way
    parts = [f"M{x:.0f} {y:.0f}"]
    for (x1, y1), (x2, y2) in pairwise(way):
        if abs(x1 - x2) < 1:
            parts.append(f"V{y2:.0f}")
        else:
            half = (y1 + y2) / 2
            parts.append(f"C{x1:.0f} {half:.0f} {x2:.0f} {half:.0f} {x2:.0f} {y2:.0f}")
    return "".join(parts)


def _label(way: tuple[Point, ...], label: str) -> Html:
    (x1, y1), (x2, y2) = way[0], way[1]
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    return tag("text", label, x=f"{x:.0f}", y=f"{y + 4:.0f}", class_="kind")
