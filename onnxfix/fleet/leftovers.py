"""Temporary files that a killed worker left beside its output."""

from __future__ import annotations

import contextlib
import re
import stat
from pathlib import Path

from onnxfix.files.folders import Folder
from onnxfix.fleet import paths
from onnxfix.fleet.work import Task

CLOCK_SKEW = 60.0
"""Seconds by which a file server's clock may be behind ours."""


def tidy(task: Task, since: float) -> None:
    """Delete the task's temporary files that were made after ``since`` (seconds since the epoch).

    Call it when no task writes to the folder any more: the temporary file of a long name starts with a part of it only
    (``folders.temporary_name``), and other models of the run may share that part.
    """
    target = task.target or task.source
    if task.command != "apply" or paths.remote(target):
        return
    place, since = Path(target), since - CLOCK_SKEW
    ours = re.compile(rf"\.{re.escape(place.name[:40])}\.[a-z0-9_]{{8}}\.tmp")
    with contextlib.suppress(OSError), Folder(place.parent) as home:
        for name in home.names():
            found = home.lookup(name)
            if ours.fullmatch(name) is None or found is None or found.st_mtime < since:
                continue
            if stat.S_ISREG(found.st_mode):
                home.unlink(name)
            elif stat.S_ISDIR(found.st_mode):
                _tidy_private(home, name, place.name)


def _tidy_private(home: Folder, name: str, final: str) -> None:
    """Delete a model and its weights in a temporary folder of their own, but nothing else in it."""
    with contextlib.suppress(OSError), home.enter(name) as folder:
        for one in (final, f"{final}.data"):
            found = folder.lookup(one)
            if found is not None and stat.S_ISREG(found.st_mode):
                folder.unlink(one)
        home.remove(name)
