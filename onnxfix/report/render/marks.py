"""Text in Markdown that stays text: no name of a model makes a link, an image, a mention or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from onnxfix.report.render.stream import printable

_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
_LINKING = re.compile(r"[@#!](?=\w)|:(?=//)|(?<=www)\.")
"""Where GitHub and GitLab begin a mention or a link. An empty comment after it prevents that; an entity does not."""


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


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, with an empty line after it; nothing without rows. A name that begins with ``>`` heads a
    column of numbers. Cells are Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        yield f"| {' | '.join(name.removeprefix('>') for name in head)} |"
        yield f"|{'|'.join('---:' if name.startswith('>') else '---' for name in head)}|"
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


def shortened(lines: Iterable[str], room: int) -> list[str]:
    """The first lines, of no more than ``room`` characters; what they leave open is closed, and a last one says so."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            opened = sum(one.startswith("<details>") for one in kept) - kept.count("</details>")
            return [*kept, "", *["</details>"] * opened, "", "… and more, which would be too long here", ""]
        kept.append(line)
    return kept
