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
    """Check that no output file is also another file of the run.

    Raises:
        UsageError: two of them are the same file, possibly under different paths (links).
    """
    files_by_identity: dict[tuple[int, int] | str, File] = {}
    for identity, file in _with_identities(others):
        files_by_identity.setdefault(identity, file)
    for file in written:
        other = files_by_identity.setdefault(_identity(file.path), file)
        if other is not file:
            raise UsageError(f"{file.what} {file.path}: is also {other.what}; name another file")


def _identity(path: Path) -> tuple[int, int] | str:
    """Equal for two paths of the same file, whether or not it exists."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # it does not exist yet
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def _with_identities(files: Iterable[File]) -> Iterator[tuple[tuple[int, int] | str, File]]:
    """Files with their identities. Skip invalid file names: a model may contain any string."""
    for file in files:
        with contextlib.suppress(ValueError):
            yield _identity(file.path), file


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
    """Whether ``destination`` is in the folder that the model's external data is relative to."""
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
        is_small = path.stat().st_size <= loading.SMALL
        if is_small and _LOCATION not in path.read_bytes():
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
    for identity, file in _with_identities(data):
        if identity == own:
            raise UsageError(
                f"{path}: is also {file.what}, which --in-place would change; write to another folder by "
                "--output or --output-dir"
            )


def inputs_of(path: str | os.PathLike[str] | None) -> Iterator[File]:
    """The path that ``--inputs`` names. For a folder, also the files in it that are read."""
    if path is None:
        return
    yield File("what --inputs names", Path(path))
    for pattern in ("*.npy", "*.json", "*/*.npy"):
        paths = list(Path(path).glob(pattern))
        if paths:
            yield from (File("read for --inputs", file) for file in paths)
            return
