"""What came of a model, in a few words: the head of its section, and its line in the index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onnxfix.record import record
from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.html.parts import NAMES, SEVERITIES, chip, many
from onnxfix.report.render.proof import unchanged_words
from onnxfix.report.report import FailOn, Report
from onnxfix.report.summary import RungFact, Summary
from onnxfix.verification.verdict import ALONE


@record
class Words:
    """The outcome: its ``kind`` as chips have them, a title, and a sentence about the proof."""

    kind: str
    title: str
    proof: str = ""


_PROOFS = {
    "verified": ("good", "Verified"),
    "partly": ("warn", "Verified without the unsafe changes"),
    "unchanged": ("good", "Unchanged"),
    "not compared": ("warn", "Not verified: values were not compared"),
    "failed": ("bad", "Failed: the models differ"),
    "unproven": ("bad", "Not verified"),
}


def outcome(report: Report, summary: Summary, severity: FailOn) -> Words:
    """The outcome of a run on one model, which is not good where the run fails."""
    words, code = _outcome(report, summary), report.exit_code_for(severity)
    return replace(words, kind="warn" if code == 1 else "bad") if code and words.kind == "good" else words


def _outcome(report: Report, summary: Summary) -> Words:
    if summary.proof:
        kind, title = _PROOFS[summary.proof]
        return Words(kind, title, _proof(report, summary))
    for severity in ("error", "warning"):
        if summary.severities[severity]:
            return Words(SEVERITIES[severity], many(summary.severities[severity], NAMES[severity]))
    return Words("good", "No errors or warnings")


def _proof(report: Report, summary: Summary) -> str:
    if summary.proof == "unchanged":
        return f"No fix applies: {unchanged_words(report)}."
    compares = {rung.name for rung in summary.passed if rung.agreement and rung.name not in ALONE}
    compared = [_agreement(rung) for rung in summary.passed if rung.name in compares]
    alone = [rung.name for rung in summary.passed if rung.name not in compares]
    failed = [f"{rung.name}: {rung.reason}" for rung in summary.rungs if rung.status == "failed"]
    required = report.verdict.required if report.verdict is not None else ()
    passed = {rung.name for rung in summary.passed}
    missing = [name for name in required if name not in passed]
    parts = [*failed, *compared]
    parts += [f"passed: {', '.join(alone)}"] if alone else []
    parts += [f"required and not passed: {', '.join(missing)}"] if missing else []
    return f"{' · '.join(parts)}." if parts else ""


def _agreement(rung: RungFact) -> str:
    how = "bit-identical" if rung.agreement == "identical" else f"within {rung.tolerance or 'tolerance'}"
    return f"{rung.name} {how} ({many(rung.feeds, 'feed')})"


def not_run(summary: Summary) -> str:
    """The checks that gave no result, with their reasons; "" where all did."""
    by_reason: dict[str, list[str]] = {}
    for rung in summary.not_run:
        by_reason.setdefault(rung.reason or rung.status, []).append(rung.name)
    return " · ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def counts(summary: Summary) -> Html:
    """Findings by severity as chips."""
    return tag("span", list(_counts(summary)), class_="chips")


def _counts(summary: Summary) -> Iterator[Content]:
    for severity, number in summary.severities.items():
        if number:
            yield chip(SEVERITIES[severity], many(number, NAMES[severity]))
    if not any(summary.severities.values()):
        yield chip("good", "no findings")
