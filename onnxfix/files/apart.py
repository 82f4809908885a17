"""The files that a run reads and writes. A file that the run needs must not be overwritten by its output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from onnxfix.errors import ModelError, UsageError
from onnxfix.files import loading
from onnxfix.files.bounds import Budget


class File(NamedTuple):
    """A file of the run. ``what`` describes it in messages: the option that names it, or a phrase."""

    what: str
    path: Path


def separate(written: Iterable[File], others: Iterable[File]) -> None:
    """Check that no file to be written is also another file of the run.

    Raises:
        UsageError: two of them are the same file, also if their paths differ (links).
    """
    known: dict[tuple[int, int] | str, File] = {}
    for identity, one in _identified(others):
        known.setdefault(identity, one)
    for one in written:
        other = known.setdefault(_identity(one.path), one)
        if other is not one:
            raise UsageError(f"{one.what} {one.path}: is also {other.what}; name another file")


def _identity(path: Path) -> tuple[int, int] | str:
    """Equal for two paths of the same file, whether or not it exists."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # it does not exist yet
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def _identified(files: Iterable[File]) -> Iterator[tuple[tuple[int, int] | str, File]]:
    """Files with their identities, without names that no file has: a model may hold any."""
    for one in files:
        with contextlib.suppress(ValueError):
            yield _identity(one.path), one


def files_of(loaded: loading.Loaded) -> Iterator[File]:
    """The files of a model: its own and its external data."""
    if loaded.path is not None:
        yield File("a model of this run", loaded.path)
        yield from data_of(loaded)


def data_of(loaded: loading.Loaded) -> Iterator[File]:
    """A model's external data files."""
    if loaded.path is not None:
        for location in loaded.external:
            yield File(f"external data of {loaded.path}", loaded.path.parent / location)


def keeps_data_near(loaded: loading.Loaded, destination: Path) -> bool:
    """Whether a result is in the folder of the model that its external data starts from."""
    return loaded.base_dir is not None and destination.parent.resolve() == loaded.base_dir.resolve()


def files_named(path: Path) -> Iterator[File]:
    """``files_of`` for a model that has not been read yet and may be unreadable."""
    try:
        yield from files_of(loading.open_model(path, budget=Budget()))
    except ModelError:  # reported when the model is processed
        yield File("a model of this run", path)


def data_named(path: Path) -> Iterator[File]:
    """``data_of`` for a model that has not been read yet and may be unreadable."""
    try:
        small = path.stat().st_size <= loading.SMALL
        if small and _LOCATION not in path.read_bytes():
            return  # most models of a long list: parsing all of them would take long
        yield from data_of(loading.open_model(path, budget=Budget()))
    except (ModelError, OSError, ValueError):  # reported when the model is processed
        return


_LOCATION = b"location"
"""Key under which tensors store the name of their file (ONNX, external data)."""


def replaceable(path: Path, data: Iterable[File]) -> None:
    """Check that a model to be replaced in place is not also the external data file of a model.

    Raises:
        UsageError: it is. In the new file, the weights would be at other offsets or missing.
    """
    own = _identity(path)
    for identity, one in _identified(data):
        if identity == own:
            raise UsageError(
                f"{path}: is also {one.what}, which --in-place would change; write to another folder by "
                "--output or --output-dir"
            )


def inputs_of(path: str | os.PathLike[str] | None) -> Iterator[File]:
    """The path given by ``--inputs``, and the files in it that are read if it is a folder."""
    if path is None:
        return
    yield File("what --inputs names", Path(path))
    for pattern in ("*.npy", "*.json", "*/*.npy"):
        found = list(Path(path).glob(pattern))
        if found:
            yield from (File("read for --inputs", one) for one in found)
            return
