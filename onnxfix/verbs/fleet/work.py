"""One model's task and outcome as plain data, and what performs the task; all executors share it.

A ``Task`` says what to do with one model, an ``Outcome`` what the result was. Both are frozen and can be pickled, so
that a task may run in this process (``here``), in a worker process (``fleet.processes``) or on another machine
(``fleet.ray``). Paths may be URLs that fsspec knows, in ``source``, ``target`` and the report alike; ``perform``
copies remote files to a temporary folder and uploads the result (``fleet.remote``).

The driver (``fleet.drive``) gives an ``Executor`` the tasks that are not in the journal.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onnxfix.errors import MissingFile, TimeLimit, explained
from onnxfix.options import RunOptions
from onnxfix.verbs.fleet.paths import TaskFiles, is_remote

if TYPE_CHECKING:
    from onnxfix.report.report import Report

Command = Literal["check", "apply"]
Step = Callable[[str], None]
"""Called with a short description before each step of one model."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Outcome:
    """The result of a task: a ``report`` (without its ``model``), or an ``error`` in one line that names the model.

    ``attempts`` is their number, ``node`` the address of Ray's machine. ``memory``: the task, a rule or a check ran out
    of memory, so that more memory may help. ``crashed``: its worker died. ``missing``: the model's file does not exist.
    ``late``: the time limit ended it before there was anything to report. ``files`` are the files of a stamped task
    with their contents, empty if one changed meanwhile. ``reused``: the outcome is from the journal.
    """

    task: Task
    report: Report | None = None
    error: str = ""
    node: str = ""
    attempts: int = 1
    memory: bool = False
    crashed: bool = False
    missing: bool = False
    late: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    reused: bool = False


Progress = Callable[[Task, str], None]
"""Called with a task and a short description of its step."""


Executor = Callable[[Sequence[Task], Progress | None], Iterator[Outcome]]
"""Runs tasks somewhere; yields the outcome of each once, as it arrives, in any order.

A task that fails or kills its worker has an outcome that says so; it never raises here. Closing the iterator (as
KeyboardInterrupt does) stops running tasks: afterwards none of their processes is left, and no partly written file.
"""


def here(tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
    """Runs tasks one after another in this process."""
    for task in tasks:
        yield perform(task, partial(progress, task) if progress is not None else None)


def in_turns(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """The tasks that may run at once, and those that must wait: of two links to one file that is replaced in place, the
    second must find the fixed model."""
    together: list[Task] = []
    waiting: list[Task] = []
    replaced: set[str] = set()
    for task in tasks:
        file = os.path.realpath(task.source) if task.options.output.in_place else ""
        (waiting if file and file in replaced else together).append(task)
        replaced.add(file)
    return together, waiting


def more_memory_helps(outcome: Outcome, granted_mb: int) -> bool:
    """Whether a model ran out of ``granted_mb`` MiB and may succeed with more.

    It may not if it ran into the user's own limit for sandbox children, or if its file has been replaced already.
    """
    options, report = outcome.task.options, outcome.report
    if report is None or not outcome.memory:
        return outcome.memory
    users_limit = options.memory_mb is not None and options.memory_mb <= granted_mb and not report.problems
    return not users_limit and not (report.output and options.output.in_place)


def sweeping(
    tasks: Sequence[Task], outcomes: Generator[Outcome, None, None], skew: float = 0.0
) -> Iterator[Outcome]:
    """The outcomes of tasks in workers. Afterwards, files that workers left are deleted if one died or the run was
    ended. ``skew`` are seconds by which a file server's clock may be behind ours."""
    since, died = time.time() - skew, True
    try:
        with contextlib.closing(outcomes):
            lost = False
            for outcome in outcomes:
                lost = lost or outcome.crashed or outcome.attempts > 1
                yield outcome
            died = lost
    finally:
        if died:
            sweep(tasks, since)


def sweep(tasks: Sequence[Task], since: float) -> None:
    """Delete temporary files that dead workers left beside the results of their tasks ``since`` then (seconds since the
    epoch). Call it when no worker runs: the temporary file of a long name starts with a part of it only, which other
    models may share.
    """
    names: dict[str, set[str]] = {}
    for task in tasks:
        target = task.target or task.source
        if task.command == "apply" and not is_remote(target):
            folder, name = os.path.split(os.path.abspath(target))
            names.setdefault(folder, set()).add(name[:40])
    for folder, known in names.items():
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                match = _TEMPORARY.fullmatch(entry.name)
                if (
                    match is None
                    or match[1] not in known
                    or entry.stat(follow_symlinks=False).st_mtime < since
                ):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.tmp", re.DOTALL)


def perform(task: Task, progress: Step | None = None) -> Outcome:
    """Do one task in this process. Raises only KeyboardInterrupt and SystemExit."""
    hashes: dict[str, str] = {}

    def run() -> Report:
        with _local_files(task, progress) as files:
            if task.stamped:
                from onnxfix.verbs.fleet import contents  # lazy: start-up, for a journal only

                hashes.update(contents.hash_source(files))
            if task.command == "check":
                from onnxfix.verbs import checking  # lazy: start-up

                report = checking.check(Path(files.source), task.options, progress)
            else:
                from onnxfix.verbs import applying  # lazy: start-up

                output = replace(task.options.output, path=files.target or None)
                report = applying.apply(Path(files.source), replace(task.options, output=output), progress)
            report = replace(report, pending=None)
            if report.output:
                files.publish()
            if task.stamped:
                hashes.update(contents.hash_results(files, task.options, report))
            return files.as_named(report)

    outcome = attempt(task, run)
    complete = outcome.report is not None and "" not in hashes.values()
    return replace(outcome, files=hashes) if complete else outcome


def _local_files(task: Task, progress: Step | None) -> contextlib.AbstractContextManager[TaskFiles]:
    """The task's files on this machine, while the context lasts; URLs are copied."""
    if not is_remote(task.source) and not is_remote(task.target):
        return contextlib.nullcontext(TaskFiles(task.source, task.target))
    from onnxfix.verbs.fleet import remote  # lazy: URLs only

    return remote.stage(task.source, task.target, progress)


def attempt(task: Task, run: Callable[[], Report]) -> Outcome:
    """The outcome of ``run``, be it a report or an exception. Raises only KeyboardInterrupt and SystemExit."""
    try:
        report = run()
        return Outcome(task, report, memory=_ran_out_of_memory(report))
    except Exception as error:  # whatever it is, the other models still have to run
        return Outcome(
            task,
            error=explained(error, task.source),
            memory=isinstance(error, MemoryError),
            missing=isinstance(error, MissingFile),
            late=isinstance(error, TimeLimit),
        )


def _ran_out_of_memory(report: Report) -> bool:
    """Whether a rule, a check, one of a check's feeds, or TensorRT ran out of memory."""
    rungs = report.verdict.rungs if report.verdict is not None else ()
    short = [rung for rung in rungs if rung.status != "passed"]
    causes = [
        *(problem.cause for problem in report.problems),
        *(rung.cause for rung in short),
        *(reading.cause for rung in short for reading in rung.networks),
        *(feed.cause for rung in rungs for feed in rung.feeds if feed.status == "not counted"),
    ]
    return "memory" in causes or any(build.status == "memory" for build in report.builds)
