"""The lines of the user's own code that findings come from: where they are on this machine, and what is around them.

A model names the files, so only Python files of the repository are read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from onnxfix.report.findings import AppliedFix, Finding, Withdrawn
from onnxfix.source import Source

if TYPE_CHECKING:
    from onnxfix.report.report import Report

ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Where GitHub and GitLab say which folder is the repository."""
Item = TypeVar("Item", Finding, AppliedFix, Withdrawn)
_LARGEST = 4 << 20
"""Bytes of a file above which it is not read."""


class Spot(NamedTuple):
    """A line of a file: ``path`` is absolute, ``line`` counts from 1. ``around`` are numbered lines of the file."""

    path: str
    line: int
    around: tuple[tuple[int, str], ...]


def repositories() -> tuple[str, ...]:
    """The folders that may be the repository, the likeliest first: what GitHub or GitLab names, the current one."""
    return tuple(os.path.abspath(root) for root in (*map(os.environ.get, ROOTS), os.getcwd()) if root)


def repository_path(path: str) -> str:
    """A path as CI systems expect it: below the repository's folder, with slashes. Paths elsewhere become absolute, and
    URLs stay as they are."""
    if not path or "://" in path:
        return path
    absolute = Path(os.path.abspath(path))
    for root in repositories():
        if absolute.is_relative_to(root):
            return absolute.relative_to(root).as_posix()
    return absolute.as_posix()


def move_sources(report: Report, roots: Sequence[str]) -> Report:
    """The report with the files of its findings and fixes where ``--source-root`` says that they are. ``FOLDER`` is
    where the exporter saw the repository, ``FOLDER=HERE`` also names it on this machine."""
    if not roots:
        return report
    return replace(
        report,
        findings=tuple(_move(item, roots) for item in report.findings),
        applied=tuple(_move(item, roots) for item in report.applied),
        withdrawn=tuple(_move(item, roots) for item in report.withdrawn),
    )


def _move(item: Item, roots: Sequence[str]) -> Item:
    source = item.source
    for there, _, here in (root.partition("=") for root in roots if source is not None):
        prefix = there.rstrip("/") + "/"
        if source is not None and source.file.startswith(prefix):
            file = os.path.join(here, source.file.removeprefix(prefix))
            return replace(item, place=replace(item.place, source=replace(source, file=file)))
    return item


def find_spot(source: Source | None, reach: int = 4) -> Spot | None:
    """The line in the repository that a node comes from, with up to ``reach`` lines before and after it. None if the
    file is not there, or if it has changed so that the line cannot be told."""
    if source is None or not source.file.endswith(".py"):
        return None
    path = os.path.abspath(source.file)
    if not any(Path(path).is_relative_to(root) for root in repositories()):
        return None
    try:
        status = os.stat(path)
        usable = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST
        lines = _lines_of(path, status.st_mtime_ns) if usable else ()
    except (OSError, ValueError):
        return None
    line = _find(source, lines)
    if not line:
        return None
    first = max(1, line - reach)
    return Spot(path, line, tuple(enumerate(lines[first - 1 : line + reach], first)))


def _find(source: Source, lines: Sequence[str]) -> int:
    """The number of the line with the text that the exporter saw, or of the only line that has it; 0 for none."""
    if not source.code:
        return source.line if source.line <= len(lines) else 0
    code = source.code.strip()
    if any(text.strip() == code for text in lines[source.line - 1 : source.line]):
        return source.line
    same = [number for number, text in enumerate(lines, 1) if text.strip() == code]
    return same[0] if len(same) == 1 else 0


@lru_cache(256)
def _lines_of(path: str, modified: int) -> tuple[str, ...]:
    """The lines of a file as it is since it was ``modified``."""
    return tuple(Path(path).read_text("utf-8", "replace").splitlines())


def describe_source(source: Source | None) -> str:
    """File, line, method and text of the line, for people; "" where only the module is known, which the node's name
    says as well."""
    if source is None or not source.file:
        return ""
    spot = None if source.code else find_spot(source, 0)
    code = source.code if spot is None else spot.around[0][1].strip()
    return replace(source, file=repository_path(source.file), code=code).text
