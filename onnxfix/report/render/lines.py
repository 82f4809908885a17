"""Lines of styled text on standard output, and numbers as people read them. rich is imported only for a
terminal: its import takes longer than a check.

Names of nodes may look like rich's markup, so rich gets every line as ``Text``, which never interprets it.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from onnxfix.report.render.stream import output, printable

if TYPE_CHECKING:
    from rich.console import Console

FEW = 3


def number(value: float | None) -> str:
    """Three significant digits; "-" for what was not measured."""
    if value is None:
        return "-"
    return f"{value:.3g}"


def bound(value: float) -> str:
    """Three significant digits, rounded up: what the value passes."""
    text = f"{value:.3g}"
    if float(text) < value:
        text = f"{value + 10.0 ** (math.floor(math.log10(value)) - 2) / 2:.3g}"
    return text


def share(value: float | None) -> str:
    """Two significant digits: errors are no more exact than that. "-" for what is not known."""
    return "-" if value is None or math.isnan(value) else f"{value:.2g}"


def cosine(value: float) -> str:
    """A cosine similarity; near 1 by what is lacking."""
    return f"1 - {1.0 - value:.2g}" if 0.999 < value < 1.0 else f"{value:.4g}"


def percent(value: float) -> str:
    """A share as a percentage. Only what is all is 100 %, and only what is none 0 %."""
    if 0.0 < value < 1.0:
        value = min(max(value, 0.001), 0.999)
    return f"{100 * value:.1f}".removesuffix(".0") + " %"


def counted(value: int, noun: str) -> str:
    """``1 node``, ``1,204 nodes``, ``2 fixes``."""
    ending = "" if value == 1 else "es" if noun.endswith("x") else "s"
    return f"{value:,} {noun}{ending}"


def size(value: int) -> str:
    """Bytes, in the decimal units of disks: ``812 bytes``, ``226 kB``, ``1.43 GB``."""
    if value < 1000:
        return counted(value, "byte")
    number, unit = float(value), ""
    for unit in ("kB", "MB", "GB", "TB"):
        number /= 1000
        if number < 999.5 or unit == "TB":
            break
    return f"{number:.3g} {unit}"


def places(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return f"{', '.join(names[:FEW])}{more}"


def seconds(value: float) -> str:
    """A duration."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


GLUE = "\udfff"
"""A space at which no line is broken: half a character, which no name can have."""
LABEL = 10
"""Columns of the labels at the beginning of lines."""
NARROWEST = 40
"""Columns below which lines are not wrapped further."""
_WORDS = re.compile(r" +|[^ ]+")


class Line(NamedTuple):
    """One line: pieces of text, each with a style as rich names it (``bold red``), or none.

    On a terminal it is wrapped between words; what follows is indented by ``hang`` columns (None: it is not wrapped).
    """

    pieces: tuple[tuple[str, str], ...]
    hang: int | None = None

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """The pieces as they are shown."""
        return tuple((text.replace(GLUE, " "), style) for text, style in self.pieces)

    @property
    def plain(self) -> str:
        """The text without styles."""
        return "".join(text for text, _ in self.parts)

    def __str__(self) -> str:
        return self.plain


def line(*parts: str | tuple[str, str], style: str = "", hang: int | None = None) -> Line:
    """A line of texts and of ``(text, style)``; ``style`` applies to texts without their own. Names of nodes may hold
    escape sequences and line breaks: here, each text is made printable."""
    pieces = ((part, style) if isinstance(part, str) else part for part in parts)
    return Line(tuple((make_printable(text), own) for text, own in pieces), hang)


def make_printable(text: str) -> str:
    """Text for a terminal; ``GLUE`` stays."""
    return GLUE.join(map(printable, text.split(GLUE))) if GLUE in text else printable(text)


def labeled(label: str, *parts: str | tuple[str, str], style: str = "bold", columns: int = LABEL) -> Line:
    """A line with a label; where it is wrapped, the rest stands below its text."""
    return line("  ", (f"{label:<{columns - 1}} ", style), *parts, hang=columns + 2)


def wrapped(one: Line, width: int | None) -> Iterator[Line]:
    """A line as lines of at most ``width`` columns (None: as it is), broken between words only: a name that is longer
    has a line of its own, which sticks out."""
    if one.hang is None or width is None or _columns(one.plain) <= width:
        yield one
        return
    width = max(width, NARROWEST)
    row: list[tuple[str, str]] = []
    used, begun, gap = 0, False, ""
    for word in _words(one.pieces):
        text = "".join(piece for piece, _ in word)
        if not text.strip(" "):
            if not begun:  # the line's own indent
                row, used = [*row, *word], used + len(text)
            gap = text
            continue
        size = _columns(text)
        space = gap if begun else ""
        # A break behind a label only would gain no room.
        if begun and used + len(space) + size > width and used + len(space) > one.hang:
            yield Line(tuple(row))
            row, used, space = [(" " * one.hang, "")], one.hang, ""
        row += [(space, ""), *word] if space else word
        used, begun, gap = used + len(space) + size, True, ""
    yield Line(tuple(row))


def _words(pieces: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """The words of a line and the spaces between them; a word may have several styles."""
    word: list[tuple[str, str]] = []
    for text, style in pieces:
        for token in _WORDS.findall(text):
            if word and " " in (token[0], word[-1][0][0]):
                yield word
                word = []
            word.append((token, style))
    if word:
        yield word


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes: East Asian characters take two."""
    if text.isascii():
        return len(text)
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


def columns() -> int | None:
    """The columns of the terminal, or those that ``COLUMNS`` names; None where standard output is neither: the lines of
    a pipe or a file are not wrapped, so that they can be searched."""
    if output().isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((80, 24)).columns
    return None


def styled() -> bool:
    """Whether standard output may show styles: a terminal, or forced by rich's environment variables."""
    return output().isatty() or bool(os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1")


def console() -> Console:
    """A console that neither wraps nor colors when its output is not a terminal; ``NO_COLOR`` is respected."""
    from rich.console import Console  # lazy: start-up

    return Console(file=cast(IO[str], output()), highlight=False, soft_wrap=True, emoji=False)


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines to standard output one by one, as they arrive."""
    width = columns()
    rows = (row for each in lines for row in wrapped(each, width))
    if not styled():
        stream = output()
        for row in rows:
            stream.write(f"{row.plain}\n")
        return
    from rich.text import Text  # lazy: start-up

    target = console()
    for row in rows:
        target.print(Text.assemble(*row.parts))
