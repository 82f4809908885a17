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

_MOST_LINKS = 40
"""Symbolic links that Linux follows on the way to one file."""


def special(path: Path) -> str:
    """What stands there (or where a link leads) in words if it is no regular file; "" for one, and for nothing."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return "" if stat.S_ISREG(found.st_mode) else kind(found)


def kind(found: os.stat_result) -> str:
    """What no regular file is, in words."""
    return _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")


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
        OnnxfixError: something stands there that is no regular file, or the link leads nowhere, or to where only we
            may write and not the user whose link it is.
    """
    refuse_special(path)
    if not os.path.islink(path):
        return path
    real = Path(os.path.realpath(path))
    if os.path.islink(real):
        raise OnnxfixError(f"{path}: is a symbolic link that leads in a circle; name a regular file")
    _refuse_foreign(path, real)
    return real


def _refuse_foreign(path: Path, real: Path) -> None:
    """Another user's link may have us replace what that user could replace as well, and nothing else.

    Raises:
        OnnxfixError: a link on the way belongs to somebody who does not own the folder to which it leads.
    """
    if not hasattr(os, "geteuid"):
        return
    step = path
    for _ in range(_MOST_LINKS):
        if not os.path.islink(step) or not real.parent.is_dir():
            return
        owner = os.lstat(step).st_uid
        if owner not in (0, os.geteuid()) and owner != os.stat(real.parent).st_uid:
            raise OnnxfixError(f"{path}: is another user's symbolic link to {real}; name the file itself")
        step = step.parent / os.readlink(step)


def pour(data: bytes, path: Path) -> None:
    """Write into a pipe or a device as it stands; a pipe waits for its reader.

    Raises:
        OnnxfixError: it takes nothing, is a regular file by now, or its reader went away.
    """
    try:
        handle = os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        try:
            found = os.fstat(handle)
            if not stat.S_ISFIFO(found.st_mode) and not stat.S_ISCHR(found.st_mode):
                raise OnnxfixError(
                    f"{path}: was a pipe or a device and is another file by now; nothing was written"
                )
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
        finally:
            os.close(handle)
    except OSError as error:
        raise OnnxfixError(f"{path}: cannot be written: {error.strerror or error}") from None
