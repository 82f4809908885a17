"""Atomic writes: a temporary file, a flush if a file is replaced, a rename. A file is written completely or not at all.

Every file that onnxfix creates goes through here. The folder may belong to another user, who can rename and replace the
names in it at any moment (root in a container, with a user's folder mounted). Guarantees:

- Only files created here are written, chmodded, chowned or deleted: they are created anew, kept open, and addressed
  by their descriptors. Folders are held open (:mod:`onnxfix.files.folders`). No link is followed.
- A file is installed as it was when it was sealed, that is, complete. Before the rename, the descriptor's device,
  inode, size, mtime, ctime and link count must be unchanged, and the name must still refer to that inode; after the
  rename, the new name must. Other processes read the temporary file by its name in between. Renaming, linking and
  deleting change the ctime, so that a name that was replaced for a while is detected too. Times are compared only in
  folders that others may write to: elsewhere a difference is a property of the file system.

Not guaranteed: the folder is the one that its path leads to when it is opened. The owner of a folder above it can
choose which one that is, and can make other processes (not us) read another tree for a while. The owner of the
destination's folder can replace the result as soon as it is written.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from onnxfix.errors import OnnxfixError
from onnxfix.files import folders, lazy
from onnxfix.files.folders import GONE, WHO, Folder, temporary_name, thoroughly, writing
from onnxfix.runtime import confinement

Stamp = tuple[int, ...]
PLAIN = 0o666
"""Maximum mode of a new file."""
TICK = 0.012
"""Seconds after which a change gets another time: the clock that a system stamps files with ticks every 1 to 10 ms."""


class Temporary:
    """A new file, held open, under a temporary name (``path``) until it is installed.

    It is in ``folder`` and will become ``home``/``final``, which must be on the same file system. ``most`` is the
    maximum mode of a file that replaces none: that of its source.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, folder: Folder, name: str, home: Folder, final: str, *, most: int = PLAIN) -> None:
        self.folder, self.name, self.home, self.final, self.most = folder, name, home, final, most
        self.path = folder.path / name
        self._fd: int | None = folder.create(name)
        self._sealed = self._stamp()
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

    @contextlib.contextmanager
    def rewrite(self) -> Iterator[BinaryIO]:
        """The file, emptied, to be written; sealed at the end.

        Only a file with content is truncated: ext4 flushes a truncated file to the disk when it is closed, which
        blocks (``auto_da_alloc``).
        """
        if os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        with open(self.fd, "wb", buffering=1 << 20, closefd=False) as stream:
            yield stream
        self.seal()

    def seal(self) -> None:
        """Mark the file as complete: any later change is not ours."""
        self._sealed = self._stamp()
        self.folder.seal()
        if self.folder.exposed:
            time.sleep(TICK)

    def _stamp(self) -> Stamp:
        return _stamp_of(os.fstat(self.fd), self.folder.exposed)

    def check(self) -> None:
        """Make sure that the descriptor and the path refer to the file as it was sealed.

        Raises:
            OnnxfixError: it was changed or replaced.
        """
        exposed = self.folder.exposed
        with writing(self.path):
            self.folder.check()
            there = self.folder.lookup(self.name)
            same = there is not None and self._sealed == self._stamp() == _stamp_of(there, exposed)
            if not same or (exposed and os.fstat(self.fd).st_nlink != 1):
                raise OnnxfixError(f"{self.home.path / self.final}: not written: {WHO}")

    @property
    def placed(self) -> bool:
        """Whether the file has its final name. The system is asked: an interrupt may come after any statement."""
        try:
            there = self.home.lookup(self.final)
        except OSError:
            return self._moved
        if there is not None and self._sealed[:2] == (there.st_dev, there.st_ino):
            return True
        # Some file systems change the inode number on a rename.
        return there is not None and self._moved and not self.home.exposed

    def place(self) -> None:
        """Rename it to its final name."""
        if os.name == "nt":  # cannot rename open files
            self.leave()
        self.folder.move(self.name, self.home, self.final)
        self._moved = True

    def settle(self, mode: int, owner: tuple[int, int] | None) -> None:
        """Give the file its mode and its owner after the rename.

        The owner is kept if the system allows it: root in a container must not take a user's files.

        Raises:
            OnnxfixError: another file has its name.
        """
        if self._fd is None:
            return
        if not self.placed or self._stamp()[:4] != self._sealed[:4]:  # the ctime was changed by our rename
            raise OnnxfixError(f"{self.home.path / self.final}: was replaced as it was written; {WHO}")
        found = os.fstat(self.fd)
        if owner not in (None, (found.st_uid, found.st_gid)) and hasattr(os, "fchown"):
            with contextlib.suppress(OSError):
                os.fchown(self.fd, *owner)
        if found.st_mode & 0o777 != mode:
            _chmod(self.fd, mode)


@contextlib.contextmanager
def temporary_beside(destination: Path, *, most: int = PLAIN) -> Iterator[Temporary]:
    """A temporary file in ``destination``'s folder, to be installed there; deleted at the end if it was not.

    Raises:
        OnnxfixError: the folder is not writable, or the destination is a device, a pipe or a directory.
    """
    folders.refuse_special(destination)
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


def install(files: Sequence[Temporary], *, replaced: Stamp = (), together: bool = False) -> None:
    """Rename complete files to their final names, in order. The last one refers to the others. If it cannot be
    installed, none is.

    If the last file replaces one, all get that file's owner and mode, and are flushed to the disk first, so that a
    power failure cannot destroy both; a new file is left to the system's cache. ``replaced`` is the ``lazy.stamp_of``
    the file that is to be replaced, if that must not have changed. With ``together``, the others may replace files as
    well, to which only the file refers that the last one replaces: at no moment does it refer to the new ones.

    Raises:
        OnnxfixError: the destination cannot be replaced or is not a regular file, or another process interferes.
    """
    last = files[-1]
    home, where = last.home, last.home.path / last.final
    with writing(where):
        old = _file_to_replace(home, last.final, where)
        if replaced and (old is None or lazy.stamp_of(old) != replaced):
            raise OnnxfixError(f"{where}: is no longer the file that was read; nothing was written")
        owner = (old.st_uid, old.st_gid) if old is not None else None
        mask = os.umask(0)
        os.umask(mask)
        modes = {file: PLAIN & ~mask & file.most for file in files}  # what ``open`` would give
        if old is not None:  # only the file that replaces one may grant more than its source
            modes = {file: old.st_mode & 0o777 & (0o777 if file is last else file.most) for file in files}
        for file in files[:-1]:
            if not together and file.home.lookup(file.final) is not None:
                raise OnnxfixError(f"{file.home.path / file.final}: is in the way; move it")
        for file in files:
            file.check()
            _chmod(file.fd, modes[file] & ~0o022)  # others may write to it when it is installed
            if old is not None:
                os.fsync(file.fd)
        if not home.reached():
            raise OnnxfixError(f"{where}: {GONE}")
        with _aside(files) if together else contextlib.nullcontext():
            try:
                for file in files:
                    file.place()
                for file in files:
                    file.settle(modes[file], owner)
                if old is not None:
                    home.sync()
            finally:
                if not last.placed:
                    for file in files[:-1]:
                        if file.placed:
                            file.home.unlink(file.final)


def put(path: Path, data: bytes | memoryview) -> None:
    """Write a file atomically. A symbolic link stays: the file that it leads to is replaced.

    Raises:
        OnnxfixError: the disk is full, the folder is not writable, or the path is not a regular file.
    """
    with temporary_beside(folders.destination(path)) as file:
        with writing(file.home.path), file.rewrite() as stream:
            stream.write(data)
        install([file])


def hand_over(path: Path, data: bytes | memoryview) -> None:
    """Write a file into a folder that our parent process created for it (``Folder.private``, ``tempfile``).

    Raises:
        OnnxfixError: the disk is full, or the folder is a link or another one.
    """
    with writing(path), Folder(path.parent.parent) as around, around.enter(path.parent.name) as folder:
        if not folder.is_trusted():
            raise OnnxfixError(f"{folder.path}: is not the folder that was created; {WHO}")
        folder.unlink(path.name)  # of an earlier build
        with open(folder.create(path.name), "wb") as stream:
            stream.write(data)


def same_bytes(first: Path, second: Path) -> bool:
    """Whether two files have the same content."""
    filecmp.clear_cache()  # it takes files of the same size and time for unchanged
    return filecmp.cmp(first, second, shallow=False)


def _stamp_of(found: os.stat_result, strict: bool) -> Stamp:
    """Equal as long as the file is not changed or replaced; with ``strict``, not linked or renamed either."""
    plain = found.st_dev, found.st_ino, found.st_size
    return (*plain, found.st_mtime_ns, found.st_ctime_ns) if strict else plain


def _chmod(fd: int, mode: int) -> None:
    """Set the mode of an open file, where the system has modes."""
    if hasattr(os, "fchmod"):
        os.fchmod(fd, mode)


def _file_to_replace(home: Folder, name: str, where: Path) -> os.stat_result | None:
    """Status of the file to be replaced; None if there is none.

    Raises:
        OnnxfixError: it is not a regular file.
    """
    old = home.lookup(name)
    if old is not None and stat.S_ISLNK(old.st_mode):
        raise OnnxfixError(f"{where}: has become a symbolic link; {WHO}")
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OnnxfixError(
            f"{where}: is {folders.kind(old)}, which must not be replaced; name a regular file"
        )
    return old


@contextlib.contextmanager
def _aside(files: Sequence[Temporary]) -> Iterator[None]:
    """The old files are called NAME.bak in this context, and come back unless the last file was replaced. The last one
    goes first and comes back last: a process that is killed leaves no model rather than one with other weights.

    Raises:
        OnnxfixError: there is a file of such a name.
    """
    for file in files:
        if file.home.lookup(f"{file.final}.bak") is not None:
            raise OnnxfixError(
                f"{file.home.path / file.final}.bak: is in the way of a backup; move it and run again"
            )
    moved: list[Temporary] = []
    try:
        for file in reversed(files):
            if file.home.lookup(file.final) is not None:
                moved.append(file)
                file.home.move(file.final, file.home, f"{file.final}.bak")
        yield
    finally:
        done = files[-1].placed
        for file in reversed(moved):
            with contextlib.suppress(FileNotFoundError):  # it was not moved
                if done:
                    file.home.unlink(f"{file.final}.bak")
                else:
                    file.home.move(f"{file.final}.bak", file.home, file.final)
