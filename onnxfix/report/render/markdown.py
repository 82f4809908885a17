"""Pages as Markdown, for the summary of a CI job and for comments of pull requests.

All that comes from models is escaped, so that no name makes a link, an image, a mention or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from onnxfix.report.render import ui
from onnxfix.report.render.findings import Item, describe_item, describe_remedy
from onnxfix.report.render.issues import errors_of, issues_of
from onnxfix.report.render.report import report_page
from onnxfix.report.render.stream import printable
from onnxfix.report.render.text import outcome_parts
from onnxfix.report.render.words import counted
from onnxfix.report.report import Errors, Report
from onnxfix.report.sources import describe_source

MARK = "<!-- onnxfix -->"
"""The first line, by which a script finds its own comment again."""
LONGEST = 60_000
"""Characters; GitHub refuses longer comments (65,536) and summaries (1 MiB)."""
LEAST = 2000
"""Characters below which a part is not begun."""
SHOWN = 5
"""Places of a rule, and operators, that are named."""
_SIGNS = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}
_CHIPS = {"good": "✅", "bad": "❌", "warn": "⚠️", "note": "ℹ️", "none": "⏭️"}
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
_LINKING = re.compile(r"[@#!](?=\w)|:(?=//)|(?<=www)\.")
"""Where GitHub and GitLab begin a mention or a link. An empty comment after it prevents that; an entity does not."""


# ------------------------------------------------------------------------------------------------- several models


def render_markdown(reports: Sequence[Report], errors: Errors = (), warnings: Sequence[str] = ()) -> str:
    """A table of the models, those that fail first, then parts, as many as fit into ``LONGEST`` characters."""
    reports = sorted(reports, key=lambda report: not report.exit_code)
    count = len(reports) + len(errors)
    head = shorten(_head(reports, errors, warnings), LONGEST // 2)
    parts = [MARK, *head, *([""] if head[-1] else [])]
    room = LONGEST - sum(len(line) + 1 for line in parts)
    for number, report in enumerate(reports):
        if count > 1 and report.command == "check" and not issues_of(report) and not report.suppressed:
            continue  # the table says it all
        if room < LEAST:
            parts.append(f"… and {len(reports) - number} more models")
            break
        title = [f"### {_sign(report)} {code(report.path)}: {safe(_outcome(report))}", ""]
        part = shorten([*(title if count > 1 else []), *_model(report)], room)
        parts += part
        room -= sum(len(line) + 1 for line in part)
    return "\n".join(parts).rstrip()


def _head(reports: Sequence[Report], errors: Errors, warnings: Sequence[str]) -> Iterator[str]:
    """The outcome of the call, a table of the models where there are several, and what is no model's."""
    count = len(reports) + len(errors)
    failed = sum(bool(report.exit_code) for report in reports) + len(errors)
    sign = "❌" if failed else "✅"
    outcome = f"{failed} of {count} models fail" if failed else f"{count} models pass"
    if count == 1:
        outcome = f"{code(reports[0].path)}: {safe(_outcome(reports[0]))}" if reports else "failed"
        sign = _sign(reports[0]) if reports else sign
    yield f"## {sign} onnxfix: {outcome}"
    yield ""
    if count > 1:
        rows = [("❌", code(path), "not processed", "–") for path, _ in errors]
        for report in reports:
            fixed = str(len(report.applied)) if report.command == "apply" else "–"
            rows.append((_sign(report), code(report.path), safe(_outcome(report)), fixed))
        yield from _table(("", "model", "outcome", "#fixed"), rows)
    for one in errors_of(errors):
        yield f"- ❌ {code(one.path) + ': ' if one.path else ''}{safe(one.message)}"
    yield from (f"- ⚠️ {safe(text)}" for text in warnings)


def _sign(report: Report) -> str:
    if report.exit_code:
        return "❌"
    return "⚠️" if report.summary.proof in ("not compared", "partly") else "✅"


def _outcome(report: Report) -> str:
    return "; ".join(text for text, _ in outcome_parts(report, quiet=True))


def _model(report: Report) -> Iterator[str]:
    """The facts about a model, what makes it fail besides findings, and the sections of its page."""
    if facts := " · ".join(filter(None, _facts(report))):
        yield from (facts, "")
    others = [one for one in issues_of(report) if one.sort != "finding"]
    for one in others:
        yield f"- {_SIGNS[one.severity]} **{safe(one.code)}** {safe(one.text)}"
    if others:
        yield ""
    page = report_page(report)
    yield from _blocks(filter(None, (page.answer,)))
    yield from _sections(page.sections)


def _facts(report: Report) -> Iterator[str]:
    """The target, what was written, and what changed."""
    summary = report.summary
    yield f"target {safe(report.target)}" if report.target else ""
    if report.output and report.command == "apply":
        yield ", ".join(f"{one.kind} data {code(one.path)}" for one in report.data[:SHOWN])
    for change in (summary.compute, summary.layers):
        if change is not None and change.changed:
            yield f"{change.before} → {change.after} {safe(change.name)}"


# ------------------------------------------------------------------------------------------------------ one page


def render_page(page: ui.Page) -> str:
    """A page about one result: its outcome, and what is brief of it."""
    sign = "❌" if page.exit_code else "✅"
    subject = f"{code(page.path)} against {code(page.against)}" if page.against else code(page.path)
    lines = [f"## {sign} {subject}: {safe(page.outcome.text)}", ""]
    for paragraph in page.lead:
        lines += [_inline(paragraph.content), ""]
    lines += _sections(page.sections)
    return "\n".join(lines).rstrip()


def _sections(sections: Iterable[ui.Section]) -> Iterator[str]:
    for section in sections:
        if section.brief:
            aside = f": {section.aside}" if isinstance(section.aside, str) else ""
            lines = _blocks(section.blocks)
            yield from folded(safe(section.title + aside), lines) if section.folded else lines


def _blocks(blocks: Iterable[ui.Block]) -> Iterator[str]:
    """Lines for each block. Details, and what text cannot show, are left out."""
    for block in blocks:
        match block:
            case ui.Paragraph():
                yield from (_inline(block.content), "")
            case ui.Items():
                yield from (*(f"- {_inline(entry)}" for entry in block.entries), "")
            case ui.Facts():
                yield from (
                    *(
                        f"- {name}{':' * (name[-1:] != '?')} {_inline(content)}"
                        for name, content in block.pairs
                    ),
                    "",
                )
            case ui.Part(heading, inner):
                yield from (_inline(heading), "") if heading else ()
                yield from _blocks(inner)
            case ui.Table():
                yield from _rows(block)
            case ui.Groups():
                yield from _rules(block)
            case ui.Fold(brief=True):
                yield from folded(_inline(block.title), _blocks(block.blocks))


def _rows(it: ui.Table) -> Iterator[str]:
    """A table without checks that were not requested, and without columns that are empty, such as those of bars."""
    cells = [tuple(map(_inline, row)) for row in it.rows if ui.NOT_REQUESTED not in row]
    kept = [at for at in range(len(it.head)) if any(row[at] for row in cells)]
    yield from _table([it.head[at] for at in kept], [[row[at] for at in kept] for row in cells])


def _rules(it: ui.Groups) -> Iterator[str]:
    """A row for each rule, with its first places; notes are folded."""
    head = ("", "rule", "#n", "what", "where")
    notes = [group for group in it.groups if group.first.severity == "info" and it.noun == "finding"]
    yield from _table(head, [_rule(group) for group in it.groups if group not in notes])
    named = ", ".join(f"{safe(group.first.code)} ×{len(group.items)}" for group in notes)
    count = sum(len(group.items) for group in notes)
    yield from folded(f"{counted(count, 'note')}: {named}", _table(head, map(_rule, notes)))


def _where(item: Item) -> str:
    origin = describe_source(item.source)
    return code(item.place.short) + (f" from {code(origin)}" if origin else "")


def _rule(group: ui.Group) -> tuple[str, ...]:
    first, remedy = group.first, describe_remedy(group.first)
    places = [_where(one) for one in group.items[:SHOWN] if one.place.known]
    more = f" and {len(group.items) - SHOWN} more" if len(group.items) > SHOWN else ""
    return (
        _CHIPS[group.chip.kind],
        f"**{safe(first.code)}** {safe(first.name)}",
        str(len(group.items)),
        f"{safe(describe_item(first))}{f'<br>*{safe(remedy)}*' if remedy else ''}",
        "<br>".join(places) + more,
    )


def _inline(content: ui.Content) -> str:
    """Content in one line."""
    match content:
        case str():
            return safe(content)
        case int():
            return f"{content:,}"
        case ui.Text(text, "small" | "extra"):
            return f" ({safe(text.strip())})" if text else ""
        case ui.Text(text, "strong"):
            return f"**{safe(text)}**"
        case ui.Text(text):
            return code(text)
        case ui.Chip(kind, text):
            return f"{_CHIPS[kind]} {safe(text)}"
        case ui.Paragraph():
            return f"; {_inline(content.content)}"
        case tuple() | list():
            return "".join(map(_inline, content))
    return ""


# ---------------------------------------------------------------------------------------------------- Markdown


def safe(text: str) -> str:
    """Text outside of code, in one line, also in a cell of a table."""
    text = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _SPECIAL.sub(r"\\\1", text)
    return _LINKING.sub(r"\g<0><!-- -->", text)


def code(text: str) -> str:
    """Text as code, also in a cell of a table: the fence is longer than any run of backticks in it."""
    text = printable(text).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}" if text else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table of Markdown, with an empty line after it; nothing without rows. ``#`` heads numbers."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        yield f"| {' | '.join(name.removeprefix('#') for name in head)} |"
        yield f"|{'|'.join('---:' if name.startswith('#') else '---' for name in head)}|"
        yield from lines
        yield ""


def folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines that a reader opens by a click; nothing without lines. The title is Markdown without code."""
    body = list(lines)
    if body:
        yield f"<details><summary>{title}</summary>"
        yield ""
        yield from body
        yield "</details>"
        yield ""


def shorten(lines: Iterable[str], room: int) -> list[str]:
    """The first lines, of no more than ``room`` characters; what they leave open is closed, and a last one says so."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            opened = sum(one.startswith("<details>") for one in kept) - kept.count("</details>")
            return [*kept, "", *["</details>"] * opened, "", "… and more, which would be too long here", ""]
        kept.append(line)
    return kept
