"""``keep_fp32.txt``: the nodes that stay in float32, as ModelOpt's AutoCast and ``onnxfix precision --keep`` take them.

One regular expression a line (``pattern`` makes them), which AutoCast matches from the beginning of a node's
name. The file has no comments and no spaces: ``--nodes_to_exclude $(cat keep_fp32.txt)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPACE = re.compile(r"\\?(\s)")


def pattern(name: str, names: Sequence[str]) -> str:
    """A regular expression that matches this name, and no other one of ``names``, from its beginning on."""
    try:
        plain = re.compile(name)
    except re.error:
        plain = None
    if plain is not None and plain.match(name) and not any(plain.match(one) for one in names if one != name):
        return name
    return f"{re.escape(name)}$"


def keep_text(patterns: Iterable[str]) -> str:
    """The text of the file: each pattern once, in their order."""
    return "".join(f"{_SPACE.sub(_escaped, one)}\n" for one in dict.fromkeys(patterns) if one)


def _escaped(match: re.Match[str]) -> str:
    """A space as an expression without one."""
    return f"\\u{ord(match[1]):04x}"
