"""The section of one model: the outcome first, then what is left, what was fixed, and how that was checked."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.report.findings import Suppressed
from onnxfix.report.render.accepted import accepted_words
from onnxfix.report.render.html.changes import operator_section
from onnxfix.report.render.html.environment import environment_section
from onnxfix.report.render.html.findings import finding_section, fix_section, withdrawn_section
from onnxfix.report.render.html.markup import Content, Html, tag
from onnxfix.report.render.html.outputs import output_section
from onnxfix.report.render.html.parts import arrow, chip, many, row, section, table
from onnxfix.report.render.html.rungs import rung_section
from onnxfix.report.render.html.tensorrt import tensorrt_section
from onnxfix.report.render.html.verdict import Words, not_run, outcome
from onnxfix.report.render.proof import tensorrt_line
from onnxfix.report.report import FailOn, Report, StepDone
from onnxfix.report.summary import Summary


def model_section(report: Report, summary: Summary, number: int, severity: FailOn, *, alone: bool) -> Html:
    """Everything about one model; of several, folded up."""
    ident, words = f"m{number}", outcome(report, summary, severity)
    parts: list[Content] = [
        _hero(report, summary, words, severity),
        _problems(report),
        finding_section(report, summary, f"{ident}-findings"),
        accepted_section(report, f"{ident}-accepted"),
        withdrawn_section(report.withdrawn, f"{ident}-withdrawn"),
        fix_section(report, f"{ident}-fixed"),
        rung_section(report, summary, f"{ident}-checks"),
        operator_section(report, summary, f"{ident}-operators"),
        _steps(report.steps, f"{ident}-steps"),
        output_section(report, f"{ident}-outputs"),
        tensorrt_section(report, f"{ident}-tensorrt"),
        _notes(report, f"{ident}-notes"),
        environment_section(report, f"{ident}-environment"),
    ]
    if alone:
        return tag("article", tag("h1", _title(report)), parts, id=ident, class_="model")
    head = tag("summary", tag("h1", _title(report)), chip(words.kind, words.title))
    return tag("article", tag("details", head, parts, class_="several"), id=ident, class_="model")


def _title(report: Report) -> Content:
    if report.command == "verify" and report.output:
        return [report.path, tag("small", " against "), report.output]
    return report.path


def _hero(report: Report, summary: Summary, words: Words, severity: FailOn) -> Html:
    """The outcome, its proof, and the figures that people look for."""
    waiting, judge = not_run(summary), summary.tensorrt
    code = report.exit_code_for(severity)
    tiles = tag("ul", list(_tiles(report, summary)), class_="tiles")
    return tag(
        "div",
        tag(
            "p",
            chip(words.kind, words.title),
            tag("span", f"exit code {code}", class_="muted"),
            class_="outcome",
        ),
        tag("p", report.headline, class_="headline") if report.headline else None,
        tag("p", words.proof, class_="proof") if words.proof else None,
        tag("p", " ".join(tensorrt_line(judge).plain.split()), class_="proof") if judge else None,
        tag("p", f"Not run: {waiting}.", class_="muted") if waiting else None,
        tiles,
        class_=f"card hero {words.kind}",
    )


def _tiles(report: Report, summary: Summary) -> Iterator[Html]:
    if report.command != "verify":
        for name, noun, kind in (
            ("error", "errors", "bad"),
            ("warning", "warnings", "warn"),
            ("info", "notes", "note"),
        ):
            count = summary.severities[name]
            yield _tile(f"{count:,}", noun if count != 1 else noun[:-1], kind if count else "none")
    if report.command == "apply":
        yield _tile(f"{len(report.applied):,}", "fixed", "good" if report.applied else "none")
    for change in (summary.compute, summary.layers):
        if change is not None:
            value = (
                arrow(f"{change.before:,}", f"{change.after:,}") if change.changed else f"{change.after:,}"
            )
            yield _tile(value, change.name, "plain")
    if report.builds and summary.layers is None:
        yield _tile(report.builds[-1].status, "by TensorRT", "bad")


def _tile(value: Content, name: str, kind: str) -> Html:
    return tag("li", tag("b", value), tag("span", name), class_=f"tile {kind}")


def _problems(report: Report) -> Content:
    entries = [
        tag(
            "li",
            str(one),
            tag("small", " a bug in onnxfix or in the rule") if one.source == "onnxfix" else None,
        )
        for one in report.problems
    ]
    if not entries:
        return None
    return tag(
        "div",
        tag("h2", many(len(entries), "problem")),
        tag("ul", entries, class_="plain"),
        class_="card hero bad",
    )


def _steps(steps: tuple[StepDone, ...], ident: str) -> Content:
    """The whole-model steps that were requested."""
    if not steps:
        return None
    entries = [
        tag(
            "li",
            chip("good" if one.status == "taken" else "bad", one.status),
            f" {one.name} ({one.tool}): {one.reason}",
            tag("small", f" {one.nodes_before:,} → {one.nodes_after:,} nodes")
            if one.status == "taken"
            else None,
        )
        for one in steps
    ]
    return section(ident, "Whole-model steps", tag("ul", entries, class_="plain"))


def _notes(report: Report, ident: str) -> Content:
    if not report.notes:
        return None
    return section(ident, "Notes", tag("ul", [tag("li", one) for one in report.notes], class_="plain"))


_PLACES = 200
"""Places that are listed of one rule and reason."""


def accepted_section(report: Report, ident: str) -> Content:
    """What does not fail the run and why, and what a baseline can forget; nothing where there is neither."""
    if not report.suppressed and not report.vanished:
        return None
    parts: list[Content] = []
    if report.suppressed:
        head = ("Rule", "#Findings", "Why", "Said by", "Where")
        parts.append(table(head, list(_rows(report.suppressed)), "Findings that do not fail the run"))
    if report.vanished:
        gone = [row(one.code, one.place, one.origin) for one in report.vanished]
        parts.append(table(("Rule", "Where", "Known by"), gone, "Known findings that are no longer there"))
    return section(ident, "Accepted findings", parts, aside=accepted_words(report.suppressed) or None)


def _rows(suppressed: tuple[Suppressed, ...]) -> Iterator[Html]:
    groups: dict[tuple[str, str, str, str], list[Suppressed]] = {}
    for one in suppressed:
        groups.setdefault((one.finding.code, one.reason, one.until, one.origin), []).append(one)
    for (code, reason, until, origin), some in groups.items():
        title = [code, tag("small", f" {some[0].finding.name}")]
        why = f"{reason} (until {until})" if until else reason
        yield row(title, len(some), why, origin, _places(some))


def _places(some: list[Suppressed]) -> Html:
    shown = [tag("li", one.finding.place.short, class_="mono") for one in some[:_PLACES]]
    more = tag("li", f"… and {len(some) - _PLACES:,} more") if len(some) > _PLACES else None
    return tag("details", tag("summary", "places"), tag("ul", shown, more, class_="plain"))
