"""Operators and layers, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxfix.report.render.html.charts import share_bar
from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.html.parts import row, section, table
from onnxfix.report.report import Report
from onnxfix.report.summary import Change, Summary

_SHOWN = 12


def operator_section(report: Report, summary: Summary, ident: str) -> Content:
    """Nodes by operator; Constant nodes, which compute nothing, apart."""
    if summary.compute is None or summary.constants is None:
        return None
    title = "Operators" if report.command == "check" else "Operators before and after"
    totals = [summary.compute, summary.constants]
    return section(ident, title, change_table(summary.operators, totals, "Nodes by operator", "Operator"))


def change_table(items: Sequence[Change], totals: Iterable[Change], caption: str, what: str) -> Html:
    """The changed ones first, then the most frequent; the rest on request."""
    compared = any(one.changed for one in items)
    ranked = sorted(
        items, key=lambda one: (not one.changed, -abs(one.after - one.before), -one.after, one.name)
    )
    most = max((max(one.before, one.after) for one in items), default=1)
    head = (what, "#Before", "#After", "#Change", "") if compared else (what, "#Nodes", "")
    rows = [_row(one, most, compared=compared) for one in ranked]
    sums = [_row(one, 0, compared=compared, kind="total") for one in totals]
    shown = max(_SHOWN, sum(one.changed for one in ranked))
    rest = None
    if len(rows) > shown + 3:
        more = table(head, rows[shown:], f"{caption}, the rest")
        rest = tag("details", tag("summary", f"{len(rows) - shown} more"), more, class_="feeds")
        rows = rows[:shown]
    return tag("div", table(head, [*sums, *rows], caption, "changes"), rest)


def _row(one: Change, most: int, *, compared: bool, kind: str | None = None) -> Html:
    bar = share_bar(one.before if compared else 0, one.after, most) if most else ""
    if not compared:
        return row(one.name, one.after, bar, class_=kind)
    delta = one.after - one.before
    sign = "down" if delta < 0 else "up" if delta > 0 else "even"
    text = f"{'−' if delta < 0 else '+'}{abs(delta):,}" if delta else "0"
    return row(one.name, one.before, one.after, tag("span", text, class_=f"right {sign}"), bar, class_=kind)
