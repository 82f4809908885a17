"""A report in a notebook's cell: the verdict, the counts, the checks, and findings by rule that fold out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxfix.report.render.accepted import accepted_words
from onnxfix.report.render.cell import badge
from onnxfix.report.render.html.markup import Content, Html, tag

if TYPE_CHECKING:
    from onnxfix.report.report import AppliedFix, Finding, Report
    from onnxfix.report.summary import Proof, Remedy, RuleCount, Summary

RULES = 20
"""Rules that are shown, of findings and of fixes."""
PLACES = 10
"""Places that are shown of one rule."""

_PROOFS: Mapping[Proof, tuple[str, str]] = {
    "verified": ("verified", "good"),
    "partly": ("verified without its unsafe fixes", "fair"),
    "unchanged": ("unchanged", "plain"),
    "not compared": ("not verified: values were not compared", "fair"),
    "failed": ("failed", "bad"),
    "unproven": ("not verified", "bad"),
}
_SEVERITIES = {"error": "bad", "warning": "fair", "info": "plain"}
_NAMES = {"error": "error", "warning": "warning", "info": "note"}
_MARKS = {"passed": "✓", "failed": "✗", "broke": "✗", "skipped": "–"}


def report_cell(report: Report) -> Html:
    """A report in some lines, without a script."""
    facts = report.summary
    return tag(
        "div",
        tag("div", tag("strong", report.path), *((" ", one) for one in _badges(report, facts))),
        _line(report.headline) if report.headline else None,
        tag("div", _facts(report, facts), style="margin:.3em 0"),
        _checks(facts),
        [_line(badge("problem", "bad"), " ", str(one)) for one in report.problems],
        [
            _line(badge("withdrawn", "bad"), f" {one.code} at {one.place}: {one.fix}: {one.reason}")
            for one in report.withdrawn
        ],
        _rules("left" if report.command == "apply" else "", facts.findings, report.findings, _finding),
        _rules("fixed", facts.fixed, report.applied, _fix),
        [_remedy(one) for one in facts.remedies],
        style="line-height:1.5",
    )


def _badges(report: Report, facts: Summary) -> Iterator[Html]:
    if facts.proof:
        yield badge(*_PROOFS[facts.proof])
    if report.command == "verify":
        return
    found = [(name, count) for name, count in facts.severities.items() if count]
    for name, count in found:
        yield badge(f"{count} {_NAMES[name]}{'s' * (count != 1)}", _SEVERITIES[name])
    accepted = accepted_words(report.suppressed)
    if accepted:
        yield badge(accepted, "plain")
    if not found and not report.problems:
        yield badge("nothing left" if report.command == "apply" else "no findings", "good")


def _facts(report: Report, facts: Summary) -> str:
    parts = [f"{len(report.applied)} fixed"] if report.command == "apply" else []
    if report.command == "apply":
        changes = (facts.compute, facts.constants, facts.layers)
        parts += [
            f"{one.name} {one.before} → {one.after}" for one in changes if one is not None and one.changed
        ]
    if report.command == "verify":
        parts += [f"against {report.output}"] if report.output else []
    elif report.output:
        parts.append(f"written: {report.output}")
    target = [f"target {report.target}"] if report.target else []
    return " · ".join((*parts, *target, f"{report.seconds:.1f} s"))


def _checks(facts: Summary) -> Content:
    if not facts.rungs:
        return None
    shown: list[Content] = []
    for rung in facts.rungs:
        mark = tag("strong", _MARKS.get(rung.status, "?"), style="white-space:nowrap")
        shown += [
            tag("span", mark, f" {rung.name}{' (in part)' if rung.part else ''}", title=rung.reason),
            " \u2002",
        ]
    wrong = [rung for rung in facts.rungs if rung.status in ("failed", "broke")]
    return [tag("div", shown), [_line(tag("strong", rung.name), f": {rung.reason}") for rung in wrong]]


def _remedy(one: Remedy) -> Html:
    counts = ((one.errors, "error"), (one.warnings, "warning"), (one.notes, "note"))
    what = ", ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count)
    return _line(f"repairs {what}: ", tag("code", one.command))


def _line(*content: Content) -> Html:
    return tag("div", *content)


def _rules(
    title: str,
    counts: Sequence[RuleCount],
    items: Sequence[Finding] | Sequence[AppliedFix],
    text: Callable[[Finding | AppliedFix], str],
) -> Iterator[Html]:
    """What folds out for each rule: places, with what is wrong there or was done."""
    for one in counts[:RULES]:
        some = [item for item in items if (item.code, item.severity) == (one.code, one.severity)]
        alike: dict[str, list[str]] = {}
        for item in some:
            alike.setdefault(text(item), []).append(item.place.short)
        shown = [_entry(what, places) for what, places in list(alike.items())[:PLACES]]
        more = sum(map(len, list(alike.values())[PLACES:]))
        shown += [tag("li", f"and {more} more")] if more else []
        kind = (
            badge("fixed", "good")
            if title == "fixed"
            else badge(_NAMES[one.severity], _SEVERITIES[one.severity])
        )
        head = tag(
            "summary", kind, " ", tag("strong", one.code), f" {one.name} ×{one.count}", style="cursor:pointer"
        )
        yield tag("details", head, tag("ul", shown, style="margin:.2em 0 .4em"))
    if len(counts) > RULES:
        yield _line(f"and {len(counts) - RULES} more rules")


def _entry(what: str, places: Sequence[str]) -> Html:
    """What is the same at several places, and the places."""
    if len(places) == 1:
        return tag("li", tag("code", places[0]), ": ", what)
    shown = [tag("li", tag("code", place)) for place in places[:PLACES]]
    if len(places) > PLACES:
        shown.append(tag("li", f"and {len(places) - PLACES} more"))
    return tag("li", what, tag("ul", shown))


def _finding(item: Finding | AppliedFix) -> str:
    fix = f" [fix: {item.fix} ({item.safety})]" if item.fix else ""
    return f"{item.message}{fix}"


def _fix(item: Finding | AppliedFix) -> str:
    return item.fix if item.safety == "exact" else f"{item.fix} ({item.safety})"
