"""The files that a run reads and writes: none may be lost because another one is written in its place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from onnxfix.errors import ModelError, UsageError
from onnxfix.files import wire


class File(NamedTuple):
    """A file of the run; ``what`` it is: the option that names it, or some words."""

    what: str
    path: Path


def separate(written: Iterable[File], others: Iterable[File]) -> None:
    """Refuse a file to be written that is another one to be written, or one of ``others``.

    Raises:
        UsageError: two of them are one file, by whatever names and links.
    """
    taken: dict[tuple[int, int] | str, File] = {}
    for one in others:
        taken.setdefault(_identity(one.path), one)
    for one in written:
        other = taken.setdefault(_identity(one.path), one)
        if other is not one:
            raise UsageError(f"{one.what} {one.path}: is also {other.what}; name another file")


def _identity(path: Path) -> tuple[int, int] | str:
    """Equal for two paths that name one file, or would."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # it is not there yet
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def files_of(loaded: wire.Loaded, folder: Path | None = None) -> Iterator[File]:
    """A model that was read, its external data, and what that becomes where the model is written to ``folder``."""
    if loaded.path is not None:
        yield File("a model of this run", loaded.path)
        yield from data_of(loaded, folder)


def data_of(loaded: wire.Loaded, folder: Path | None = None) -> Iterator[File]:
    """A model's external data, and what it becomes where the model is written to ``folder``."""
    if loaded.path is None:
        return
    for location in loaded.external:
        for start in {loaded.path.parent, folder or loaded.path.parent}:
            yield File(f"external data of {loaded.path}", start / location)


def files_named(path: Path, folder: Path | None = None) -> Iterator[File]:
    """``files_of`` for a model that is yet to be read, whether or not that will work."""
    try:
        yield from files_of(wire.open_model(path), folder)
    except ModelError:  # told when its turn comes
        yield File("a model of this run", path)


def data_named(path: Path, folder: Path | None = None) -> Iterator[File]:
    """``data_of`` for a model that is yet to be read, whether or not that will work."""
    try:
        small = path.stat().st_size <= wire.SMALL
        if small and _LOCATION not in path.read_bytes():
            return  # as most models of a long list: parsing them all would take a while
        yield from data_of(wire.open_model(path), folder)
    except (ModelError, OSError, ValueError):  # told when its turn comes
        return


_LOCATION = b"location"
"""Key with which tensors name their files (ONNX, external data)."""


def replaceable(path: Path, data: Iterable[File]) -> None:
    """Refuse to replace a model in place that holds weights of its own, or of another one, as external data: they would
    lie elsewhere in the new file, or not at all.

    Raises:
        UsageError: it does.
    """
    own = _identity(path)
    for one in data:
        if _identity(one.path) == own:
            raise UsageError(
                f"{path}: is also {one.what}, which replacing it in place would change; write to another folder by "
                "--output or --output-dir"
            )


def inputs_of(path: str | os.PathLike[str] | None) -> Iterator[File]:
    """The files that ``--inputs`` names; of a folder those that are read."""
    if path is None:
        return
    yield File("what --inputs names", Path(path))
    for pattern in ("*.npy", "*.json", "*/*.npy"):
        found = list(Path(path).glob(pattern))
        if found:
            yield from (File("read for --inputs", one) for one in found)
            return
