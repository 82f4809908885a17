"""``keep_fp32.txt``: the nodes that stay in float32, as ModelOpt's AutoCast and ``onnxfix precision --keep`` take them.

One regular expression a line (``advice.pattern`` makes them), which AutoCast matches from the beginning of a node's
name. The file has no comments and no spaces: ``--nodes_to_exclude $(cat keep_fp32.txt)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPACE = re.compile(r"\\?(\s)")


def keep_text(patterns: Iterable[str]) -> str:
    """The text of the file: each pattern once, in their order."""
    return "".join(f"{_SPACE.sub(_escaped, one)}\n" for one in dict.fromkeys(patterns) if one)


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
    """A space as an expression without one."""
    return f"\\u{ord(match[1]):04x}"
