"""Findings that a configuration or a baseline accepts, and known ones that are gone."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.report.findings import Suppressed
from onnxfix.report.render.accepted import accepted_words
from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.html.parts import row, section, table
from onnxfix.report.report import Report

_PLACES = 200
"""Places that are listed of one rule and reason."""


def accepted_section(report: Report, ident: str) -> Content:
    """What does not fail the run and why, and what a baseline can forget; nothing where there is neither."""
    if not report.suppressed and not report.vanished:
        return None
    parts: list[Content] = []
    if report.suppressed:
        head = ("Rule", "#Findings", "Why", "Said by", "Where")
        parts.append(table(head, list(_rows(report.suppressed)), "Findings that do not fail the run"))
    if report.vanished:
        gone = [row(one.code, one.place, one.origin) for one in report.vanished]
        parts.append(table(("Rule", "Where", "Known by"), gone, "Known findings that are no longer there"))
    return section(ident, "Accepted findings", parts, aside=accepted_words(report.suppressed) or None)


def _rows(suppressed: tuple[Suppressed, ...]) -> Iterator[Html]:
    groups: dict[tuple[str, str, str, str], list[Suppressed]] = {}
    for one in suppressed:
        groups.setdefault((one.finding.code, one.reason, one.until, one.origin), []).append(one)
    for (code, reason, until, origin), some in groups.items():
        title = [code, tag("small", f" {some[0].finding.name}")]
        why = f"{reason} (until {until})" if until else reason
        yield row(title, len(some), why, origin, _places(some))


def _places(some: list[Suppressed]) -> Html:
    shown = [tag("li", one.finding.place.short, class_="mono") for one in some[:_PLACES]]
    more = tag("li", f"… and {len(some) - _PLACES:,} more") if len(some) > _PLACES else None
    return tag("details", tag("summary", "places"), tag("ul", shown, more, class_="plain"))
