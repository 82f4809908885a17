"""The page about one model: the outcome first, then what is left, what was fixed, and how that was checked."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from onnxfix.report.render import ui
from onnxfix.report.render.answer import page_facts
from onnxfix.report.render.checks import check_section, operator_section, output_section, tensorrt_section
from onnxfix.report.render.findings import (
    KINDS,
    LISTED,
    NOUNS,
    accepted_section,
    group_by_rule,
)
from onnxfix.report.render.words import counted, seconds, size
from onnxfix.report.report import Report
from onnxfix.report.summary import Change

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


# ------------------------------------------------------------------------------------------------ findings, fixes


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


# ---------------------------------------------------------------------------------------------------- environment


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
