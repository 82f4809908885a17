"""Files that the command line names for writing, held against all others of the run before any work.

The external data of a model is known once the model is read: the pipeline looks at that, but it knows neither the
report nor the models that are still to come. A file that does not exist yet replaces nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.cli.reports import Destination
from onnxfix.errors import UsageError
from onnxfix.files.apart import File, data_named, files_named, inputs_of, replaceable, separate
from onnxfix.runtime.allowance import structure_limit
from onnxfix.verbs.fleet.paths import is_remote

if TYPE_CHECKING:
    from onnxfix.options import RunOptions
    from onnxfix.verbs.fleet.work import Task


def refuse_conflicts(
    tasks: Sequence[Task],
    options: RunOptions,
    reports: Sequence[Destination],
    journal: Path | None = None,
    more: Sequence[File] = (),
    read: Sequence[File] = (),
) -> None:
    """Refuse files to write that would replace another file of this run, or that cannot be written anyway. ``more`` are
    files that are written like reports, ``read`` files that are only read.

    Raises:
        UsageError: there is one.
    """
    of_trt = []
    if options.trt is not None:
        from onnxfix.tensorrt import files  # lazy: start-up, seldom used

        files.check_files(options.trt)
        of_trt = files.files(options.trt)
    results = [*(File("--report", one.path) for one in reports), *more]
    for one in results:
        _refuse_unwritable(one)
    # An existing file that is not a journal is refused when it is opened.
    journals = [File("--journal", journal)] if journal is not None else []
    limits = [one.structure_mb for one in (options, *(task.options for task in tasks))]
    with structure_limit(max((one for one in limits if one is not None), default=None)):
        # With one model, the pipeline looks at the files of TensorRT.
        known = _models(tasks, [*results, *of_trt] if len(tasks) > 1 else results)
        known += [*_files_read(options), *read, *_outputs(tasks)]
        separate([*journals, *results, *of_trt], known)
        if len(tasks) > 1:
            _keep_data(tasks)


def _models(tasks: Sequence[Task], written: Sequence[File]) -> list[File]:
    """The local models, with their external data if one of the files to write exists."""
    models = [Path(task.source) for task in tasks if not is_remote(task.source)]
    if any(one.path.is_file() for one in written):
        return [file for model in models for file in files_named(model)]
    return [File("a model of this run", model) for model in models]


def _files_read(options: RunOptions) -> list[File]:
    """What the run reads besides models."""
    found = [File("a value of --fix-input", Path(value)) for value in options.specialization.files]
    found += [File("a script of this run", Path(script)) for script in options.fixes.graphsurgeon]
    if options.trt is not None:
        found += [File("a library of --plugins", Path(library)) for library in options.trt.plugins]
    inputs = options.verification.inputs
    return [*found, *inputs_of(inputs if isinstance(inputs, (str, os.PathLike)) else None)]


def _outputs(tasks: Sequence[Task]) -> list[File]:
    """The local files that the tasks write, with the data files that their results may have."""
    targets = [task.target for task in tasks if task.target and not is_remote(task.target)]
    outputs = [File("the output", Path(target)) for target in targets]
    return outputs + [File("the output's data", Path(f"{target}.data")) for target in targets]


def _keep_data(tasks: Sequence[Task]) -> None:
    """Refuse results that would replace another model's external data."""
    local = [task for task in tasks if task.command == "apply" and not is_remote(task.source)]
    outputs = _outputs(tasks)
    replaced = [Path(task.source) for task in local if task.options.output.in_place]
    if not outputs and not replaced:
        return
    data = [one for task in local for one in data_named(Path(task.source))]
    if data:
        separate(outputs, data)
        for path in replaced:
            replaceable(path, data)


def _refuse_unwritable(file: File) -> None:
    """Refuse a report that cannot be written. Pipes and terminals can: they are written to, not replaced."""
    path = file.path
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{file.what} {path}: is a directory, or in a directory that does not exist")
    if path.is_block_device() or path.is_socket():
        raise UsageError(f"{file.what} {path}: is no regular file; name another one")
