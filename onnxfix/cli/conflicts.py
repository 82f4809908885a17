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
    for one in results:  # pipes and terminals can be written to; they are not replaced
        if one.path.is_dir() or not one.path.parent.is_dir():
            raise UsageError(f"{one.what} {one.path}: is a directory, or in a directory that does not exist")
        if one.path.is_block_device() or one.path.is_socket():
            raise UsageError(f"{one.what} {one.path}: is no regular file; name another one")
    # An existing file that is not a journal is refused when it is opened.
    journals = [File("--journal", journal)] if journal is not None else []
    # With one model, the pipeline looks at the files of TensorRT.
    replaced = [*results, *of_trt] if len(tasks) > 1 else results
    models = [Path(task.source) for task in tasks if not is_remote(task.source)]
    known = [File("a model of this run", model) for model in models]
    if any(one.path.is_file() for one in replaced):  # which may be external data
        known = [file for model in models for file in files_named(model)]
    known += [File(what, Path(path)) for what, path in options.files]
    inputs = options.verification.inputs
    known += inputs_of(inputs if isinstance(inputs, (str, os.PathLike)) else None)
    known += [*read, *_outputs(tasks)]
    separate([*journals, *results, *of_trt], known)
    if len(tasks) > 1:
        _keep_data(tasks)


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
