"""Folders that are held open, so that nobody who moves or replaces their names leads us elsewhere.

Whoever owns a folder may do anything to the names in it at any moment, while onnxfix, perhaps as root, works there. So
a folder is opened once, everything in it is addressed relative to that descriptor, and no symbolic link is followed.

Where the system cannot hold folders open (Windows), names are joined to the folder's path as usual.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from onnxfix.errors import OnnxfixError

PINS = {os.open, os.stat, os.unlink, os.rename, os.mkdir, os.rmdir, os.link} <= os.supports_dir_fd
"""Whether folders are held open here."""
PRIVATE = 0o700
_LINKS_LINKS = os.link in os.supports_follow_symlinks
_CLOSED = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | _CLOSED
# O_PATH: for a folder that may be searched and not be listed, opening it is enough.
_HOLD = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | _CLOSED
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"


class Folder:
    """A folder, open until it is closed. Use it as a context. ``path`` is what it was called.

    ``exposed``: somebody else may rename and replace what is in it. ``ours``: it was made by us, for nobody else.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, inside: Folder | None = None) -> None:
        self.path = path
        self.fd: int | None = None
        self.ours = False
        self._around: Folder | None = None
        self._sealed: tuple[int, ...] = ()
        if not PINS:
            os.stat(path)
        elif inside is None:
            self.fd = os.open(path, _HOLD)
        else:
            self.fd = os.open(path.name, _HOLD | _NO_LINK, dir_fd=inside.fd)
        self.exposed: bool = (inside is not None and inside.exposed) or _exposed(self.status())

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def status(self) -> os.stat_result:
        """What the system says of the folder itself."""
        return os.stat(self.fd if self.fd is not None else self.path)

    def _named(self, name: str) -> str:
        return name if self.fd is not None else str(self.path / name)

    def create(self, name: str, *, append: bool = False) -> int:
        """Descriptor of a new empty file that nobody else may open, for reading and writing.

        Raises:
            OSError: something has that name already, or the folder takes no files.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | (os.O_APPEND if append else 0)
        return os.open(self._named(name), flags, 0o600, dir_fd=self.fd)

    def adopt(self, name: str) -> int:
        """Descriptor of a file that a child of ours made in this private folder.

        Raises:
            OSError: it is not there, or is a link.
            OnnxfixError: somebody else may have put it there.
        """
        handle = os.open(self._named(name), os.O_RDWR | _NO_LINK, dir_fd=self.fd)
        if not self.trusted():
            os.close(handle)
            raise OnnxfixError(f"{self.path / name}: is in a folder that others may write to; {WHO}")
        return handle

    def open(self, name: str) -> int:
        """Descriptor of what is there, for reading; no link is followed and no pipe waited for.

        Raises:
            OSError: nothing is there, or a link.
        """
        flags = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0)
        return os.open(self._named(name), flags, dir_fd=self.fd)

    def lookup(self, name: str) -> os.stat_result | None:
        """What the system says of a name, links not followed; None where nothing has it."""
        try:
            return os.stat(self._named(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def unlink(self, name: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._named(name), dir_fd=self.fd)

    def move(self, name: str, to: Folder, new: str) -> None:
        """Rename over whatever has the new name."""
        os.replace(self._named(name), to._named(new), src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def link(self, name: str, to: Folder, new: str) -> None:
        """A second name for a file, not for what a link leads to.

        Raises:
            OSError: the new name is taken, or the system has no hard links here.
        """
        follow = {"follow_symlinks": False} if _LINKS_LINKS else {}
        os.link(self._named(name), to._named(new), src_dir_fd=self.fd, dst_dir_fd=to.fd, **follow)

    def enter(self, name: str) -> Folder:
        """A folder in this one.

        Raises:
            OSError: there is none of that name, or it is a link to one.
        """
        return Folder(self.path / name, inside=self)

    def make(self, name: str) -> None:
        """Make a folder unless something has that name."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._named(name), dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove a folder if it is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(self._named(name), dir_fd=self.fd)

    def sync(self) -> None:
        """Have the system write the folder's names to the disk, where it can."""
        with contextlib.suppress(OSError):
            handle = os.open(self._named("."), os.O_RDONLY, dir_fd=self.fd)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    @contextlib.contextmanager
    def private(self, name: str) -> Iterator[Folder]:
        """A folder of a temporary name like ``name`` in this one, for us alone; deleted at the end with what is in it.

        Others may rename it and put another one in its place, but what lies in it is ours.

        Raises:
            OnnxfixError: the folder cannot be made.
        """
        made = temporary_name(name)
        folder: Folder | None = None

        def discard() -> None:
            if folder is not None and folder._around is not None:
                folder.empty()
            self.remove(made)

        try:  # an interrupt may come behind any statement
            with writing(self.path / name):
                os.mkdir(self._named(made), PRIVATE, dir_fd=self.fd)
                folder = self.enter(made)
                if folder.names():  # all that is in it will be deleted
                    raise OnnxfixError(f"{folder.path}: is not the folder that was made; {WHO}")
            folder.ours, folder._around = _ours(folder.status()), self
            yield folder
        finally:
            thoroughly(discard)
            if folder is not None:
                folder.close()

    def trusted(self) -> bool:
        """Whether nobody but us has put something here."""
        return not self.exposed or _ours(self.status())

    def seal(self) -> None:
        """What is in this folder is complete; for a private one, whose name others may give to another one."""
        if self._around is not None and self.exposed:
            self._sealed = _identity(self.status())

    def check(self) -> None:
        """Make sure that the folder has had its name ever since it was sealed.

        Raises:
            OnnxfixError: it has not, or somebody has changed it.
        """
        if self._around is not None and self._sealed:
            there = self._around.lookup(self.path.name)
            if there is None or not self._sealed == _identity(self.status()) == _identity(there):
                raise OnnxfixError(f"{self.path}: was moved or changed; {WHO}")

    def names(self) -> list[str]:
        """What is in the folder."""
        if self.fd is None:
            return os.listdir(self.path)
        handle = os.open(".", os.O_RDONLY, dir_fd=self.fd)
        try:
            return os.listdir(handle)
        finally:
            os.close(handle)

    def empty(self) -> None:
        """Delete what is in the folder, whatever it is called by now."""
        if self.fd is None:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        with contextlib.suppress(OSError):
            for name in self.names():
                found = self.lookup(name)
                if found is not None and stat.S_ISDIR(found.st_mode):
                    if not self.ours:
                        continue  # what others put here may be what they cannot delete themselves
                    with self.enter(name) as inner:
                        inner.ours = True
                        inner.empty()
                    self.remove(name)
                else:
                    self.unlink(name)


def thoroughly(clean: Callable[[], None]) -> None:
    """Clean up, and once more where an interrupt came meanwhile: nobody else would."""
    try:
        clean()
    except KeyboardInterrupt:
        clean()
        raise


WHO = "somebody else changes files in this folder"
"""The end of an error about files that are not what we made."""


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _ours(found: os.stat_result) -> bool:
    """Whether nobody else can enter the folder. Some file systems know no owners and modes."""
    if not hasattr(os, "geteuid"):
        return True
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _exposed(found: os.stat_result) -> bool:
    """Whether others may rename and replace what is in the folder."""
    if not hasattr(os, "geteuid"):
        return False
    if found.st_uid not in (0, os.geteuid()):
        return True
    others = 0o002 | (0o020 if found.st_gid != os.getegid() else 0)
    return bool(found.st_mode & others) and not found.st_mode & stat.S_ISVTX


def temporary_name(name: str) -> str:
    """A name that nobody guesses, with a beginning of ``name`` for people: the whole may be too long with a suffix."""
    letters = "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(8))
    return f".{name[:40]}.{letters}.tmp"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses, as an error of ours about ``path``.

    Raises:
        OnnxfixError: for an OSError.
    """
    try:
        yield
    except OSError as error:
        raise OnnxfixError(f"{path}: cannot be written: {error.strerror or error}") from None
