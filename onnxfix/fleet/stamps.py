"""Which files a task reads and writes, by content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.errors import OnnxfixError
from onnxfix.files.sharing import digest
from onnxfix.fleet import paths

if TYPE_CHECKING:
    from onnxfix.fleet.task_files import TaskFiles
    from onnxfix.fleet.work import Task
    from onnxfix.report.report import Report


def contents(task: Task, report: Report, known: Iterable[str]) -> dict[str, str]:
    """The content that each file of a task with this report has now: what the task read, and what it wrote.

    ``known`` are the files that it had. Of a model at a URL, only they say what its external data are.
    """
    return {path: content(path) for path in _files(task, task.source, task.target, report, known)}


def content(path: str) -> str:
    """The SHA-256 of a local regular file, the store's fingerprint of a remote one; "" where it cannot be read."""
    try:
        if not paths.remote(path):
            return digest(path)
        from onnxfix.fleet.remote import store  # lazy: URLs only

        return store.fingerprint(path)
    except (OSError, ValueError, OnnxfixError):
        return ""


def _files(task: Task, source: str, target: str, report: Report, known: Iterable[str] = ()) -> Iterator[str]:
    yield from _files_of(source, known)
    if report.output and not task.options.output.in_place:
        yield from _files_of(target, known)
    if report.engine and task.options.trt is not None:
        yield str(Path(task.options.trt.save_engine))


def _files_of(model: str, known: Iterable[str] = ()) -> Iterator[str]:
    """A model and its external data, as far as the model can be read."""
    if paths.remote(model):
        yield model
        yield from (url for url in known if url != model and url.startswith(paths.beside(model, "")))
        return
    from onnxfix.files import apart  # lazy: start-up

    yield from dict.fromkeys(str(file.path) for file in apart.files_named(Path(model)))


class Watched:
    """The files of one task by content: ``files`` is empty unless the model stayed unchanged while the task ran."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self._before: dict[str, tuple[int, ...]] = {}

    def begin(self, files: TaskFiles) -> None:
        """Call it before the model is read."""
        self._before = _states(_files_of(files.source))

    def end(self, task: Task, files: TaskFiles, report: Report) -> None:
        """Call it after the result was written. ``report`` names local files."""
        if task.options.output.in_place and report.changed and report.output:
            self.begin(files)  # the file that exists now is the one that needs no more work
        found = {}
        for path in _files(task, files.source, files.target, report):
            named = files.as_named(path)
            found[named] = files.fetched.get(named) or content(named)
        if "" not in found.values() and self._before == _states(self._before):
            self.files = found


def _states(files: Iterable[str]) -> dict[str, tuple[int, ...]]:
    from onnxfix.files import lazy  # lazy: start-up

    return {file: lazy.stamp(Path(file)) for file in files}
