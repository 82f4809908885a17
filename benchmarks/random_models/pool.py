"""Judges numbers in forked processes, any of which may crash or hang on a model without harm to the others."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from random_models import judge as judging
from random_models.judge import ATTEMPTS, CRASHES, Judged, Settings
from random_models.pieces import examples

FORK = multiprocessing.get_context("fork")  # what is imported here need not be imported again after a crash
_LIFE = 400  # models of a process: what native code leaks goes with it


class _Process:
    """One process, and the number that it is busy with: (number, first attempt, what was discarded before)."""

    def __init__(self, settings: Settings) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_serve, args=(theirs, settings))
        self.process.start()
        theirs.close()
        self.call: tuple[int, int, list[str]] = (0, 0, [])
        self.deadline, self.done = 0.0, 0

    def begin(self, call: tuple[int, int, list[str]], timeout: float) -> None:
        """Send a number."""
        self.call, self.deadline, self.done = call, time.monotonic() + timeout, self.done + 1
        with contextlib.suppress(OSError):  # one that is dead shows when its result is awaited
            self.pipe.send(call[:2])

    def result(self) -> dict[str, Any] | None:
        """The row; None where the process died."""
        try:
            return self.pipe.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            return None

    def end(self) -> None:
        """Have the process end: at once where it does not by itself, as one that hangs."""
        self.pipe.close()
        self.process.join(0.5)
        self.process.kill()
        self.process.join()


def _serve(pipe: Connection, settings: Settings) -> None:
    judging.quiet()
    while True:
        try:
            number, first = pipe.recv()
        except EOFError:
            return
        pipe.send(judging.judge(settings, number, first))


def judged(
    settings: Settings, numbers: Iterable[int], jobs: int, timeout: float = 180.0
) -> Iterator[dict[str, Any]]:
    """A row for each number, as they come.

    A model that crashes ONNX Runtime, or does not end within ``timeout`` seconds, before anything was fixed is
    discarded, and the next attempt of its number is made. Later it is a fault.
    """
    examples()
    gc.collect()
    gc.freeze()  # collections in the processes leave out what is there already
    waiting = deque((number, 0, list[str]()) for number in numbers)
    idle: list[_Process] = []
    busy: list[_Process] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = replace(settings, folder=folder)
        try:
            while waiting or busy:
                while waiting and len(busy) < jobs:
                    process = idle.pop() if idle else _Process(settings)
                    busy.append(process)
                    number = waiting[0][0]
                    slow = bool(settings.command) and number % settings.command == 0
                    process.begin(waiting.popleft(), 600.0 if slow else timeout)
                first = min(process.deadline for process in busy)
                ready = wait([one.pipe for one in busy], timeout=max(0.0, first - time.monotonic()))
                for process in list(busy):
                    row = process.result() if process.pipe in ready else None
                    late = process.deadline <= time.monotonic()
                    if row is None and process.pipe not in ready and not late:
                        continue
                    busy.remove(process)
                    if row is None or process.done >= _LIFE:
                        process.end()
                    else:
                        idle.append(process)
                    number, _, discarded = process.call
                    if row is None:
                        row = _ended(Path(folder), process, late)
                    if row is None:
                        # Whose examples crash each time are soon judged without execution.
                        attempt = _attempt(Path(folder), number) + 1 + 8 * len(discarded)
                        how = "does not end" if late else "crashes ONNX Runtime or onnx"
                        waiting.appendleft((number, attempt, [*discarded, how]))
                    else:
                        row["discarded"] = [*discarded, *row["discarded"]]
                        yield row
        finally:
            for process in (*busy, *idle):
                process.end()


def _stage(folder: Path, number: int) -> str:
    path = folder / str(number)
    return path.read_text(encoding="ascii") if path.exists() else ""


def _attempt(folder: Path, number: int) -> int:
    words = _stage(folder, number).split()
    return int(words[1]) if words[:1] == ["original"] else ATTEMPTS


def _ended(folder: Path, process: _Process, late: bool) -> dict[str, Any] | None:
    """The row of a number whose process ended; None where another model is to be drawn."""
    number, first, _ = process.call
    stage = _stage(folder, number)
    if stage.startswith("original") and first <= CRASHES:
        return None
    row = Judged(number, status="run")
    row.faults = [("hangs" if late else "crash", stage)]
    return vars(row)
