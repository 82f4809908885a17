"""Findings and fixes by rule, each with the nodes around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise

from onnxfix.place import Place
from onnxfix.report.neighborhood import Box, Neighborhood, Picture
from onnxfix.report.render.html.layout import LINE, Point, Spot, placed, shortened
from onnxfix.report.render.html.markup import Content, Html, join, tag
from onnxfix.report.render.html.parts import NAMES, SEVERITIES, chip, code, facts, many, section
from onnxfix.report.report import AppliedFix, Finding, Report, Withdrawn
from onnxfix.report.summary import OPTIONS, Summary, worst_first

Pictures = Mapping[tuple[str, Place], Picture]
MOST = 5000
"""Findings, and fixes, that a page lists."""
_OPEN = 12
"""Findings of a rule up to which they are listed from the start."""


def finding_section(report: Report, summary: Summary, ident: str) -> Content:
    """What is left, the worst first."""
    if report.command == "verify":
        return None
    items = worst_first(report.findings)
    if not items:
        return section(
            ident, "Findings", tag("p", chip("good", "none"), " No rule has a finding.", class_="empty")
        )
    shown, pictures = items[:MOST], _by_place(report.pictures)
    grouped = groupby(sorted(shown, key=_rank(items)), key=lambda one: (one.severity, one.code, one.name))
    groups = [_group(list(each), pictures) for _, each in grouped]
    remedies = [
        tag("p", _remedy(one.errors, one.warnings, one.notes), code(one.command), class_="remedy")
        for one in summary.remedies
    ]
    return section(
        ident,
        "Findings",
        _filters(items, ident),
        remedies,
        tag("div", groups, class_="groups"),
        _left_out(len(items)),
        aside=many(len(items), "finding"),
    )


def _rank(items: Sequence[Finding]) -> Callable[[Finding], tuple[int, int, str]]:
    """By severity, then the rules with the most findings first."""
    counts: dict[tuple[str, str], int] = {}
    for item in items:
        counts[item.severity, item.code] = counts.get((item.severity, item.code), 0) + 1
    order = list(SEVERITIES)
    return lambda one: (order.index(one.severity), -counts[one.severity, one.code], one.code)


def _remedy(errors: int, warnings: int, notes: int) -> str:
    counted = ((errors, "error"), (warnings, "warning"), (notes, "note"))
    return f"Fixes {', '.join(many(count, noun) for count, noun in counted if count)}: "


def _filters(items: Sequence[Finding], ident: str) -> Html:
    """Search and severities; without a script they are not there."""
    there = [name for name in SEVERITIES if any(one.severity == name for one in items)]
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", checked=True, value=name, data_filter=True),
            f" {NAMES[name]}s",
        )
        for name in there
    ]
    search = tag(
        "input",
        type="search",
        placeholder="Search rule, node or message",
        aria_label="Search findings",
        data_search=True,
    )
    count = tag("output", data_count=True, aria_live="polite")
    return tag(
        "div", search, boxes if len(there) > 1 else None, count, class_="filters", hidden=True, data_for=ident
    )


def _group(items: Sequence[Finding], pictures: Pictures) -> Html:
    first = items[0]
    is_open = first.severity != "info" and len(items) <= _OPEN
    head = tag(
        "summary",
        chip(SEVERITIES[first.severity], NAMES[first.severity]),
        tag("span", first.code, class_="code"),
        tag("span", first.name, class_="name"),
        tag("span", f"{len(items):,}", class_="count", title=many(len(items), "finding")),
    )
    return tag(
        "details",
        head,
        tag("p", "Why: ", code(f"onnxfix explain {first.code}"), class_="why"),
        [_finding(item, pictures.get((item.code, item.place))) for item in items],
        class_="group",
        open=is_open,
        data_severity=first.severity,
    )


def _finding(item: Finding, picture: Picture | None) -> Html:
    option = OPTIONS.get(item.safety, "")
    fix = (
        [item.fix, tag("small", f"{item.safety}{f', needs {option}' if option else ''}")]
        if item.fix
        else None
    )
    drawn = _pictures([("", picture.before)], item.place) if picture is not None else None
    body = [_item_facts(item.place, item.message, item.confirmed, on_engine=item.on_engine, fix=fix), drawn]
    hint = facts([("Help", item.pointer)]) if item.pointer else None
    return tag(
        "details", _head(item.place, item.message), tag("div", body, hint, class_="body"), class_="finding"
    )


def _head(place: Place, message: str) -> Html:
    return tag("summary", tag("span", _named(place), class_="where"), tag("span", message, class_="message"))


def _named(place: Place) -> Content:
    if not place.known:
        return "the model"
    op = tag("span", place.op_type, class_="op") if place.op_type else None
    name = place.node or place.label or place.text
    return [op, " / ".join((*place.graph, name))]


def _item_facts(
    place: Place, message: str, confirmed: str = "", *, on_engine: bool = False, fix: Content = None
) -> Html:
    """The place in full, the message and the fix."""
    proof = "an executed engine was wrong because of it" if on_engine else confirmed
    pairs: list[tuple[str, Content]] = [("Message", message), ("Fix", fix), ("Confirmed by TensorRT", proof)]
    if place.known:
        pairs.insert(0, ("Node", tag("span", place.node, class_="mono") if place.node else None))
        pairs.insert(1, ("Output", tag("span", place.output, class_="mono") if place.output else None))
        pairs.insert(
            2, ("Inside", tag("span", " / ".join(place.graph), class_="mono") if place.graph else None)
        )
        pairs.insert(
            3, ("TensorRT's layer", tag("span", place.layer, class_="mono") if place.layer else None)
        )
    return facts(pairs)


def _pictures(sides: Iterable[tuple[str, Neighborhood | None]], place: Place) -> Html:
    """The neighborhoods, side by side where there is room."""
    figures = []
    for title, found in sides:
        label = f"Nodes around {place.label or place.text}{f', {title}' if title else ''}"
        content = (
            drawing(found, label) if found is not None else tag("p", "Nothing of it is left.", class_="gone")
        )
        caption = tag("figcaption", title) if title else None
        figures.append(
            tag(
                "figure",
                caption,
                tag("div", content, class_="canvas", tabindex=0, role="group", aria_label=label),
            )
        )
    return tag("div", figures, class_="pictures")


def fix_section(report: Report, ident: str) -> Content:
    """What was fixed, with the nodes around it before and after."""
    if not report.applied:
        return None
    pictures = _by_place(report.pictures)
    order = list(SEVERITIES)
    ranked = sorted(report.applied[:MOST], key=lambda one: (order.index(one.severity), one.code))
    groups = []
    for (_, rule, name), each in groupby(ranked, key=lambda one: (one.severity, one.code, one.name)):
        items = list(each)
        head = tag(
            "summary",
            chip("good", "fixed"),
            tag("span", rule, class_="code"),
            tag("span", name, class_="name"),
            tag("span", f"{len(items):,}", class_="count", title=many(len(items), "fix")),
        )
        why = tag("p", "Why: ", code(f"onnxfix explain {rule}"), class_="why")
        entries = [_fixed(item, pictures.get((item.code, item.place))) for item in items]
        groups.append(tag("details", head, why, entries, class_="group"))
    return section(
        ident,
        "Fixed",
        _legend() if pictures else None,
        tag("div", groups, class_="groups"),
        _left_out(len(report.applied)),
        aside=f"{len(report.applied):,} fixes" if len(report.applied) > 1 else "1 fix",
    )


def _fixed(item: AppliedFix, picture: Picture | None) -> Html:
    fix = [item.fix, tag("small", item.safety)]
    sides = [("before", picture.before), ("after", picture.after)] if picture is not None else []
    drawn = _pictures(sides, item.place) if sides else None
    body = [_item_facts(item.place, item.message, item.confirmed, on_engine=item.on_engine, fix=fix), drawn]
    return tag("details", _head(item.place, item.fix), tag("div", body, class_="body"), class_="finding")


def _legend() -> Html:
    words = (
        ("focus", "place of the fix"),
        ("removed", "removed"),
        ("added", "added"),
        ("changed", "changed"),
    )
    return tag("p", [tag("span", tag("i", class_=kind), text) for kind, text in words], class_="legend")


def withdrawn_section(items: Sequence[Withdrawn], ident: str) -> Content:
    """Fixes with which the model did not verify."""
    if not items:
        return None
    entries = [
        tag(
            "li",
            tag("span", one.code, class_="code"),
            " ",
            tag("span", one.place.text, class_="mono"),
            f": {one.fix}. ",
            tag("span", one.reason, class_="muted"),
        )
        for one in items
    ]
    return section(
        ident, "Withdrawn", tag("ul", entries, class_="plain"), aside="the model did not verify with these"
    )


def _left_out(count: int) -> Content:
    if count <= MOST:
        return None
    return tag("p", f"The first {MOST:,} of {count:,} are listed; --report r.json has all.", class_="remark")


def _by_place(pictures: Sequence[Picture]) -> Pictures:
    return {(one.code, one.place): one for one in pictures}


# ---------------------------------------------------------------------------------- pictures of neighborhoods


_MARKS = {"removed": "removed", "added": "added", "changed": "changed"}


def drawing(found: Neighborhood, label: str) -> Html:
    """The picture as inline SVG; ``label`` says what it is for those who do not see it. Colors and fonts are classes of
    the page's style, so that they follow its theme."""
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
            rx=6 if box.kind == "node" else 12,
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
