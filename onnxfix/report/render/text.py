"""A report as text: the headline, what is wrong, what was proven, written and changed, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfix.report.render.details import build_lines, intake_lines, network_lines, stopped_lines
from onnxfix.report.render.difference import change_list
from onnxfix.report.render.findings import (
    accepted_lines,
    accepted_words,
    finding_lines,
    fix_lines,
    left_lines,
    note_counts,
    severity_words,
)
from onnxfix.report.render.lines import Line, labeled, line
from onnxfix.report.render.proof import (
    PLEASE_REPORT,
    check_lines,
    proof_lines,
    status_words,
    tensorrt_line,
)
from onnxfix.report.render.words import size
from onnxfix.report.report import Report, StepDone
from onnxfix.report.summary import SEVERITIES, Change, Summary
from onnxfix.targets import TARGETS, mismatch


def render_report(report: Report, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The lines of one report. ``quiet``: one line, and what broke. ``verbose`` lists every finding, fix and check."""
    summary = report.summary
    yield _headline(report, summary, quiet)
    if quiet:
        for rung in report.verdict.broken if report.verdict is not None else ():
            yield labeled("broke", f"{rung.name}: {rung.reason} ({PLEASE_REPORT})", style="bold red")
        yield from _problems(report)
        return
    yield from _repaired_objection(report)
    yield from _steps(report.steps)
    for item in report.withdrawn:
        text = f"{item.code} at {item.place.short}: {item.fix}: {item.reason}"
        yield labeled("withdrawn", text, style="bold red")
    yield from _problems(report)
    if report.difference is not None:
        yield from change_list(report.difference, verbose)
        if report.changed and not report.difference.changes:
            yield line("  only declared types or the order of nodes would change")
        yield from check_lines(report) if verbose else proof_lines(report)
        yield labeled("written", ("nothing, as --diff asks", "dim"), style="")
        return
    yield from finding_lines(report.findings, verbose)
    if report.intake is not None:
        yield from (line(f"  {each}", hang=4) for each in intake_lines(report.intake, verbose))
    if summary.tensorrt is not None and report.verdict is None:
        yield tensorrt_line(summary.tensorrt)
    yield from check_lines(report) if verbose else proof_lines(report)
    yield from _outcome_lines(report)
    if verbose or report.verdict is None or report.verdict.passed:  # otherwise nothing was changed
        yield from change_lines(summary, verbose)
        yield from fix_lines(report.applied, verbose)
    if verbose:
        yield from _build_details(report)
    else:
        yield from note_counts(report.findings)
    yield from left_lines(report)
    yield from accepted_lines(report.suppressed, report.vanished, verbose)
    for note in report.notes:
        if note != _other_target(report):  # the line about TensorRT says it
            yield labeled("note", note, style="")


def _other_target(report: Report) -> str:
    """The note of a check that TensorRT is another one than the model is for."""
    found, target = report.summary.tensorrt, TARGETS.get(report.target)
    return mismatch(target, found.package, found.version) if found is not None and target is not None else ""


# --------------------------------------------------------------------------------------------------------- headline


def _headline(report: Report, summary: Summary, quiet: bool) -> Line:
    """The model, and the worst first: what failed, what TensorRT says, then counts."""
    statements: list[str | tuple[str, str]] = []
    status, style = status_words(report)
    if status and (quiet or report.command == "verify" or summary.proof not in ("verified", "unchanged")):
        statements.append((status, style))
    if report.headline:
        statements.append(report.headline)
    if report.command != "verify":
        statements.append((_counts(report, summary, quiet), _style(summary)))
    parts = [part for statement in statements for part in ("; ", statement)][1:]
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


def _counts(report: Report, summary: Summary, quiet: bool) -> str:
    found, accepted = severity_words(summary.severities), accepted_words(report.suppressed)
    if report.command != "apply":
        return ", ".join(filter(None, (found or "no findings", accepted)))
    dropped = sum(step.status == "dropped" for step in report.steps)
    *some, last = found.split(", ")
    found = " and ".join(filter(None, (", ".join(some), last)))
    passed = report.verdict is None or report.verdict.passed
    parts = [
        f"{len(report.applied):,} {'would be ' * (report.difference is not None)}fixed"
        if passed
        else "nothing was written",
        f"{len(report.withdrawn)} withdrawn" if report.withdrawn else "",
        f"{dropped} dropped" if dropped else "",
        f"{found or '0'} left" if passed else "",
        accepted,
    ]
    if quiet and passed and summary.compute is not None and summary.compute.changed:
        parts.append(f"{summary.compute.before:,} → {summary.compute.after:,} compute nodes")
    return ", ".join(filter(None, parts))


def _style(summary: Summary) -> str:
    """The color of the worst that is left."""
    worst = next((name for name in SEVERITIES if summary.severities[name]), "")
    return {"error": "red", "warning": "yellow"}.get(worst, "")


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


# ----------------------------------------------------------------------------------------------------- other parts


def _steps(steps: Sequence[StepDone]) -> Iterator[Line]:
    """The whole-model steps: the effect of each, or why its result was dropped."""
    for step in steps:
        style = "bold red" if step.status == "dropped" else "yellow" if step.safety == "unsafe" else "green"
        nodes = f", {step.nodes_before} → {step.nodes_after} nodes" if step.status == "taken" else ""
        level = f", {step.safety}" if step.safety else ""
        yield labeled(step.status, f"{step.name} ({step.tool}{level}{nodes}): {step.reason}", style=style)


def _problems(report: Report) -> Iterator[Line]:
    for problem in report.problems:
        blame = " (a bug in onnxfix or in the rule)" if problem.source == "onnxfix" else ""
        yield labeled("problem", f"{problem}{blame}", style="bold red")


def _build_details(report: Report) -> Iterator[Line]:
    """What a check learned from TensorRT."""
    builds = build_lines([report.build]) if report.build is not None else ()
    networks = network_lines([report.network]) if report.network is not None else ()
    yield from (line(f"  {each}", hang=4) for each in (*builds, *networks))


def _outcome_lines(report: Report) -> Iterator[Line]:
    """What was written, or why nothing was and what to do about it."""
    if report.command == "verify":
        yield from _stopped(report)
    if report.engine:
        yield labeled("engine", report.engine)
    if report.command != "apply":
        return
    if report.output:
        was = f" (was {size(report.bytes_before)})" if report.bytes_before != report.bytes_after else ""
        weight = f"  {size(report.bytes_after)}{was}" if report.bytes_after else ""
        yield labeled("written", (report.output, "bold"), weight)
        yield from _data(report)
    elif report.verdict is not None and not report.verdict.passed:
        yield labeled("written", ("nothing", "bold red"))
        if not report.verdict.failed:
            yield from _stopped(report)
            yield from _help_lines(report)


def _data(report: Report) -> Iterator[Line]:
    """The files that the result needs beside it."""
    shared = [one for one in report.data if one.kind == "shared"]
    for label, files in (("data", [one for one in report.data if one not in shared]), ("shared", shared)):
        if not files:
            continue
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        total = size(sum(one.bytes for one in files))
        with_whom = f" with {report.path}: a change there changes the result" if label == "shared" else ""
        yield labeled(label, (files[0].path, "bold"), f"{more}  {total}{with_whom}")


def _help_lines(report: Report) -> Iterator[Line]:
    if report.verdict is not None and any(rung.cause == "timeout" for rung in report.checks):
        more = "time ran out: --timeout and --rung-timeout allow more. "
        yield labeled(
            "help",
            f"{more}--no-verify writes the result unverified: only its interface is checked",
            style="",
        )
        return
    begin = "onnxfix check --inputs-help shows what is known about them. "
    if report.stopped is None:
        begin = f"pass inputs that the model accepts by --inputs or --input-shapes; {begin}"
    elif not report.stopped.loaded:
        begin = ""
    more = "--no-verify writes the result unverified: only its interface is checked"
    yield labeled("help", f"{begin}{more}", style="")


def _stopped(report: Report) -> Iterator[Line]:
    if report.stopped is not None:
        lines = stopped_lines(report.stopped, report.path, report.command)
        yield from (line(f"  {each}", hang=4) for each in lines)


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
        rows += [(f"  {change.name}", change) for change in shown]
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
