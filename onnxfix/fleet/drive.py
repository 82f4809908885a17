"""From what the command line names to tasks, and through them: what the journal knows first, then the rest."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.fleet import paths
from onnxfix.fleet.here import Here, Progress
from onnxfix.fleet.work import Command, Executor, Outcome, Task
from onnxfix.options import RunOptions


def tasks_of(
    patterns: Sequence[str],
    command: Command,
    options: RunOptions,
    *,
    output: str | None = None,
    output_dir: str | None = None,
    stamped: bool = False,
) -> list[Task]:
    """What is wanted of the models that paths, globs and URLs name. Folders for results in ``output_dir`` are made.

    Raises:
        UsageError: a glob matches nothing, options exclude each other, or a result would replace another file.
    """
    named = paths.expand(patterns)
    targets: dict[str, str] = {}
    if command == "apply":
        targets = paths.targets(named, output, output_dir, options.output.in_place)
    if output_dir is not None:
        paths.make_folders(list(targets.values()))
    return [
        Task(index, _plain(one.source), targets.get(one.source, ""), command, options, stamped)
        for index, one in enumerate(named)
    ]


def _plain(source: str) -> str:
    """A local path as reports write it."""
    return source if paths.remote(source) else str(Path(source))


def here_or_local(jobs: str, tasks: Sequence[Task]) -> Executor:
    """The executor for ``--jobs``: worker processes for more than one job, this process for one.

    Raises:
        UsageError: ``jobs`` is neither a number nor "auto".
    """
    from onnxfix._child import cores

    if jobs != "auto" and not jobs.isdecimal():
        raise UsageError(
            f"--jobs {jobs}: is a number of models to work on at once, or auto for one on each core"
        )
    count = 0 if jobs == "auto" else int(jobs)
    count = count or cores()
    if count < 2 or len(tasks) < 2:
        return Here()
    from onnxfix.fleet.local import Local

    return Local(count)


def executor_of(jobs: str, ray: str | None, tasks: Sequence[Task]) -> Executor:
    """The executor for ``--jobs`` and ``--ray`` (None: not given).

    Raises:
        UsageError: both are given, or ``jobs`` is neither a number nor "auto".
    """
    if ray is None:
        return here_or_local(jobs, tasks)
    if jobs != "1":
        raise UsageError(
            "--jobs is about this machine: with --ray the cluster says how many models run at once"
        )
    from onnxfix.fleet.ray_ import RayExecutor

    return RayExecutor(ray)


def drive(
    tasks: Sequence[Task],
    executor: Executor,
    journal: Path | None = None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> Generator[Outcome, None, None]:
    """Yields the outcome of each task, as it comes: with ``resume``, first those that the journal knows.

    Raises:
        UsageError: the journal cannot be one.
        OnnxfixError: the journal cannot be written.
    """
    if journal is None:
        yield from executor.run(tasks, progress)
        return
    from onnxfix.fleet.journal import Journal, split

    with Journal(journal) as known:
        done, left = split(known, tasks, resume)
        yield from done
        for outcome in executor.run(left, progress):
            known.note(outcome)
            yield outcome
