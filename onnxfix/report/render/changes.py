"""What changed, as a table: nodes by operator and TensorRT's layers, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.report.render.lines import Line, line
from onnxfix.report.render.stream import printable
from onnxfix.report.summary import Change, Summary

MOST = 6
"""Operators that are listed without ``--verbose``."""
_WIDEST = 40


def change_lines(summary: Summary, verbose: bool) -> Iterator[Line]:
    """A table of the nodes that compute, the operators whose number changed most, Constant nodes and layers; nothing
    where no number changed."""
    operators = [change for change in summary.operators if change.changed]
    shown = operators if verbose else operators[:MOST]
    if len(operators) == MOST + 1:  # a line that says so would take as much room
        shown = operators
    rows: list[tuple[str, Change]] = []
    if summary.compute is not None and summary.constants is not None:
        rows = [("compute nodes", summary.compute)]
        rows += [(f"  {printable(change.name)}", change) for change in shown]
        rows += [("Constant nodes", summary.constants)] if summary.constants.changed else []
    rows += [("TensorRT layers", summary.layers)] if summary.layers is not None else []
    if not any(change.changed for _, change in rows):
        return
    yield from _table(rows, len(operators) - len(shown), 1 + len(shown))


def _table(rows: Sequence[tuple[str, Change]], hidden: int, last: int) -> Iterator[Line]:
    """``hidden`` operators are counted below the row number ``last``."""
    width = min(max(len(name) for name, _ in rows), _WIDEST)
    cells = [(f"{one.before:,}", f"{one.after:,}", _difference(one)) for _, one in rows]
    one, two, three = (max(map(len, column)) for column in zip(_HEADS, *cells, strict=True))
    before, after, _ = _HEADS
    yield line(f"  {'':<{width}}  {before:>{one}}  {after:>{two}}", style="dim")
    for number, ((name, change), texts) in enumerate(zip(rows, cells, strict=True), 1):
        before, after, difference = texts
        style = "green" if change.after < change.before else "yellow"
        yield line(
            (f"  {name:<{width}}", "" if name.startswith(" ") else "bold"),
            f"  {before:>{one}}  {after:>{two}}",
            (f"  {difference:>{three}}" if difference else "", style),
        )
        if number == last and hidden > 0:
            yield line(f"    … {hidden} more (-v lists them)", style="dim")


_HEADS = ("before", "after", "")


def _difference(change: Change) -> str:
    return f"{change.after - change.before:+,}".replace("-", "−") if change.changed else ""
