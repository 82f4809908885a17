"""Findings and fixes by rule, what is left to do about them, and what is accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from onnxfix.place import Place
from onnxfix.report.findings import (
    SAFETIES,
    SEVERITIES,
    AppliedFix,
    Finding,
    Picture,
    Suppressed,
    Vanished,
    describe_source,
    required_option,
)
from onnxfix.report.pytorch import advise
from onnxfix.report.render import ui
from onnxfix.report.render.lines import GLUE, Line, counted, labeled, line

MOST = 50
"""Places of one and the same finding that are listed without ``--verbose``."""
LISTED = 5000
"""Findings, and fixes, that a page lists."""
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
NOUNS = {"error": "error", "warning": "warning", "info": "note"}
KINDS = {"error": "bad", "warning": "warn", "info": "note"}
"""The chips of severities."""
_LISTED = "  " + "(-v lists them)".replace(" ", GLUE)
Item = Finding | AppliedFix


def count_severities(severities: Mapping[str, int]) -> str:
    """``2 errors, 1 note``; "" for none."""
    return ", ".join(counted(severities[name], NOUNS[name]) for name in SEVERITIES if severities.get(name))


def code_counts(counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    """``BRC001 ×41  GRA011 ×11``: no line is broken between a code and its number."""
    for number, (code, count) in enumerate(counts):
        yield f"{'  ' if number else ''}{code}{GLUE}×{count:,}"


def group_by_rule(
    items: Sequence[Item], noun: str, pictures: Sequence[Picture] = (), most: int | None = None
) -> ui.Groups:
    """Findings, or fixes, by rule; at most ``most`` of them (None: all). The worst come first, and within a severity
    the rules with the most findings."""
    counts = Counter((one.severity, one.code) for one in items if isinstance(one, Finding))
    ranked = sorted(
        items, key=lambda one: (SEVERITIES.index(one.severity), -counts[one.severity, one.code], one.code)
    )
    by_place = {(picture.code, picture.place): picture for picture in pictures}
    groups = []
    for _, same in groupby(ranked[:most], lambda one: (one.severity, one.code, one.name)):
        group = list(same)
        chip = ui.Chip("good", "fixed")
        if noun == "finding":
            chip = ui.Chip(KINDS[group[0].severity], NOUNS[group[0].severity])
        groups.append(ui.Group(chip, group, [by_place.get((item.code, item.place)) for item in group]))
    return ui.Groups(groups, noun)


def describe_remedy(item: Item, pointer: str = "help: ") -> str:
    """What helps with a finding, with the option that it requires; of a fix its safety. "" where there is nothing to
    say. ``pointer`` stands before the rule that helps."""
    if isinstance(item, AppliedFix):
        return "" if item.safety == "exact" else item.safety
    if item.pointer:
        return f"{pointer}{item.pointer}"
    return f"fix: {item.fix} ({item.safety}{required_option(item.safety)})" if item.fix else ""


def describe_item(item: Item) -> str:
    """What a list says about a finding or a fix."""
    return item.fix if isinstance(item, AppliedFix) else item.message


def alike(items: Iterable[Item]) -> dict[tuple[str, str], list[Item]]:
    """Findings or fixes by what is said about them, and what helps."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        words = f"{describe_item(item)}{describe_confirmation(item)}"
        groups.setdefault((words, describe_remedy(item)), []).append(item)
    return groups


def group_lines(block: ui.Groups, verbose: bool, advised: bool = False) -> Iterator[Line]:
    """Errors and warnings in full, the worst first, otherwise by code; with ``verbose`` also notes. Or the fixes.
    ``advised``: with what to write in PyTorch instead."""
    if block.noun == "fix":
        yield from _fix_lines(block.groups, verbose)
        return
    by_code = sorted(block.groups, key=lambda one: (SEVERITIES.index(one.first.severity), one.first.code))
    for group in by_code:
        first = group.first
        if first.severity != "info" or verbose:
            title = f" {first.name}{_times(group)}"
            yield labeled(NOUNS[first.severity], (first.code, "bold"), title, style=STYLES[first.severity])
            yield from _entries(group.items, verbose)
            operators = {item.place.op_type for item in group.items}
            if advised and (advice := advise(first.code, operators)):
                yield line("      ", (f"in PyTorch: {advice}", "dim"), hang=8)


def _entries(items: Sequence[Item], verbose: bool) -> Iterator[Line]:
    """What is said of the places of a rule, below the lines of code that they come from. Without ``verbose`` one
    message stands for all those of a line, which differ by names and sizes."""
    by_line: dict[str, list[tuple[str, str, Sequence[Item]]]] = {}
    for (message, remedy), alikes in alike(items).items():
        lines = {describe_source(item.source) for item in alikes}
        by_line.setdefault(lines.pop() if len(lines) == 1 else "", []).append((message, remedy, alikes))
    for source, entries in by_line.items():
        indent = "    "
        if source:
            yield line(indent, (source, "cyan"), hang=6)
            indent = "      "
        shown = entries if verbose or not source else entries[:1]
        for message, remedy, same in shown:
            yield from _entry(message, remedy, same, verbose, indent)
        if rest := sum(len(same) for _, _, same in entries[len(shown) :]):
            yield line(f"      … and {counted(rest, 'more place')} of this line{_LISTED}", style="dim")


def _entry(message: str, remedy: str, items: Sequence[Item], verbose: bool, indent: str) -> Iterator[Line]:
    """A message, TensorRT's own words, what helps, and the places that it is about: one in front, several below."""
    names = _names([item.place for item in items])
    place = [(f"{names[0]}:", "cyan"), (" ", "")] if len(names) == 1 else []
    yield line(indent, *place, message, hang=len(indent) + 2)
    words = next((item.confirmed for item in items if item.confirmed), "")
    if words and words not in items[0].message:
        yield line(f"{indent}  TensorRT: {words}", hang=len(indent) + 4)
    if remedy:
        yield line(f"{indent}  ", (remedy, "dim"), hang=len(indent) + 4)
    if len(names) == 1:
        return
    shown = list(zip(names, items, strict=True))[: None if verbose else MOST]
    together: dict[str, list[str]] = {}
    for name, item in shown:
        together.setdefault(describe_source(item.source) or name, []).append(name)
    for source, same in together.items():
        below = len(together) > 1 and source not in names
        yield line(
            f"{indent}  at ", (", ".join(same), "cyan"), (f"  from {source}" if below else "", "dim"), hang=9
        )
    if len(names) > len(shown):
        yield line(
            f"{indent}  … and at {counted(len(names) - len(shown), 'more place')}{_LISTED}", style="dim"
        )


def _fix_lines(groups: Sequence[ui.Group], verbose: bool) -> Iterator[Line]:
    """The fixes. Those of errors and warnings rule by rule; those of notes as counts, with ``verbose`` all in full."""
    label = "fixed"
    for group in groups:
        first = group.first
        if first.severity == "info" and not verbose:
            continue
        # What was done, where that is the same for all fixes of a rule, and the place if there is only one.
        at = f", at {first.place.short}" if len(group.items) == 1 else ""
        words = {f": {item.fix}{at}{describe_confirmation(item)}" for item in group.items}
        common = words.pop() if len(words) == 1 and not verbose else ""
        title = f" {first.name}{_times(group)}{_level(group)}"
        yield labeled(label, (first.code, "bold"), title, common, style="bold green")
        if verbose:
            yield from _each_fix(group.items)
        else:
            label = ""
    notes = {} if verbose else {group.first.code: group for group in groups if group.first.severity == "info"}
    if notes:
        counts = Counter({code: len(group.items) for code, group in notes.items()}).most_common()
        levels = [_level(notes[code]) for code, _ in counts]
        texts = [f"{text}{level}" for text, level in zip(code_counts(counts), levels, strict=True)]
        yield labeled(label, *texts, (_LISTED, "dim"), style="bold green")


def _each_fix(items: Sequence[Item]) -> Iterator[Line]:
    names = _names([item.place for item in items])
    for name, item in zip(names, items, strict=True):
        level = "" if item.safety == "exact" else f" ({item.safety})"
        words = f": {item.confirmed}" if item.confirmed else ""
        yield line(
            "    ", (f"{name}:", "cyan"), f" {item.fix}{level}{describe_confirmation(item)}{words}", hang=6
        )
        if origin := describe_source(item.source):
            yield line("      from ", (origin, "dim"), hang=8)


def note_lines(findings: Sequence[Finding]) -> Iterator[Line]:
    """One line that counts the notes by rule: ``notes  BRC001 ×41  GRA011 ×11  (-v lists them)``."""
    counts = Counter(item.code for item in findings if item.severity == "info")
    if counts:
        yield labeled("notes", *code_counts(counts.most_common()), (_LISTED, "dim"), style=STYLES["info"])


def _names(places: Sequence[Place]) -> list[str]:
    """The nodes by name; those that share one by the names of their outputs, too."""
    short = [place.short for place in places]
    often = Counter(short)
    return [name if often[name] == 1 else str(place) for name, place in zip(short, places, strict=True)]


def describe_confirmation(item: Item) -> str:
    """`` (confirmed by TensorRT)``; "" for what nobody confirms."""
    if not item.confirmed and not item.on_engine:
        return ""
    return f" (confirmed {'on the engine' if item.on_engine else 'by TensorRT'})"


def _times(group: ui.Group) -> str:
    return f" ×{len(group.items):,}" if len(group.items) > 1 else ""


def _level(group: ui.Group) -> str:
    """``(numeric)`` where a fix is not exact: the least safe of them."""
    worst = max(SAFETIES.index(item.safety) for item in group.items)
    return f"{GLUE}({SAFETIES[worst]})" if worst else ""


_PLACES = 200
"""Places that a page lists of one reason."""
_GONE = 3
"""Findings that are gone and named by their place without ``--verbose``."""


def count_accepted(suppressed: Sequence[Suppressed]) -> str:
    """``5 accepted, 12 known``; "" for none."""
    counts = Counter("known" if one.by == "baseline" else "accepted" for one in suppressed)
    return ", ".join(f"{counts[name]:,} {name}" for name in ("accepted", "known") if counts[name])


def accepted_section(suppressed: Sequence[Suppressed], vanished: Sequence[Vanished]) -> ui.Section | None:
    """Each reason to accept findings, with the findings, and the known ones that a baseline can forget."""
    groups: dict[tuple[str, str, str, str], list[Suppressed]] = {}
    for one in suppressed:
        groups.setdefault((one.by, one.reason, one.origin, one.until), []).append(one)
    blocks: list[ui.Block] = []
    for (by, reason, origin, until), same in groups.items():
        counts = Counter((one.finding.code, one.finding.name) for one in same).most_common()
        codes: list[ui.Content] = []
        for (code, name), count in counts:
            codes += [f"{'  ' if codes else ' '}{code}", ui.extra(name), f" ×{count:,}"]
        why = "" if by == "baseline" else f": {reason}{f' (until {until})' if until else ''}"
        label = ui.Chip("none", "known" if by == "baseline" else "accepted")
        blocks.append(ui.Items([[label, *codes, f"{why} ", ui.small(origin)]]))
        places = [f"{one.finding.code} {one.finding.place.short}" for one in same[:_PLACES]]
        more = [f"… and {len(same) - _PLACES:,} more"] if len(same) > _PLACES else []
        blocks.append(ui.Fold(counted(len(same), "place"), (ui.Items([*places, *more]),)))
    if vanished:
        words = f" {counted(len(vanished), 'known finding')} no longer there: "
        named = [f"{one.code} at {one.place}" for one in vanished]
        some = ", ".join(named[:_GONE]) + (f" and {len(named) - _GONE} more" if len(named) > _GONE else "")
        update = f"(update it with --write-baseline {vanished[0].origin})"
        blocks.append(ui.Items([[ui.Chip("good", "gone"), words, some, "  ", update]]))
        if len(named) > _GONE:
            blocks.append(ui.Fold("no longer there", (ui.Items(named),), brief=True))
    aside = count_accepted(suppressed) or None
    return ui.Section("accepted", "Accepted findings", blocks, aside, brief=True) if blocks else None
