"""What differs between two models, and the part of a model that ``view`` wrote; as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfix.report.render.lines import GLUE, Line, labeled, line
from onnxfix.report.render.stream import as_json
from onnxfix.report.render.words import counted
from onnxfix.report.report import plain
from onnxfix.verbs.difference.records import Detail, ModelChange, ModelDifference

if TYPE_CHECKING:
    from onnxfix.verbs.viewing import View

_SIGNS = {"removed": ("-", "red"), "added": ("+", "green"), "changed": ("~", "yellow")}
_CONSTANTS = ("constant", "initializer")
_WIDEST = 20
_LONGEST = 90
"""Characters of a value, such as a list of numbers or a type."""


def difference_json(found: ModelDifference) -> str:
    """One document: the record, and the exit code. In ASCII."""
    return as_json({"exit_code": found.exit_code, **plain(found)})


def difference_lines(found: ModelDifference, *, quiet: bool = False, verbose: bool = False) -> Iterator[Line]:
    """The two models and how much differs, then all changes. ``quiet``: the first line only."""
    yield line((f"{found.path} → {found.other}", "bold"), f"  {outcome(found)}", hang=2)
    if not quiet:
        yield from change_lines(found, verbose)


def outcome(found: ModelDifference) -> str:
    """How many nodes are removed, added and changed, and how many other parts differ."""
    if not found.changes:
        return "no difference"
    counts = (found.removed, "removed"), (found.added, "added"), (found.changed, "changed")
    nodes = [f"{count:,} {what}" for count, what in counts if count]
    others = Counter(
        one.subject for one in found.changes if one.subject not in ("node", "model", *_CONSTANTS)
    )
    constants = sum(one.subject in _CONSTANTS for one in found.changes)
    parts = [f"nodes: {', '.join(nodes)}" if nodes else ""]
    parts += [counted(count, subject) for subject, count in others.items()]
    parts.append(counted(constants, "constant") if constants else "")
    return "; ".join(filter(None, parts)) or "beside the graph"


def change_lines(found: ModelDifference, verbose: bool) -> Iterator[Line]:
    """A line for each change. Constants are counted only, without ``verbose``: the nodes that read them show them."""
    shown = [
        one for one in found.changes if verbose or one.subject not in _CONSTANTS or one.sign == "changed"
    ]
    width = min(max((len(_what(one)) for one in shown), default=0), _WIDEST)
    for one in shown:
        sign, style = _SIGNS[one.sign]
        yield line("  ", (f"{sign} {_what(one):<{width}}", style), *_rest(one), hang=6)
    total = Counter[str](one.sign for one in found.changes)
    hidden = total - Counter(one.sign for one in shown)
    if hidden:
        counts = ", ".join(f"{hidden[sign]:,} {sign}" for sign in _SIGNS if hidden[sign])
        yield labeled("constants", counts, ("  (-v lists them)", "dim"), style="")


def _what(one: ModelChange) -> str:
    return one.place.op_type if one.subject == "node" else one.subject


def _rest(one: ModelChange) -> Iterator[str | tuple[str, str]]:
    if one.place.known:
        yield f"  {one.place.short}"
    told = [_detail(detail, one) for detail in one.details]
    if told:
        yield (f"  {'; '.join(told)}", "")
    if one.rules:
        yield (f"  {','.join(one.rules)}", "cyan")


def _detail(detail: Detail, one: ModelChange) -> str:
    before, after = (_cut(text.replace(" ", GLUE)) for text in (detail.before, detail.after))
    label = "" if detail.name in ("value", "operator", "version", "type", "body") else f"{detail.name}: "
    if one.sign != "changed":
        return f"{label}{before or after}"
    return f"{label}{before or 'none'} → {after or 'none'}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


# ------------------------------------------------------------------------------------------------------------- view

PLACES = 5
"""Places of other findings that are listed as text."""


def view_json(found: View) -> str:
    """One document: the record. In ASCII."""
    return as_json(plain(found))


def view_lines(found: View) -> Iterator[Line]:
    """What was written, the finding if it is about one, and where the rule finds more."""
    yield line(
        (found.path, "bold"),
        f"  {counted(found.nodes, 'node')} → {found.output}",
        hang=2,
    )
    finding = found.finding
    if finding is not None:
        yield labeled("finding", (finding.code, "bold"), f" {finding.name}", style="")
        place, message = finding.place.short, finding.message
        yield line("    ", (f"{place}:", "cyan"), f" {message}", hang=6)
    for other in found.others[:PLACES]:
        yield labeled("--place", other.short, style="")
    if len(found.others) > PLACES:
        yield labeled("", f"and {len(found.others) - PLACES:,} more (onnxfix check lists them)")
    if found.complaint:
        yield labeled("checker", found.complaint, style="yellow")
