"""Local paths and URLs as text; nothing here looks at a file system.

A URL such as ``s3://bucket/model.onnx`` is remote and handled by ``fleet.remote``. ``file://`` names a local file like
any other path.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

Record = TypeVar("Record")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_WILDCARD = re.compile(r"[*?\[]")


class Named(NamedTuple):
    """A model that the command line names.

    ``source`` is a local path or a URL. ``inside`` is its path in an output folder, with slashes: the file name after
    the folders between the glob's root and the model.
    """

    source: str
    inside: str


@dataclass(frozen=True)
class TaskFiles:
    """The local files of a task: its own. ``fleet.remote`` has a subclass for URLs.

    ``target`` is "" where nothing will be written. ``fetched`` maps each URL that was copied here to its fingerprint
    before the copy.
    """

    source: str
    target: str
    fetched: Mapping[str, str] = field(default_factory=dict)

    def as_named(self, record: Record) -> Record:
        """A string, or a record of strings, with the paths that the user named instead of those of local copies."""
        return record

    def publish(self) -> None:
        """Move the result to its final place."""


def is_remote(path: str) -> bool:
    """Whether ``path`` is a URL of something other than a local file."""
    match = _URL.match(path)
    return match is not None and match[1].lower() not in ("file", "local")


def local(path: str) -> str:
    """A local path without ``file://``; any other path as it is."""
    match = _URL.match(path)
    return path[match.end() :] if match is not None and not is_remote(path) else path


def as_reported(source: str) -> str:
    """A local path as reports write it."""
    return source if is_remote(source) else str(Path(source))


def name_of(source: str) -> str:
    """The last part of a path or URL."""
    return posixpath.basename(source) if is_remote(source) else os.path.basename(source)


def beside(source: str, name: str) -> str:
    """The path or URL of another file in the folder of ``source``."""
    if is_remote(source):
        return f"{source.rpartition('/')[0]}/{name}"
    return str(Path(source).with_name(name))


def is_glob(pattern: str) -> bool:
    """Whether the pattern has a wildcard: ``*``, ``?`` or ``[``."""
    return _WILDCARD.search(pattern) is not None


def glob_root(pattern: str, separator: str) -> str:
    """The folders of a glob before the first part with a wildcard."""
    before, slash, _ = _WILDCARD.split(pattern, maxsplit=1)[0].rpartition(separator)
    return before + slash
