"""Results in a notebook's cell: small, without a script, and legible on light and on dark pages.

A notebook keeps its own style, and removes ``<style>`` from what it does not trust. So everything here is inline, text
has the page's own color, and a background comes with the color of its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.lines import Line

if TYPE_CHECKING:
    from onnxfix.rule import Rule

#: Colors that have a contrast of 3.9 and more on white and on #111.
_COLORS = {"red": "#d64545", "yellow": "#a8761a", "green": "#2f8f4e", "cyan": "#2586a8"}
#: White has a contrast of 5 and more on these.
BADGES = {"good": "#1f7a3d", "fair": "#8a5a00", "bad": "#b3261e", "plain": "#57606a"}
_BADGE = "color:#fff; border-radius:3px; padding:0 .4em; white-space:nowrap; font-size:.9em"
_PRE = "margin:0; white-space:pre-wrap; overflow-wrap:anywhere; line-height:1.4"


def lines_cell(lines: Iterable[Line]) -> Html:
    """Lines of text as in a terminal."""
    content: list[Content] = []
    for number, line in enumerate(lines):
        content += [Html("\n")] if number else []
        content += [tag("span", text, style=_style(style)) if style else text for text, style in line.parts]
    return tag("pre", content, style=_PRE)


def badge(text: str, kind: str) -> Html:
    """A word in white on a color of its own."""
    return tag("span", text, style=f"{_BADGE}; background:{BADGES[kind]}")


def _style(style: str) -> str:
    """CSS for a style as rich names it."""
    rules = ["font-weight:600"] if "bold" in style else []
    rules += ["opacity:.7"] if "dim" in style else []
    rules += [f"color:{color}" for name, color in _COLORS.items() if name in style]
    return "; ".join(rules)


def plain_page(title: str, lines: Iterable[Line]) -> str:
    """A page of its own that holds lines of text."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
    )
    body = tag("body", lines_cell(lines), style="margin:2em auto; max-width:70em; padding:0 1em")
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def rules_cell(rules: Sequence[Rule]) -> Html:
    """A table of rules."""
    rows = [
        tag(
            "tr",
            tag("td", tag("code", rule.code), style=_CELL),
            tag("td", rule.name, style=_CELL),
            tag("td", rule.severity.name.lower(), style=_CELL),
            tag("td", rule.safety.name.lower() if rule.safety is not None else "–", style=_CELL),
            tag("td", rule.summary, "" if rule.default else " (off by default)", style=_CELL),
        )
        for rule in rules
    ]
    names = ("code", "name", "severity", "fix", "what it finds")
    head = tag("tr", [tag("th", name, style=_CELL) for name in names])
    return tag("table", tag("thead", head), tag("tbody", rows))


_CELL = "text-align:left; vertical-align:top"
