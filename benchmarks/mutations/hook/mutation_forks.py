"""Forks of a test run: some at a time, each with limits of time and memory and a folder for temporary files."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import sitecustomize

BOARD = sitecustomize.switchboard
MEMORY = 6 << 30
"""Bytes that a test run may hold: a mutant that fills the memory must not take the machine with it."""


class Forks:
    """Forks of this process, some at a time, each with a folder for temporary files and a limit of time."""

    def __init__(self, jobs: int, scratch: str) -> None:
        self.scratch = scratch
        self.free = list(range(1, jobs + 1))
        self.running: dict[int, tuple[int, float, Path, Any]] = {}

    def start(self, work: Callable[[], object], limit: float, key: Any, active: int = -1) -> None:
        """Call ``work`` in a fork."""
        slot = self.free.pop()
        scratch = Path(tempfile.mkdtemp(prefix="mutant-", dir=self.scratch))
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            child(work, slot, active, scratch)
        self.running[pid] = (slot, time.monotonic() + limit, scratch, key)

    def each(self, waiting: list[Any], start: Callable[[Any], None]) -> Iterator[tuple[Any, str]]:
        """Call ``start`` with what waits, wherever a fork is free; key and how each ended, "" for well."""
        while waiting or self.running:
            while waiting and self.free:
                start(waiting.pop(0))
            yield from self.ended()

    def ended(self) -> Iterator[tuple[Any, str]]:
        """Wait until some have ended: key and how, "" for well."""
        while self.running:
            found = [(pid, how) for pid in self.running if (how := self.state(pid)) is not None]
            for pid, how in found:
                slot, _, scratch, key = self.running.pop(pid)
                sweep(slot)
                shutil.rmtree(scratch, ignore_errors=True)
                self.free.append(slot)
                yield key, how
            if found:
                return
            time.sleep(0.02)

    def state(self, pid: int) -> str | None:
        """How a fork ended; None while it runs. One that is over a limit is killed."""
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == 0 else f"ended with {code}"
        over = (
            "timeout" if time.monotonic() > self.running[pid][1] else "memory" if held(pid) > MEMORY else None
        )
        if over is not None:
            with contextlib.suppress(ProcessLookupError):  # it had not come as far as setsid
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return over


def child(work: Callable[[], object], slot: int, active: int, scratch: Path) -> NoReturn:
    """In the fork: a session, an environment and output of its own."""
    code = 70
    try:
        os.setsid()
        for target, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
            os.dup2(os.open(os.devnull, flags), target)
        tempfile.tempdir = None
        os.environ.update(TMPDIR=str(scratch), PYTEST_DEBUG_TEMPROOT=str(scratch))
        random.seed(0)
        BOARD.use(slot, active)
        work()
        code = 0
    finally:
        os._exit(code)  # never the parent's exit handlers


def held(pid: int) -> int:
    """Bytes of memory of a process."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def sweep(slot: int) -> None:
    """Kill what a fork left running: by the folder and the slot in its environment."""
    marks = {f"MUTATIONS_FOLDER={BOARD.folder}".encode(), f"MUTATIONS_SLOT={slot}".encode()}
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marks <= set(entry.read_bytes().split(b"\0")) and int(entry.parent.name) != os.getpid():
                os.kill(int(entry.parent.name), signal.SIGKILL)
