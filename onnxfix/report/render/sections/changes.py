"""Operators and layers, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.report.render.sections import ui
from onnxfix.report.report import Report
from onnxfix.report.summary import Change

_SHOWN = 12
"""Rows that are listed from the start, if fewer changed."""


def operator_section(report: Report) -> ui.Section | None:
    """Nodes by operator; Constant nodes, which compute nothing, apart."""
    summary = report.summary
    if summary.compute is None or summary.constants is None:
        return None
    title = "Operators" if report.command == "check" else "Operators before and after"
    totals = [summary.compute, summary.constants]
    blocks = tuple(change_tables(summary.operators, totals, "Nodes by operator", "Operator"))
    return ui.Section("operators", title, blocks)


def change_tables(
    items: Sequence[Change], totals: Sequence[Change], caption: str, what: str
) -> Iterator[ui.Block]:
    """The changed ones first, then the most frequent; the rest on request."""
    compared = any(one.changed for one in items)
    ranked = sorted(
        items, key=lambda one: (not one.changed, -abs(one.after - one.before), -one.after, one.name)
    )
    most = max((max(one.before, one.after) for one in items), default=1)
    head = (what, "#Before", "#After", "#Change", "") if compared else (what, "#Nodes", "")

    def row(one: Change, longest: int) -> tuple[ui.Content, ...]:
        bar = ui.Shares(one.before if compared else 0, one.after, longest) if longest else ""
        if not compared:
            return one.name, one.after, bar
        return one.name, one.before, one.after, ui.Delta(one.after - one.before), bar

    rows = [row(one, most) for one in ranked]
    shown = max(_SHOWN, sum(one.changed for one in ranked))
    rest = rows[shown:] if len(rows) > shown + 3 else []
    sums = [row(one, 0) for one in totals]
    yield ui.Table(head, [*sums, *rows[: len(rows) - len(rest)]], caption, "changes", len(sums))
    if rest:
        yield ui.Fold(f"{len(rest)} more", (ui.Table(head, rest, f"{caption}, the rest"),))
