"""The worker process of ``fleet.local``: it runs one task after another."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

from onnxfix import _child, allowance, sandbox
from onnxfix.fleet import work
from onnxfix.interrupts import listen
from onnxfix.record import record


@record
class Setting:
    """A worker's parent process, memory limit in MiB (None: none), number of cores and folder for temporary files."""

    parent: int
    memory_mb: int | None
    cores: int
    folder: str


class _State:
    settled = False


def perform(task: work.Task, setting: Setting) -> work.Outcome:
    """Run one task in this worker process."""
    if not _State.settled:
        _settle(setting)
        _State.settled = True
    return work.perform(task, _child.note)


def farewell() -> None:
    """End this worker's own children, so that none is left when the worker ends."""
    sandbox.close_shared()


def _settle(setting: Setting) -> None:
    """Prepare this process, before anything that reads the environment is imported.

    SIGTERM ends the worker without leaving temporary files; it is also sent when the parent is killed. Numeric
    libraries run single-threaded unless the user's environment says otherwise, and then on the worker's cores at most.
    Libraries whose results depend on the number of threads always run with one.
    """
    listen()
    _child.die_with(setting.parent, signal.SIGTERM)
    os.environ[allowance.CORES] = str(setting.cores)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = os.environ.get(name, "")
        os.environ[name] = str(
            min(int(threads), setting.cores) if threads.isdecimal() and int(threads) else 1
        )
    if setting.memory_mb is not None:
        os.environ[allowance.MEMORY_MB] = str(setting.memory_mb)
    os.environ["TMPDIR"] = tempfile.tempdir = setting.folder
    atexit.register(shutil.rmtree, setting.folder, ignore_errors=True)
