"""What writing to a path replaces: a regular file or nothing, never a device, a pipe or a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from onnxfix.errors import OnnxfixError

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def special(path: Path) -> str:
    """What stands there (or where a link leads) in words if it is no regular file; "" for one, and for nothing."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except (OSError, ValueError):
        return ""
    return "" if kind == stat.S_IFREG else _KINDS.get(kind, "no regular file")


def refuse_special(path: Path) -> None:
    """Renaming over a device or a pipe would take it away from all who use it.

    Raises:
        OnnxfixError: something stands there that is no regular file.
    """
    found = special(path)
    if found:
        raise OnnxfixError(f"{path}: is {found}, which no file may replace; name a regular file")


def destination(path: Path) -> Path:
    """The file to replace in order to write to ``path``: what a symbolic link leads to, so that it stays a link.

    Raises:
        OnnxfixError: something stands there that is no regular file, or the link leads nowhere.
    """
    refuse_special(path)
    if not os.path.islink(path):
        return path
    real = Path(os.path.realpath(path))
    if os.path.islink(real):
        raise OnnxfixError(f"{path}: is a symbolic link that leads in a circle; name a regular file")
    return real


def pour(data: bytes, path: Path) -> None:
    """Write into a pipe or a device as it stands; a pipe waits for its reader.

    Raises:
        OnnxfixError: it takes nothing, or its reader went away.
    """
    try:
        with path.open("wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
    except OSError as error:
        raise OnnxfixError(f"{path}: cannot be written: {error.strerror or error}") from None
