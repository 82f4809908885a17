"""On this machine, several at once: in worker processes that may die without harm to the others.

A worker is a ``sandbox.Worker`` that a thread of a pool keeps for as many models as come its way, so that imports are
paid for once. One that dies is reported for its model, and the next model gets a fresh one. A model that ran out of
its share of memory is tried once more with all of it, alone, so that its result does not hang on how many jobs there
were. Each worker is told to use cores / jobs (``_child.cores``).
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from onnxfix import _child
from onnxfix.fleet.budget import Budget, Closed, Size, more_helps, need_mb, size_of
from onnxfix.fleet.here import Progress
from onnxfix.fleet.leftovers import tidy
from onnxfix.fleet.work import Outcome, Task
from onnxfix.fleet.worker import Setting
from onnxfix.sandbox import Worker

STEP_SECONDS = 24 * 3600.0
"""A step of one model, such as a whole verification, that takes longer hangs. Each rung has limits of its own."""

GRACE = 10.0
"""Seconds that workers have to clean up after themselves when the run is interrupted."""

_WORKER = "onnxfix.fleet.worker"
_SLICE = 0.2  # seconds: a signal may reach another thread, and the main one must wake to see it


class Local:
    """Up to ``jobs`` models at once, each in a worker process; ``memory_mb`` is what all may use together."""

    def __init__(self, jobs: int, memory_mb: int | None = None) -> None:
        self.jobs = jobs
        self.memory_mb = memory_mb if memory_mb is not None else _child.default_memory_mb()

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
        jobs = max(1, min(self.jobs, len(tasks)))
        budget = Budget(self.memory_mb, jobs)
        results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        feed = _Feed(tasks, budget)
        lost: list[Task] = []
        began = time.time()
        lanes = [_Lane(feed, budget, results, lost, progress) for _ in range(jobs)]
        try:
            with ThreadPoolExecutor(jobs, thread_name_prefix="onnxfix-job") as pool:
                running = [pool.submit(lane.work) for lane in lanes]
                try:
                    for _ in tasks:
                        yield _next(results, running)
                finally:
                    feed.close()
                    budget.close()
                    _end(lanes, running)
        finally:
            for task in lost:
                tidy(task, began)


def _next(results: queue.SimpleQueue[Outcome], running: Sequence[Future[None]]) -> Outcome:
    """The next outcome. Raises what ended a lane, which is a fault of onnxfix."""
    while True:
        ended = all(lane.done() for lane in running)
        with contextlib.suppress(queue.Empty):
            return results.get(timeout=0 if ended else _SLICE)
        if ended:
            for lane in running:
                lane.result()
            raise RuntimeError("all workers ended before the work was done")


def _end(lanes: Sequence[_Lane], running: Sequence[Future[None]]) -> None:
    """End the workers that are still at work: first as Ctrl-C would, later by force."""
    try:
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not all(lane.done() for lane in running):
            for lane in lanes:
                lane.interrupt()
            wait(running, timeout=_SLICE)
    finally:  # a second Ctrl-C comes here at once
        for lane in lanes:
            lane.kill()


class _Feed:
    """The tasks, each handed out once, with its size and its place in the line for memory.

    They stand there in the order of the command line: of two models that bring different data under one name, the first
    one wins, as it does without ``--jobs``.
    """

    def __init__(self, tasks: Sequence[Task], budget: Budget) -> None:
        self._tasks = iter(tasks)
        self._budget = budget
        self._lock = threading.Lock()
        self._closed = False

    def __iter__(self) -> Iterator[tuple[Task, Size, object]]:
        while True:
            with self._lock:
                task = None if self._closed else next(self._tasks, None)
                if task is None:
                    return
                found = task, size_of(task), self._budget.queue()
            yield found

    def close(self) -> None:
        self._closed = True  # without the lock: who holds it may be reading a large model


class _Lane:
    """One thread's loop and the worker that it keeps."""

    def __init__(
        self,
        feed: _Feed,
        budget: Budget,
        results: queue.SimpleQueue[Outcome],
        lost: list[Task],
        progress: Progress | None,
    ) -> None:
        self._feed = feed
        self._budget = budget
        self._results = results
        self._lost = lost
        self._progress = progress
        self._worker: Worker | None = None
        self._granted: int | None = None
        self._folder = ""
        self._interrupted = False
        self._told: int | None = None

    def work(self) -> None:
        """Do tasks until there are none."""
        try:
            with contextlib.suppress(Closed):
                for task, size, ticket in self._feed:
                    self._results.put(self._done(task, size, ticket))
            if self._worker is not None and self._worker.pid is not None and not self._interrupted:
                self._worker.call(f"{_WORKER}:farewell", timeout=GRACE)
        finally:
            self._drop()

    def interrupt(self) -> None:
        """From another thread: have the worker end its task. Each process is told once: it is cleaning up then."""
        self._interrupted = True
        worker = self._worker
        pid = worker.pid if worker is not None else None
        if worker is not None and pid is not None and pid != self._told:
            self._told = pid
            worker.interrupt()

    def kill(self) -> None:
        """From another thread: end the worker by force."""
        self._interrupted = True
        self._drop()

    def _done(self, task: Task, size: Size, ticket: object) -> Outcome:
        with self._budget.grant(need_mb(task, size), size.claims, ticket) as granted:
            outcome = self._attempt(task, granted)
        everything = self._budget.total_mb
        if not outcome.memory or granted is None or everything is None:
            return outcome
        if granted < everything and more_helps(outcome, granted):
            with self._budget.grant(everything, size.claims):
                outcome = replace(self._attempt(task, everything), attempts=2)
        return self._said(outcome, size, everything)

    def _attempt(self, task: Task, granted: int | None) -> Outcome:
        """Do the task in a worker of this size."""
        if self._progress is not None:
            self._progress(task, "working")
        began = time.perf_counter()
        try:
            reply = self._call(task, granted)
        except OSError as error:  # no more processes, or no room for temporary files
            reply = _child.Outcome("error", message=f"cannot be started: {error.strerror or error}")
        if reply.ok and isinstance(reply.value, Outcome):
            if reply.value.memory:
                self._drop()  # its heap is in pieces
            return reply.value
        self._drop()
        self._lost.append(task)
        if self._interrupted:
            raise Closed
        return Outcome(
            task,
            error=_obituary(task, reply),
            seconds=time.perf_counter() - began,
            worker="died",
            memory=reply.status == "memory",
            crashed=reply.status != "error",
        )

    def _call(self, task: Task, granted: int | None) -> _child.Outcome:
        worker = self._worker
        if worker is None or granted != self._granted:
            self._drop()
            self._folder = tempfile.mkdtemp(prefix="onnxfix-")
            self._worker = worker = Worker(memory_mb=granted)
            self._granted = granted
        setting = Setting(os.getpid(), granted, max(1, _child.cores() // self._budget.jobs), self._folder)
        if self._interrupted:
            raise Closed
        return worker.call(f"{_WORKER}:perform", timeout=STEP_SECONDS, task=task, setting=setting)

    def _drop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _said(self, outcome: Outcome, size: Size, everything: int) -> Outcome:
        """The outcome of a model that had all the memory there is and ran out of it."""
        if not outcome.memory or not outcome.error:
            return outcome
        limit = f"it weighs {size.data_mb:.0f} MiB, and had all {everything} MiB that this run may use"
        return replace(outcome, error=f"{outcome.error} ({limit})")


def _obituary(task: Task, reply: _child.Outcome) -> str:
    """One line on a worker that died of its model."""
    during = f" while {reply.note}" if reply.note else ""
    if reply.status == "error":
        return f"{task.source}: its worker process: {reply.message}"
    return f"{task.source}: its worker process died{during}: {reply.message}"
