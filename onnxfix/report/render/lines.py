"""Lines of styled text on standard output. rich is imported only for a terminal: its import takes longer than a check.

Names of nodes may look like rich's markup, so rich gets every line as ``Text``, which never interprets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from onnxfix.report.render.stream import output

if TYPE_CHECKING:
    from rich.console import Console


class Line(NamedTuple):
    """One line: pieces of text, each with a style as rich names it (``bold red``), or none."""

    parts: tuple[tuple[str, str], ...]

    @property
    def plain(self) -> str:
        """The text without styles."""
        return "".join(text for text, _ in self.parts)


def line(*parts: str | tuple[str, str], style: str = "") -> Line:
    """A line of texts and of ``(text, style)``; ``style`` applies to texts without their own."""
    return Line(tuple((part, style) if isinstance(part, str) else part for part in parts))


def styled() -> bool:
    """Whether standard output may show styles: a terminal, or forced by rich's environment variables."""
    return output().isatty() or bool(os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1")


def console() -> Console:
    """A console that neither wraps nor colors when its output is not a terminal; ``NO_COLOR`` is respected."""
    from rich.console import Console  # lazy: start-up

    return Console(file=cast(IO[str], output()), highlight=False, soft_wrap=True, emoji=False)


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines to standard output one by one, as they arrive."""
    if not styled():
        stream = output()
        for each in lines:
            stream.write(f"{each.plain}\n")
        return
    from rich.text import Text  # lazy: start-up

    target = console()
    for each in lines:
        target.print(Text.assemble(*each.parts))
