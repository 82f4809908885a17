"""Reports as text: the headline, what is wrong, what was proven, written and changed, and what to do next; and the end
of a run over several models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onnxfix.report.findings import SEVERITIES
from onnxfix.report.render import ui
from onnxfix.report.render.checks import check_section, operator_section, tensorrt_section, worst_section
from onnxfix.report.render.details import intake_lines
from onnxfix.report.render.difference import change_lines
from onnxfix.report.render.findings import (
    accepted_section,
    count_accepted,
    count_severities,
    group_by_rule,
    group_lines,
    note_lines,
)
from onnxfix.report.render.lines import GLUE, Line, counted, labeled, line
from onnxfix.report.render.proof import check_line, describe_status, proof_lines
from onnxfix.report.render.report import (
    answer_lines,
    next_line,
    problems,
    ship_line,
    step_section,
    withdrawn_section,
)
from onnxfix.report.render.terminal import block_lines, section_lines
from onnxfix.report.report import Errors, Report
from onnxfix.targets import TARGETS, mismatch


def render_report(report: Report, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The lines of one report. ``quiet``: one line, and what broke. ``verbose`` lists every finding, fix and check."""
    yield _headline(report, quiet)
    if quiet:
        for check in report.verdict.broken if report.verdict is not None else ():
            yield check_line(check)
        yield from _problems(report)
        return
    yield from _repaired_objection(report)
    yield from section_lines(filter(None, (step_section(report), withdrawn_section(report))), verbose)
    yield from _problems(report)
    if report.difference is not None:
        yield from change_lines(report.difference, verbose)
        if report.changed and not report.difference.changes:
            yield line("  only declared types or the order of nodes would change")
        yield from proof_lines(report)
        yield labeled("written", ("nothing, as --diff asks", "dim"), style="")
        return
    yield from group_lines(group_by_rule(report.findings, "finding"), verbose, report.producer == "pytorch")
    if report.intake is not None:
        yield from (line(f"  {each}", hang=4) for each in intake_lines(report.intake, verbose))
    if verbose or report.verdict is None or report.verdict.passed:  # otherwise nothing was changed
        yield from section_lines(filter(None, (operator_section(report),)), verbose)
        yield from group_lines(group_by_rule(report.applied, "fix"), verbose)
    if verbose:
        more = check_section(report), worst_section(report), tensorrt_section(report)
        yield from section_lines(filter(None, more), verbose)
    else:
        yield from note_lines(report.findings)
    accepted = accepted_section(report.suppressed, report.vanished)
    yield from section_lines(filter(None, (accepted,)), verbose)
    yield from block_lines(
        [ui.Items([note for note in report.notes if note != _other_target(report)], "note")], verbose
    )
    if report.summary.explain:
        yield labeled("why", (f"onnxfix explain {report.summary.explain}".replace(" ", GLUE), "bold"))
    yield from answer_lines(report, verbose)
    if report.command == "apply":
        yield ship_line(report)
    if report.command == "apply" or report.summary.proof == "failed":
        yield from next_line(report)


def _other_target(report: Report) -> str:
    """The note of a check that TensorRT is another one than the model is for; the line about TensorRT says it."""
    fact, target = report.summary.tensorrt, TARGETS.get(report.target)
    return mismatch(target, fact.package, fact.version) if fact is not None and target is not None else ""


def outcome_parts(report: Report, quiet: bool) -> Iterator[tuple[str, str]]:
    """The worst first: what failed, what TensorRT says, then counts; each with its style."""
    status, style = describe_status(report)
    if status and (
        quiet or report.command == "verify" or report.summary.proof not in ("verified", "unchanged")
    ):
        yield status, style
    if report.headline:
        yield report.headline, ""
    if report.command != "verify":
        worst = next((name for name in SEVERITIES if report.summary.severities[name]), "")
        yield _counts(report, quiet), {"error": "red", "warning": "yellow"}.get(worst, "")


def _headline(report: Report, quiet: bool) -> Line:
    """The model, and what came of it."""
    parts = [part for statement in outcome_parts(report, quiet) for part in ("; ", statement)][1:]
    if report.reused:
        parts.insert(0, "unchanged, skipped: ")
    path = report.path
    if report.command == "verify" and report.output:
        path = f"{report.path} against {report.output}"
    chosen = f": TensorRT {report.installed} is installed" if report.installed else ""
    target = f"target {report.target}{chosen}, " if report.target else ""
    written = f" → {report.output}" if quiet and report.command == "apply" and report.output else ""
    took = f"  ({target}{report.seconds:.1f} s){written}"
    return line((path, "bold"), "  ", *parts, (took, "dim"), hang=2)


def _counts(report: Report, quiet: bool) -> str:
    summary = report.summary
    left, accepted = count_severities(summary.severities), count_accepted(report.suppressed)
    if report.command != "apply":
        return ", ".join(filter(None, (left or "no findings", accepted)))
    dropped = sum(step.status == "dropped" for step in report.steps)
    *some, last = left.split(", ")
    left = " and ".join(filter(None, (", ".join(some), last)))
    passed = report.verdict is None or report.verdict.passed
    would = "would be " if report.difference is not None else ""
    parts = [
        f"{len(report.applied):,} {would}fixed" if passed else "nothing was written",
        f"{len(report.withdrawn)} withdrawn" if report.withdrawn else "",
        f"{dropped} dropped" if dropped else "",
        f"{left or '0'} left" if passed else "",
        accepted,
    ]
    if quiet and passed and summary.compute is not None and summary.compute.changed:
        parts.append(f"{summary.compute.before:,} → {summary.compute.after:,} compute nodes")
    return ", ".join(filter(None, parts))


def _repaired_objection(report: Report) -> Iterator[Line]:
    """What TensorRT objected to, where the fixes have mended that."""
    if report.headline and report.won:
        issue = report.builds[0].errors[0]
        where = f"{issue.at.short}: " if issue.at is not None else ""
        yield labeled("before", f"{where}{issue.words}", style="")
    elif report.headline and report.righted:
        misread = report.networks[0].grave[0]
        where = f"{misread.place.short}: " if misread.place.known else ""
        yield labeled("before", f"{where}{misread.words}", style="")


def _problems(report: Report) -> Iterator[Line]:
    entries = [[ui.Chip("bad", "problem"), one] for one in problems(report)]
    yield from block_lines([ui.Items(entries)], verbose=False)


MOST = 20
"""Models that are named at the end of a run."""


def render_summary(reports: Sequence[Report], errors: Errors, crashed: int = 0) -> Iterator[Line]:
    """Lines over several models. Of the errors, ``crashed`` ended their process or lacked memory."""
    yield line(", ".join(_total_counts(reports, errors, crashed)), style="bold", hang=2)
    named = list(_named(reports, errors))
    for path, label, words in named[:MOST]:
        gap = "  " if label and words else ""
        yield line(f"  {path}  ", (label, "bold red"), f"{gap}{words}", hang=6)
    if len(named) > MOST:
        yield line(f"  … and {counted(len(named) - MOST, 'more model')}", style="dim")


def _total_counts(reports: Sequence[Report], errors: Errors, crashed: int) -> Iterator[str]:
    proofs = Counter(report.summary.proof for report in reports)
    severities = Counter(item.severity for report in reports for item in report.findings)
    applied = any(report.command == "apply" for report in reports)
    accepted = count_accepted([one for report in reports for one in report.suppressed])
    yield counted(len(reports) + len(errors), "model")
    if applied:
        yield f"{sum(len(report.applied) for report in reports):,} fixed"
    yield f"{count_severities(severities) or 'no findings'}{' left' if applied else ''}"
    if accepted:
        yield accepted
    numbers = {
        "that TensorRT refused and now accepts": sum(report.won for report in reports),
        "that TensorRT read differently and now imports correctly": sum(report.righted for report in reports),
        "not verified": proofs["failed"] + proofs["unproven"],
        "without a comparison of values": proofs["not compared"] + proofs["partly"],
        "with a broken check": sum(bool(report.verdict and report.verdict.broken) for report in reports),
        "unreadable": len(errors) - crashed,
        "crashed or out of memory": crashed,
        "unchanged and skipped": sum(report.reused for report in reports),
    }
    yield from (f"{number} {words}" for words, number in numbers.items() if number > 0)


def _named(reports: Sequence[Report], errors: Errors) -> Iterator[tuple[str, str, str]]:
    """The models without a result, those that fail, and those with errors: path, what failed, and counts."""
    for path, message in errors:
        yield path, "no result", message.removeprefix(f"{path}: ")
    failed = [report for report in reports if _failure(report)]
    for report in failed:
        yield report.path, _failure(report), count_severities(report.summary.severities)
    for report in reports:
        if report not in failed and (report.exit_code or report.summary.severities["error"]):
            yield report.path, "", count_severities(report.summary.severities)


def _failure(report: Report) -> str:
    """What failed, in a few words; "" where nothing did."""
    if report.verdict is not None and not report.verdict.passed:
        return describe_status(report)[0]
    dropped = sum(step.status == "dropped" for step in report.steps)
    parts = [
        counted(len(report.problems), "problem") if report.problems else "",
        f"{len(report.withdrawn)} withdrawn" if report.withdrawn else "",
        f"{counted(dropped, 'step')} dropped" if dropped else "",
    ]
    return ", ".join(filter(None, parts))
