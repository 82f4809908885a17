"""Several models at once on this machine, in worker processes that may die without harm to the others.

A worker is a ``sandbox.Worker`` that one thread of a pool keeps for its models, so that imports are paid for once. If
it dies, that is reported for its model, and the next model gets a fresh worker.

The workers stay below three quarters of the memory that is available when the run begins (a container's limit counts,
see ``_child.default_memory_mb``), of which each has an even share. It limits the worker and each sandbox child that it
starts by RLIMIT_DATA. A model that needs more, by an estimate or because it ran out of its share, is done at the end,
alone and with all of the memory, so that its result does not depend on the number of jobs. Each worker uses an even
share of the cores.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from onnxfix import _child, allowance
from onnxfix.fleet.budget import MINIMUM_MB, more_helps, need_mb, replaced_file, size_mb
from onnxfix.fleet.here import Progress
from onnxfix.fleet.leftovers import tidy
from onnxfix.fleet.work import Outcome, Task
from onnxfix.fleet.worker import Setting
from onnxfix.record import record
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
        together, alone = _apart(tasks)
        count, share_mb = self._shares(len(together))
        attempted: set[int] = set()
        lost: list[Task] = []
        began = time.time()
        try:
            for result in _work(_Group(together, count, share_mb, count > 1), lost, progress):
                if isinstance(result, Task):
                    alone.append(result)
                elif count > 1 and share_mb is not None and result.memory and more_helps(result, share_mb):
                    attempted.add(result.task.index)
                    alone.append(result.task)
                else:
                    yield self._explained(result)
            alone.sort(key=lambda task: task.index)
            for result in _work(_Group(alone, 1, self.memory_mb), lost, progress):
                assert isinstance(result, Outcome)  # none is too large for all of the memory
                again = result.task.index in attempted
                yield self._explained(replace(result, attempts=2) if again else result)
        finally:
            for task in lost:
                tidy(task, began)

    def _shares(self, tasks: int) -> tuple[int, int | None]:
        """How many models are worked on at once, and MiB for each of them."""
        count = max(1, min(self.jobs, tasks))
        if self.memory_mb is None:
            return count, None
        count = max(1, min(count, self.memory_mb // MINIMUM_MB))
        return count, self.memory_mb // count

    def _explained(self, outcome: Outcome) -> Outcome:
        """The outcome; if the model ran out of all the memory there is, its error names the limit."""
        if not outcome.memory or not outcome.error or self.memory_mb is None:
            return outcome
        size = size_mb(outcome.task)
        limit = f"the model has {size:.0f} MiB, and this run may use {self.memory_mb} MiB"
        return replace(outcome, error=f"{outcome.error} ({limit})")


def _apart(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """The tasks that may run at once, and those that must wait for another one to replace the file that they read."""
    together: list[Task] = []
    alone: list[Task] = []
    replaced: set[str] = set()
    for task in tasks:
        file = replaced_file(task)
        (alone if file in replaced else together).append(task)
        replaced |= {file} - {""}
    return together, alone


@record
class _Group:
    """Tasks of which ``jobs`` run at once, with ``memory_mb`` each (None: no limit). ``sized``: not those that need
    more."""

    tasks: Sequence[Task]
    jobs: int
    memory_mb: int | None
    sized: bool = False


def _work(group: _Group, lost: list[Task], progress: Progress | None) -> Iterator[Outcome | Task]:
    """The outcomes of a group's tasks as they arrive, and as they are the tasks that need more memory. Adds to ``lost``
    those whose worker died."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    results: queue.SimpleQueue[Outcome | Task] = queue.SimpleQueue()
    for task in group.tasks:
        waiting.put(task)
    jobs = [_Job(group, waiting, results, lost, progress) for _ in range(group.jobs)]
    with ThreadPoolExecutor(group.jobs, thread_name_prefix="onnxfix-job") as pool:
        threads = [pool.submit(job.work) for job in jobs]
        try:
            for _ in group.tasks:
                yield _next(results, threads)
        finally:
            _end(jobs, threads)


def _next(results: queue.SimpleQueue[Outcome | Task], threads: Sequence[Future[None]]) -> Outcome | Task:
    """The next result. Raises what ended a job's thread, which is a defect of onnxfix."""
    while True:
        ended = all(thread.done() for thread in threads)
        with contextlib.suppress(queue.Empty):
            return results.get(timeout=0 if ended else _POLL_SECONDS)
        if ended:
            for thread in threads:
                thread.result()
            raise RuntimeError("all workers ended before the work was done")


def _end(jobs: Sequence[_Job], threads: Sequence[Future[None]]) -> None:
    """Stop the workers that are still running: first as Ctrl-C would, later by force."""
    try:
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not all(thread.done() for thread in threads):
            for job in jobs:
                job.interrupt()
            wait(threads, timeout=_POLL_SECONDS)
    finally:
        for job in jobs:
            job.kill()


class _Job:
    """One thread's loop and its worker."""

    def __init__(
        self,
        group: _Group,
        waiting: queue.SimpleQueue[Task],
        results: queue.SimpleQueue[Outcome | Task],
        lost: list[Task],
        progress: Progress | None,
    ) -> None:
        self._group = group
        self._waiting = waiting
        self._results = results
        self._lost = lost
        self._progress = progress
        self._worker: Worker | None = None
        self._folder = ""
        self._interrupted = False
        self._interrupted_pid: int | None = None

    def work(self) -> None:
        """Run tasks until there are none left."""
        try:
            with contextlib.suppress(queue.Empty):
                while not self._interrupted:
                    task = self._waiting.get_nowait()
                    self._results.put(task if self._too_large(task) else self._outcome(task))
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

    def _too_large(self, task: Task) -> bool:
        limit = self._group.memory_mb
        return self._group.sized and limit is not None and need_mb(task, size_mb(task)) > limit

    def _outcome(self, task: Task) -> Outcome:
        """Run the task in a worker."""
        if self._progress is not None:
            self._progress(task, "working")
        began = time.perf_counter()
        try:
            reply = self._call(task)
        except OSError as error:  # no more processes, or no space for temporary files
            reply = _child.Outcome("error", message=f"cannot be started: {error.strerror or error}")
        if reply.ok and isinstance(reply.value, Outcome):
            if reply.value.memory:
                self._drop()  # its heap is fragmented
            return reply.value
        self._drop()
        self._lost.append(task)
        return Outcome(
            task,
            error=_death_of_worker(task, reply),
            seconds=time.perf_counter() - began,
            worker="died",
            memory=reply.status == "memory",
            crashed=reply.status != "error",
        )

    def _call(self, task: Task) -> _child.Outcome:
        memory_mb = self._group.memory_mb
        worker = self._worker
        if worker is None:
            self._folder = tempfile.mkdtemp(prefix="onnxfix-")
            self._worker = worker = Worker(memory_mb=memory_mb, confined=False)
        cores = max(1, allowance.cores() // self._group.jobs)
        setting = Setting(os.getpid(), memory_mb, cores, self._folder)
        if self._interrupted:
            return _child.Outcome("error", message="interrupted")
        return worker.call(f"{_WORKER}:perform", timeout=STEP_SECONDS, task=task, setting=setting)

    def _drop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _death_of_worker(task: Task, reply: _child.Outcome) -> str:
    """One line about a worker that died while it ran the task."""
    during = f" while {reply.note}" if reply.note else ""
    if reply.status == "error":
        return f"{task.source}: its worker process: {reply.message}"
    return f"{task.source}: its worker process died{during}: {reply.message}"
