"""What a configuration and a baseline make of a report: findings that do not fail the run, and those that are gone.

They touch findings only. A verdict, a withdrawn fix and a problem fail a run as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from onnxfix.config.baseline import Baseline, is_there
from onnxfix.config.records import Suppression
from onnxfix.report.findings import Finding, Suppressed, Vanished
from onnxfix.report.fingerprint import Located, fingerprints
from onnxfix.report.report import Report

CONFIGURATION = "configuration"
BASELINE = "baseline"


def suppressed(report: Report, suppressions: Sequence[Suppression], today: date) -> Report:
    """The report with the findings that a suppression covers apart. Expired ones cover nothing."""
    active = [one for one in suppressions if not one.expired(today)]
    left: list[Finding] = []
    apart: list[Suppressed] = []
    for finding in report.findings:
        by = next((one for one in active if one.covers(finding.code, finding.place)), None)
        if by is None:
            left.append(finding)
        else:
            until = by.until.isoformat() if by.until is not None else ""
            apart.append(Suppressed(finding, CONFIGURATION, by.reason, by.origin, until))
    return replace(report, findings=tuple(left), suppressed=(*report.suppressed, *apart)) if apart else report


def compared(report: Report, source: str, baseline: Baseline, ran: frozenset[str]) -> Report:
    """The report with the findings that the baseline knows apart, and those named that are gone.

    ``ran`` are the codes of the rules that the run was about: what others found once is not gone.
    """
    known = baseline.of(source)
    names = {one.fingerprint for one in known}
    origin = str(baseline.path)
    marks = fingerprints(report.findings)
    pairs = list(zip(report.findings, marks, strict=True))
    apart = tuple(Suppressed(one, BASELINE, "known", origin) for one, mark in pairs if mark in names)
    # A suppressed finding is there, and so is one that was fixed just now.
    others: list[Located] = [*(one.finding for one in report.suppressed), *report.applied]
    there = frozenset((*marks, *fingerprints(others)))
    gone = tuple(
        Vanished(one.code, one.place, one.fingerprint, origin)
        for one in known
        if not is_there(one, report, there, ran)
    )
    left = tuple(one for one, mark in pairs if mark not in names)
    return replace(report, findings=left, suppressed=(*report.suppressed, *apart), vanished=gone)


def expiries(suppressions: Sequence[Suppression], today: date) -> list[str]:
    """A line for each suppression that holds no more."""
    return [
        f"{one.origin}: the suppression of {one.words} expired on {one.until}: {one.reason}"
        for one in suppressions
        if one.expired(today)
    ]
