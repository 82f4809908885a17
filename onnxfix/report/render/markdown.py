"""Pages as Markdown, for the summary of a CI job and for comments of pull requests, by the template beside this file.

All that comes from models is escaped, so that no name makes a link, an image, a mention or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from onnxfix.report.findings import describe_source
from onnxfix.report.render import ui
from onnxfix.report.render.findings import describe_item, describe_remedy
from onnxfix.report.render.issues import errors_of, issues_of
from onnxfix.report.render.lines import counted
from onnxfix.report.render.report import report_page
from onnxfix.report.render.stream import printable
from onnxfix.report.render.text import outcome_parts
from onnxfix.report.report import Errors, Report

MARK = "<!-- onnxfix -->"
"""The first line, by which a script finds its own comment again."""
LONGEST = 60_000
"""Characters; GitHub refuses longer comments (65,536) and summaries (1 MiB)."""
LEAST = 2000
"""Characters below which a part is not begun."""
SHOWN = 5
"""Places of a rule, and data files, that are named."""
_SIGNS = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}
_CHIPS = {"good": "✅", "bad": "❌", "warn": "⚠️", "note": "ℹ️", "none": "⏭️"}
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
_LINKING = re.compile(r"[@#!](?=\w)|:(?=//)|(?<=www)\.")
"""Where GitHub and GitLab begin a mention or a link. An empty comment after it prevents that; an entity does not."""


def render_markdown(reports: Sequence[Report], errors: Errors = (), warnings: Sequence[str] = ()) -> str:
    """A table of the models, those that fail first, then parts, as many as fit into ``LONGEST`` characters."""
    reports = sorted(reports, key=lambda report: not report.exit_code)
    count = len(reports) + len(errors)
    head = shorten(_lines("head", reports, errors, warnings), LONGEST // 2)
    parts = [MARK, *head, *([""] if head[-1] else [])]
    room = LONGEST - sum(len(line) + 1 for line in parts)
    for number, report in enumerate(reports):
        issues = issues_of(report)
        if count > 1 and report.command == "check" and not issues and not report.suppressed:
            continue  # the table says it all
        if room < LEAST:
            parts.append(f"… and {len(reports) - number} more models")
            break
        others = [one for one in issues if one.sort != "finding"]
        part = shorten(_lines("model", report, report_page(report), others, count > 1), room)
        parts += part
        room -= sum(len(line) + 1 for line in part)
    return "\n".join(parts).rstrip()


def render_page(page: ui.Page) -> str:
    """A page about one result: its outcome, and what is brief of it."""
    return "\n".join(_lines("single", page)).rstrip()


def _lines(macro: str, *what: object) -> list[str]:
    return str(getattr(_template(), macro)(*what)).split("\n")[:-1]


@cache
def _template() -> Any:
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    names = {
        "chips": _CHIPS,
        "severities": _SIGNS,
        "most": SHOWN,
        "safe": safe,
        "code": code,
        "inline": _inline,
    }
    environment.globals.update(names)
    environment.filters.update(
        cells=_cells,
        form=lambda block: type(block).__name__,
        issues=errors_of,
        outcome=lambda report: "; ".join(text for text, _ in outcome_parts(report, quiet=True)),
        plural=counted,
        remedy=describe_remedy,
        said=describe_item,
        sign=_sign,
        sourced=describe_source,
    )
    return environment.from_string(Path(__file__).with_name("markdown.md.j2").read_text("utf-8")).module


def _sign(report: Report) -> str:
    if report.exit_code:
        return "❌"
    return "⚠️" if report.summary.proof in ("not compared", "partly") else "✅"


def _cells(it: ui.Table) -> tuple[list[list[str]], list[str]]:
    """The rows of a table without checks that were not requested, and its head, both without empty columns."""
    cells = [tuple(map(_inline, row)) for row in it.rows if ui.NOT_REQUESTED not in row]
    kept = [at for at in range(len(it.head)) if any(row[at] for row in cells)]
    return [[row[at] for at in kept] for row in cells], [it.head[at] for at in kept]


def _inline(content: ui.Content) -> str:
    """Content in one line."""
    if isinstance(content, str):
        return safe(content)
    if isinstance(content, int):
        return f"{content:,}"
    if isinstance(content, (tuple, list)):
        return "".join(map(_inline, content))
    macro = getattr(_template(), type(content).__name__, None)
    return str(macro(content)) if macro is not None else ""


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


def shorten(lines: Sequence[str], room: int) -> list[str]:
    """The first lines, of no more than ``room`` characters; what they leave open is closed, and a last one says so."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            opened = sum(one.startswith("<details>") for one in kept) - kept.count("</details>")
            return [*kept, "", *["</details>"] * opened, "", "… and more, which would be too long here", ""]
        kept.append(line)
    return kept
