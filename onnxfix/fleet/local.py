"""Several models at once on this machine, in worker processes that may die without harm to the others.

A worker is a ``sandbox.Worker`` that one thread of a pool keeps for its models, so that imports are paid for once. If
it dies, that is reported for its model, and the next model gets a fresh worker. A model that ran out of its share of
memory is retried once with all of it, alone, so that its result does not depend on the number of jobs. Each worker uses
cores / jobs (``allowance.cores``).
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

from onnxfix import _child, allowance
from onnxfix.files.sweeping import prefix
from onnxfix.fleet.budget import Budget, Closed, Size, more_helps, need_mb, size_of
from onnxfix.fleet.here import Progress
from onnxfix.fleet.leftovers import tidy
from onnxfix.fleet.work import Outcome, Task
from onnxfix.fleet.worker import Setting
from onnxfix.interrupts import insisted
from onnxfix.sandbox import Worker

STEP_SECONDS = 24 * 3600.0
"""Timeout of one model. Each rung of a verification has limits of its own."""

GRACE = 10.0
"""Seconds in which workers must clean up when the run is interrupted."""

_WORKER = "onnxfix.fleet.worker"
_POLL_SECONDS = 0.2  # a signal may reach another thread, and the main one must wake up to see it


class Local:
    """Runs up to ``jobs`` models at once, each in a worker process. ``memory_mb``: MiB that all may use together."""

    def __init__(self, jobs: int, memory_mb: int | None = None) -> None:
        self.jobs = jobs
        self.memory_mb = memory_mb if memory_mb is not None else _child.default_memory_mb()

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
        count = max(1, min(self.jobs, len(tasks)))
        budget = Budget(self.memory_mb, count)
        results: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        waiting = _TaskQueue(tasks, budget)
        lost: list[Task] = []
        began = time.time()
        jobs = [_Job(waiting, budget, results, lost, progress) for _ in range(count)]
        try:
            with ThreadPoolExecutor(count, thread_name_prefix="onnxfix-job") as pool:
                threads = [pool.submit(job.work) for job in jobs]
                try:
                    for _ in tasks:
                        yield _next(results, threads)
                finally:
                    waiting.close()
                    budget.close()
                    _end(jobs, threads)
        finally:
            for task in lost:
                tidy(task, began)


def _next(results: queue.SimpleQueue[Outcome], threads: Sequence[Future[None]]) -> Outcome:
    """The next outcome. Raises what ended a job's thread, which is a defect of onnxfix."""
    while True:
        ended = all(thread.done() for thread in threads)
        with contextlib.suppress(queue.Empty):
            return results.get(timeout=0 if ended else _POLL_SECONDS)
        if ended:
            for thread in threads:
                thread.result()
            raise RuntimeError("all workers ended before the work was done")


def _end(jobs: Sequence[_Job], threads: Sequence[Future[None]]) -> None:
    """Stop the workers that are still running: first as Ctrl-C would, later, or at a second Ctrl-C, by force."""
    try:
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not (insisted() or all(thread.done() for thread in threads)):
            for job in jobs:
                job.interrupt()
            wait(threads, timeout=_POLL_SECONDS)
    finally:
        for job in jobs:
            job.kill()


class _TaskQueue:
    """The tasks, each handed out once, with its size and its ticket for memory.

    Tickets are in the order of the command line: of two models that bring different data under one name the first one
    wins, as it does without ``--jobs``.
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
        self._closed = True  # without the lock: its holder may be reading a large model


class _Job:
    """One thread's loop and its worker."""

    def __init__(
        self,
        waiting: _TaskQueue,
        budget: Budget,
        results: queue.SimpleQueue[Outcome],
        lost: list[Task],
        progress: Progress | None,
    ) -> None:
        self._waiting = waiting
        self._budget = budget
        self._results = results
        self._lost = lost
        self._progress = progress
        self._worker: Worker | None = None
        self._granted: int | None = None
        self._folder = ""
        self._interrupted = False
        self._interrupted_pid: int | None = None

    def work(self) -> None:
        """Run tasks until there are none left."""
        try:
            with contextlib.suppress(Closed):
                for task, size, ticket in self._waiting:
                    self._results.put(self._done(task, size, ticket))
            if self._worker is not None and self._worker.pid is not None and not self._interrupted:
                self._worker.call(f"{_WORKER}:farewell", timeout=GRACE)
        finally:
            self._drop()

    def interrupt(self) -> None:
        """From another thread: interrupt the worker's task. Each process is interrupted once: then it cleans up."""
        self._interrupted = True
        worker = self._worker
        pid = worker.pid if worker is not None else None
        if worker is not None and pid is not None and pid != self._interrupted_pid:
            self._interrupted_pid = pid
            worker.interrupt()

    def kill(self) -> None:
        """From another thread: kill the worker."""
        self._interrupted = True
        self._drop()

    def _done(self, task: Task, size: Size, ticket: object) -> Outcome:
        with self._budget.grant(need_mb(task, size), size.claims, ticket) as granted:
            outcome = self._attempt(task, granted)
        total_mb = self._budget.total_mb
        if not outcome.memory or granted is None or total_mb is None:
            return outcome
        if granted < total_mb and more_helps(outcome, granted):
            with self._budget.grant(total_mb, size.claims):
                outcome = replace(self._attempt(task, total_mb), attempts=2)
        return _with_limit(outcome, size, total_mb)

    def _attempt(self, task: Task, granted: int | None) -> Outcome:
        """Run the task in a worker with this limit in MiB."""
        if self._progress is not None:
            self._progress(task, "working")
        began = time.perf_counter()
        try:
            reply = self._call(task, granted)
        except OSError as error:  # no more processes, or no space for temporary files
            reply = _child.Outcome("error", message=f"cannot be started: {error.strerror or error}")
        if reply.ok and isinstance(reply.value, Outcome):
            if reply.value.memory:
                self._drop()  # its heap is fragmented
            return reply.value
        self._drop()
        self._lost.append(task)
        if self._interrupted:
            raise Closed
        return Outcome(
            task,
            error=_death_of_worker(task, reply),
            seconds=time.perf_counter() - began,
            worker="died",
            memory=reply.status == "memory",
            crashed=reply.status != "error",
        )

    def _call(self, task: Task, granted: int | None) -> _child.Outcome:
        worker = self._worker
        if worker is None or granted != self._granted:
            self._drop()
            self._folder = tempfile.mkdtemp(prefix=prefix())
            self._worker = worker = Worker(memory_mb=granted, confined=False)
            self._granted = granted
        setting = Setting(os.getpid(), granted, max(1, allowance.cores() // self._budget.jobs), self._folder)
        if self._interrupted:
            raise Closed
        return worker.call(f"{_WORKER}:perform", timeout=STEP_SECONDS, task=task, setting=setting)

    def _drop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _with_limit(outcome: Outcome, size: Size, total_mb: int) -> Outcome:
    """The outcome; if the model ran out of all the memory there is, its error names the limit."""
    if not outcome.memory or not outcome.error:
        return outcome
    limit = f"the model has {size.data_mb:.0f} MiB, and this run may use {total_mb} MiB"
    return replace(outcome, error=f"{outcome.error} ({limit})")


def _death_of_worker(task: Task, reply: _child.Outcome) -> str:
    """One line about a worker that died while it ran the task."""
    during = f" while {reply.note}" if reply.note else ""
    if reply.status == "error":
        return f"{task.source}: its worker process: {reply.message}"
    return f"{task.source}: its worker process died{during}: {reply.message}"
