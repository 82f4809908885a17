"""New files under temporary names, held open until they are installed, and checks that they were not replaced."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnxfix import confinement
from onnxfix.errors import OnnxfixError
from onnxfix.files import regular
from onnxfix.files.folders import WHO, Folder, temporary_name, thoroughly, writing

Stamp = tuple[int, ...]
PLAIN = 0o666
"""Maximum mode of a new file."""
TICK = 0.012
"""Seconds after which a change gets another time: the clock that a system stamps files with ticks every 1 to 10 ms."""


@dataclass(frozen=True)
class Rights:
    """A file's mode, and its owner and group if those are to be kept."""

    mode: int
    owner: tuple[int, int] | None = None

    def at_most(self, mode: int) -> Rights:
        """The same, limited to what ``mode`` grants."""
        return Rights(self.mode & mode, self.owner)


class Temporary:
    """A new file, held open, under a temporary name (``path``) until it is installed.

    It is in ``folder`` and will become ``home``/``final``, which must be on the same file system. ``most`` is the
    maximum mode of a file that replaces none: that of its source. With ``there``, a child process of ours has written
    it already, into a private folder.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        home: Folder,
        final: str,
        *,
        most: int = PLAIN,
        there: bool = False,
    ) -> None:
        self.folder, self.name, self.home, self.final, self.most = folder, name, home, final, most
        self.path = folder.path / name
        self._fd: int | None = folder.adopt(name) if there else folder.create(name)
        self._stamp = self._now()
        self._moved = False
        confinement.name(self.path)  # children verify it

    @property
    def fd(self) -> int:
        """The descriptor of the open file."""
        assert self._fd is not None
        return self._fd

    def close(self) -> None:
        """Close the file, and delete it if it still has its temporary name."""
        if os.name == "nt":  # cannot delete open files
            self.leave()
            with contextlib.suppress(OSError):
                self.folder.unlink(self.name)
        elif self._fd is not None:
            for _ in range(2):  # a file server may fail once
                with contextlib.suppress(OSError):
                    there = self.folder.lookup(self.name)
                    if there is not None and os.path.samestat(there, os.fstat(self._fd)):
                        self.folder.unlink(self.name)
                    break
            self.leave()

    def leave(self) -> None:
        """Close the file and leave it where it is, in a private folder that will be deleted."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def emptied(self) -> int:
        """The descriptor of the file, emptied. Only a file with content is truncated: ext4 flushes a truncated file to
        the disk when it is closed, which blocks (``auto_da_alloc``)."""
        if os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        return self.fd

    def seal(self) -> None:
        """Mark the file as complete: any later change is not ours."""
        self._stamp = self._now()
        self.folder.seal()
        if self.folder.exposed:
            time.sleep(TICK)

    def _now(self) -> Stamp:
        return stamp_of(os.fstat(self.fd), self.folder.exposed)

    def check(self) -> None:
        """Make sure that the descriptor and the path refer to the file as it was sealed.

        Raises:
            OnnxfixError: it was changed or replaced.
        """
        with writing(self.path):
            self.folder.check()
            there = self.folder.lookup(self.name)
            same = there is not None and self._stamp == self._now() == stamp_of(there, self.folder.exposed)
            if not same or (self.folder.exposed and os.fstat(self.fd).st_nlink != 1):
                raise OnnxfixError(f"{self.home.path / self.final}: not written: {WHO}")

    def stamp(self) -> Stamp:
        """The file's present stamp, installed or not."""
        if self._fd is None:  # closed for its rename
            found = self.home.lookup(self.final)
            return stamp_of(found) if found is not None else ()
        return self._now()

    @property
    def placed(self) -> bool:
        """Whether the file has its final name. The system is asked: an interrupt may come after any statement."""
        try:
            there = self.home.lookup(self.final)
        except OSError:
            return self._moved
        if there is not None and self._stamp[:2] == stamp_of(there)[:2]:
            return True
        # Some file systems change the inode number on a rename.
        return there is not None and self._moved and not self.home.exposed

    def grant(self, rights: Rights) -> None:
        """Set the file's mode, without write access for others until it is installed."""
        chmod(self.fd, rights.mode & ~0o022)

    def place(self) -> None:
        """Rename it to its final name."""
        if os.name == "nt":  # cannot rename open files
            os.close(self.fd)
            self._fd = None
        self.folder.move(self.name, self.home, self.final)
        self._moved = True

    def settle(self, rights: Rights) -> None:
        """After the rename: set the remaining rights.

        Raises:
            OnnxfixError: another file has its name.
        """
        if self._fd is None:
            return
        if not self.placed or self._now()[:4] != self._stamp[:4]:  # the ctime was changed by our rename
            raise OnnxfixError(f"{self.home.path / self.final}: was replaced as it was written; {WHO}")
        _settle(self.fd, rights)


@contextlib.contextmanager
def temporary_beside(destination: Path, *, most: int = PLAIN) -> Iterator[Temporary]:
    """A temporary file in ``destination``'s folder, to be installed there; deleted at the end if it was not.

    Raises:
        OnnxfixError: the folder is not writable, or the destination is a device, a pipe or a directory.
    """
    regular.refuse_special(destination)
    with writing(destination):
        home = Folder(destination.parent)
    with home, temporary_in(home, destination.name, most=most) as file:
        yield file


@contextlib.contextmanager
def temporary_in(home: Folder, final: str, *, most: int = PLAIN) -> Iterator[Temporary]:
    """A temporary file in a folder, to be installed there as ``final``.

    Raises:
        OnnxfixError: the folder is not writable.
    """
    name = temporary_name(final)
    with writing(home.path / final):
        try:
            file = Temporary(home, name, home, final, most=most)
        except BaseException:  # an interrupt may come after any statement
            home.unlink(name)
            raise
    try:
        yield file
    finally:
        thoroughly(file.close)


def stamp_of(found: os.stat_result, strict: bool = False) -> Stamp:
    """Equal as long as the file is not changed or replaced; with ``strict``, not linked or renamed either."""
    if not strict:
        return found.st_dev, found.st_ino, found.st_size
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def chmod(fd: int, mode: int) -> None:
    """Set the mode of an open file, where the system has modes."""
    if hasattr(os, "fchmod"):
        os.fchmod(fd, mode)


def _settle(fd: int, rights: Rights) -> None:
    """Set the rights. The owner is kept if the system allows it: root in a container must not take a user's files."""
    found = os.fstat(fd)
    if rights.owner is not None and rights.owner != (found.st_uid, found.st_gid) and hasattr(os, "fchown"):
        with contextlib.suppress(OSError):
            os.fchown(fd, *rights.owner)
    if found.st_mode & 0o777 != rights.mode:
        chmod(fd, rights.mode)
