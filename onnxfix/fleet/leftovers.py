"""What a worker that was killed leaves beside its output: temporary files that it did not come to rename or delete."""

from __future__ import annotations

import contextlib
import re
import stat
from pathlib import Path

from onnxfix.files import apart
from onnxfix.files.folders import Folder
from onnxfix.fleet import paths
from onnxfix.fleet.work import Task

CLOCKS = 60.0
"""Seconds by which the clock of a file server may be behind ours."""


def tidy(task: Task, since: float) -> None:
    """Delete the task's temporary files that were made after ``since`` (seconds since the epoch).

    Call it when nobody writes to the task's folder any more: of a long name, a temporary file bears a beginning alone
    (``folders.temporary_name``), which other models of the run may share.
    """
    target = task.target or task.source
    if task.command != "apply" or paths.remote(target):
        return
    places = {Path(target)}
    if not paths.remote(task.source):  # external data is copied in the same way
        places.update(file.path for file in apart.files_named(Path(task.source), Path(target).parent))
    for place in places:
        _tidy_beside(place, since - CLOCKS)


def _tidy_beside(place: Path, since: float) -> None:
    ours = re.compile(rf"\.{re.escape(place.name[:40])}\.[a-z0-9_]{{8}}\.tmp")
    with contextlib.suppress(OSError), Folder(place.parent) as home:
        for name in filter(ours.fullmatch, home.names()):
            found = home.lookup(name)
            if found is None or found.st_mtime < since:
                continue
            if stat.S_ISREG(found.st_mode):
                home.unlink(name)
            elif stat.S_ISDIR(found.st_mode):
                _tidy_private(home, name, place.name)


def _tidy_private(home: Folder, name: str, final: str) -> None:
    """A model and its weights in a folder of their own, and nothing else that the folder may hold."""
    with contextlib.suppress(OSError), home.enter(name) as folder:
        for one in (final, f"{final}.data"):
            found = folder.lookup(one)
            if found is not None and stat.S_ISREG(found.st_mode):
                folder.unlink(one)
        home.remove(name)
