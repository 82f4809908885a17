"""Findings that a configuration or a baseline accepts, and known ones that are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.report.findings import Suppressed
from onnxfix.report.render.accepted import accepted_words
from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.html.parts import chip, many, section
from onnxfix.report.report import Report

MOST = 200
"""Findings of one reason that are listed."""


def accepted_section(report: Report, ident: str) -> Content:
    """What fails nothing, by reason; nothing where there is none."""
    if not report.suppressed and not report.vanished:
        return None
    groups: dict[tuple[str, str, str, str], list[Suppressed]] = {}
    for one in report.suppressed:
        groups.setdefault((one.by, one.reason, one.origin, one.until), []).append(one)
    entries = [_group(*key, items) for key, items in groups.items()]
    if report.vanished:
        gone = [
            tag("li", tag("span", one.code, class_="code"), f" {one.place}") for one in report.vanished[:MOST]
        ]
        words = f"{many(len(report.vanished), 'known finding')} no longer there"
        head = tag("summary", chip("good", "gone"), " ", words, tag("small", report.vanished[0].origin))
        entries.append(tag("details", head, tag("ul", gone, class_="plain"), class_="feeds"))
    return section(ident, "Accepted", entries, aside=accepted_words(report.suppressed) or None)


def _group(by: str, reason: str, origin: str, until: str, items: Sequence[Suppressed]) -> Html:
    known = "known" if by == "baseline" else "accepted"
    why = "" if by == "baseline" else f": {reason}{f' (until {until})' if until else ''}"
    head = tag("summary", chip("none", known), f" {many(len(items), 'finding')}{why}", tag("small", origin))
    return tag("details", head, tag("ul", list(_items(items)), class_="plain"), class_="feeds")


def _items(items: Sequence[Suppressed]) -> Iterator[Html]:
    for one in items[:MOST]:
        place = tag("span", one.finding.place.text, class_="mono")
        yield tag("li", tag("span", one.finding.code, class_="code"), " ", place, f": {one.finding.message}")
    if len(items) > MOST:
        yield tag("li", f"and {len(items) - MOST:,} more")
