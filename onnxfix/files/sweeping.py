"""What processes that were killed left behind, deleted by the next run that works in the same folder.

A process that is killed cleans up nothing. Its files are deleted if they are provably no longer used: they are this
user's, nobody else can have renamed them, and their name has the machine, its boot, the namespace of process ids, and
the id and start time of a process that does not run any more. Files of other machines in a shared folder stay.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import tempfile

from onnxfix.files.folders import Folder
from onnxfix.files.marks import MARK, dead, mark

_SCRATCH = re.compile(rf"onnxfix-{MARK}-[a-z0-9_]{{8}}")
_BESIDE = re.compile(rf"\..{{1,40}}\.{MARK}\.[a-z0-9_]{{8}}\.tmp", re.S)


def prefix() -> str:
    """How the names of this process's folders for temporary files begin. What dead ones left is deleted, once."""
    _sweep_scratch(tempfile.gettempdir(), os.getpid())
    return f"onnxfix-{mark()}-" if mark() else "onnxfix-"


def _ours(found: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and found.st_uid == os.geteuid()


@functools.cache
def _sweep_scratch(folder: str, _: int) -> None:
    """Delete folders that dead processes left among the system's temporary files."""
    with contextlib.suppress(OSError):
        home = os.stat(folder)
        if stat.S_IMODE(home.st_mode) & 0o022 and not home.st_mode & stat.S_ISVTX:
            return  # others may rename what is in it
        for name in os.listdir(folder):
            if dead(_SCRATCH.fullmatch(name)):
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    found = os.lstat(path)
                    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
                    if private and _ours(found) and shutil.rmtree.avoids_symlink_attacks:
                        shutil.rmtree(path, ignore_errors=True)


def sweep(home: Folder) -> None:
    """Delete what dead processes left in a folder where results are written; once for each folder."""
    with contextlib.suppress(OSError):
        there = home.status()
        _sweep(home, (there.st_dev, there.st_ino, os.getpid()))


_swept: set[tuple[int, ...]] = set()


def _sweep(home: Folder, key: tuple[int, ...]) -> None:
    if key in _swept or home.exposed:
        return
    _swept.add(key)
    for name in home.names():
        if not dead(_BESIDE.fullmatch(name)):
            continue
        found = home.lookup(name)
        if found is None or not _ours(found):
            continue
        with contextlib.suppress(OSError):
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                home.unlink(name)
            elif stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077:
                with home.enter(name) as inner:
                    inner.ours = True
                    inner.empty()
                home.remove(name)
