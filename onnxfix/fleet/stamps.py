"""Which files a task read and wrote, by content, and whether they are unchanged since."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfix.errors import OnnxfixError
from onnxfix.files.sharing import digest as digest
from onnxfix.fleet import paths
from onnxfix.record import record

if TYPE_CHECKING:
    from onnxfix.fleet.task_files import TaskFiles
    from onnxfix.fleet.work import Task
    from onnxfix.report.report import Report

RACY_NS = 2 * 10**9
"""Nanoseconds in which a file may be written twice and have the same time: the coarsest clock of a file system."""


@record
class Stamp:
    """A file at a moment.

    ``quick`` is cheap to compare: size, times and inode of a local file, the store's fingerprint of a remote one; ""
    where that would not show a change. ``sha256`` is of the bytes, "" where they were not read.
    """

    path: str
    quick: str
    sha256: str = ""


def quick(path: str, *, ours: bool = False) -> str:
    """A text that changes when the file is written to; "" where there is no file or its state cannot be read.

    A local file written in the last two seconds may be written again and look the same, so it gives "" as well, unless
    it is ``ours``: written by this process a moment ago under a name of its own.
    """
    if paths.remote(path):
        from onnxfix.fleet.remote import store  # lazy: URLs only

        try:
            return store.fingerprint(path)
        except OnnxfixError:
            return ""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    if not stat.S_ISREG(found.st_mode) or (not ours and time.time_ns() - found.st_mtime_ns < RACY_NS):
        return ""
    # Unpacking or copying may set a file's time, and inodes are reused; only the system sets the time of change.
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino} {found.st_ctime_ns}"


def same(stamp: Stamp, *, hashed: bool = False) -> Stamp | None:
    """The file's stamp now if its content is unchanged, None if the content is another or the file is missing.

    A remote file counts as another as soon as its fingerprint differs. ``hashed``: read a local file even if its size,
    times and inode are those of the stamp.
    """
    # The stamp was not racy when it was made, so that it shows any change since.
    now = quick(stamp.path, ours=True)
    if now and now == stamp.quick and (not hashed or paths.remote(stamp.path)):
        return stamp
    if paths.remote(stamp.path) or not stamp.sha256:
        return None
    try:
        size = os.path.getsize(stamp.path)
        before = stamp.quick.split(" ")[0]
        unchanged = (not before or int(before) == size) and digest(stamp.path) == stamp.sha256
    except (OSError, ValueError):
        return None
    if not unchanged:
        return None
    return stamp if now and now == stamp.quick else Stamp(stamp.path, quick(stamp.path), stamp.sha256)


def own(task: Task, report: Report, read: Iterable[str], written: Iterable[str]) -> bool:
    """Whether these are the files that a task with this report reads and writes, and the report is about them.

    Of what is at a URL only the model itself is known, and the folder that its external data are in.
    """
    options = task.options
    place = task.source if options.output.in_place else task.target
    engine = options.trt.save_engine if options.trt is not None else ""
    if report.path != task.source or not (_one_of(report.output, place) and _one_of(report.engine, engine)):
        return False
    replaced = options.output.in_place and report.changed and bool(report.output)
    return _known(read, task.source) and _known(written, "" if replaced else report.output, report.engine)


def _one_of(path: str, place: str) -> bool:
    return not path or path == place or (bool(place) and Path(path) == Path(place))


def _known(found: Iterable[str], model: str, engine: str = "") -> bool:
    """Whether these are the files of a model ("" for none), and an engine if there is one."""
    here, other = set(found), {engine} - {""}
    if not here >= other:
        return False
    if paths.remote(model):
        folder = paths.beside(model, "")
        return model in here and all(one.startswith(folder) for one in here - other)
    return here == other | set(_files_of(model) if model else ())


class Watched:
    """The files of one task: ``read`` and ``written`` are empty unless all stayed unchanged while it ran."""

    def __init__(self) -> None:
        self.read: tuple[Stamp, ...] = ()
        self.written: tuple[Stamp, ...] = ()
        self._before: dict[str, tuple[int, ...]] = {}

    def begin(self, files: TaskFiles) -> None:
        """Call it before the model is read."""
        self._before = _states(_files_of(files.source))

    def end(self, task: Task, files: TaskFiles, report: Report) -> None:
        """Call it after the result was written. ``report`` names local files."""
        replaced = task.options.output.in_place and report.changed and bool(report.output)
        try:
            # In place, the file that exists now is the one that needs no more work.
            read = _states(_files_of(files.source)) if replaced else self._before
            written = {} if replaced else _states(_outputs(report))
            found = [tuple(_stamps(read, files, ours=replaced)), tuple(_stamps(written, files, ours=True))]
            if {**written, **read} != _states((*written, *read)):
                return  # one changed while it was hashed
        except OSError:  # a file was deleted meanwhile: nothing is known of it
            return
        if all(quick(url) == before for url, before in files.fetched.items()):
            self.read, self.written = found


def _outputs(report: Report) -> Iterator[str]:
    if report.output:
        yield from _files_of(report.output)
    if report.engine:
        yield report.engine


def _files_of(model: str) -> Iterator[str]:
    """A model and its external data, as far as the model can be read."""
    from onnxfix.files import apart  # lazy: start-up

    yield from dict.fromkeys(str(file.path) for file in apart.files_named(Path(model)))


def _states(files: Iterable[str]) -> dict[str, tuple[int, ...]]:
    from onnxfix.files import lazy  # lazy: start-up

    return {file: lazy.stamp(Path(file)) for file in files}


def _stamps(paths_here: Iterable[str], files: TaskFiles, *, ours: bool = False) -> Iterator[Stamp]:
    for path in paths_here:
        named = files.as_named(path)
        yield Stamp(named, quick(named, ours=ours), digest(path))
