"""One model's worth of work as plain data, and doing it: what every executor shares.

A ``Task`` is what the command line wants of one model, an ``Outcome`` what came of it. Both are frozen and pickle, so
that a task may be done in this process (``perform``), in a worker process (``fleet.local``) or on another machine
(``fleet.ray_``). Paths may be URLs that fsspec knows, in ``source``, ``target`` and the report alike; ``perform``
brings what is remote to a temporary folder and the result back (``fleet.staging``).

An executor is anything with ``run``; the driver (``fleet.drive``) gives it the tasks that the journal does not know,
and takes the outcomes in whatever order they come.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from onnxfix.errors import MissingFile, explained

if TYPE_CHECKING:
    from onnxfix.report.report import Report
    from onnxfix.trt.records import TrtOptions

Command = Literal["check", "apply"]
Step = Callable[[str], None]
"""Called with a few words before each step of one model."""


@dataclass(frozen=True)
class Options:
    """Everything that ``api.check`` and ``api.apply`` take besides the model and where it goes.

    ``trt`` None: TensorRT is not asked (``check``), or as it comes (``apply``). What only ``apply`` takes is left at
    its default for ``check``. ``fix_dims`` and ``fix_inputs`` are ``NAME=VALUE``, for each model alike.
    """

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    target: str | None = None
    trt: TrtOptions | None = None
    in_place: bool = False
    numeric_fixes: bool = False
    unsafe_fixes: bool = False
    simplify: bool = False
    graphsurgeon: tuple[str, ...] = ()
    fix_dims: tuple[str, ...] = ()
    fix_inputs: tuple[str, ...] = ()
    static: bool = False
    keep_inputs: bool = False
    verify: bool = True
    require: tuple[str, ...] = ()
    inputs: str | None = None
    input_shapes: tuple[str, ...] = ()
    seed: int = 0
    rungs: tuple[str, ...] | None = None
    memory_mb: int | None = None
    inputs_help: bool = False


@dataclass(frozen=True)
class Task:
    """What is wanted of one model. ``index`` is its place on the command line, by which results are ordered.

    ``source`` is a local path or a URL; ``target`` the file to write, "" for none or for the source itself
    (``options.in_place``). ``stamped``: the outcome is to say what was read and written, for a journal.
    """

    index: int
    source: str
    target: str = ""
    command: Command = "check"
    options: Options = field(default_factory=Options)
    stamped: bool = False


@dataclass(frozen=True)
class Stamp:
    """A file at a moment. ``quick`` is cheap to compare: size, times and inode of a local file, what the store says of
    a remote one; "" where that would not show a change. ``sha256`` is of the bytes, "" where they were not read."""

    path: str
    quick: str
    sha256: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a task: a ``report`` (without its ``model``), or the ``error`` in one line that names the model.

    ``seconds`` is wall-clock time of the last attempt, ``worker`` who did it (a process id, and where it ran on another
    machine that ``node``), ``attempts`` how often it was begun. ``memory``: it, a rule or a rung failed for lack of
    memory, so that it may go better where there is more. ``crashed``: its worker died. ``missing``: the model's file is
    not there. ``read`` and ``written`` are the files of a stamped task, where they stood still meanwhile; ``reused``:
    it is an earlier run's, from the journal.
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
    read: tuple[Stamp, ...] = ()
    written: tuple[Stamp, ...] = ()
    reused: bool = False


class Executor(Protocol):
    """Does tasks somewhere."""

    def run(
        self, tasks: Sequence[Task], progress: Callable[[Task, str], None] | None = None
    ) -> Iterator[Outcome]:
        """Do the tasks; yields each one's outcome once, as it comes, in any order.

        What a task does to its worker is its outcome, never an exception here. Closing the iterator (a
        KeyboardInterrupt does) ends what is under way: when it returns no process of it is left, and nothing
        half-written. ``progress`` may be called from any thread, with a task and what happens to it.
        """
        ...  # pragma: no cover


def perform(task: Task, progress: Step | None = None) -> Outcome:
    """Do one task in this process. Never raises but for KeyboardInterrupt and SystemExit."""
    from onnxfix.fleet import stamps
    from onnxfix.fleet.staging import staged

    files = stamps.Watched()

    def do() -> Report:
        with staged(task.source, task.target, progress) as here:
            if task.stamped:
                files.begin(task, here)
            report = replace(
                _do(
                    replace(task, source=here.source, target=here.target),
                    progress,
                    # What a remote model keeps beside it is not known when it is decided which models may run at once.
                    leave_data=here.source != task.source,
                ),
                pending=None,
            )
            if report.output:
                here.publish()
            if task.stamped:
                files.end(task, here, report)
            return here.told(report)

    outcome = attempt(task, do)
    return replace(outcome, read=files.read, written=files.written) if outcome.report is not None else outcome


def attempt(task: Task, do: Callable[[], Report]) -> Outcome:
    """What comes of ``do``, be it a report or an exception. Never raises but for KeyboardInterrupt and SystemExit."""
    began = time.perf_counter()
    worker = str(os.getpid())
    try:
        report = do()
    except Exception as error:  # whatever it is, the other models are still to be done
        return Outcome(
            task,
            error=explained(error, task.source),
            seconds=time.perf_counter() - began,
            worker=worker,
            memory=isinstance(error, MemoryError),
            missing=isinstance(error, MissingFile),
        )
    return Outcome(task, report, seconds=time.perf_counter() - began, worker=worker, memory=_starved(report))


def _do(task: Task, progress: Step | None, leave_data: bool) -> Report:
    from onnxfix import api

    asked, source = task.options, Path(task.source)
    if task.command == "check":
        return api.check(
            source,
            select=asked.select,
            ignore=asked.ignore,
            target=asked.target,
            trt=asked.trt or False,
            inputs_help=asked.inputs_help,
            memory_mb=asked.memory_mb,
            progress=progress,
        )
    from onnxfix.verification.specialize.request import pairs_of, sizes_of

    return api.apply(
        source,
        task.target or None,
        in_place=asked.in_place,
        select=asked.select,
        ignore=asked.ignore,
        target=asked.target,
        numeric_fixes=asked.numeric_fixes,
        unsafe_fixes=asked.unsafe_fixes,
        simplify=asked.simplify,
        graphsurgeon=asked.graphsurgeon,
        fix_dims=sizes_of(asked.fix_dims),
        fix_inputs=pairs_of("--fix-input", asked.fix_inputs),
        static=asked.static,
        keep_inputs=asked.keep_inputs,
        verify=asked.verify,
        require=asked.require,
        inputs=asked.inputs,
        input_shapes=asked.input_shapes,
        seed=asked.seed,
        rungs=asked.rungs,
        trt=asked.trt,
        memory_mb=asked.memory_mb,
        leave_data=leave_data,
        progress=progress,
    )


def _starved(report: Report) -> bool:
    """Whether a rule failed, a rung or one of its feeds was skipped, or TensorRT gave up, for lack of memory."""
    rungs = report.verdict.rungs if report.verdict is not None else ()
    short = [rung for rung in rungs if rung.status != "passed"]
    causes = [
        *(problem.cause for problem in report.problems),
        *(rung.cause for rung in short),
        *(reading.cause for rung in short for reading in rung.networks),
        *(feed.cause for rung in rungs for feed in rung.feeds if feed.status == "not counted"),
    ]
    return "memory" in causes or any(build.status == "memory" for build in report.builds)
