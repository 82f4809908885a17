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
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxfix.errors import OnnxfixError
from onnxfix.files import lazy, regular
from onnxfix.files.folders import GONE, WHO, Folder, writing
from onnxfix.files.temporary import PLAIN, Rights, Stamp, Temporary, temporary_beside


def install(
    files: Sequence[Temporary],
    *,
    replaced: Stamp = (),
    together: bool = False,
) -> None:
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
        old = _regular(home, last.final, where)
        if replaced and (old is None or lazy.stamp_of(old) != replaced):
            raise OnnxfixError(f"{where}: is no longer the file that was read; nothing was written")
        rights = {file: _rights(old, file, last) for file in files}
        for file in files[:-1]:
            if not together and file.home.lookup(file.final) is not None:
                raise OnnxfixError(f"{file.home.path / file.final}: is in the way; move it")
        for file in files:
            file.check()
            file.grant(rights[file])
            if old is not None:
                os.fsync(file.fd)
        if not home.reached():
            raise OnnxfixError(f"{where}: {GONE}")
        with _aside(files) if together else contextlib.nullcontext():
            try:
                for file in files:
                    file.place()
                for file in files:
                    file.settle(rights[file])
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
    with temporary_beside(regular.destination(path)) as file:
        with writing(file.home.path):
            with open(file.emptied(), "wb", closefd=False) as stream:
                stream.write(data)
            file.seal()
        install([file])


def hand_over(path: Path, data: bytes | memoryview) -> None:
    """Write a file into a folder that our parent process created for it (``Folder.private``, ``tempfile``).

    Raises:
        OnnxfixError: the disk is full, or the folder is a link or another one.
    """
    with writing(path), Folder(path.parent.parent) as around, around.enter(path.parent.name) as folder:
        if not folder.trusted():
            raise OnnxfixError(f"{folder.path}: is not the folder that was created; {WHO}")
        folder.unlink(path.name)  # of an earlier build
        with open(folder.create(path.name), "wb") as stream:
            stream.write(data)


def same_bytes(first: Path, second: Path) -> bool:
    """Whether two files have the same content."""
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as a, second.open("rb") as b:
        while True:
            left, right = a.read(1 << 20), b.read(1 << 20)
            if left != right:
                return False
            if not left:
                return True


def _regular(home: Folder, name: str, where: Path) -> os.stat_result | None:
    """Status of the file to be replaced; None if there is none.

    Raises:
        OnnxfixError: it is not a regular file.
    """
    old = home.lookup(name)
    if old is not None and stat.S_ISLNK(old.st_mode):
        raise OnnxfixError(f"{where}: has become a symbolic link; {WHO}")
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OnnxfixError(
            f"{where}: is {regular.kind(old)}, which must not be replaced; name a regular file"
        )
    return old


def _kept(old: os.stat_result) -> Rights:
    return Rights(old.st_mode & 0o777, (old.st_uid, old.st_gid))


def _rights(old: os.stat_result | None, file: Temporary, last: Temporary) -> Rights:
    """Rights of the new file: those of the file that it replaces, else those that ``open`` would give; never more than
    those of the source."""
    if old is not None:
        return _kept(old) if file is last else _kept(old).at_most(file.most)
    mask = os.umask(0)
    os.umask(mask)
    return Rights(PLAIN & ~mask & file.most)


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
