"""The work on one model as plain data, and doing it: shared by all executors.

A ``Task`` says what to do with one model, an ``Outcome`` what the result was. Both are frozen and can be pickled, so
that a task may run in this process (``perform``), in a worker process (``fleet.local``) or on another machine
(``fleet.ray``). Paths may be URLs that fsspec knows, in ``source``, ``target`` and the report alike; ``perform``
copies remote files to a temporary folder and uploads the result (``fleet.remote``).

An executor is anything with ``run``. The driver (``fleet.drive``) gives it the tasks that are not in the journal, and
accepts the outcomes in any order.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from onnxfix.allowance import structure_limit
from onnxfix.errors import MissingFile, TimeLimit, explained
from onnxfix.fleet import paths
from onnxfix.fleet.stamps import Watched
from onnxfix.fleet.task_files import TaskFiles
from onnxfix.options import RunOptions
from onnxfix.record import record

if TYPE_CHECKING:
    from onnxfix.report.report import Report

Command = Literal["check", "apply"]
Step = Callable[[str], None]
"""Called with a short description before each step of one model."""


@record
class Task:
    """What to do with one model. ``index`` is its position on the command line, by which results are ordered.

    ``source`` is a local path or a URL; ``target`` the file to write, "" for none or for the source itself
    (``options.output.in_place``). ``stamped``: the outcome lists the files that were read and written, for a journal.
    """

    index: int
    source: str
    target: str = ""
    command: Command = "check"
    options: RunOptions = field(default_factory=RunOptions)
    stamped: bool = False


@record
class Outcome:
    """The result of a task: a ``report`` (without its ``model``), or an ``error`` in one line that names the model.

    ``seconds`` is the wall-clock time of the last attempt, ``attempts`` their number. ``worker`` is the process id (on
    Ray with the address of its machine, ``node``). ``memory``: the task, a rule or a rung ran out of memory, so that
    more memory may help. ``crashed``: its worker died. ``missing``: the model's file does not exist. ``late``: the time
    limit ended it before there was anything to report. ``files`` are the files of a stamped task with their contents,
    empty if one changed meanwhile. ``reused``: the outcome is from the journal.
    """

    task: Task
    report: Report | None = None
    error: str = ""
    seconds: float = 0.0
    worker: str = ""
    node: str = ""
    attempts: int = 1
    memory: bool = False
    crashed: bool = False
    missing: bool = False
    late: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    reused: bool = False


class Executor(Protocol):
    """Runs tasks somewhere."""

    def run(
        self, tasks: Sequence[Task], progress: Callable[[Task, str], None] | None = None
    ) -> Iterator[Outcome]:
        """Run the tasks; yields the outcome of each once, as it arrives, in any order.

        A task that fails or kills its worker has an outcome that says so; it never raises here. Closing the iterator
        (as KeyboardInterrupt does) stops running tasks: afterwards none of their processes is left, and no partly
        written file. ``progress`` may be called from any thread, with a task and a short description of its step.
        """
        ...  # pragma: no cover


def perform(task: Task, progress: Step | None = None) -> Outcome:
    """Do one task in this process. Raises only KeyboardInterrupt and SystemExit."""
    watched = Watched()

    def do() -> Report:
        with structure_limit(task.options.structure_mb), _local_files(task, progress) as files:
            if task.stamped:
                watched.begin(files)
            local = replace(task, source=files.source, target=files.target)
            report = replace(_do(local, progress), pending=None)
            if report.output:
                files.publish()
            if task.stamped:
                watched.end(task, files, report)
            return files.as_named(report)

    outcome = attempt(task, do)
    return replace(outcome, files=watched.files) if outcome.report is not None else outcome


def _local_files(task: Task, progress: Step | None) -> contextlib.AbstractContextManager[TaskFiles]:
    """The task's files on this machine, while the context lasts; URLs are copied."""
    if not paths.remote(task.source) and not paths.remote(task.target):
        return contextlib.nullcontext(TaskFiles(task.source, task.target))
    from onnxfix.fleet.remote.staging import staged  # lazy: URLs only

    return staged(task.source, task.target, progress)


def attempt(task: Task, do: Callable[[], Report]) -> Outcome:
    """The outcome of ``do``, be it a report or an exception. Raises only KeyboardInterrupt and SystemExit."""
    began = time.perf_counter()
    worker = str(os.getpid())
    try:
        report = do()
    except Exception as error:  # whatever it is, the other models still have to run
        return Outcome(
            task,
            error=explained(error, task.source),
            seconds=time.perf_counter() - began,
            worker=worker,
            memory=isinstance(error, MemoryError),
            missing=isinstance(error, MissingFile),
            late=isinstance(error, TimeLimit),
        )
    return Outcome(
        task, report, seconds=time.perf_counter() - began, worker=worker, memory=_ran_out_of_memory(report)
    )


def _do(task: Task, progress: Step | None) -> Report:
    if task.command == "check":
        from onnxfix.pipeline import checking  # lazy: start-up

        return checking.check(Path(task.source), task.options, progress)
    from onnxfix.pipeline import applying  # lazy: start-up

    output = replace(task.options.output, path=task.target or None)
    return applying.apply(Path(task.source), replace(task.options, output=output), progress)


def _ran_out_of_memory(report: Report) -> bool:
    """Whether a rule, a rung, one of a rung's feeds, or TensorRT ran out of memory."""
    rungs = report.verdict.rungs if report.verdict is not None else ()
    short = [rung for rung in rungs if rung.status != "passed"]
    causes = [
        *(problem.cause for problem in report.problems),
        *(rung.cause for rung in short),
        *(reading.cause for rung in short for reading in rung.networks),
        *(feed.cause for rung in rungs for feed in rung.feeds if feed.status == "not counted"),
    ]
    return "memory" in causes or any(build.status == "memory" for build in report.builds)
