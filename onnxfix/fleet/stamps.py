"""What a task read and wrote, by content, and whether that still is the same."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.fleet import paths
from onnxfix.fleet.work import Stamp, Task

if TYPE_CHECKING:
    from onnxfix.fleet.staging import Staged
    from onnxfix.report.report import Report

RACY_NS = 2 * 10**9
"""Nanoseconds in which a file may be written twice and bear the same time: the coarsest clock of a file system."""

_CHUNK = 1 << 20


def digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a local file, as hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    import hashlib  # brings OpenSSL, of which a small run may have no need

    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            found.update(data)
    return found.hexdigest()


def quick(path: str, *, ours: bool = False) -> str:
    """What changes when somebody writes to the file; "" where there is none or it cannot be told.

    A local file that was written to in the last two seconds may be written to again and look the same; unless it is
    ``ours``, written by this process a moment ago under a name of its own.
    """
    from onnxfix.errors import OnnxfixError

    if paths.remote(path):
        try:
            return paths.fingerprint(path)
        except OnnxfixError:
            return ""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    if not ours and time.time_ns() - found.st_mtime_ns < RACY_NS:
        return ""
    # Who unpacks or copies a file may set its time, and inodes are used again; the time of change is the system's own.
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino} {found.st_ctime_ns}"


def same(stamp: Stamp) -> Stamp | None:
    """The file as it is now where its content is still the stamp's, None where it is another or gone.

    A remote file is taken for another one as soon as its store says anything else of it.
    """
    # The stamp was not racy when it was taken, so that it shows any change since.
    now = quick(stamp.path, ours=True)
    if now and now == stamp.quick:
        return stamp
    if paths.remote(stamp.path) or not stamp.sha256:
        return None
    try:
        size = os.path.getsize(stamp.path)
        known = stamp.quick.split(" ")[0]
        alike = (not known or int(known) == size) and digest(stamp.path) == stamp.sha256
    except (OSError, ValueError):
        return None
    return Stamp(stamp.path, quick(stamp.path), stamp.sha256) if alike else None


class Watched:
    """The files of one task: ``read`` and ``written`` are empty unless all stood still while it ran."""

    def __init__(self) -> None:
        self.read: tuple[Stamp, ...] = ()
        self.written: tuple[Stamp, ...] = ()
        self._before: dict[str, tuple[int, ...]] = {}

    def begin(self, task: Task, here: Staged) -> None:
        """Before the model is read."""
        self._before = _states(_files(here.source))

    def end(self, task: Task, here: Staged, report: Report) -> None:
        """After the result was written. ``report`` names the files as they are here."""
        replaced = task.options.output.in_place and report.changed and bool(report.output)
        try:
            # In place, what is there now is what need not be done again.
            read = _states(_files(here.source)) if replaced else self._before
            written = {} if replaced else _states(_outputs(report))
            found = [tuple(_stamps(read, here, ours=replaced)), tuple(_stamps(written, here, ours=True))]
            if {**written, **read} != _states((*written, *read)):
                return  # to read them takes a while
        except OSError:  # a file went meanwhile: then nothing is known of it
            return
        if all(quick(url) == mark for url, mark in here.fetched.items()):
            self.read, self.written = found


def _outputs(report: Report) -> Iterator[str]:
    if report.output:
        yield from _files(report.output)
    if report.engine:
        yield report.engine


def _files(model: str) -> Iterator[str]:
    """A model and its external data, as far as it can be read."""
    from onnxfix.files import apart

    yield from dict.fromkeys(str(file.path) for file in apart.files_named(Path(model)))


def _states(files: Iterable[str]) -> dict[str, tuple[int, ...]]:
    from onnxfix.files import lazy

    return {file: lazy.stamp(Path(file)) for file in files}


def _stamps(files: Iterable[str], here: Staged, *, ours: bool = False) -> Iterator[Stamp]:
    for file in files:
        known = here.told(file)
        yield Stamp(known, quick(known, ours=ours), digest(file))
