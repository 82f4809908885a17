"""The worker's side of ``fleet.local``: one process that does one task after another."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass

from onnxfix import _child, sandbox
from onnxfix.fleet import work
from onnxfix.interrupts import listen


@dataclass(frozen=True)
class Setting:
    """What a worker is to be: whose, how large (MiB, None for no limit), on how many cores, with which folder for
    temporary files."""

    parent: int
    memory_mb: int | None
    cores: int
    folder: str


class _State:
    settled = False


def perform(task: work.Task, setting: Setting) -> work.Outcome:
    """Do one task in this worker process."""
    if not _State.settled:
        _settle(setting)
        _State.settled = True
    return work.perform(task, _child.note)


def farewell() -> None:
    """End this worker's own children, so that nothing of it is left when it is ended itself."""
    sandbox.close_shared()


def _settle(setting: Setting) -> None:
    """Before anything is imported that looks at the environment.

    The worker ends by SIGTERM, which leaves no temporary file, and so it does when its parent is killed. It started
    single-threaded libraries anyway, unless the user's environment says otherwise; what that says is limited to the
    worker's cores. The libraries that change their results with the number of threads are asked for one everywhere.
    """
    listen()
    _child.die_with(setting.parent, signal.SIGTERM)
    os.environ[_child.CORES] = str(setting.cores)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        told = os.environ.get(name, "")
        os.environ[name] = str(min(int(told), setting.cores) if told.isdecimal() and int(told) else 1)
    if setting.memory_mb is not None:
        os.environ[_child.MEMORY_MB] = str(setting.memory_mb)
    os.environ["TMPDIR"] = tempfile.tempdir = setting.folder
    atexit.register(shutil.rmtree, setting.folder, ignore_errors=True)
