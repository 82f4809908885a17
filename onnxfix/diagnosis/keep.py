"""``keep_fp32.txt``: the nodes that stay in float32, as ModelOpt's AutoCast and ``onnxfix precision --keep`` take them.

One regular expression a line, which matches the name of one node. AutoCast matches from the beginning of a name only
(``re.match``), so the plain name ``/Add`` would keep ``/Add_1`` as well: each line ends with ``$``. The file has no
comments and no spaces: ``--nodes_to_exclude $(cat keep_fp32.txt)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPECIAL = re.compile(r"[.^$*+?{}\[\]\\|()#\s]")


def keep_line(name: str) -> str:
    """The expression that matches this name, and no other."""
    return _SPECIAL.sub(_escaped, name) + "$"


def keep_text(names: Iterable[str]) -> str:
    """The text of the file: each name once, in their order."""
    return "".join(f"{keep_line(name)}\n" for name in dict.fromkeys(names) if name)


class Kept:
    """Which nodes a file keeps: ``name in Kept(text)``. Lines are names, or expressions that match a whole name; empty
    ones and those that begin with ``#`` are skipped.

    Raises:
        ValueError: a line is neither; the message names it.
    """

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self.lines = tuple(line for line in lines if line and not line.startswith("#"))
        self._names = frozenset(self.lines)
        self._patterns = []
        for line in self.lines:
            try:
                self._patterns.append(re.compile(line))
            except re.error as error:
                if re.search(r"[$^*]|\\", line):
                    raise ValueError(f"{line!r} is not a regular expression: {error}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._names or any(one.fullmatch(name) for one in self._patterns)


def _escaped(match: re.Match[str]) -> str:
    sign = match[0]
    return f"\\x{ord(sign):02x}" if sign.isspace() and ord(sign) < 256 else f"\\{sign}"
