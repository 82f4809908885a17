"""Counts by rule, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.report.render.findings import NOUNS, STYLES
from onnxfix.report.render.lines import Line, line
from onnxfix.report.render.stream import as_json, printable
from onnxfix.report.report import Report, plain
from onnxfix.report.statistics import RuleCount, statistics


def statistics_json(
    reports: Sequence[Report], errors: Sequence[tuple[str, str]], warnings: Sequence[str]
) -> str:
    """One document: the counts, and what could not be read. In ASCII."""
    document = {
        "statistics": plain(statistics(reports)),
        "errors": [{"path": path, "message": message} for path, message in errors],
        "warnings": list(warnings),
    }
    return as_json(document)


def statistics_lines(reports: Sequence[Report]) -> Iterator[Line]:
    """A line for each rule, the most frequent first; with a column for what is fixed where something is."""
    found = statistics(reports)
    if not found:
        yield line("no findings")
        return
    fixing = any(one.fixed for one in found)
    heads = ("fixed", "left") if fixing else ("",)
    rows = [
        tuple(f"{count:,}" for count in ((one.fixed, one.left) if fixing else (one.left,))) for one in found
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    if fixing:
        yield line(
            "  ".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)), style="dim"
        )
    wide = max(len(printable(one.name)) for one in found)
    for one, row in zip(found, rows, strict=True):
        yield line(
            "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)),
            (f"  {one.code}", "bold"),
            f"  {printable(one.name):<{wide}}",
            (f"  {NOUNS[one.severity]:<7}", STYLES[one.severity]),
            f"  {_fix(one)}",
        )


def _fix(one: RuleCount) -> str:
    return f"{'/'.join(one.safety)} fix" if one.safety else "no fix"
