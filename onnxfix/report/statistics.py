"""How many findings each rule has in the models of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from onnxfix.record import record
from onnxfix.report.findings import Finding
from onnxfix.report.report import AppliedFix, Report
from onnxfix.rule import Severity


@record
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
