"""What a worker that was killed leaves beside its output: temporary files that it did not come to rename or delete."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from onnxfix.fleet import paths
from onnxfix.fleet.work import Task
from onnxfix.graph import apart

CLOCKS = 60.0
"""Seconds by which the clock of a file server may be behind ours."""


def tidy(task: Task, since: float) -> None:
    """Delete the task's temporary files that were made after ``since`` (seconds since the epoch).

    Call it when nobody writes to the task's folder any more: of a long name, a temporary file bears a beginning alone
    (``wire.temporary_beside``), which other models of the run may share.
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
    with contextlib.suppress(OSError), os.scandir(place.parent) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False) if ours.fullmatch(entry.name) else None
            if found is not None and stat.S_ISREG(found.st_mode) and found.st_mtime >= since:
                Path(entry.path).unlink(missing_ok=True)
