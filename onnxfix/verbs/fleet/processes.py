"""Several models at once on this machine, in worker processes that may die without harm to the others.

Each job is an executor of one process, so that a death concerns one model only; the next model gets a new process.
The jobs share three quarters of the memory that is available when the run begins (a container's limit counts, see
``_child.default_memory_mb``) evenly. A share limits the worker and each sandbox child that it starts by RLIMIT_DATA. A
model that ran out of its share is done again at the end, alone and with all of the memory, so that its result does not
depend on the number of jobs. Each worker uses an even share of the cores.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from onnxfix.runtime import _child, allowance, sandbox
from onnxfix.verbs.fleet import work
from onnxfix.verbs.fleet.work import Outcome, Progress, Task, in_turns, more_memory_helps, sweep

MINIMUM_MB = 1024
"""MiB of the smallest share: imports, ONNX Runtime and a small model take 250 to 500 MiB of address space."""
GRACE = 10.0
"""Seconds in which workers must clean up when the run is interrupted."""
_POLL_SECONDS = 0.2  # a signal may reach another thread, and the main one must wake up to see it


class Processes:
    """Runs up to ``jobs`` models at once, each in a worker process. ``memory_mb``: MiB that all may use together."""

    def __init__(self, jobs: int, memory_mb: int | None = None) -> None:
        self.jobs = jobs
        self.memory_mb = memory_mb if memory_mb is not None else _child.default_memory_mb()

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
        """See ``work.Executor``."""
        together, alone = in_turns(tasks)
        count, share_mb = self._shares(len(together))
        began = time.time()
        again: list[Task] = []
        lost: list[Task] = []
        try:
            for outcome in _work(together, count, share_mb, progress):
                if outcome.crashed:
                    lost.append(outcome.task)
                if count > 1 and share_mb is not None and more_memory_helps(outcome, share_mb):
                    again.append(outcome.task)
                else:
                    yield self._explain(outcome)
            alone = sorted([*alone, *again], key=lambda task: task.index)
            for outcome in _work(alone, 1, self.memory_mb, progress):
                if outcome.crashed:
                    lost.append(outcome.task)
                yield self._explain(replace(outcome, attempts=2) if outcome.task in again else outcome)
        finally:
            sweep(lost, began)

    def _shares(self, tasks: int) -> tuple[int, int | None]:
        """How many models are worked on at once, and MiB for each of them."""
        count = max(1, min(self.jobs, tasks))
        if self.memory_mb is None:
            return count, None
        count = max(1, min(count, self.memory_mb // MINIMUM_MB))
        return count, self.memory_mb // count

    def _explain(self, outcome: Outcome) -> Outcome:
        """The outcome; if the model ran out of all the memory there is, its error names the limit."""
        if not outcome.memory or not outcome.error or self.memory_mb is None:
            return outcome
        return replace(outcome, error=f"{outcome.error} (this run may use {self.memory_mb} MiB)")


def _work(
    tasks: Sequence[Task], count: int, memory_mb: int | None, progress: Progress | None
) -> Iterator[Outcome]:
    """The outcomes of tasks as they arrive, of which ``count`` run at once with ``memory_mb`` each."""
    waiting = deque(tasks)
    jobs = [_Job(memory_mb, max(1, allowance.cores() // count)) for _ in range(count)]
    idle, running = list(jobs), dict[Future[Outcome], tuple[_Job, Task]]()
    try:
        while waiting or running:
            while waiting and idle:
                job, task = idle.pop(), waiting.popleft()
                if progress is not None:
                    progress(task, "working")
                running[job.submit(task)] = job, task
            done, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                job, task = running.pop(future)
                yield job.outcome(task, future)
                idle.append(job)
    finally:
        if running:
            _stop([job for job, _ in running.values()])
        for job in jobs:
            job.close()


def _stop(jobs: Sequence[_Job]) -> None:
    """Stop workers that are still running: first by SIGTERM, upon which they clean up, later by force."""
    until = time.monotonic() + GRACE
    workers = [job.process for job in jobs if job.process is not None]
    try:
        while any(worker.is_alive() for worker in workers) and time.monotonic() < until:
            for worker in workers:
                worker.terminate()  # again and again: one that waits for a task may have missed the last one
            for worker in workers:
                worker.join(_POLL_SECONDS)
    finally:
        for worker in workers:
            worker.kill()


class _Job:
    """One worker process at a time, with a folder for its temporary files."""

    def __init__(self, memory_mb: int | None, cores: int) -> None:
        self._limits = memory_mb, cores
        self._pool: ProcessPoolExecutor | None = None
        self._folder = ""
        self._began = 0.0
        self.process: BaseProcess | None = None

    def submit(self, task: Task) -> Future[Outcome]:
        """Begin a task, in a new process if there is none."""
        self._began = time.perf_counter()
        before = set(multiprocessing.active_children())
        try:
            with _starting():
                if self._pool is None:
                    self._folder = tempfile.mkdtemp(prefix="onnxfix-")
                    self._pool = ProcessPoolExecutor(
                        max_workers=1,
                        mp_context=multiprocessing.get_context("spawn"),
                        initializer=_settle,
                        initargs=(os.getpid(), self._folder, *self._limits),
                    )
                future = self._pool.submit(_perform, task)
        except OSError as error:  # no more processes, or no space for temporary files
            future = Future()
            future.set_exception(error)
        for child in set(multiprocessing.active_children()) - before:
            self.process = child
        return future

    def outcome(self, task: Task, future: Future[Outcome]) -> Outcome:
        """What became of a task that ended. A worker that died or ran out of memory is not used again."""
        error = future.exception()
        if error is None:
            outcome = future.result()
            if outcome.memory:
                self.close()  # its heap is fragmented
            return outcome
        died = isinstance(error, BrokenExecutor)
        folder, process = self._folder, self.process
        if died and self._pool is not None:
            self._pool.shutdown()  # waits for the process, too
        code = process.exitcode if process is not None else None
        ending = _child.describe_exit(code or 0, _read(folder, "stderr"), _read(folder, "step"))
        self.close()
        if isinstance(error, OSError):
            what = f": cannot be started: {error.strerror or error}"
        elif died:
            what = f" died{ending.note and f' while {ending.note}'}: {ending.message}"
        else:
            what = f": {_child.one_line(error)}"
        return Outcome(
            task,
            error=f"{task.source}: its worker process{what}",
            seconds=time.perf_counter() - self._began,
            worker="died",
            memory=ending.status == "memory" if died else isinstance(error, MemoryError),
            crashed=died,
        )

    def close(self) -> None:
        """End the process, which has nothing to do any more, and delete its temporary files."""
        pool, self._pool, self.process = self._pool, None, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Around the start of a process: it imports nothing from the user's folder, and the terminal's Ctrl-C does not
    reach it before it has set its signals."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if sys.platform != "win32" else None
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
        if sys.platform != "win32" and mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _read(folder: str, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(folder, name).read_text(encoding="utf-8", errors="replace")[-4096:]
    return ""


# ------------------------------------------------------------------------------------------------ in the worker


class _State:
    folder = ""
    busy = False
    leaving = False


def _settle(parent: int, folder: str, memory_mb: int | None, cores: int) -> None:
    """Prepare this process, before anything that reads the environment is imported.

    SIGTERM ends the worker without leaving temporary files; it is also sent when the parent is killed. Signals of the
    terminal are the parent's. Numeric libraries run single-threaded unless the user's environment says otherwise, and
    then on the worker's cores at most.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _leave)
    _child.die_with(parent, signal.SIGTERM)
    _State.folder = folder
    with open(Path(folder, "stderr"), "ab") as stderr:  # the command's own streams are the parent's
        os.dup2(stderr.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
    os.environ[allowance.CORES] = str(cores)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = os.environ.get(name, "")
        os.environ[name] = str(min(int(threads), cores) if threads.isdecimal() and int(threads) else 1)
    if memory_mb is not None:
        os.environ[allowance.MEMORY_MB] = str(memory_mb)
    _child.limit(memory_mb)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def _leave(*_: object) -> None:
    """End this worker; a task that is under way cleans up first, whatever signals follow."""
    if _State.busy and not _State.leaving:
        _State.leaving = True
        raise KeyboardInterrupt
    if not _State.leaving:
        _end()


def _end() -> NoReturn:
    shutil.rmtree(_State.folder, ignore_errors=True)
    os._exit(128 + signal.SIGTERM)


def _perform(task: Task) -> Outcome:
    """Do one task in this worker."""
    _State.busy = True
    try:
        return work.perform(task, _note)
    except KeyboardInterrupt:
        sandbox.close_shared()
        _end()
    finally:
        _State.busy = False


def _note(step: str) -> None:
    """Leave word of the step, for the case that this worker dies of it."""
    Path(_State.folder, "step").write_text(step, encoding="utf-8")
