"""The journal of a run: a file with a line for each finished model, so that a later run can skip it.

A line contains the report (a pickle, read as data alone, see ``runtime.replies``), the content hashes of the files that
were read and written, and a key: the hash of everything else that the result depends on (command, paths, options, the
files that options name, rules and versions).
A model is done if its last line has the current key and its files are unchanged. Errors, models that ran out of memory
and reports with problems are tried again.

Which files these are, the task says and not the journal; all of them are read again. Each line is appended in one
write. A killed run leaves at most one partial line at the end, which is ignored. One run at a time uses a journal.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pickle
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import folders
from onnxfix.report.report import Report, plain
from onnxfix.runtime import replies, system
from onnxfix.verbs.fleet import contents
from onnxfix.verbs.fleet.paths import TaskFiles
from onnxfix.verbs.fleet.work import Outcome, Task

NAME = ".onnxfix-journal.jsonl"
"""The journal's name in an output folder."""

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_BEGINNING = b'{"onnxfix-journal": 1}\n'


class Journal(contextlib.AbstractContextManager["Journal"]):
    """The open journal of a run, as a context.

    Raises:
        UsageError: the file is not a journal, cannot be written, or is in use by another run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hashes: dict[str, list[str]] = {}
        with contextlib.ExitStack() as on_error:
            try:
                folders.refuse_special(path)
                self._fd = _open_locked(path)
                on_error.callback(os.close, self._fd)
                with open(self._fd, "rb", closefd=False) as file:
                    file.seek(0)  # lines are appended, whatever the position
                    data = file.read()
                if len(data) < len(_BEGINNING) and _BEGINNING.startswith(data):
                    os.ftruncate(self._fd, 0)  # new, or killed before the first line was complete
                    _write(self._fd, data := _BEGINNING)
                self._entries = _parse(data, path)
                if not data.endswith(b"\n"):
                    _write(self._fd, b"\n")
            except OSError as error:
                reason = error.strerror or error
                raise UsageError(f"{path}: cannot be used as the journal: {reason}") from None
            on_error.pop_all()

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def done(self, task: Task) -> Outcome | None:
        """The outcome of an earlier run if the task would have the same one now; None if it must run."""
        entry = self._entries.get((task.command, task.source, task.target), {})
        if entry.get("key") != self._key(task):
            return None
        files = entry.get("files")
        try:
            report = replies.loads(base64.b64decode(entry["report"]))
        except Exception:  # a line that somebody else wrote may hold anything
            return None
        if not isinstance(report, Report) or not isinstance(files, dict):
            return None
        own = TaskFiles(task.source, task.target)
        now = contents.hash_source(own, files) | contents.hash_results(own, task.options, report, files)
        if now != files:
            return None
        return Outcome(task, replace(report, reused=True), files=files, reused=True)

    def note(self, outcome: Outcome) -> None:
        """Add the outcome of a task, unless the task must be repeated anyway.

        Raises:
            OnnxfixError: the file cannot be written.
        """
        task, report = outcome.task, outcome.report
        if report is None or report.problems or outcome.memory or outcome.reused or not outcome.files:
            return
        entry = {
            "key": self._key(task),
            "command": task.command,
            "source": task.source,
            "target": task.target,
            "files": dict(outcome.files),
            "report": base64.b64encode(pickle.dumps(report)).decode(),
        }
        self._entries[task.command, task.source, task.target] = entry
        try:
            _write(self._fd, json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise OnnxfixError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _key(self, task: Task) -> str:
        """The hash of what the result depends on besides the model."""
        options = task.options
        inputs = options.verification.inputs
        paths = [*(str(path) for _, path in options.files), *([str(inputs)] if inputs else [])]
        data = {
            "task": [task.command, task.source, task.target, plain(options)],
            "files": {path: self._hash(path) for path in paths},
            "versions": contents.versions(),
        }
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def _hash(self, path: str) -> list[str]:
        """Hashes of the files of a script or of inputs, read once per run."""
        if path not in self._hashes:
            files = [Path(path)] if Path(path).is_file() else sorted(Path(path).rglob("*"))
            self._hashes[path] = [
                f"{file.relative_to(path)} {contents.hash_file(str(file))}"
                for file in files
                if file.is_file()
            ]
        return self._hashes[path]


def _open_locked(path: Path) -> int:
    """The file, opened and locked for this run. Links are followed.

    Raises:
        UsageError: another run uses it, or it cannot become a journal.
        OSError: it cannot be opened.
    """
    real = folders.destination(path)
    fd = os.open(real, os.O_RDWR | os.O_APPEND | os.O_CREAT | _FLAGS, 0o666)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or (status.st_nlink > 1 and status.st_size < len(_BEGINNING)):
            raise UsageError(f"{path}: has hard links, or is not a regular file; name another file")
        if not system.lock(fd):
            raise UsageError(f"{path}: another run uses this journal; wait for it, or name another one")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _parse(data: bytes, path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The last line of each task, by command, source and target.

    Raises:
        UsageError: the file is not a journal.
    """
    if not data.startswith(_BEGINNING):
        raise UsageError(f"{path}: is not a journal of onnxfix; name another file")
    entries: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in data.split(b"\n")[1:]:
        # Partial, from a killed run; or from somebody else: nested too deeply, of other types.
        with contextlib.suppress(ValueError, RecursionError, TypeError, AttributeError):
            entry = json.loads(line)
            entries[entry.get("command"), entry.get("source"), entry.get("target")] = entry
    return entries
