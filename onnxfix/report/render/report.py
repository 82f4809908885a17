"""The page about one model: the outcome first, then what is left, what was fixed, and how that was checked.

The outcome is also the last lines on a terminal: may it be shipped, what was proven, what was not checked, and what to
do next.
"""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from onnxfix.report.findings import SEVERITIES
from onnxfix.report.render import ui
from onnxfix.report.render.checks import check_section, operator_section, output_section, tensorrt_section
from onnxfix.report.render.details import partition_lines, stopped_lines
from onnxfix.report.render.findings import (
    KINDS,
    LISTED,
    NOUNS,
    accepted_section,
    count_severities,
    group_by_rule,
)
from onnxfix.report.render.lines import GLUE, Line, counted, labeled, line, seconds, size
from onnxfix.report.render.proof import proof_lines, tensorrt_line, why_not_proven
from onnxfix.report.report import Report
from onnxfix.report.summary import AGAINST, Change, Doubt

_ANSWERS = {"yes": ("yes", "bold green"), "open": ("not yet", "bold yellow"), "no": ("no", "bold red")}
_DOUBTS: dict[Doubt, str] = {
    "incomplete": "the report is incomplete",
    "refused": "TensorRT does not build it",
    "misread": "TensorRT reads it differently",
    "wrong engine": "its engine is wrong",
    "not compared": "values were not compared",
    "partly": "the unsafe changes are not proven",
    "only read": "the model was only read",
    "cut": "TensorRT does not take all of it",
    "no TensorRT": "TensorRT was not asked",
    "in part": "TensorRT judged it in part",
    "no engine": "no engine was executed",
    "other TensorRT": "the target's TensorRT was not asked",
}
_PLACES = 8
"""Nodes outside of TensorRT that are named for a reason."""


def answer_lines(report: Report, verbose: bool = False) -> Iterator[Line]:
    """What was proven, what was written, and what is left."""
    yield from proof_lines(report)
    if report.summary.tensorrt is not None and report.verdict is None:
        yield tensorrt_line(report.summary.tensorrt)
    parts = partition_lines(report.partition, report.partition_after, 1_000 if verbose else _PLACES)
    yield from (labeled("" if number else "parts", each, style="") for number, each in enumerate(parts))
    yield from _outcome_lines(report)
    yield from _left_lines(report)


def ship_line(report: Report) -> Line:
    """Whether it may be deployed, and what speaks against it."""
    summary = report.summary
    answer, style = _ANSWERS[summary.ready]
    named = [one for one in summary.doubts if summary.ready == "open" or one in AGAINST]
    words = "; ".join(_doubt(report, doubt) for doubt in named) or "nothing is open"
    return labeled("ship it?", (answer, style), f": {words}", style="")


def _doubt(report: Report, doubt: Doubt) -> str:
    if doubt in ("failed", "unproven"):
        refuting = ", ".join(check.name for check in report.checks if check.refutes)
        words = f"{refuting} failed" if doubt == "failed" else why_not_proven(report)
        return f"{'nothing was written: ' if report.command == 'apply' else ''}{words}"
    if doubt in ("errors", "warnings"):
        count = report.summary.severities[doubt.removesuffix("s")]
        return f"{counted(count, doubt.removesuffix('s'))} {'is' if count == 1 else 'are'} left"
    if doubt == "withdrawn":
        return f"{counted(len(report.withdrawn), 'fix')} withdrawn"
    return _DOUBTS[doubt]


def page_facts(report: Report) -> ui.Facts:
    """The same for the head of a page, the answer first; lines without a label belong to the line before."""
    pairs: list[tuple[str, list[ui.Content]]] = []
    for each in (ship_line(report), *answer_lines(report, verbose=True), *next_line(report)):
        parts = each.parts if len(each.parts) > 1 else (("", ""), ("", ""), *each.parts)
        content: list[ui.Content] = [
            ui.command(text) if text.startswith("onnxfix ") else text for text, _ in parts[2:]
        ]
        name = parts[1][0].strip().rstrip(":")
        if name:
            pairs.append((name if name == "TensorRT" else name.capitalize(), content))
        elif pairs:
            pairs[-1][1].append(ui.Paragraph(content))
    return ui.Facts(pairs)


def next_line(report: Report) -> Iterator[Line]:
    """The command that leads on, where there is one."""
    if command := report.summary.next:
        where = "  on the GPU that it is for" if command.endswith("trt-gpu") else ""
        yield labeled("next", (command.replace(" ", GLUE), "bold"), where, style="")


_UNVERIFIED = "--no-verify writes the result unverified: only its interface is checked"


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
        yield labeled("written", (report.output, "bold"), weight, *_weights(report))
        yield from _data(report)
    elif report.verdict is not None and not report.verdict.passed:
        yield labeled("written", ("nothing", "bold red"))
        if not report.verdict.failed:
            yield from _stopped(report)
            yield labeled("help", f"{_help(report)}{_UNVERIFIED}", style="")


def _weights(report: Report) -> Iterator[str]:
    """The weights by type, without types of less than a hundredth of their bytes."""
    weights = report.operators_after.weights if report.operators_after is not None else {}
    least = sum(weights.values()) / 100
    if named := [f"{name} {size(count)}" for name, count in weights.items() if count > least]:
        yield f"; weights: {', '.join(named)}"


def _data(report: Report) -> Iterator[Line]:
    for label in ("data", "shared"):
        files = [one for one in report.data if (one.kind == "shared") == (label == "shared")]
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            total = size(sum(one.bytes for one in files))
            warning = f" with {report.path}: a change there changes the result" if label == "shared" else ""
            yield labeled(label, (files[0].path, "bold"), f"{more}  {total}{warning}")


def _help(report: Report) -> str:
    """What may make a check run."""
    if any(check.cause == "timeout" for check in report.checks):
        return "time ran out: --timeout and --rung-timeout allow more. "
    if report.stopped is not None and not report.stopped.loaded:
        return ""
    known = "onnxfix check --inputs-help shows what is known about them. "
    if report.stopped is None:
        return f"pass inputs that the model accepts by --inputs or --input-shapes; {known}"
    return known


def _stopped(report: Report) -> Iterator[Line]:
    if report.stopped is not None:
        lines = stopped_lines(report.stopped, report.path, report.command)
        yield from (line(f"  {each}", hang=4) for each in lines)


def _left_lines(report: Report) -> Iterator[Line]:
    """What is left, and the commands that fix it."""
    before = dict.fromkeys(SEVERITIES, 0)
    for remedy in report.summary.remedies:
        counts = remedy.severities
        words = count_severities({name: counts[name] - before[name] for name in SEVERITIES})
        before = counts
        label, command = "fix", remedy.command
        if report.command == "apply":
            label, command = "left", " ".join(["rerun with", *remedy.options])
        yield labeled(label, f"{words} → ", (command.replace(" ", GLUE), "bold"))
    stuck = Counter(item.severity for item in report.findings if not item.fix and not item.pointer)
    del stuck["info"]
    if stuck:
        yield labeled("left", f"{count_severities(stuck)} without an automatic fix")


_PROOFS = {
    "verified": ui.Chip("good", "Verified"),
    "partly": ui.Chip("warn", "Verified without the unsafe changes"),
    "unchanged": ui.Chip("good", "Unchanged"),
    "not compared": ui.Chip("warn", "Not verified: values were not compared"),
    "failed": ui.Chip("bad", "Failed: the models differ"),
    "unproven": ui.Chip("bad", "Not verified"),
}


def report_page(report: Report) -> ui.Page:
    """Everything about one model."""
    notes = ui.Section("notes", "Notes", (ui.Items(report.notes),)) if report.notes else None
    sections = (
        _findings(report),
        accepted_section(report.suppressed, report.vanished),
        withdrawn_section(report),
        _fixes(report),
        check_section(report),
        operator_section(report),
        step_section(report),
        output_section(report),
        tensorrt_section(report),
        notes,
        _environment(report),
    )
    return ui.Page(
        report.path,
        report.output if report.command == "verify" else "",
        _outcome(report),
        report.exit_code,
        (ui.Paragraph(report.headline, "headline"),) if report.headline else (),
        tuple(_tiles(report)),
        problems(report),
        tuple(one for one in sections if one is not None),
        page_facts(report),
    )


def _outcome(report: Report) -> ui.Chip:
    """What came of a model, in a few words. It is not good where the run fails."""
    summary = report.summary
    worst = next((name for name in ("error", "warning") if summary.severities[name]), "")
    if summary.proof:
        chip = _PROOFS[summary.proof]
    elif worst:
        chip = ui.Chip(KINDS[worst], counted(summary.severities[worst], NOUNS[worst]))
    else:
        chip = ui.Chip("good", "No errors or warnings")
    if summary.ready == "no" or (report.exit_code and chip.kind == "good"):
        return ui.Chip("warn" if summary.ready != "no" and report.exit_code == 1 else "bad", chip.text)
    return chip


def _tiles(report: Report) -> Iterator[ui.Tile]:
    summary = report.summary
    if _unwritten(report):
        return
    if report.command != "verify":
        for severity, kind in KINDS.items():
            count = summary.severities[severity]
            noun = counted(count, NOUNS[severity]).partition(" ")[2]
            yield ui.Tile(f"{count:,}", noun, kind if count else "none")
    if report.command == "apply":
        yield ui.Tile(f"{len(report.applied):,}", "fixed", "good" if report.applied else "none")
    for change in (summary.compute, summary.layers):
        if change is not None:
            yield ui.Tile(before_and_after(change), change.name, "plain")
    if report.builds and summary.layers is None:
        build = report.builds[-1]
        yield ui.Tile(build.status, "by TensorRT", "good" if build.accepted else "bad")


def _unwritten(report: Report) -> bool:
    """Whether the findings and fixes are those of a result that did not verify."""
    return report.command == "apply" and report.verdict is not None and not report.verdict.passed


def before_and_after(change: Change) -> str:
    """``10 → 8``, or one number where the two are the same."""
    return f"{change.before:,} → {change.after:,}" if change.changed else f"{change.after:,}"


def problems(report: Report) -> list[ui.Content]:
    """Why the report is incomplete."""
    blame = ui.small("(a bug in onnxfix or in the rule)")
    return [(str(one), *([blame] if one.source == "onnxfix" else [])) for one in report.problems]


def _findings(report: Report) -> ui.Section | None:
    """What is left, the worst first."""
    if report.command == "verify":
        return None
    count = len(report.findings)
    blocks: tuple[ui.Block, ...] = (
        group_by_rule(report.findings, "finding", report.pictures, LISTED),
        *_left_out(count),
    )
    if not count:
        blocks = (ui.Paragraph([ui.Chip("good", "none"), " No rule has a finding."], "empty"),)
    aside = counted(count, "finding") + " in the result, which was not written" * _unwritten(report)
    return ui.Section("findings", "Findings", blocks, aside, brief=bool(count), folded=False)


def _fixes(report: Report) -> ui.Section | None:
    """What was fixed, with the nodes around it before and after."""
    if not report.applied:
        return None
    count = len(report.applied)
    groups = group_by_rule(report.applied, "fix", report.pictures, LISTED)
    blocks: tuple[ui.Block, ...] = (groups, *_left_out(count))
    title = "Fixed"
    if _unwritten(report):
        title, tried = "Not written", ui.Chip("none", "tried")
        blocks = (ui.Groups([replace(one, chip=tried) for one in groups.groups], "fix"), *blocks[1:])
    return ui.Section("fixed", title, blocks, counted(count, "fix"), brief=True)


def _left_out(count: int) -> Iterator[ui.Paragraph]:
    if count > LISTED:
        yield ui.Paragraph(
            f"The first {LISTED:,} of {count:,} are listed; --report r.json has all.", "remark"
        )


def withdrawn_section(report: Report) -> ui.Section | None:
    """Fixes with which the model did not verify."""
    entries: list[ui.Content] = [
        [
            ui.Chip("bad", "withdrawn"),
            f" {fix.code} at ",
            ui.name(fix.place.short),
            f": {fix.fix}: {fix.reason}",
        ]
        for fix in report.withdrawn
    ]
    aside = "the model did not verify with these"
    return ui.Section("withdrawn", "Withdrawn", [ui.Items(entries)], aside) if entries else None


def step_section(report: Report) -> ui.Section | None:
    """The whole-model steps that were requested: the effect of each, or why its result was dropped."""
    entries: list[ui.Content] = []
    for step in report.steps:
        taken = step.status == "taken"
        kind = ("warn" if step.safety == "unsafe" else "good") if taken else "bad"
        nodes = f", {step.nodes_before:,} → {step.nodes_after:,} nodes" if taken else ""
        level = f", {step.safety}" if step.safety else ""
        entries.append(
            [ui.Chip(kind, step.status), f" {step.name} ({step.tool}{level}{nodes}): {step.reason}"]
        )
    return ui.Section("steps", "Whole-model steps", [ui.Items(entries)]) if entries else None


def _environment(report: Report) -> ui.Section:
    """With what a report was made: versions, target, files and times."""
    second = "Second model" if report.command == "verify" else "Written"
    ran = report.executed
    pairs: list[tuple[str, ui.Content]] = [
        ("Command", f"onnxfix {report.command}"),
        ("Model", _file(report.path, report.bytes_before)),
        (second, _file(report.output, report.bytes_after)),
        *((f"Data ({one.kind})", _file(one.path, one.bytes)) for one in report.data),
        ("Engine", _file(report.engine)),
        ("Target", report.target),
        ("Fixes up to", report.safety),
        ("Rounds", report.rounds),
        ("Time", seconds(report.seconds)),
        *version_pairs(report.versions),
        ("GPU", f"{ran.gpu} ({ran.compute_capability})" if ran is not None else None),
    ]
    return ui.Section("environment", "Environment", (ui.facts(pairs),))


def version_pairs(versions: Mapping[str, str]) -> list[tuple[str, ui.Content]]:
    """The packages that were used, Python and the system."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}, {sys.byteorder}-endian"
    return [*versions.items(), ("Python", python), ("System", system)]


def _file(path: str, weight: int = 0) -> ui.Content:
    return [ui.name(path), ui.small(size(weight)) if weight else None] if path else None
