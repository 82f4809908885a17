"""Findings and fixes as lines: errors and warnings in full, the rest as counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from onnxfix.place import Place
from onnxfix.report.findings import Suppressed, Vanished
from onnxfix.report.render.lines import GLUE, Line, labeled, line
from onnxfix.report.render.words import counted, required_option
from onnxfix.report.report import AppliedFix, Finding, Report
from onnxfix.report.summary import SAFETIES, SEVERITIES, worst_first

MOST = 50
"""Places of one and the same finding that are listed without ``--verbose``."""
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
NOUNS = {"error": "error", "warning": "warning", "info": "note"}
_LISTED = "  " + "(-v lists them)".replace(" ", GLUE)


def severity_words(severities: Mapping[str, int]) -> str:
    """``2 errors, 1 note``; "" for none."""
    return ", ".join(counted(severities[name], NOUNS[name]) for name in SEVERITIES if severities.get(name))


# --------------------------------------------------------------------------------------------------------- findings


def finding_lines(findings: Sequence[Finding], verbose: bool) -> Iterator[Line]:
    """The errors and warnings in full, the worst first; with ``verbose`` the notes, too."""
    shown = [item for item in worst_first(findings) if verbose or item.severity != "info"]
    for (severity, code, name), group in groupby(shown, key=lambda one: (one.severity, one.code, one.name)):
        items = list(group)
        title = f" {name}{_times(len(items))}"
        yield labeled(NOUNS[severity], (code, "bold"), title, style=STYLES[severity])
        alike: dict[tuple[str, str], list[Finding]] = {}
        for item in items:
            message = f"{item.message}{_confirmed(item)}"
            alike.setdefault((message, remedy_of(item)), []).append(item)
        for (message, remedy), same in alike.items():
            yield from _entry(message, remedy, same, verbose)


def _entry(message: str, remedy: str, items: Sequence[Finding], verbose: bool) -> Iterator[Line]:
    """A message, TensorRT's own words, what helps, and the places that it is about: one in front, several below."""
    names = _names([item.place for item in items])
    if len(names) == 1:
        yield line("    ", (f"{names[0]}:", "cyan"), f" {message}", hang=6)
    else:
        yield line(f"    {message}", hang=6)
    words = next((item.confirmed for item in items if item.confirmed), "")
    if words and words not in items[0].message:
        yield line(f"      TensorRT: {words}", hang=8)
    if remedy:
        yield line("      ", (remedy, "dim"), hang=8)
    if len(names) == 1:
        return
    for name in names if verbose else names[:MOST]:
        yield line("      at ", (name, "cyan"))
    if len(names) > MOST and not verbose:
        yield line(f"      … and at {counted(len(names) - MOST, 'more place')}{_LISTED}", style="dim")


def _names(places: Sequence[Place]) -> list[str]:
    """The nodes by name; those that share one by the names of their outputs, too."""
    short = [place.short for place in places]
    often = Counter(short)
    return [name if often[name] == 1 else str(place) for name, place in zip(short, places, strict=True)]


def _confirmed(item: Finding | AppliedFix) -> str:
    if not item.confirmed and not item.on_engine:
        return ""
    return f" (confirmed {'on the engine' if item.on_engine else 'by TensorRT'})"


def remedy_of(item: Finding) -> str:
    """What helps with a finding, with the option that it requires; "" where that is unknown."""
    if item.pointer:
        return f"help: {item.pointer}"
    return f"fix: {item.fix} ({item.safety}{required_option(item.safety)})" if item.fix else ""


def note_counts(findings: Sequence[Finding]) -> Iterator[Line]:
    """One line that counts the notes by rule: ``notes  BRC001 ×41  GRA011 ×11  (-v lists them)``."""
    counts = Counter(item.code for item in findings if item.severity == "info")
    if counts:
        yield labeled("notes", *code_counts(counts.most_common()), (_LISTED, "dim"), style=STYLES["info"])


def code_counts(counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    """``BRC001 ×41  GRA011 ×11``: no line is broken between a code and its number."""
    for number, (code, count) in enumerate(counts):
        yield f"{'  ' if number else ''}{code}{GLUE}×{count:,}"


def _times(count: int) -> str:
    return f" ×{count:,}" if count > 1 else ""


# ------------------------------------------------------------------------------------------------------------ fixes


def fix_lines(applied: Sequence[AppliedFix], verbose: bool) -> Iterator[Line]:
    """The fixes. Those of errors and warnings rule by rule; those of notes as counts, with ``verbose`` all in full."""
    ordered = sorted(applied, key=lambda item: (SEVERITIES.index(item.severity), item.code))
    begun = False
    for (code, name), group in groupby(ordered, key=lambda item: (item.code, item.name)):
        items = list(group)
        if items[0].severity == "info" and not verbose:
            continue
        title = f" {name}{_times(len(items))}{_level(items)}"
        what = "" if verbose else _common_fix(items)
        label = "fixed" if verbose or not begun else ""
        yield labeled(label, (code, "bold"), title, what, style="bold green")
        begun = True
        if verbose:
            yield from _fixes(items)
    if not verbose:
        yield from _fix_counts([item for item in applied if item.severity == "info"], begun)


def _fix_counts(notes: Sequence[AppliedFix], begun: bool) -> Iterator[Line]:
    counts = Counter(item.code for item in notes).most_common()
    if counts:
        levels = [_level([item for item in notes if item.code == code]) for code, _ in counts]
        words = [f"{text}{level}" for text, level in zip(code_counts(counts), levels, strict=True)]
        yield labeled("" if begun else "fixed", *words, (_LISTED, "dim"), style="bold green")


def _fixes(items: Sequence[AppliedFix]) -> Iterator[Line]:
    names = _names([item.place for item in items])
    for name, item in zip(names, items, strict=True):
        level = "" if item.safety == "exact" else f" ({item.safety})"
        words = f": {item.confirmed}" if item.confirmed else ""
        yield line("    ", (f"{name}:", "cyan"), f" {item.fix}{level}{_confirmed(item)}{words}", hang=6)


def _common_fix(items: Sequence[AppliedFix]) -> str:
    """What was done, where that is the same for all fixes of a rule, and the place if there is only one."""
    at = f", at {items[0].place.short}" if len(items) == 1 else ""
    words = {f"{item.fix}{at}{_confirmed(item)}" for item in items}
    return f": {words.pop()}" if len(words) == 1 else ""


def _level(items: Sequence[AppliedFix]) -> str:
    """``(numeric)`` where a fix is not exact: the least safe of them."""
    worst = max((SAFETIES.index(item.safety) for item in items), default=0)
    return f"{GLUE}({SAFETIES[worst]})" if worst else ""


# --------------------------------------------------------------------------------------------------- what is left


def left_lines(report: Report) -> Iterator[Line]:
    """What is left, the commands that fix it, and where to read about the worst of it."""
    summary = report.summary
    before = dict.fromkeys(SEVERITIES, 0)
    for remedy in summary.remedies:
        counts = remedy.severities
        words = severity_words({name: counts[name] - before[name] for name in SEVERITIES})
        before = counts
        again = " ".join(["rerun with", *remedy.options])
        command = again if report.command == "apply" else remedy.command
        label = "left" if report.command == "apply" else "fix"
        yield labeled(label, f"{words} → ", (command.replace(" ", GLUE), "bold"))
    stuck = Counter(item.severity for item in report.findings if not item.fix and not item.pointer)
    del stuck["info"]
    if stuck:
        yield labeled("left", f"{severity_words(stuck)} without an automatic fix")
    if summary.explain:
        yield labeled("why", (f"onnxfix explain {summary.explain}".replace(" ", GLUE), "bold"))


# ------------------------------------------------------------------------------------------------ what is accepted


NAMED = 3
"""Findings that are gone and named by their place without ``--verbose``."""


def accepted_lines(
    suppressed: Sequence[Suppressed], vanished: Sequence[Vanished], verbose: bool = False
) -> Iterator[Line]:
    """A line for each reason to accept findings, with their counts, and one for known findings that are gone."""
    groups: dict[tuple[str, str, str, str], list[Suppressed]] = {}
    for one in suppressed:
        groups.setdefault((one.by, one.reason, one.origin, one.until), []).append(one)
    for (by, reason, origin, until), some in groups.items():
        counts = Counter(one.finding.code for one in some)
        day = f" (until {until})" if until else ""
        why = "" if by == "baseline" else f": {reason}{day}"
        label = "known" if by == "baseline" else "accepted"
        yield labeled(label, *code_counts(counts.most_common()), why, (f"  {origin}", "dim"), style="dim")
        if verbose:
            for one in some:
                yield line(f"    {one.finding.code} {one.finding.place.short}", hang=6)
    if vanished:
        shown = vanished if verbose else vanished[:NAMED]
        names = ", ".join(f"{one.code} at {one.place}" for one in shown)
        more = f" and {len(vanished) - len(shown)} more" if len(vanished) > len(shown) else ""
        text = f"{counted(len(vanished), 'known finding')} no longer there: {names}{more}"
        origin = vanished[0].origin
        yield labeled("gone", text, (f"  (update it with --write-baseline {origin})", "dim"), style="green")


def accepted_words(suppressed: Sequence[Suppressed]) -> str:
    """``5 accepted, 12 known``; "" for none."""
    counts = Counter("known" if one.by == "baseline" else "accepted" for one in suppressed)
    return ", ".join(f"{counts[name]:,} {name}" for name in ("accepted", "known") if counts[name])
