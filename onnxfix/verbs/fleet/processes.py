"""Several models at once on this machine, in worker processes that may die without harm to the others.

The jobs share three quarters of the memory that is available when the run begins (a container's limit counts, see
``_child.default_memory_mb``) evenly. A share limits the worker and each sandbox child that it starts by RLIMIT_DATA. A
model that ran out of its share is done again at the end, alone and with all of the memory, so that its result does not
depend on the number of jobs. Each worker uses an even share of the cores.

A worker is ended by force: its children die with it, its temporary folder is deleted here, and what it left beside the
result of its task is swept.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from onnxfix.runtime import _child, allowance
from onnxfix.verbs.fleet import work
from onnxfix.verbs.fleet.work import Outcome, Progress, Task, in_turns, more_memory_helps, sweeping

MINIMUM_MB = 1024
"""MiB of the smallest share: imports, ONNX Runtime and a small model take 250 to 500 MiB of address space."""
_POLL_SECONDS = 0.2  # a signal may reach another thread, and the main one must wake up to see it
_CLOSE_SECONDS = 10.0
"""Seconds in which a worker without a task ends by itself, and its children with it."""


class Processes:
    """Runs up to ``jobs`` models at once, each in a worker process. ``memory_mb``: MiB that all may use together."""

    def __init__(self, jobs: int, memory_mb: int | None = None) -> None:
        self.jobs = jobs
        self.memory_mb = memory_mb if memory_mb is not None else _child.default_memory_mb()

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
        """See ``work.Executor``."""
        return sweeping(tasks, self._outcomes(tasks, progress))

    def _outcomes(self, tasks: Sequence[Task], progress: Progress | None) -> Generator[Outcome, None, None]:
        together, alone = in_turns(tasks)
        count, share_mb = self._shares(len(together))
        again: list[Task] = []
        for outcome in _work(together, count, share_mb, progress):
            if count > 1 and share_mb is not None and more_memory_helps(outcome, share_mb):
                again.append(outcome.task)
            else:
                yield self._explain(outcome)
        alone = sorted([*alone, *again], key=lambda task: task.index)
        for outcome in _work(alone, 1, self.memory_mb, progress):
            yield self._explain(replace(outcome, attempts=2) if outcome.task in again else outcome)

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
    idle, running = list(jobs), dict[object, _Job]()
    try:
        while waiting or running:
            while waiting and idle:
                job, task = idle.pop(), waiting.popleft()
                if progress is not None:
                    progress(task, "working")
                try:
                    running[job.send(task)] = job
                except OSError as error:  # no more processes, or no space for temporary files
                    job.close()
                    idle.append(job)
                    reason = f"cannot be started: {error.strerror or error}"
                    yield Outcome(task, error=f"{task.source}: its worker process: {reason}")
            for pipe in wait(list(running), _POLL_SECONDS):  # type: ignore[arg-type]
                job = running.pop(pipe)
                yield job.receive()
                idle.append(job)
    finally:
        for job in running.values():
            job.kill()
        for job in jobs:
            job.close()


class _Job:
    """One worker process at a time, with a folder for its temporary files."""

    def __init__(self, memory_mb: int | None, cores: int) -> None:
        self._limits = memory_mb, cores
        self._process: BaseProcess | None = None
        self._folder = ""

    def send(self, task: Task) -> Connection:
        """Begin a task, in a new process if there is none. What it returns is ready when the task ended.

        Raises:
            OSError: no process can be started.
        """
        self._task = task
        if self._process is None:
            self._folder = tempfile.mkdtemp(prefix="onnxfix-")
            self._pipe, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=_serve, args=(theirs, os.getpid(), self._folder, *self._limits), daemon=True
            )
            with theirs, _starting():
                process.start()
            self._process = process
        self._pipe.send(task)
        return self._pipe

    def receive(self) -> Outcome:
        """What became of the task. A worker that died or ran out of memory is not used again."""
        try:
            outcome: Outcome = self._pipe.recv()
        except (EOFError, OSError):
            outcome = self._describe_death()
        if outcome.memory or outcome.crashed:
            self.close()  # the heap of one that lives is fragmented
        return outcome

    def _describe_death(self) -> Outcome:
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        ending = _child.describe_exit(code, _read(self._folder, "stderr"), _read(self._folder, "step"))
        what = f"died{ending.note and f' while {ending.note}'}: {ending.message}"
        error = f"{self._task.source}: its worker process {what}"
        return Outcome(self._task, error=error, memory=ending.status == "memory", crashed=True)

    def kill(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def close(self) -> None:
        """End the process, which has nothing to do any more, and delete its temporary files."""
        if self._process is not None:
            self._pipe.close()
            self._process.join(_CLOSE_SECONDS)
            self.kill()
            self._process = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Around the start of a process: it imports nothing from the user's folder, and the signals of a terminal, which it
    inherits as blocked, are for this process alone."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    if sys.platform != "win32":
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _read(folder: str, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(folder, name).read_text(encoding="utf-8", errors="replace")[-4096:]
    return ""


# ------------------------------------------------------------------------------------------------ in the worker


def _serve(pipe: Connection, parent: int, folder: str, memory_mb: int | None, cores: int) -> None:
    """Do the tasks that come, until there are no more.

    Before anything that reads the environment is imported, limits are set. Numeric libraries run single-threaded unless
    the user's environment says otherwise, and then on the worker's cores at most.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _child.die_with(parent, signal.SIGTERM)
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

    def note(step: str) -> None:  # for the case that this worker dies of it
        Path(folder, "step").write_text(step, encoding="utf-8")

    try:
        while True:
            task: Task = pipe.recv()
            try:
                outcome = work.perform(task, note)
            except SystemExit as error:
                outcome = Outcome(task, error=f"{task.source}: its worker process: {_child.one_line(error)}")
            pipe.send(outcome)
    except EOFError:
        return
    except KeyboardInterrupt:  # the parent was killed
        shutil.rmtree(folder, ignore_errors=True)
