"""Local paths and URLs as strings; nothing here looks at a file system.

A URL such as ``s3://bucket/model.onnx`` is remote and handled by ``fleet.remote``. ``file://`` names a local file like
any other path.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import NamedTuple

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_WILDCARD = re.compile(r"[*?\[]")
_LOCAL = ("file", "local")


class Named(NamedTuple):
    """A model that the command line names.

    ``source`` is a local path or a URL. ``inside`` is its path in an output folder, with slashes: the file name after
    the folders between the glob's root and the model.
    """

    source: str
    inside: str


def remote(path: str) -> bool:
    """Whether ``path`` is a URL of something other than a local file."""
    found = _URL.match(path)
    return found is not None and found[1].lower() not in _LOCAL


def local(path: str) -> str:
    """A local path without ``file://``; any other path as it is."""
    found = _URL.match(path)
    return path[found.end() :] if found is not None and not remote(path) else path


def name_of(source: str) -> str:
    """The last part of a path or URL."""
    return posixpath.basename(source) if remote(source) else os.path.basename(source)


def joined(folder: str, inside: str) -> str:
    """The path or URL of ``inside`` (with slashes) in a folder."""
    if remote(folder):
        return f"{folder.rstrip('/')}/{inside}"
    return os.path.join(local(folder), *inside.split("/"))


def beside(source: str, name: str) -> str:
    """The path or URL of another file in the folder of ``source``."""
    if remote(source):
        return f"{source.rpartition('/')[0]}/{name}"
    return str(Path(source).with_name(name))


def is_glob(pattern: str) -> bool:
    """Whether the pattern has a wildcard: ``*``, ``?`` or ``[``."""
    return _WILDCARD.search(pattern) is not None


def glob_root(pattern: str, separator: str) -> str:
    """The folders of a glob before the first part with a wildcard."""
    found = _WILDCARD.search(pattern)
    assert found is not None  # callers checked is_glob
    before, slash, _ = pattern[: found.start()].rpartition(separator)
    return before + slash
