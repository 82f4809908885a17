"""How many findings each rule has in the models of a run, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxfix.report.findings import Finding
from onnxfix.report.render.findings import NOUNS, STYLES
from onnxfix.report.render.lines import Line, line
from onnxfix.report.render.stream import as_json, printable
from onnxfix.report.report import AppliedFix, Report, plain
from onnxfix.rule import Severity


@dataclass(frozen=True)
class RuleCount:
    """The findings of one rule: how many are ``left`` and how many are ``fixed``, and in how many models.

    ``severity`` is that of the worst; ``safety`` has each safety that its fixes have, empty where there is no fix.
    """

    code: str
    name: str
    severity: str
    safety: tuple[str, ...]
    left: int
    fixed: int
    models: int

    RENDERED: ClassVar[tuple[str, ...]] = ("count",)

    @property
    def count(self) -> int:
        """All of them."""
        return self.left + self.fixed


def statistics(reports: Iterable[Report]) -> tuple[RuleCount, ...]:
    """The rules that found something, the most frequent first. Findings that are accepted do not count."""
    left: dict[str, list[Finding]] = {}
    fixed: dict[str, list[AppliedFix]] = {}
    models: dict[str, int] = {}
    for report in reports:
        for finding in report.findings:
            left.setdefault(finding.code, []).append(finding)
        for fix in report.applied:
            fixed.setdefault(fix.code, []).append(fix)
        for code in {*(one.code for one in report.findings), *(one.code for one in report.applied)}:
            models[code] = models.get(code, 0) + 1
    counts = [_count(code, left.get(code, []), fixed.get(code, []), models[code]) for code in models]
    return tuple(sorted(counts, key=lambda one: (-one.count, one.code)))


def _count(code: str, left: list[Finding], fixed: list[AppliedFix], models: int) -> RuleCount:
    every: list[Finding | AppliedFix] = [*left, *fixed]
    worst = max((one.severity for one in every), key=lambda name: Severity[name.upper()])
    safety = tuple(sorted({one.safety for one in every if one.safety}))
    return RuleCount(code, every[0].name, worst, safety, len(left), len(fixed), models)


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
