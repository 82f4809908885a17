"""Makes a task for each model that the command line names, and runs the tasks."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.options import RunOptions
from onnxfix.runtime.allowance import cores
from onnxfix.verbs.fleet import names, paths
from onnxfix.verbs.fleet.work import Command, Executor, Outcome, Progress, Task, here


def tasks_of(
    patterns: Sequence[str],
    command: Command,
    options: RunOptions,
    *,
    output: str | None = None,
    output_dir: str | None = None,
    stamped: bool = False,
) -> list[Task]:
    """A task for each model that paths, folders, globs and URLs name. Makes folders for results in ``output_dir``.

    Raises:
        UsageError: a glob or a folder has no model, options exclude each other, or a result would replace another file.
    """
    writes = command == "apply" and not options.output.diff
    writes_new_files = writes and not options.output.in_place
    models = names.expand(
        patterns, skip_results=writes_new_files, output_dir=output_dir if writes_new_files else None
    )
    targets: dict[str, str] = {}
    if writes:
        targets = names.targets(models, output, output_dir, options.output.in_place)
        for path in (*targets, *targets.values()) if options.output.share_data else ():
            if paths.is_remote(path):
                raise UsageError(f"{path}: --share-data takes local files: models at URLs are copied")
    if output_dir is not None:
        names.make_folders(list(targets.values()))
    return [
        Task(index, paths.as_reported(model.source), targets.get(model.source, ""), command, options, stamped)
        for index, model in enumerate(models)
    ]


def executor_of(jobs: str, ray: str | None, tasks: Sequence[Task]) -> Executor:
    """The executor for ``--jobs`` and ``--ray`` (None: no Ray): Ray, worker processes, or this process.

    Raises:
        UsageError: both are given, or ``jobs`` is neither a number nor "auto".
    """
    if ray is not None:
        if jobs != "1":
            raise UsageError(
                "--jobs applies to this machine only: with --ray, Ray decides how many models run at once"
            )
        from onnxfix.verbs.fleet.ray import RayExecutor  # lazy: --ray only

        return RayExecutor(ray).run
    if jobs != "auto" and not jobs.isdecimal():
        raise UsageError(
            f"--jobs {jobs}: is not a number of models to run at once, or auto for one on each core"
        )
    count = (0 if jobs == "auto" else int(jobs)) or cores()
    if count < 2 or len(tasks) < 2:
        return here
    from onnxfix.verbs.fleet.processes import Processes  # lazy: start-up

    return Processes(count).run


def drive(
    tasks: Sequence[Task],
    executor: Executor,
    journal: Path | None = None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> Generator[Outcome, None, None]:
    """Yields the outcome of each task as it arrives. With ``resume``, outcomes from the journal come first.

    Raises:
        UsageError: the file cannot be used as a journal.
        OnnxfixError: the journal cannot be written.
    """
    if journal is None:
        yield from executor(tasks, progress)
        return
    from onnxfix.verbs.fleet.journal import Journal  # lazy: start-up

    with Journal(journal) as log:
        earlier = {task.index: log.done(task) for task in tasks} if resume else {}
        yield from filter(None, earlier.values())
        remaining = [task for task in tasks if earlier.get(task.index) is None]
        for outcome in executor(remaining, progress):
            log.note(outcome)
            yield outcome
