"""Checks that writing to a path replaces a regular file or nothing, never a device, a pipe or a link."""

from __future__ import annotations

import errno
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

_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)
_MOST_LINKS = 40
"""Maximum number of symbolic links that Linux follows to one file."""


def status(path: Path) -> os.stat_result | None:
    """What is at a path, links followed; None where nothing is. ``Path.exists`` hides every error on Python 3.14.

    Raises:
        OSError: no file can be there, for instance because the name is too long.
    """
    try:
        return os.stat(path)
    except ValueError:  # a NUL in the name
        return None
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
        return None


def special(path: Path) -> str:
    """The kind of file at a path, links followed; "" for a regular file or nothing."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return "" if stat.S_ISREG(found.st_mode) else kind(found)


def kind(found: os.stat_result) -> str:
    """The kind of something that is not a regular file, as text."""
    return _KINDS.get(stat.S_IFMT(found.st_mode), "not a regular file")


def refuse_special(path: Path) -> None:
    """Check that a path is not a device, a pipe or a folder: renaming over it would remove it for all its users.

    Raises:
        OnnxfixError: it is not a regular file.
    """
    found = special(path)
    if found:
        raise OnnxfixError(f"{path}: is {found}, which must not be replaced; name a regular file")


def destination(path: Path) -> Path:
    """The file to replace in order to write to ``path``: a symbolic link stays, and its target is replaced.

    Raises:
        OnnxfixError: it is not a regular file, or the link leads in a circle, or to a folder in which its owner may
            not write.
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
    """Follow another user's link only to files that this user could replace as well.

    Raises:
        OnnxfixError: a link on the way belongs to a user who does not own the folder that it leads to.
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
    """Write into an existing pipe or device; blocks until a pipe has a reader.

    Raises:
        OnnxfixError: it cannot be written, has become a regular file, or the reader closed the pipe.
    """
    try:
        handle = os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        try:
            found = os.fstat(handle)
            if not stat.S_ISFIFO(found.st_mode) and not stat.S_ISCHR(found.st_mode):
                raise OnnxfixError(
                    f"{path}: was a pipe or a device and has been replaced by a file; nothing was written"
                )
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
        finally:
            os.close(handle)
    except OSError as error:
        raise OnnxfixError(f"{path}: cannot be written: {error.strerror or error}") from None
