"""What all sections are made of: chips, tables, lists of facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxfix.report.render.html.markup import Content, Html, join, tag

SIGNS = {"good": "✓", "bad": "✗", "warn": "!", "note": "i", "none": "–"}
"""What a chip shows besides its color."""
SEVERITIES = {"error": "bad", "warning": "warn", "info": "note"}
NAMES = {"error": "error", "warning": "warning", "info": "note"}
STATUSES = {"passed": "good", "failed": "bad", "broke": "bad", "skipped": "none"}
DASH = "–"


def chip(kind: str, *words: Content, title: str | None = None) -> Html:
    """A word or two on a colored ground; the sign tells kinds apart where colors do not."""
    sign = tag("span", SIGNS[kind], class_="sign", aria_hidden="true")
    return tag("span", sign, words, class_=f"chip {kind}", title=title)


def section(ident: str, title: str, *content: Content, aside: Content = None) -> Html:
    """A card with a heading, which links to itself."""
    heading = tag(
        "h2", tag("a", title, href=f"#{ident}"), tag("span", aside, class_="aside") if aside else None
    )
    return tag("section", heading, content, id=ident, class_="card")


def table(head: Sequence[Content], rows: Iterable[Content], caption: str, class_: str | None = None) -> Html:
    """A table in a box that scrolls where the page is narrow. Rows are ``row``; headings that start with ``#`` are of
    numbers."""
    cells = [
        tag(
            "th",
            one[1:] if isinstance(one, str) and one[:1] == "#" else one,
            scope="col",
            class_=_number(one),
        )
        for one in head
    ]
    body = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", cells)), tag("tbody", rows), class_=class_
    )
    return tag("div", body, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _number(heading: Content) -> str | None:
    return "number" if isinstance(heading, str) and heading[:1] == "#" else None


def row(first: Content, *cells: Content, class_: str | None = None) -> Html:
    """A row whose first cell names it. Numbers are set to the right."""
    rest = [
        tag("td", f"{one:,}", class_="number") if isinstance(one, (int, float)) else tag("td", one)
        for one in cells
    ]
    return tag("tr", tag("th", first, scope="row"), rest, class_=class_)


def right(content: Content) -> Html:
    """Text in a cell that is a number."""
    return tag("span", content, class_="right")


def facts(pairs: Iterable[tuple[str, Content]]) -> Html:
    """Names with what they are; pairs without content are left out."""
    kept = [(name, content) for name, content in pairs if content not in (None, "", (), [])]
    return tag(
        "dl", [tag("div", tag("dt", name), tag("dd", content)) for name, content in kept], class_="facts"
    )


def code(content: Content) -> Html:
    """A name or a command."""
    return tag("code", content)


def many(number: int, noun: str) -> str:
    """``1 model``, ``1,200 models``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.2f} GiB"


def seconds(number: float) -> str:
    """A duration."""
    return f"{number * 1000:.0f} ms" if number < 1 else f"{number:.1f} s"


def arrow(before: Content, after: Content) -> Html:
    """Before and after."""
    return join(before, tag("span", " → ", class_="arrow"), after)
