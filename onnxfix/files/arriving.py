"""External data on its way to where the output goes: the system copies while the rules run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePath

from onnxfix.errors import OnnxfixError
from onnxfix.files import atomic, wire
from onnxfix.files.beside import Beside
from onnxfix.files.folders import writing
from onnxfix.files.lazy import stamp
from onnxfix.files.temporary import Placed, temporary_in


def bring(locations: Iterable[str], source: Path, beside: Beside, wanted: Callable[[], bool]) -> None:
    """Bring a model's external files from the folder ``source``.

    A file that is already there with the same bytes is left alone. ``wanted`` as for ``wire.copy_file``.

    Raises:
        OnnxfixError: another file stands in the way, the disk is full, or it is not ``wanted``. Nothing stays then.
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
    with temporary_in(folder, location.name, most=wire.mode_of(old)) as file:
        wire.copy_file(old, file, wanted)
        atomic.install([file])
        beside.brought[location] = Placed(file)


class Arriving:
    """A copy of a model's external data that has begun. For one thread, but for the copy itself."""

    def __init__(self, loaded: wire.Loaded, source: Path, beside: Beside) -> None:
        pool = ThreadPoolExecutor(1, "onnxfix-copy")
        self._wanted = True
        self._copy: Future[None] = pool.submit(bring, loaded.external, source, beside, lambda: self._wanted)
        pool.shutdown(wait=False)

    def wait(self) -> None:
        """Return once all of it is there. An interrupt does not end the copy.

        Raises:
            OnnxfixError: another file stands in the way, or the disk is full.
        """
        self._copy.result()

    def over(self) -> None:
        """End the copy, for nobody wants it; no interrupt ends that. One that fails leaves nothing."""
        self._wanted = False
        while not self._copy.done():
            with contextlib.suppress(KeyboardInterrupt):  # files that come after we have gone would stay
                futures.wait([self._copy])
