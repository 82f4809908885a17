"""The journal of a run: a file with a line for each finished model, so that a later run can skip it.

A line contains the report, the content hashes of the files that were read and written, and a key: the hash of
everything else that the result depends on (command, paths, options, the files that options name, rules and versions).
A model is done if its last line has the current key and its files are unchanged. Errors, models that ran out of memory
and reports with problems are tried again.

Which files these are, the task says and not the journal; all of them are read again.

Each line is appended in one write. A killed run leaves at most one partial line at the end, which is ignored. When more
than half of the lines are outdated, the file is rewritten as it is opened. One run at a time uses a journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from onnxfix import system
from onnxfix.difference.records import ModelDifference
from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import regular
from onnxfix.files.lazy import Pending
from onnxfix.fleet import paths, stamps
from onnxfix.fleet.versions import versions
from onnxfix.fleet.work import Outcome, Task
from onnxfix.pipeline.intake import Intake
from onnxfix.pipeline.stopped import Stopped
from onnxfix.record import record
from onnxfix.report.neighborhood import Picture
from onnxfix.report.report import DERIVED, Report, plain
from onnxfix.rule import Safety, Severity
from onnxfix.trt.reading import Reading
from onnxfix.trt.records import TrtBuild
from onnxfix.verification.verdict import Verdict

NAME = ".onnxfix-journal.jsonl"
"""The journal's name in an output folder."""

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_BEGINNING = b'{"onnxfix-journal": 1}\n'


@record
class Entry:
    """A line: the command, the model, the files and the report."""

    key: str
    command: str
    source: str
    target: str
    files: Mapping[str, str]
    report: dict[str, Any]

    @property
    def place(self) -> tuple[str, str, str]:
        """The key under which a later line replaces this one."""
        return self.command, self.source, self.target


class Journal:
    """The open journal of a run, as a context.

    Raises:
        UsageError: the file is no journal, cannot be written, or is in use by another run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._contents: dict[str, str] = {}
        try:
            regular.refuse_special(path)
            self._fd = _locked(path)
            try:
                data = _read(self._fd)
                if len(data) < len(_BEGINNING) and _BEGINNING.startswith(data):
                    os.ftruncate(self._fd, 0)  # new, or killed before the first line was complete
                    _write(self._fd, data := _BEGINNING)
                self._entries, lines = _parsed(data, path)
                if lines > 2 * len(self._entries) + 1:
                    self._rewrite()
                elif not data.endswith(b"\n"):
                    _write(self._fd, b"\n")
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise UsageError(f"{path}: cannot be used as the journal: {error.strerror or error}") from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def done(self, task: Task) -> Outcome | None:
        """The outcome of an earlier run if the task would have the same one now; None if it must run."""
        entry = self._entries.get((task.command, task.source, task.target))
        if entry is None or entry.key != self._key(task):
            return None
        report = _report(entry.report)
        if report is None or stamps.contents(task, report, entry.files) != entry.files:
            return None
        return Outcome(task, replace(report, reused=True), files=entry.files, reused=True)

    def note(self, outcome: Outcome) -> None:
        """Add the outcome of a task, unless the task must be repeated anyway.

        Raises:
            OnnxfixError: the file cannot be written.
        """
        task, report = outcome.task, outcome.report
        if report is None or report.problems or outcome.memory or outcome.reused or not outcome.files:
            return
        key = self._key(task)
        entry = Entry(key, task.command, task.source, task.target, outcome.files, report.to_json())
        self._entries[entry.place] = entry
        try:
            _write(self._fd, _line(entry))
        except OSError as error:
            raise OnnxfixError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _rewrite(self) -> None:
        """Leave only the current entries. Those that a run loses which is killed meanwhile are done again."""
        os.ftruncate(self._fd, 0)
        _write(self._fd, b"".join((_BEGINNING, *map(_line, self._entries.values()))))

    def _key(self, task: Task) -> str:
        """The hash of what the result depends on besides the model."""
        options = task.options
        inputs = options.verification.inputs
        named = [
            *map(str, options.fixes.graphsurgeon),
            *([str(inputs)] if inputs else []),
            *options.specialization.files,
            *(options.trt.plugins if options.trt is not None else ()),
        ]
        data = {
            "task": [task.command, task.source, task.target, plain(options)],
            "files": {name: self._content(name) for name in named},
            "versions": versions(),
        }
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def _content(self, path: str) -> str:
        """Hashes of the files of a script or of inputs, read once per run."""
        if path not in self._contents:
            files = [Path(path)] if Path(path).is_file() else sorted(Path(path).rglob("*"))
            found = [f"{one.relative_to(path)} {stamps.content(str(one))}" for one in files if one.is_file()]
            self._contents[path] = "\n".join(found)
        return self._contents[path]


def _report(data: dict[str, Any]) -> Report | None:
    """A report from its JSON; None where another version wrote it, or its JSON would be another."""
    try:
        report = recall(Report, {name: value for name, value in data.items() if name not in DERIVED})
        return report if report.to_json() == data else None  # the schema's number included
    except Exception:  # a line that somebody else wrote may hold anything of the right types
        return None


def _locked(path: Path) -> int:
    """The file, opened and locked for this run. Links are followed.

    Raises:
        UsageError: another run uses it, or it cannot become a journal.
        OSError: it cannot be opened.
    """
    real = regular.destination(path)
    fd = os.open(real, os.O_RDWR | os.O_APPEND | os.O_CREAT | _FLAGS, 0o666)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (found.st_nlink > 1 and found.st_size < len(_BEGINNING)):
            raise UsageError(f"{path}: has hard links, or is not a regular file; name another file")
        if not system.lock(fd):
            raise UsageError(f"{path}: another run uses this journal; wait for it, or name another one")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read(fd: int) -> bytes:
    data = bytearray()
    os.lseek(fd, 0, os.SEEK_SET)  # lines are appended, whatever the position
    while part := os.read(fd, 1 << 24):
        data += part
    return bytes(data)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _line(entry: Entry) -> bytes:
    return json.dumps(plain(entry)).encode() + b"\n"


def _parsed(data: bytes, path: Path) -> tuple[dict[tuple[str, str, str], Entry], int]:
    """The last entry of each place, and how many lines there are.

    Raises:
        UsageError: the file is no journal.
    """
    if not data.startswith(_BEGINNING):
        raise UsageError(f"{path}: is not a journal of onnxfix; name another file")
    lines = data.split(b"\n")[1:]
    found: dict[tuple[str, str, str], Entry] = {}
    for line in filter(None, lines):
        # Partial, from a killed run; or nested too deeply, from somebody else.
        with contextlib.suppress(ValueError, RecursionError):
            entry = recall(Entry, json.loads(line))
            found[entry.place] = entry
    return found, len(lines)


def place_of(journal: Path | None, resume: bool, output_dir: str | None) -> Path | None:
    """Where a run's journal is; None where it has none.

    Raises:
        UsageError: no option says where.
    """
    if journal is not None or not resume:
        return journal
    if output_dir is None or paths.remote(output_dir):
        raise UsageError(
            "--resume keeps its journal in a local --output-dir; without one, name a file by --journal"
        )
    return Path(output_dir) / NAME


def split(journal: Journal, tasks: Sequence[Task], resume: bool) -> tuple[list[Outcome], list[Task]]:
    """The outcomes of tasks that are done, and the tasks that must run."""
    known = [journal.done(task) if resume else None for task in tasks]
    done = [outcome for outcome in known if outcome is not None]
    return done, [task for task, outcome in zip(tasks, known, strict=True) if outcome is None]


# ------------------------------------------------------------------------------------------ records from JSON


_Record = TypeVar("_Record")
RECORDS = {
    kind.__name__: kind
    for kind in (Reading, TrtBuild, Pending, Intake, Stopped, Picture, Verdict, ModelDifference)
}
"""Records that modules import for type checkers only, by name."""

_LEVELS = {
    "severity": {"", *(one.name.lower() for one in Severity)},
    "safety": {"", *(one.name.lower() for one in Safety)},
}
"""Fields of records that are texts, but names of levels: each has its place in an order."""


def recall(kind: type[_Record], data: Any) -> _Record:
    """A frozen dataclass from the output of ``report.plain``, including the tuples, mappings and records in it.

    Raises:
        ValueError: ``data`` is not a record of this kind.
    """
    found = _value(kind, data)
    assert isinstance(found, kind)  # _record has made it
    return found


def _value(hint: Any, data: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either(arguments, data)
    if origin is Literal:
        return _expect(data in arguments, data, data)
    if origin is tuple:
        return _tuple(arguments, data)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(data, dict), data)
        return {_value(arguments[0], key): _value(arguments[1], item) for key, item in data.items()}
    if is_dataclass(hint):
        return _record(hint, data)
    if hint is float:
        known = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
        number = isinstance(data, (int, float)) and not isinstance(data, bool)
        return known[data] if isinstance(data, str) and data in known else _expect(number, data, data)
    if hint is Any:
        return data
    return _expect(isinstance(data, hint) and (hint is bool or not isinstance(data, bool)), data, data)


def _expect(holds: bool, data: Any, value: Any = None) -> Any:
    if not holds:
        raise ValueError(f"unexpected {type(data).__name__} in a record")
    return value


def _either(kinds: tuple[Any, ...], data: Any) -> Any:
    for kind in kinds:
        try:
            return None if kind is type(None) and data is None else _value(kind, data)
        except ValueError:
            continue
    raise ValueError("unexpected value in a record")


def _tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    _expect(isinstance(data, list), data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_value(kinds[0], item) for item in data)
    _expect(len(kinds) == len(data), data)
    return tuple(_value(kind, item) for kind, item in zip(kinds, data, strict=True))


def _record(kind: Any, data: Any) -> Any:
    _expect(isinstance(data, dict), data)
    hints = _hints(kind)
    names = {one.name for one in fields(kind) if one.init}
    _expect(set(data) <= names | set(getattr(kind, "RENDERED", ())), data)
    _expect(all(data.get(name, "") in known for name, known in _LEVELS.items() if name in names), data)
    try:
        return kind(**{name: _value(hints[name], item) for name, item in data.items() if name in names})
    except TypeError:
        raise ValueError(f"a record of {kind.__name__} lacks a field") from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of the fields; names that the module imports for type checkers only come from ``RECORDS``."""
    return typing.get_type_hints(kind, localns=RECORDS)
