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
    compared = any(change.changed for change in items)
    ranked = sorted(
        items,
        key=lambda change: (
            not change.changed,
            -abs(change.after - change.before),
            -change.after,
            change.name,
        ),
    )
    most = max((max(change.before, change.after) for change in items), default=1)
    head = (what, "#Before", "#After", "#Change", "") if compared else (what, "#Nodes", "")

    def row(change: Change, longest: int) -> tuple[ui.Content, ...]:
        bar = ui.Shares(change.before if compared else 0, change.after, longest) if longest else ""
        if not compared:
            return change.name, change.after, bar
        return change.name, change.before, change.after, ui.Delta(change.after - change.before), bar

    rows = [row(change, most) for change in ranked]
    shown = max(_SHOWN, sum(change.changed for change in ranked))
    rest = rows[shown:] if len(rows) > shown + 3 else []
    sums = [row(change, 0) for change in totals]
    yield ui.Table(head, [*sums, *rows[: len(rows) - len(rest)]], caption, "changes", len(sums))
    if rest:
        yield ui.Fold(f"{len(rest)} more", (ui.Table(head, rest, f"{caption}, the rest"),))
