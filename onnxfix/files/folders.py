"""Folders held open by descriptor, so that renaming or replacing them cannot redirect us.

The owner of a folder can rename and replace names in it at any moment, while onnxfix works there, perhaps as root. So a
folder is opened once, everything in it is addressed relative to that descriptor, and no symbolic link is followed.

On systems without folder descriptors (Windows), names are joined to the folder's path as usual. What is written
replaces a regular file or nothing, never a device, a pipe or a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from onnxfix.errors import OnnxfixError
from onnxfix.runtime import confinement

WHO = "another process changes files in this folder"
"""End of the message when a file is not the one that was created."""
GONE = "not written: its folder was moved, replaced or deleted meanwhile"
"""End of the message when the path of an open folder does not lead to it any more."""
PINS = {os.open, os.stat, os.unlink, os.rename, os.mkdir, os.rmdir} <= os.supports_dir_fd
"""Whether folders are held open here."""
_CLOSED = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | _CLOSED
# O_PATH: opens folders that may be searched and not listed, too.
_HOLD = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _CLOSED
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"


class Folder(contextlib.AbstractContextManager["Folder"]):
    """An open folder; use it as a context. ``path`` is the path it was opened by.

    ``exposed``: others may rename and replace the names in it.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, inside: Folder | None = None) -> None:
        self.path = path
        self.fd: int | None = None
        self._around: Folder | None = None  # of a private folder
        self._sealed: tuple[int, ...] = ()
        if not PINS:
            os.stat(path)
        elif inside is None:
            self.fd = os.open(path, _HOLD)
        else:
            self.fd = os.open(path.name, _HOLD | _NO_LINK, dir_fd=inside.fd)
        self.exposed: bool = (inside is not None and inside.exposed) or _is_exposed(self._status())

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def _status(self) -> os.stat_result:
        return os.stat(self.fd if self.fd is not None else self.path)

    def _named(self, name: str) -> str:
        return name if self.fd is not None else str(self.path / name)

    def create(self, name: str) -> int:
        """Descriptor of a new empty file for reading and writing, with access for us alone.

        Raises:
            OSError: the name exists already, or the folder is not writable.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK
        return os.open(self._named(name), flags, 0o600, dir_fd=self.fd)

    def lookup(self, name: str) -> os.stat_result | None:
        """``os.stat`` of a name without following links; None if it does not exist."""
        try:
            return os.stat(self._named(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def unlink(self, name: str) -> None:
        """Delete a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._named(name), dir_fd=self.fd)

    def move(self, name: str, to: Folder, new: str) -> None:
        """Rename, replacing a file of the new name."""
        os.replace(self._named(name), to._named(new), src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def make(self, name: str) -> None:
        """Create a folder, unless the name exists."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._named(name), dir_fd=self.fd)

    def enter(self, name: str) -> Folder:
        """Open a folder inside this one.

        Raises:
            OSError: it is missing, or a link.
        """
        return Folder(self.path / name, inside=self)

    @contextlib.contextmanager
    def private(self, name: str) -> Iterator[Folder]:
        """A new folder inside this one, with a temporary name like ``name`` and access for us alone; deleted at the end
        with its content.

        Others may rename it and put another one in its place, but its content is ours.

        Raises:
            OnnxfixError: the folder cannot be created.
        """
        made = temporary_name(name)
        folder: Folder | None = None

        def discard() -> None:
            if folder is not None and folder._around is not None:
                folder._empty()
            with contextlib.suppress(OSError):
                os.rmdir(self._named(made), dir_fd=self.fd)

        try:  # an interrupt may come after any statement
            with writing(self.path / name):
                os.mkdir(self._named(made), 0o700, dir_fd=self.fd)
                folder = self.enter(made)
                if folder._names():  # its content will be deleted
                    raise OnnxfixError(f"{folder.path}: is not the folder that was created; {WHO}")
            folder._around = self
            confinement.name(folder.path / name)
            yield folder
        finally:
            thoroughly(discard)
            if folder is not None:
                folder.close()

    def is_trusted(self) -> bool:
        """Whether only we can have created files here."""
        return not self.exposed or _is_ours(self._status())

    def reached(self) -> bool:
        """Whether its path still leads here: somebody may have moved, replaced or deleted it."""
        if self.fd is None:
            return True
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def seal(self) -> None:
        """Mark the content as complete (private folders, which others may rename)."""
        if self._around is not None and self.exposed:
            self._sealed = _identity(self._status())

    def check(self) -> None:
        """Make sure that the folder was not renamed or changed since it was sealed.

        Raises:
            OnnxfixError: it was.
        """
        if self._around is not None and self._sealed:
            there = self._around.lookup(self.path.name)
            if there is None or not self._sealed == _identity(self._status()) == _identity(there):
                raise OnnxfixError(f"{self.path}: was moved or changed; {WHO}")

    @contextlib.contextmanager
    def _listed(self) -> Iterator[int | str]:
        """The folder, open for listing."""
        if self.fd is None:
            yield str(self.path)
            return
        handle = os.open(".", os.O_RDONLY, dir_fd=self.fd)
        try:
            yield handle
        finally:
            os.close(handle)

    def sync(self) -> None:
        """Flush the folder's names to the disk, if the system can."""
        with contextlib.suppress(OSError), self._listed() as handle:
            if isinstance(handle, int):
                os.fsync(handle)

    def _names(self) -> list[str]:
        with self._listed() as handle:
            return os.listdir(handle)

    def _empty(self) -> None:
        """Delete the folder's content, also if the folder was renamed.

        Folders in it stay where not only we can enter: another user may have put here what they cannot delete
        themselves.
        """
        with contextlib.suppress(OSError):
            ours = _is_ours(self._status())
            for name in self._names():
                found = self.lookup(name)
                if found is None or not stat.S_ISDIR(found.st_mode):
                    self.unlink(name)
                elif ours:
                    shutil.rmtree(self._named(name), ignore_errors=True, dir_fd=self.fd)


def thoroughly(clean: Callable[[], None]) -> None:
    """Clean up, and again if an interrupt came meanwhile."""
    try:
        clean()
    except KeyboardInterrupt:
        clean()
        raise


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _is_ours(found: os.stat_result) -> bool:
    """Whether only we can enter the folder. Some file systems have no owners and modes."""
    if sys.platform == "win32":
        return True
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _is_exposed(found: os.stat_result) -> bool:
    """Whether others may rename and replace names in the folder."""
    if sys.platform == "win32":  # modes there say nothing of who may write
        return False
    if found.st_uid not in (0, os.geteuid()):
        return True
    others = 0o002 | (0o020 if found.st_gid != os.getegid() else 0)
    return bool(found.st_mode & others) and not found.st_mode & stat.S_ISVTX


def temporary_name(name: str) -> str:
    """An unpredictable name that begins like ``name``; all of ``name`` might be too long with the suffix."""
    letters = "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(8))
    return f".{name[:40]}.{letters}.tmp"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into an OnnxfixError about ``path``.

    Raises:
        OnnxfixError: for an OSError.
    """
    try:
        yield
    except OSError as error:
        raise OnnxfixError(f"{path}: cannot be written: {error.strerror or error}") from None


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
