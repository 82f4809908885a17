"""Which models the command line names, by local path, folder, glob or URL, and where their results go; makes a task for
each, and runs the tasks."""

from __future__ import annotations

import glob
import os
import posixpath
import unicodedata
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.options import RunOptions
from onnxfix.runtime import system
from onnxfix.runtime.allowance import cores
from onnxfix.verbs.fleet.paths import (
    Named,
    as_reported,
    beside,
    glob_root,
    is_glob,
    is_remote,
    local,
    name_of,
)
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
    models = expand(
        patterns, skip_results=writes_new_files, output_dir=output_dir if writes_new_files else None
    )
    results: dict[str, str] = {}
    if writes:
        results = targets(models, output, output_dir, options.output.in_place)
        for path in (*results, *results.values()) if options.output.share_data else ():
            if is_remote(path):
                raise UsageError(f"{path}: --share-data takes local files: models at URLs are copied")
    if output_dir is not None:
        make_folders(list(results.values()))
    return [
        Task(index, as_reported(model.source), results.get(model.source, ""), command, options, stamped)
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


def expand(
    patterns: Sequence[str], *, skip_results: bool = False, output_dir: str | None = None
) -> list[Named]:
    """The models that paths, folders, globs and URLs name, each once: in the order of the patterns, those of a glob or
    a folder by name.

    A folder stands for the .onnx files in it and below, but not for hidden folders, and with ``skip_results`` not for
    the results of earlier runs, which are beside the models or in ``output_dir``. Any other path without wildcards is
    taken as it is, whether or not the file exists; so is one with wildcards that is the name of an existing file.
    ``**`` matches any number of folders. Folders are never matched by a glob. Two links to one file are two models; a
    file reached through ``..`` or through linked folders twice is one.

    Raises:
        UsageError: a glob or a folder has no such file, or a URL's protocol is unknown or its package is missing.
        OnnxfixError: the store cannot be listed.
    """
    models: dict[str, Named] = {}
    for pattern in patterns:
        if is_remote(pattern):
            from onnxfix.verbs.fleet import remote  # lazy: URLs only

            for model in remote.matches(pattern):
                models.setdefault(remote.canonical(model.source), model)
            continue
        for model in _match(local(pattern), skip_results, output_dir):
            # Links in its folders are resolved, but not one that is the file itself.
            folder, name = os.path.split(model.source)
            models.setdefault(os.path.join(os.path.realpath(folder), name), model)
    return list(models.values())


def _match(pattern: str, skip_results: bool, output_dir: str | None) -> Iterable[Named]:
    if os.path.isdir(pattern):
        avoided = os.path.realpath(output_dir) if output_dir is not None else None
        root, paths = pattern, list(_walk(pattern, skip_results, avoided))
        if not paths:
            raise UsageError(f"{pattern}: no .onnx file in this folder or below it")
    elif not is_glob(pattern) or os.path.lexists(pattern):
        return [Named(pattern, os.path.basename(pattern))]
    else:
        root = glob_root(pattern, os.sep) or os.curdir
        paths = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
        if not paths:
            raise UsageError(f"{pattern}: no file matches")
    return (Named(path, os.path.relpath(path, root).replace(os.sep, "/")) for path in sorted(paths))


def _walk(folder: str, skip_results: bool, avoided: str | None) -> Iterator[str]:
    """The .onnx files in a folder and below."""
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(place, name)) != avoided
        ]
        names = [name for name in files if name.lower().endswith(".onnx") and not name.startswith(".")]
        earlier = {_fixed(name) for name in names} if skip_results else set()
        yield from (os.path.join(place, name) for name in names if name not in earlier)


def _fixed(name: str) -> str:
    """The file name of a result beside its model."""
    return f"{posixpath.splitext(name)[0]}.fixed.onnx"


def targets(
    models: Sequence[Named], output: str | None, output_dir: str | None, in_place: bool
) -> dict[str, str]:
    """Where each model's result goes, by source; empty for ``in_place``. Makes no folder.

    Raises:
        UsageError: options exclude each other, two results would go to one file, or one to a model of this run, or the
            system has no files of such a name.
    """
    if sum((output is not None, output_dir is not None, in_place)) > 1:
        raise UsageError("choose one of --output, --output-dir and --in-place")
    if output is not None and len(models) > 1:
        raise UsageError("--output takes one model; use --output-dir for several")
    if in_place:
        for model in models:
            if is_remote(model.source):
                raise UsageError(
                    f"{model.source}: --in-place takes local files; use --output or --output-dir"
                )
        return {}
    sources = {_real(model.source): model.source for model in models}
    results: dict[str, str] = {}
    taken: set[str] = set()
    by_folded_name: dict[str, str] = {}
    for model in models:
        target = results[model.source] = _target(model, output, output_dir)
        file = _real(target)
        if file in taken:
            raise UsageError(f"two models would be written to {target}")
        taken.add(file)
        other = sources.get(file)
        if other is not None and other != model.source:
            raise UsageError(
                f"the result of {model.source} would replace {other}, another model of this run; write elsewhere by "
                "--output-dir, or leave earlier results out of the glob"
            )
        # Equal where neither case nor the form of accents counts.
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", file).casefold())
        similar = by_folded_name.setdefault(folded, file)
        if similar != file and not is_remote(target) and system.ignores_case(os.path.dirname(file)):
            raise UsageError(
                f"two models would be written to {target}: the file system takes it and {os.path.basename(similar)} "
                "for one name; write them to two folders"
            )
    return results


def _target(model: Named, output: str | None, output_dir: str | None) -> str:
    if output is not None:
        target = local(output)
    elif output_dir is None:
        target = beside(model.source, _fixed(name_of(model.source)))
    elif ".." in model.inside.split("/"):
        raise UsageError(
            f"{model.source}: '..' after a wildcard or at the end of the path leads out of {output_dir}; "
            "name the model by another path"
        )
    elif is_remote(output_dir):
        target = f"{output_dir.rstrip('/')}/{model.inside}"
    else:
        target = os.path.join(local(output_dir), *model.inside.split("/"))
    parts = [] if is_remote(target) else os.path.splitdrive(target)[1].replace(os.sep, "/").split("/")
    bad = next(filter(system.unusable, parts), None)
    if bad is not None:
        raise UsageError(
            f"{model.source}: {target}: this system has no files named {bad}; write elsewhere by --output"
        )
    return target


def _real(path: str) -> str:
    """Equal for two paths that name one file, with links followed."""
    if not is_remote(path):
        return os.path.realpath(path)
    from onnxfix.verbs.fleet import remote  # lazy: URLs only

    return remote.canonical(path)


def make_folders(paths: Sequence[str]) -> None:
    """Make the folders of local files that will be written. Stores make theirs on upload.

    Raises:
        UsageError: a folder cannot be made.
    """
    for folder in dict.fromkeys(os.path.dirname(path) for path in paths if not is_remote(path)):
        try:
            os.makedirs(folder or os.curdir, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made: {error.strerror or error}") from None
