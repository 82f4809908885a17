"""The page about one model: the outcome first, then what is left, what was fixed, and how that was checked."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from onnxfix.place import Place
from onnxfix.report.findings import Finding, Suppressed
from onnxfix.report.neighborhood import Picture
from onnxfix.report.render.findings import NOUNS, accepted_words, remedy_of, severity_words
from onnxfix.report.render.proof import proof_lines, tensorrt_line
from onnxfix.report.render.sections import ui
from onnxfix.report.render.sections.changes import operator_section
from onnxfix.report.render.sections.checks import check_section, output_section
from onnxfix.report.render.sections.tensorrt import tensorrt_section
from onnxfix.report.render.words import counted
from onnxfix.report.report import AppliedFix, FailOn, Report, Withdrawn
from onnxfix.report.summary import OPTIONS, Change, Summary, worst_first

KINDS = {"error": "bad", "warning": "warn", "info": "note"}
"""The chips of severities."""
MOST = 5000
"""Findings, and fixes, that a page lists."""
_OPEN = 12
"""Findings of a rule up to which they are listed from the start."""
_PLACES = 200
"""Places that are listed of one rule and reason."""


def report_page(report: Report, fail_on: FailOn = "") -> ui.Page:
    """Everything about one model. ``fail_on`` is the least severity of a finding that fails the run, as
    ``Report.exit_code_for`` takes it."""
    sections = (
        _findings(report),
        _accepted(report),
        _withdrawn(report.withdrawn),
        _fixes(report),
        check_section(report),
        operator_section(report),
        _steps(report),
        output_section(report),
        tensorrt_section(report),
        _notes(report),
        _environment(report),
    )
    problems = tuple(
        (str(one), ui.small("a bug in onnxfix or in the rule") if one.source == "onnxfix" else None)
        for one in report.problems
    )
    return ui.Page(
        report.path,
        report.output if report.command == "verify" else "",
        outcome(report, fail_on),
        report.exit_code_for(fail_on),
        tuple(_lead(report)),
        tuple(_tiles(report)),
        problems,
        tuple(one for one in sections if one is not None),
    )


# ------------------------------------------------------------------------------------------------------- outcome

_PROOFS = {
    "verified": ui.Chip("good", "Verified"),
    "partly": ui.Chip("warn", "Verified without the unsafe changes"),
    "unchanged": ui.Chip("good", "Unchanged"),
    "not compared": ui.Chip("warn", "Not verified: values were not compared"),
    "failed": ui.Chip("bad", "Failed: the models differ"),
    "unproven": ui.Chip("bad", "Not verified"),
}


def outcome(report: Report, fail_on: FailOn = "") -> ui.Chip:
    """What came of a model, in a few words. It is not good where the run fails."""
    found, code = _outcome(report.summary), report.exit_code_for(fail_on)
    if code and found.kind == "good":
        return ui.Chip("warn" if code == 1 else "bad", found.text)
    return found


def _outcome(summary: Summary) -> ui.Chip:
    if summary.proof:
        return _PROOFS[summary.proof]
    for severity in ("error", "warning"):
        if number := summary.severities[severity]:
            return ui.Chip(KINDS[severity], counted(number, NOUNS[severity]))
    return ui.Chip("good", "No errors or warnings")


def _lead(report: Report) -> Iterator[ui.Paragraph]:
    """TensorRT's result where it is news, and what was proven, in the words of the command line."""
    if report.headline:
        yield ui.Paragraph(report.headline, "headline")
    lines = [*proof_lines(report)]
    if report.verdict is None and report.summary.tensorrt is not None:
        lines.append(tensorrt_line(report.summary.tensorrt))
    for line in lines:
        yield ui.Paragraph(" ".join(line.plain.split()), "proof")


def _tiles(report: Report) -> Iterator[ui.Tile]:
    summary = report.summary
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


def before_and_after(change: Change) -> str:
    """``10 → 8``, or one number where the two are the same."""
    return f"{change.before:,} → {change.after:,}" if change.changed else f"{change.after:,}"


# ------------------------------------------------------------------------------------------------ findings, fixes


def _findings(report: Report) -> ui.Section | None:
    """What is left, the worst first."""
    if report.command == "verify":
        return None
    items = worst_first(report.findings)
    if not items:
        none = ui.Paragraph([ui.Chip("good", "none"), " No rule has a finding."], "empty")
        return ui.Section("findings", "Findings", (none,))
    there = tuple(
        (name, f"{NOUNS[name]}s") for name in KINDS if any(finding.severity == name for finding in items)
    )
    counts = Counter((finding.severity, finding.code) for finding in items)
    order = list(KINDS)
    ranked = sorted(
        items[:MOST],
        key=lambda finding: (
            order.index(finding.severity),
            -counts[finding.severity, finding.code],
            finding.code,
        ),
    )
    blocks: list[ui.Block] = [
        ui.Paragraph([f"Fixes {severity_words(finding.severities)}: ", ui.command(finding.command)], "remedy")
        for finding in report.summary.remedies
    ]
    groups = []
    for _, each in groupby(ranked, key=lambda finding: (finding.severity, finding.code, finding.name)):
        found = list(each)
        is_open = found[0].severity != "info" and len(found) <= _OPEN
        chip = ui.Chip(KINDS[found[0].severity], NOUNS[found[0].severity])
        groups.append(_group(chip, found, report.pictures, is_open))
    blocks += [ui.Groups(groups, "finding", there), *_left_out(len(items))]
    aside = counted(len(items), "finding")
    return ui.Section("findings", "Findings", blocks, aside, brief=True, folded=False)


def _fixes(report: Report) -> ui.Section | None:
    """What was fixed, with the nodes around it before and after."""
    if not report.applied:
        return None
    order = list(KINDS)
    ranked = sorted(report.applied[:MOST], key=lambda fix: (order.index(fix.severity), fix.code))
    grouped = groupby(ranked, key=lambda fix: (fix.severity, fix.code, fix.name))
    groups = [_group(ui.Chip("good", "fixed"), list(each), report.pictures) for _, each in grouped]
    legend = ui.Legend(
        (("focus", "place of the fix"), ("removed", "removed"), ("added", "added"), ("changed", "changed"))
    )
    blocks: list[ui.Block] = [legend] if report.pictures else []
    blocks += [ui.Groups(groups, "fix"), *_left_out(len(report.applied))]
    return ui.Section("fixed", "Fixed", blocks, counted(len(report.applied), "fix"), brief=True)


def _group(
    chip: ui.Chip, items: Sequence[Finding | AppliedFix], pictures: Sequence[Picture], is_open: bool = False
) -> ui.Group:
    drawn: Mapping[tuple[str, Place], Picture] = {(one.code, one.place): one for one in pictures}
    first = items[0]
    entries = [_entry(item, drawn.get((item.code, item.place))) for item in items]
    return ui.Group(chip, first.code, first.name, first.severity, entries, is_open)


def _entry(item: Finding | AppliedFix, picture: Picture | None) -> ui.Entry:
    """The place in full, the message, the fix, who confirms it, and the nodes around it."""
    place = item.place
    option = OPTIONS.get(item.safety, "") if isinstance(item, Finding) else ""
    level = ui.small(f"{item.safety}, needs {option}" if option else item.safety)
    facts = ui.facts(
        [
            ("Node", ui.name(place.node) if place.node else None),
            ("Output", ui.name(place.output) if place.output else None),
            ("Inside", ui.name(" / ".join(place.graph)) if place.graph else None),
            ("TensorRT's layer", ui.name(place.layer) if place.layer else None),
            ("Message", item.message),
            ("Fix", [item.fix, level] if item.fix else None),
            (
                "Confirmed by TensorRT",
                "an executed engine was wrong because of it" if item.on_engine else item.confirmed,
            ),
            ("Help", item.pointer if isinstance(item, Finding) else ""),
        ]
    )
    applied = isinstance(item, AppliedFix)
    sides = [("before", picture.before), ("after", picture.after)] if picture is not None else []
    around = f"Nodes around {place.label or place.text}"
    drawings = tuple(
        ui.Drawing(title if applied else "", nodes, f"{around}, {title}" if applied else around)
        for title, nodes in (sides if applied else sides[:1])
    )
    if isinstance(item, Finding):
        return ui.Entry(place, item.message, remedy_of(item), facts, drawings)
    return ui.Entry(place, item.fix, "" if item.safety == "exact" else item.safety, facts, drawings)


def _left_out(count: int) -> Iterator[ui.Paragraph]:
    if count > MOST:
        yield ui.Paragraph(f"The first {MOST:,} of {count:,} are listed; --report r.json has all.", "remark")


def _withdrawn(items: Sequence[Withdrawn]) -> ui.Section | None:
    """Fixes with which the model did not verify."""
    if not items:
        return None
    entries = tuple(
        [ui.strong(fix.code), " ", ui.name(fix.place.text), f": {fix.fix}. ", ui.small(fix.reason)]
        for fix in items
    )
    return ui.Section("withdrawn", "Withdrawn", [ui.Items(entries)], "the model did not verify with these")


def _accepted(report: Report) -> ui.Section | None:
    """What does not fail the run and why, and what a baseline can forget; nothing where there is neither."""
    if not report.suppressed and not report.vanished:
        return None
    known = ("Rule", "#Findings", "Why", "Said by", "Where"), "Findings that do not fail the run"
    missing = ("Rule", "Where", "Known by"), "Known findings that are no longer there"
    gone = [(one.code, one.place, one.origin) for one in report.vanished]
    tables = ((known, list(_accepted_rows(report.suppressed))), (missing, gone))
    blocks = [ui.Table(head, rows, caption) for (head, caption), rows in tables if rows]
    aside = accepted_words(report.suppressed) or None
    return ui.Section("accepted", "Accepted findings", blocks, aside, brief=True)


def _accepted_rows(suppressed: Iterable[Suppressed]) -> Iterator[tuple[ui.Content, ...]]:
    groups: dict[tuple[str, str, str, str], list[Suppressed]] = {}
    for one in suppressed:
        groups.setdefault((one.finding.code, one.reason, one.until, one.origin), []).append(one)
    for (code, reason, until, origin), some in groups.items():
        why = f"{reason} (until {until})" if until else reason
        places: list[ui.Content] = [ui.name(one.finding.place.short) for one in some[:_PLACES]]
        places += [f"… and {len(some) - _PLACES:,} more"] if len(some) > _PLACES else []
        where = ui.Fold("places", (ui.Items(places),))
        yield ([code, ui.small(some[0].finding.name)], len(some), why, origin, where)


# ------------------------------------------------------------------------------------------------- everything else


def _steps(report: Report) -> ui.Section | None:
    """The whole-model steps that were requested."""
    if not report.steps:
        return None
    entries: list[ui.Content] = []
    for step in report.steps:
        taken = step.status == "taken"
        nodes = ui.small(f" {step.nodes_before:,} → {step.nodes_after:,} nodes") if taken else None
        chip = ui.Chip("good" if taken else "bad", step.status)
        entries.append((chip, f" {step.name} ({step.tool}): {step.reason}", nodes))
    return ui.Section("steps", "Whole-model steps", [ui.Items(entries)])


def _notes(report: Report) -> ui.Section | None:
    return ui.Section("notes", "Notes", (ui.Items(report.notes),)) if report.notes else None


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
        ("Time", ui.seconds(report.seconds)),
        *version_pairs(report.versions),
        ("GPU", f"{ran.gpu} ({ran.compute_capability})" if ran is not None else None),
    ]
    return ui.Section("environment", "Environment", (ui.facts(pairs),))


def version_pairs(versions: Mapping[str, str]) -> list[tuple[str, ui.Content]]:
    """The packages that were used, Python and the system."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}, {sys.byteorder}-endian"
    return [*versions.items(), ("Python", python), ("System", system)]


def _file(path: str, size: int = 0) -> ui.Content:
    if not path:
        return None
    return [ui.name(path), ui.small(ui.binary_size(size)) if size else None]
