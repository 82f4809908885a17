"""The end of a run over several models: counts, and the models that need attention, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onnxfix.report.render.findings import accepted_words, severity_words
from onnxfix.report.render.lines import Line, line
from onnxfix.report.render.proof import status_words
from onnxfix.report.render.words import counted
from onnxfix.report.report import Report

MOST = 20
"""Models that are named."""


def render_summary(
    reports: Sequence[Report], errors: Sequence[tuple[str, str]], crashed: int = 0
) -> Iterator[Line]:
    """Lines over several models. Of the errors, ``crashed`` ended their process or lacked memory."""
    yield line(", ".join(_counts(reports, errors, crashed)), style="bold", hang=2)
    named = list(_named(reports, errors))
    for path, label, words in named[:MOST]:
        gap = "  " if label and words else ""
        yield line(f"  {path}  ", (label, "bold red"), f"{gap}{words}", hang=6)
    if len(named) > MOST:
        yield line(f"  … and {counted(len(named) - MOST, 'more model')}", style="dim")


def _counts(reports: Sequence[Report], errors: Sequence[tuple[str, str]], crashed: int) -> Iterator[str]:
    yield counted(len(reports) + len(errors), "model")
    if any(report.command == "apply" for report in reports):
        yield f"{sum(len(report.applied) for report in reports):,} fixed"
    severities: Counter[str] = Counter()
    for report in reports:
        severities.update(item.severity for item in report.findings)
    left = " left" if any(report.command == "apply" for report in reports) else ""
    yield f"{severity_words(severities) or 'no findings'}{left}"
    accepted = accepted_words([one for report in reports for one in report.suppressed])
    if accepted:
        yield accepted
    won = sum(report.won for report in reports)
    if won:
        yield f"{won} that TensorRT refused and now accepts"
    righted = sum(report.righted for report in reports)
    if righted:
        yield f"{righted} that TensorRT read differently and now imports correctly"
    proofs = Counter(report.summary.proof for report in reports)
    if proofs["failed"] + proofs["unproven"]:
        yield f"{proofs['failed'] + proofs['unproven']} not verified"
    if proofs["not compared"] + proofs["partly"]:
        yield f"{proofs['not compared'] + proofs['partly']} without a comparison of values"
    broke = sum(report.verdict is not None and bool(report.verdict.broken) for report in reports)
    if broke:
        yield f"{broke} with a broken check"
    if len(errors) > crashed:
        yield f"{len(errors) - crashed} unreadable"
    if crashed:
        yield f"{crashed} crashed or out of memory"
    again = sum(report.reused for report in reports)
    if again:
        yield f"{again} unchanged and skipped"


def _named(reports: Sequence[Report], errors: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """The models without a result, those that fail, and those with errors: path, what failed, and counts."""
    for path, message in errors:
        yield path, "no result", message.removeprefix(f"{path}: ")
    failed = [report for report in reports if _failure(report)]
    for report in failed:
        yield report.path, _failure(report), severity_words(report.summary.severities)
    for report in reports:
        if report not in failed and (report.exit_code or report.summary.severities["error"]):
            yield report.path, "", severity_words(report.summary.severities)


def _failure(report: Report) -> str:
    """What failed, in a few words; "" where nothing did."""
    if report.verdict is not None and not report.verdict.passed:
        return status_words(report)[0]
    dropped = sum(step.status == "dropped" for step in report.steps)
    parts = [
        counted(len(report.problems), "problem") if report.problems else "",
        f"{len(report.withdrawn)} withdrawn" if report.withdrawn else "",
        f"{counted(dropped, 'step')} dropped" if dropped else "",
    ]
    return ", ".join(filter(None, parts))
