"""Markdown of what was measured, and the READMEs that hold it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(_number(value) for value in row) + " |"


Block = str | Iterable[str]
"""A line, or several."""


def spaced(*blocks: Block) -> Iterator[str]:
    """Blocks with an empty line between them; those that hold nothing are left out."""
    every = ([block] if isinstance(block, str) else list(block) for block in blocks)
    for number, lines in enumerate(filter(None, every)):
        yield from ("",) * (number > 0)
        yield from lines


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def cell(text: str) -> str:
    """Text that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def such_as(names: Sequence[str], count: int) -> str:
    """The first names."""
    return ", ".join(f"`{name}`" for name in names[:count]) + (", …" if len(names) > count else "")


def show(lines: Iterable[str], folder: Path, name: str, *, write: bool) -> None:
    """Print lines; ``write``: put them between the markers of that name in the folder's README.md, too."""
    text = "\n".join(lines)
    print(text)
    if write:
        write_between(folder / "README.md", name, text)


def blame(faults: Sequence[str], what: str = "faults") -> int:
    """Tell what is wrong: the exit code."""
    print("\n".join(["", f"{len(faults)} {what}", *faults]), file=sys.stderr)
    return int(bool(faults))


def write_between(path: Path, name: str, text: str) -> None:
    """Replace what lies between the markers of that name.

    Raises:
        ValueError: the markers are not there.
    """
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    old = path.read_text(encoding="utf-8")
    head, found, rest = old.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path}: has no markers {begin.strip()} and {end}")
    path.write_text(f"{head}{begin}\n{text.strip()}\n\n{end}{tail}", encoding="utf-8")
