"""The journal of a run: a file with a line for each finished model, so that a later run can skip it.

A line contains the report, the content hashes of the files that were read and written, and a key: the hash of
everything else that the result depends on (command, paths, options, the files that options name, rules and versions).
A model is done if its last line has the current key and its files are unchanged. Errors, models that ran out of memory
and reports with problems are tried again.

Which files these are, the task says and not the journal; all of them are read again. Each line is appended in one
write. A killed run leaves at most one partial line at the end, which is ignored. One run at a time uses a journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import regular
from onnxfix.files.lazy import Pending
from onnxfix.proof.verdict import Verdict
from onnxfix.report.neighborhood import Picture
from onnxfix.report.report import DERIVED, Report, plain
from onnxfix.rule import Safety, Severity
from onnxfix.runtime import system
from onnxfix.tensorrt.reading import Reading
from onnxfix.tensorrt.records import TrtBuild
from onnxfix.verbs.difference.records import ModelDifference
from onnxfix.verbs.fleet import contents, paths
from onnxfix.verbs.fleet.paths import TaskFiles
from onnxfix.verbs.fleet.work import Outcome, Task
from onnxfix.verbs.intake import Intake
from onnxfix.verbs.stopped import Stopped

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
                regular.refuse_special(path)
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
        report, files = _recall_report(entry.get("report")), entry.get("files")
        if report is None or not isinstance(files, dict):
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
            "report": report.to_json(),
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
        paths = [
            *map(str, options.fixes.graphsurgeon),
            *([str(inputs)] if inputs else []),
            *options.specialization.files,
            *(options.trt.plugins if options.trt is not None else ()),
        ]
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


def place_of(journal: Path | None, resume: bool, output_dir: str | None) -> Path | None:
    """Where a run's journal is; None where it has none.

    Raises:
        UsageError: no option says where.
    """
    if journal is not None or not resume:
        return journal
    if output_dir is None or paths.is_remote(output_dir):
        raise UsageError(
            "--resume keeps its journal in a local --output-dir; without one, name a file by --journal"
        )
    return Path(output_dir) / NAME


def _open_locked(path: Path) -> int:
    """The file, opened and locked for this run. Links are followed.

    Raises:
        UsageError: another run uses it, or it cannot become a journal.
        OSError: it cannot be opened.
    """
    real = regular.destination(path)
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


# ------------------------------------------------------------------------------------------ records from JSON


_Record = TypeVar("_Record")
RECORDS = {
    kind.__name__: kind
    for kind in (Reading, TrtBuild, Pending, Intake, Stopped, Picture, Verdict, ModelDifference)
}
"""Records that modules import for type checkers only, by name."""
_LEVELS = {
    "severity": {"", *(level.name.lower() for level in Severity)},
    "safety": {"", *(level.name.lower() for level in Safety)},
}
"""Fields of records that are texts, but names of levels: each has its place in an order."""
_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def _recall_report(data: Any) -> Report | None:
    """A report from its JSON; None where the JSON of the report would be another."""
    try:
        report = recall(Report, {name: value for name, value in data.items() if name not in DERIVED})
        return report if report.to_json() == data else None  # the schema's number included
    except Exception:  # a line that somebody else wrote may hold anything
        return None


def recall(kind: type[_Record], data: Any) -> _Record:
    """A frozen dataclass from the output of ``report.plain``, including the tuples, mappings and records in it.

    Raises:
        ValueError: ``data`` is not a record of this kind.
    """
    record: _Record = _value(kind, data)
    return record


def _value(hint: Any, data: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for kind in arguments:
            with contextlib.suppress(ValueError):
                return _value(kind, data)
        raise ValueError("unexpected value in a record")
    if origin is tuple and isinstance(data, list):
        kinds = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else arguments
        return tuple(_value(kind, item) for kind, item in zip(kinds, data, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
        return {_value(arguments[0], key): _value(arguments[1], item) for key, item in data.items()}
    if is_dataclass(hint) and isinstance(data, dict):
        return _recall_record(hint, data)
    if hint is float and isinstance(data, str) and data in _FLOATS:
        return _FLOATS[data]
    right = data in arguments if origin is typing.Literal else hint is Any or _is_plain(hint, data)
    if not right:
        raise ValueError(f"unexpected {type(data).__name__} in a record")
    return data


def _is_plain(hint: Any, data: Any) -> bool:
    if hint is float:
        return type(data) in (int, float)
    return hint in (int, str, bool, type(None)) and type(data) is hint


def _recall_record(kind: Any, data: dict[str, Any]) -> Any:
    hints = _hints(kind)
    items = {one.name: data[one.name] for one in fields(kind) if one.init and one.name in data}
    if not all(items.get(name, "") in levels for name, levels in _LEVELS.items()):
        raise ValueError(f"a record of {kind.__name__} has an unknown level")
    try:
        return kind(**{name: _value(hints[name], item) for name, item in items.items()})
    except TypeError:
        raise ValueError(f"a record of {kind.__name__} lacks a field") from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of the fields; names that the module imports for type checkers only come from ``RECORDS``."""
    return typing.get_type_hints(kind, localns=RECORDS)
