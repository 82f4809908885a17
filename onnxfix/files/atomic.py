"""Files that are written whole or not at all: a temporary file, a flush where something is replaced, a rename.

Every file that onnxfix leaves anywhere goes through here. The folder may be somebody else's, who may do anything to the
names in it at any moment (root in a container, with a user's folder mounted). What holds then:

- Nothing is written, chmodded, chowned or deleted but what was made here: files are made anew, kept open, and addressed
  by their descriptors; folders are held open (:mod:`onnxfix.files.folders`); no link is followed.
- What is installed is what was sealed, that is, written to the end: before the rename, the descriptor's device, inode,
  size, times of modification and change, and number of links must be those of then, and the name must still be that of
  the inode; after it, the new name must be. Other processes read the temporary file by its name in between. A rename, a
  link and a deletion change an inode's time of change, so that a name that was taken away for a while shows, too. Times
  are compared in folders that others may write to: elsewhere they tell more of odd file systems than of anybody.

What does not hold: the folder is the one to which its path leads when it is opened, so that who owns a folder above it
can choose which one that is, and can have the other processes (not us) read another tree for a while. And who owns the
destination's folder can of course replace the result as soon as we are done.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxfix.errors import OnnxfixError
from onnxfix.files import lazy, regular
from onnxfix.files.folders import WHO, Folder, writing
from onnxfix.files.temporary import PLAIN, Placed, Rights, Stamp, Temporary, chmod, temporary_beside


def install(
    files: Sequence[Temporary], *, needs: Sequence[Placed] = (), backup: bool = False, replaced: Stamp = ()
) -> None:
    """Give finished files their names, one after the other with nothing between; each name's old file is whole or
    replaced. The last file is the one that refers to the others, and to ``needs``, which were installed before.

    With ``backup``, NAME.bak holds the last one's old bytes until the new file is safely in place. Where it replaces a
    file, all take that file's owner and mode. What replaces something is on the disk before it does, so that not even a
    power failure can take both; a file that is new is left to the system's cache. ``replaced`` is the
    ``lazy.stamp_of`` the file that is to be replaced, where it matters. If the last one cannot be installed, none is.

    Raises:
        OnnxfixError: the destination cannot be replaced, is no regular file, or somebody else interferes.
    """
    last = files[-1]
    home, where = last.home, last.home.path / last.final
    with writing(where):
        old = _regular(home, last.final, where)
        if replaced and (old is None or lazy.stamp_of(old) != replaced):
            raise OnnxfixError(f"{where}: is not any more the file that was read; nothing was written")
        rights = {id(file): _rights(old, file, last) for file in files}
        for file in files[:-1]:
            if file.home.lookup(file.final) is not None:
                raise OnnxfixError(f"{file.home.path / file.final}: is in the way; move it")
        for file in files:
            file.check()
            file.grant(rights[id(file)])
            if old is not None:
                os.fsync(file.fd)
        for one in needs:
            one.check()
            if old is not None:
                one.flush()
                one.settle(_kept(old))
        with _backup(home, last.final, where) if backup and old is not None else contextlib.nullcontext():
            try:
                for file in files:
                    file.place()
                for file in files:
                    file.settle(rights[id(file)])
                if old is not None:
                    home.sync()
            finally:
                if not last.placed:
                    for file in files[:-1]:
                        if file.placed:
                            file.home.unlink(file.final)


def put(path: Path, data: bytes | memoryview) -> None:
    """Write a file whole or not at all. A link stays a link: what it leads to is replaced.

    Raises:
        OnnxfixError: the disk is full, the folder takes no files, or the path is no regular file.
    """
    with temporary_beside(regular.destination(path)) as file:
        with writing(file.home.path):
            with open(file.emptied(), "wb", closefd=False) as stream:
                stream.write(data)
            file.seal()
        install([file])


def hand_over(path: Path, data: bytes | memoryview) -> None:
    """Write a file into a folder that our parent process made for it (``Folder.private``, ``tempfile``).

    Raises:
        OnnxfixError: the disk is full, or the folder is a link or another one.
    """
    with writing(path), Folder(path.parent.parent) as around, around.enter(path.parent.name) as folder:
        if not folder.trusted():
            raise OnnxfixError(f"{folder.path}: is not the folder that was made; {WHO}")
        folder.unlink(path.name)  # of a build before
        with open(folder.create(path.name), "wb") as stream:
            stream.write(data)


def same_bytes(first: Path, second: Path) -> bool:
    """Whether two files hold the same."""
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
    """What is to be replaced; None for nothing.

    Raises:
        OnnxfixError: it is no regular file.
    """
    old = home.lookup(name)
    if old is not None and stat.S_ISLNK(old.st_mode):
        raise OnnxfixError(f"{where}: has become a symbolic link; {WHO}")
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OnnxfixError(f"{where}: is {regular.kind(old)}, which no file may replace; name a regular file")
    return old


def _kept(old: os.stat_result) -> Rights:
    return Rights(old.st_mode & 0o777, (old.st_uid, old.st_gid))


def _rights(old: os.stat_result | None, file: Temporary, last: Temporary) -> Rights:
    """What the file is to have: that of the file that is replaced, or what a plain ``open`` would have given it, but
    nobody who may not read the source may read it."""
    if old is not None:
        return _kept(old) if file is last else _kept(old).at_most(file.most)
    mask = os.umask(0)
    os.umask(mask)
    return Rights(PLAIN & ~mask & file.most)


@contextlib.contextmanager
def _backup(home: Folder, name: str, where: Path) -> Iterator[None]:
    """NAME.bak with the bytes of a file, while the context lasts."""
    saved = f"{name}.bak"
    there = home.lookup(saved)
    if there is not None:
        if not stat.S_ISREG(there.st_mode) or not same_bytes(home.path / saved, home.path / name):
            raise OnnxfixError(f"{where}.bak: is in the way of a backup; move it and run again")
        home.unlink(saved)  # a run that was killed left it
    made = True
    try:
        try:
            home.link(name, home, saved)
        except FileExistsError:
            made = False
            raise
        except OSError:  # a file system without hard links
            _copy(home, name, saved)
        yield
    finally:  # at the destination is either the old file or the new one, whole
        if made:
            home.unlink(saved)


def _copy(home: Folder, name: str, copy: str) -> None:
    source = home.open(name)
    with open(source, "rb") as reader:
        mode = os.fstat(source).st_mode & 0o777
        with open(home.create(copy), "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            chmod(writer.fileno(), mode)
