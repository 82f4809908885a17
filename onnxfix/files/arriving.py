"""Copies external data to the output's folder in the background, while the rules run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePath

from onnxfix.errors import OnnxfixError
from onnxfix.files import atomic, copying, loading
from onnxfix.files.beside import Beside
from onnxfix.files.folders import writing
from onnxfix.files.lazy import stamp
from onnxfix.files.temporary import Placed, temporary_in


def bring(locations: Iterable[str], source: Path, beside: Beside, wanted: Callable[[], bool]) -> None:
    """Copy a model's external files from the folder ``source`` into that of ``beside``.

    A file that is already there with the same bytes is left alone. ``wanted`` as for ``copying.copy_file``.

    Raises:
        OnnxfixError: another file has the same name, the disk is full, or the copy was canceled. All copies are
            deleted then.
    """
    if source.resolve() == beside.home.path.resolve():
        return
    try:
        for location in locations:
            _bring(PurePath(location), source / location, beside, wanted)
    except BaseException:
        beside.drop()
        raise


def _bring(location: PurePath, old: Path, beside: Beside, wanted: Callable[[], bool]) -> None:
    folder = beside.folder(location.parent)
    new = folder.path / location.name
    with writing(new):
        there = folder.lookup(location.name)
    if there is not None:
        known = stamp(new)
        if new.is_symlink() or not new.is_file() or not atomic.same_bytes(old, new):
            raise OnnxfixError(f"{new}: another file has the name of the model's external data; move it")
        beside.found[new] = known
        return
    with temporary_in(folder, location.name, most=loading.mode_of(old)) as file:
        copying.copy_file(old, file, wanted)
        try:
            atomic.install([file])
            beside.brought[location] = Placed(file)
        except BaseException:  # it may have its final name already, and nobody would know of it
            if location not in beside.brought and file.placed:
                folder.unlink(location.name)
            raise


class Arriving:
    """A background copy of a model's external data. Its methods are for the thread that started it."""

    def __init__(self, loaded: loading.Loaded, source: Path, beside: Beside) -> None:
        pool = ThreadPoolExecutor(1, "onnxfix-copy")
        self._wanted = True
        self._copy: Future[None] = pool.submit(bring, loaded.external, source, beside, lambda: self._wanted)
        pool.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until all of it is copied. An interrupt ends the wait and not the copy.

        Raises:
            OnnxfixError: another file has the same name, or the disk is full.
        """
        self._copy.result()

    def over(self) -> None:
        """Cancel the copy and wait for its end, also through interrupts. A canceled or failed copy leaves no files."""
        self._wanted = False
        while not self._copy.done():
            with contextlib.suppress(KeyboardInterrupt):  # files copied after our end would remain
                futures.wait([self._copy])
