"""Reports as Markdown, for the summary of a CI job and for comments of pull requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onnxfix.report.render.accepted import accepted_words
from onnxfix.report.render.issues import Issue, errors_of, issues_of
from onnxfix.report.render.marks import code, folded, safe, shortened, table
from onnxfix.report.render.numbers import counted
from onnxfix.report.render.proof import left_out_words, status_words
from onnxfix.report.report import FailOn, Report
from onnxfix.report.summary import RungFact

MARK = "<!-- onnxfix -->"
"""The first line, by which a script finds its own comment again."""
LONGEST = 60_000
"""Characters; GitHub refuses longer comments (65,536) and summaries (1 MiB)."""
LEAST = 2000
"""Characters below which a part is not begun."""
SHOWN = 5
"""Places of a rule, and operators, that are named."""
_SIGNS = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}
_RESULTS = {"passed": "✅", "failed": "❌", "broke": "❌", "skipped": "⏭️"}


def render_markdown(
    reports: Sequence[Report],
    errors: Sequence[tuple[str, str]] = (),
    warnings: Sequence[str] = (),
    fail_on: FailOn = "",
) -> str:
    """A table of the models, those that fail first, then a part for each, as many as fit into ``LONGEST`` characters.

    All that comes from models is escaped, so that no name makes a link, an image, a mention or HTML.
    """
    reports = sorted(reports, key=lambda report: not report.exit_code_for(fail_on))
    issues = [issues_of(report) for report in reports]
    count = len(reports) + len(errors)
    failed = sum(bool(report.exit_code_for(fail_on)) for report in reports) + len(errors)
    outcome = f"onnxfix: {f'{failed} of {count} models fail' if failed else f'{count} models pass'}"
    if count == 1:
        outcome = (
            f"onnxfix: {code(reports[0].path)}: {safe(_outcome(reports[0]))}"
            if reports
            else "onnxfix: failed"
        )
    sign = _sign(reports[0], fail_on) if count == len(reports) == 1 else "❌" if failed else "✅"
    head = [f"## {sign} {outcome}", ""]
    if count > 1:
        head += table(
            ("", "model", "outcome", ">fixed"),
            [
                *(("❌", code(path), "not processed", "–") for path, _ in errors),
                *(_row(report, fail_on) for report in reports),
            ],
        )
    for one in errors_of(errors):
        head.append(f"- ❌ {code(one.path) + ': ' if one.path else ''}{safe(one.message)}")
    head += [f"- ⚠️ {safe(text)}" for text in warnings]
    parts = [MARK, *shortened(head, LONGEST // 2), ""]
    room = LONGEST - sum(len(line) + 1 for line in parts)
    for number, (report, found) in enumerate(zip(reports, issues, strict=True)):
        if count > 1 and report.command == "check" and not found and not report.suppressed:
            continue  # the table says it all
        title = [f"### {_sign(report, fail_on)} {code(report.path)}: {safe(_outcome(report))}", ""]
        if room < LEAST:
            parts.append(f"… and {len(reports) - number} more models")
            break
        part = shortened([*(title if count > 1 else []), *_model(report, found)], room)
        parts += part
        room -= sum(len(line) + 1 for line in part)
    return "\n".join(parts).rstrip()


def _row(report: Report, fail_on: FailOn) -> tuple[str, ...]:
    fixed = str(len(report.applied)) if report.command == "apply" else "–"
    return _sign(report, fail_on), code(report.path), safe(_outcome(report)), fixed


def _sign(report: Report, fail_on: FailOn) -> str:
    if report.exit_code_for(fail_on):
        return "❌"
    return "⚠️" if report.summary.proof in ("not compared", "partly") else "✅"


def _outcome(report: Report) -> str:
    """The worst first: what failed, what TensorRT thinks of it where that is news, what is left."""
    summary = report.summary
    words = {"error": "error", "warning": "warning", "info": "note"}
    left = ", ".join(counted(number, words[name]) for name, number in summary.severities.items() if number)
    found = "" if report.command == "verify" else left or "nothing found" * (report.command == "check")
    proof = status_words(report)[0]
    bad = summary.proof in ("failed", "unproven", "not compared", "partly")
    parts = (proof, report.headline, found) if bad else (report.headline, found, proof)
    return "; ".join(part for part in parts if part) or "checked"


def _model(report: Report, issues: Sequence[Issue]) -> Iterator[str]:
    facts = list(_facts(report))
    if facts:
        yield " · ".join(facts)
        yield ""
    for one in issues:
        if one.sort != "finding":
            yield f"- {_SIGNS[one.severity]} **{safe(one.code)}** {safe(one.text)}"
    if any(one.sort != "finding" for one in issues):
        yield ""
    grave = [one for one in issues if one.sort == "finding" and one.severity != "info"]
    yield from _rules(grave)
    notes = [one for one in issues if one.sort == "finding" and one.severity == "info"]
    counts = Counter(one.code for one in notes)
    named = ", ".join(f"{safe(name)} ×{number}" for name, number in counts.most_common())
    yield from folded(f"{counted(len(notes), 'note')}: {named}", _rules(notes))
    yield from folded(accepted_words(report.suppressed), _accepted(report))
    for remedy in report.summary.remedies:
        fixes = {"error": remedy.errors, "warning": remedy.warnings, "note": remedy.notes}
        what = ", ".join(counted(number, name) for name, number in fixes.items() if number)
        yield f"Fixes {what}: {code(remedy.command)}"
        yield ""
    fixed = [(safe(f"{one.code} {one.name}"), str(one.count), one.safety) for one in report.summary.fixed]
    yield from folded(f"{len(report.applied)} fixed", table(("rule", ">fixed", "safety"), fixed))
    yield from folded("Verification", table(("check", "", ""), map(_rung, report.summary.rungs)))


def _accepted(report: Report) -> Iterator[str]:
    """What a configuration or a baseline accepts, with the reasons."""
    groups: Counter[tuple[str, str, str, str]] = Counter()
    for one in report.suppressed:
        groups[one.finding.code, one.finding.name, one.reason, one.until] += 1
    rows = [
        (safe(f"{name} {title}"), str(number), safe(f"{reason} (until {until})" if until else reason))
        for (name, title, reason, until), number in groups.items()
    ]
    yield from table(("rule", ">n", "reason"), rows)


def _facts(report: Report) -> Iterator[str]:
    """The target, what was written, and what changed."""
    summary = report.summary
    yield f"target {safe(report.target)}" if report.target else ""
    if report.output and report.command == "apply":
        yield f"written {code(report.output)}"
        yield ", ".join(f"{one.kind} data {code(one.path)}" for one in report.data[:SHOWN])
    for change in (summary.compute, summary.layers):
        if change is not None and change.changed:
            yield f"{change.before} → {change.after} {safe(change.name)}"
    changed = [one for one in summary.operators if one.changed]
    if changed:
        shown = (f"{safe(one.name)} {one.before} → {one.after}" for one in changed[:SHOWN])
        yield ", ".join(shown) + ", …" * (len(changed) > SHOWN)


def _rules(issues: Sequence[Issue]) -> Iterator[str]:
    """A row for each rule, with its first places."""
    groups: dict[tuple[str, str, str], list[Issue]] = {}
    for one in issues:
        groups.setdefault((one.severity, one.code, one.name), []).append(one)
    rows = []
    for (severity, name, title), group in groups.items():
        places = [code(one.place.short) for one in group[:SHOWN] if one.place.known]
        more = f" and {len(group) - SHOWN} more" if len(group) > SHOWN else ""
        remedy = f"<br>*{safe(group[0].remedy)}*" if group[0].remedy else ""
        rows.append(
            (
                _SIGNS[severity],
                f"**{safe(name)}** {safe(title)}",
                str(len(group)),
                f"{safe(group[0].message)}{remedy}",
                "<br>".join(places) + more,
            )
        )
    yield from table(("", "rule", ">n", "what", "where"), rows)


def _rung(rung: RungFact) -> tuple[str, str, str]:
    left_out = left_out_words(rung)
    reason = f"{rung.reason}; left out: {left_out}" if left_out else rung.reason
    return code(rung.name), f"{_RESULTS[rung.status]} {rung.status}", safe(reason)
