"""Globs of models and of nodes."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from onnxfix import system


def model_matches(pattern: str, source: str, root: Path) -> bool:
    """Whether a glob names a model, given by its path or URL.

    Without a slash it is held against the file's name, else against the path relative to ``root``; ``*`` matches no
    slash, ``**`` any number of folders.
    """
    url = "://" in source
    path = source if url else Path(os.path.abspath(source)).as_posix()
    if "/" not in pattern:
        return fnmatchcase(posixpath.basename(path), pattern)
    if url or pattern.startswith("/"):
        return _parts_match(pattern.split("/"), path.split("/"))
    relative = Path(system.relative(path, os.path.abspath(root))).as_posix()
    return _parts_match(posixpath.normpath(pattern).split("/"), relative.split("/"))


def _parts_match(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return any(_parts_match(rest, parts[skipped:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], first) and _parts_match(rest, parts[1:])


def name_matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether a glob names a node by one of its names, in which ``*`` matches slashes too; ``*`` alone is everything.

    A name that is the pattern itself matches as well, since names may contain brackets.
    """
    return pattern == "*" or any(name and (name == pattern or fnmatchcase(name, pattern)) for name in names)
