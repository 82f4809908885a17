"""Renders the differences of two models, and the part of a model that ``view`` wrote, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxfix.report.findings import Box, describe_source, repository_path
from onnxfix.report.render.findings import NOUNS, STYLES, describe_remedy
from onnxfix.report.render.lines import GLUE, Line, counted, labeled, line
from onnxfix.rewrite.registry import registry
from onnxfix.verbs.difference.records import ChangeGroup, Detail, ModelChange, ModelDifference

if TYPE_CHECKING:
    from onnxfix.verbs.viewing import View

_SIGNS = {"removed": ("-", "red"), "added": ("+", "green"), "changed": ("~", "yellow")}
_CONSTANTS = ("constant", "initializer")
_LISTED = 20
"""Most changes that have a line each without ``--verbose``."""
_APART, _GROUPS, _NAMES, _OPERATORS = 4, 7, 60, 6
"""Where there are more: changes beside the nodes, groups, characters of the names in a group, and its operators."""
_HINT = "  (-v lists every change)"
_SUBJECT_WIDTH = 20
"""Maximum width of the column of subjects."""
_VALUE_LENGTH = 90
"""Maximum number of characters of a value, such as a list of numbers or a type."""


def difference_lines(
    difference: ModelDifference, *, quiet: bool = False, verbose: bool = False
) -> Iterator[Line]:
    """The two models and how much differs, then all changes. ``quiet``: the first line only."""
    yield line((f"{difference.path} → {difference.other}", "bold"), f"  {outcome(difference)}", hang=2)
    if not quiet:
        yield from change_lines(difference, verbose)


def outcome(difference: ModelDifference) -> str:
    """How many nodes are removed, added and changed, and how many other parts differ."""
    if not difference.changes:
        return "no difference"
    counts = (difference.removed, "removed"), (difference.added, "added"), (difference.changed, "changed")
    nodes = [f"{count:,} {what}" for count, what in counts if count]
    others = Counter(
        change.subject
        for change in difference.changes
        if change.subject not in ("node", "model", *_CONSTANTS)
    )
    constants = sum(change.subject in _CONSTANTS for change in difference.changes)
    parts = [f"nodes: {', '.join(nodes)}" if nodes else ""]
    parts += [counted(count, subject) for subject, count in others.items()]
    parts.append(counted(constants, "constant") if constants else "")
    return "; ".join(filter(None, parts)) or "beside the graph"


def change_lines(difference: ModelDifference, verbose: bool) -> Iterator[Line]:
    """A line for each change, in the order of the models. Without ``verbose``, many are grouped by their cause, and
    constants are only counted: their readers show them."""
    shown = [change for change in difference.changes if verbose or _is_shown(change)]
    if verbose or len(shown) <= _LISTED:
        yield from _list(shown)
    else:
        grouped = {number for group in difference.groups for number in group.changes}
        apart = [change for number, change in enumerate(difference.changes) if number not in grouped]
        yield from _list(apart[:_APART])
        if len(apart) > _APART:
            yield line(f"  … and {len(apart) - _APART:,} more beside the nodes{_HINT}", style="dim")
        yield from _group_lines(difference)
    hidden = Counter[str](
        change.sign for change in difference.changes if not verbose and not _is_shown(change)
    )
    if hidden:
        counts = ", ".join(f"{hidden[sign]:,} {sign}" for sign in _SIGNS if hidden[sign])
        yield labeled("constants", counts, ("  (-v lists them)", "dim"), style="")


def _group_lines(difference: ModelDifference) -> Iterator[Line]:
    """The largest groups: the rule or how often it happened, the operators, and some of the places."""
    groups = []
    for group in difference.groups:
        if some := [one for one in map(difference.changes.__getitem__, group.changes) if _is_shown(one)]:
            groups.append((group, some))
    for group, some in groups[:_GROUPS]:
        yield line("  ", *_cause(group, len(some)), hang=6)
        places = [difference.changes[number] for number in group.examples]
        names = [change.place.short for change in places]
        detail = next((f" ({_detail(one, places[0])})" for one in places[0].details), "")
        fitting = [name for at, name in enumerate(names) if not at or len("".join(names[: at + 1])) <= _NAMES]
        yield line("    at ", (f"{fitting[0]}{detail}{', '.join(['', *fitting[1:]])}", "cyan"), hang=7)
    if rest := groups[_GROUPS:]:
        count = counted(sum(len(some) for _, some in rest), "change")
        yield line(f"  … and {counted(len(rest), 'more group')} of {count}{_HINT}", style="dim")


def _is_shown(change: ModelChange) -> bool:
    return change.subject not in _CONSTANTS or change.sign == "changed"


def _cause(group: ChangeGroup, shown: int) -> Iterator[str | tuple[str, str]]:
    """The rule, or how often it happened; then the operators."""
    times = 1
    if group.rule:
        name = next((rule.name for rule in registry().rules if rule.code == group.rule), "")
        yield group.rule, "bold cyan"
        yield f" {name}: "
    elif group.times > 1 and (group.removed or group.added):
        times = group.times
        yield f"{times:,} times: ", "bold"
    removed, added, changed = (
        _operators(some, times) for some in (group.removed, group.added, group.changed)
    )
    words = [f"{removed or 'nothing'} → {added or 'nothing'}"] if removed or added else []
    words += [f"{changed} changed"] if changed else []
    yield "; ".join(words) or counted(shown, "constant")


def _operators(counts: Mapping[str, int], times: int) -> str:
    """How many of each operator, at one of ``times`` places."""
    named = [f"{count // times:,} {name}" for name, count in [*counts.items()][:_OPERATORS]]
    return ", ".join(named) + f" and {len(counts) - _OPERATORS} more" * (len(counts) > _OPERATORS)


def _list(changes: Sequence[ModelChange]) -> Iterator[Line]:
    width = min(max((len(_subject(change)) for change in changes), default=0), _SUBJECT_WIDTH)
    for change in changes:
        sign, style = _SIGNS[change.sign]
        yield line("  ", (f"{sign} {_subject(change):<{width}}", style), *_details(change), hang=6)


def _subject(change: ModelChange) -> str:
    return change.place.op_type if change.subject == "node" else change.subject


def _details(change: ModelChange) -> Iterator[str | tuple[str, str]]:
    if change.place.known:
        yield f"  {change.place.short}"
        if (source := change.place.source) is not None and source.file:
            frames = (replace(source, file=repository_path(source.file)), source.library)
            yield f"  from {' → '.join(frame.where for frame in frames if frame is not None)}", "dim"
    details = [_detail(detail, change) for detail in change.details]
    if details:
        yield (f"  {'; '.join(details)}", "")
    if change.rules:
        yield (f"  {','.join(change.rules)}", "cyan")


def _detail(detail: Detail, change: ModelChange) -> str:
    before, after = (_cut(text.replace(" ", GLUE)) for text in (detail.before, detail.after))
    label = "" if detail.name in ("value", "operator", "version", "type", "body") else f"{detail.name}: "
    if change.sign != "changed":
        return f"{label}{before or after}"
    return f"{label}{before or 'none'} → {after or 'none'}"


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]}…"


PLACES = 5
"""Maximum number of other places that are listed as text."""


def view_lines(view: View, **_: bool) -> Iterator[Line]:
    """The node or nodes with attributes, values and findings, what is around, the written file, and other places of the
    same rule."""
    written = f" → {view.output}" if view.output else ""
    yield line((view.path, "bold"), f"  {counted(view.nodes, 'node')}{written}", hang=2)
    boxes, wires = view.around.boxes, view.around.wires
    for number, box in enumerate(boxes):
        if not box.focus:
            continue
        yield labeled("node", (box.title, "bold"), "  ", (box.name, "cyan"), style="")
        yield from (labeled("", text) for text in box.lines)
        for label, other in (("reads", "source"), ("writes", "target")):
            end = "target" if other == "source" else "source"
            values: dict[str, list[str]] = {}
            for wire in wires:
                if getattr(wire, end) == number:
                    values.setdefault(f"{wire.value}  {wire.label}", []).append(
                        _box_text(boxes[getattr(wire, other)])
                    )
            for value, ends in values.items():
                yield labeled(
                    label,
                    value,
                    (f"  {'from' if label == 'reads' else 'to'} {', '.join(ends)}", "dim"),
                    style="",
                )
    if view.place.source is not None and (origin := describe_source(view.place.source)):
        yield labeled("from", origin, style="")
    for finding in view.findings:
        remedy = describe_remedy(finding)
        title = f" {finding.name}: {finding.message}{f' [{remedy}]' if remedy else ''}"
        yield labeled(NOUNS[finding.severity], (finding.code, "bold"), title, style=STYLES[finding.severity])
    near = [box for box in boxes if box.kind == "node" and not box.focus]
    for at, box in enumerate(near):
        lines = f"  {', '.join(box.lines)}" if box.lines else ""
        yield labeled("" if at else "around", _box_text(box), (lines, "dim"), style="")
    for place in view.others[:PLACES]:
        yield labeled("--place", place.short, style="")
    if len(view.others) > PLACES:
        yield labeled("", f"and {len(view.others) - PLACES:,} more (onnxfix check lists them)")
    if view.complaint:
        yield labeled("checker", view.complaint, style="yellow")


def _box_text(box: Box) -> str:
    return f"{box.title} {box.name}" if box.kind == "node" else f"{box.kind} {box.title}"
