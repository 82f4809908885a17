"""Call a function many times in worker processes, any of which may crash or hang without harm to the other calls.

It is not ``onnxfix.runtime.sandbox``: what judges a refactoring must not depend on what is being refactored.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

SPAWN = get_context("spawn")  # a fresh interpreter: its own hash seed, and nothing of the caller's state
FORK = get_context("fork")  # what the caller has imported and made is there already
LIFE = 400  # calls of a process: what native code leaks goes with it


class _Worker:
    """One process, and the call that it is busy with."""

    def __init__(self, function: Callable[..., Any], timeout: float, context: Any) -> None:
        self._timeout, self._left = timeout, LIFE
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function))
        self._process.start()
        theirs.close()
        self.call: tuple[Any, ...] = ()
        self.deadline = 0.0

    def begin(self, call: tuple[Any, ...]) -> None:
        """Send a call. One that finds the process dead shows when its result is asked for."""
        self.call, self.deadline = call, time.monotonic() + self._timeout
        with contextlib.suppress(OSError):
            self.pipe.send(call)

    def result(self) -> tuple[Any, bool]:
        """What the call returned, or how it ended; and whether the process is fit for another."""
        self._left -= 1
        try:
            return self.pipe.recv(), self._left > 0
        except (EOFError, OSError):
            self._process.join()
            return {"ended": f"crashed with exit code {self._process.exitcode}"}, False

    def end(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Connection, function: Callable[..., Any]) -> None:
    os.dup2(2, 1)  # what libraries print is not output of the recording
    while True:
        try:
            call = pipe.recv()
        except EOFError:
            return
        pipe.send(function(*call))


def results(
    function: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    jobs: int,
    timeout: float,
    context: Any = SPAWN,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each call with what ``function(*call)`` returned, in the order in which they end.

    Where the process crashed, or the call took more than ``timeout`` seconds, the result is ``{"ended": how}``.
    """
    waiting = iter(calls)
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    try:
        while True:
            while len(busy) < jobs and (call := next(waiting, None)) is not None:
                worker = idle.pop() if idle else _Worker(function, timeout, context)
                busy.append(worker)
                worker.begin(call)
            if not busy:
                return
            first = min(worker.deadline for worker in busy)
            ready = wait([worker.pipe for worker in busy], timeout=max(0.0, first - time.monotonic()))
            for worker in list(busy):
                if worker.pipe in ready:
                    result, fit = worker.result()
                elif worker.deadline <= time.monotonic():
                    result, fit = {"ended": f"took more than {timeout:g} s"}, False
                else:
                    continue
                busy.remove(worker)
                if fit:
                    idle.append(worker)
                else:
                    worker.end()
                yield worker.call, result
    finally:
        for worker in (*busy, *idle):
            worker.end()
