"""The journal of a run: a file with a line for each finished model, so that a later run can skip it.

A line contains the report, the content hashes of the files that were read and written, and a key: the hash of
everything else that the result depends on (command, paths, options, the files that options name, rules and versions).
A model is done if its last line has the current key and its files are unchanged. Errors, models that ran out of memory
and reports with problems are tried again.

A journal lies in a folder that others may write to, so that a line is believed only as far as it can be checked: it
names the files of its task and no others, these are regular files, and those that were written are read again.

Each line is appended in one write. A killed run leaves at most one partial line at the end, which is ignored. When more
than half of the lines are outdated, the file is rewritten as it is opened. One run at a time uses a journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from onnxfix import system
from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.files import atomic, regular
from onnxfix.files.temporary import temporary_beside
from onnxfix.fleet import paths, stamps
from onnxfix.fleet.recall import recall
from onnxfix.fleet.stamps import Stamp
from onnxfix.fleet.versions import versions
from onnxfix.fleet.work import Outcome, Task
from onnxfix.record import record
from onnxfix.report.report import DERIVED, Report, plain

NAME = ".onnxfix-journal.jsonl"
"""The journal's name in an output folder."""

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
_BEGINNING = b'{"onnxfix-journal": 1}\n'
MOST_BYTES = 1 << 30
"""The size up to which a journal is read."""
LONGEST_LINE = 1 << 26
"""Bytes of a line up to which it is read: several times the report of a model with 100,000 findings."""


@record
class Entry:
    """A line: the command, the model, the files and the report."""

    key: str
    command: str
    source: str
    target: str
    read: tuple[Stamp, ...]
    written: tuple[Stamp, ...]
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
                if os.fstat(self._fd).st_size > MOST_BYTES:
                    raise UsageError(f"{path}: is larger than {MOST_BYTES >> 20} MiB; name another journal")
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
        files = [[stamp.path for stamp in each] for each in (entry.read, entry.written)]
        if report is None or not stamps.own(task, report, *files):
            return None
        now = (
            *(stamps.same(stamp) for stamp in entry.read),
            *(stamps.same(stamp, hashed=True) for stamp in entry.written),
        )
        if None in now:
            return None
        found = tuple(stamp for stamp in now if stamp is not None)
        outcome = Outcome(
            task,
            replace(report, reused=True),
            read=found[: len(entry.read)],
            written=found[len(entry.read) :],
            reused=True,
        )
        if found != (*entry.read, *entry.written):  # same bytes, other times: keep the next check cheap
            self._append(replace(entry, read=outcome.read, written=outcome.written))
        return outcome

    def note(self, outcome: Outcome) -> None:
        """Add the outcome of a task, unless the task must be repeated anyway.

        Raises:
            OnnxfixError: the file cannot be written.
        """
        task, report = outcome.task, outcome.report
        if report is None or report.problems or outcome.memory or outcome.reused or not outcome.read:
            return
        self._append(
            Entry(
                self._key(task),
                task.command,
                task.source,
                task.target,
                outcome.read,
                outcome.written,
                report.to_json(),
            )
        )

    def _append(self, entry: Entry) -> None:
        self._entries[entry.place] = entry
        try:
            _write(self._fd, _line(entry))
        except OSError as error:
            raise OnnxfixError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _rewrite(self) -> None:
        """Replace the journal by a file of the current entries."""
        path = regular.destination(self.path)
        if not system.OPEN_FILES_CAN_BE_REPLACED:
            os.close(self._fd)
            try:
                atomic.put(path, self._text())
            finally:
                self._fd = _locked(self.path)
            return
        with temporary_beside(path, append=True) as file:
            _lock(file.fd, path)
            _write(file.fd, self._text())
            file.seal()
            fd = os.dup(file.fd)
            try:
                atomic.install([file])
            except BaseException:
                os.close(fd)
                raise
        os.close(self._fd)
        self._fd = fd

    def _text(self) -> bytes:
        return b"".join((_BEGINNING, *map(_line, self._entries.values())))

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
            found = [f"{one.relative_to(path)} {stamps.digest(one)}" for one in files if one.is_file()]
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
        _lock(fd, path)
        if os.path.exists(real) and not os.path.samestat(os.fstat(fd), os.stat(real)):
            # Another run has rewritten it since it was opened, and uses the new file.
            raise UsageError(_IN_USE.format(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


_IN_USE = "{}: another run uses this journal; wait for it, or name another one"


def _lock(fd: int, path: Path) -> None:
    """Lock the file against other runs, where the system has locks.

    Raises:
        UsageError: another run has locked it.
    """
    if not system.lock(fd):
        raise UsageError(_IN_USE.format(path))


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
            if len(line) <= LONGEST_LINE:
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
