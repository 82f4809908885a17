"""Where a result goes, and putting it there."""

from __future__ import annotations

import os
from pathlib import Path

from onnxfix.errors import UsageError
from onnxfix.files import apart, loading, regular
from onnxfix.pipeline.prove import Result


def destination_of(
    loaded: loading.Loaded, output: str | os.PathLike[str] | None, in_place: bool
) -> Path | None:
    """Where the result goes; None for nowhere.

    Raises:
        UsageError: it may not go there.
    """
    if in_place and output is not None:
        raise UsageError("in-place and an output file exclude each other")
    if in_place:
        if loaded.path is None:
            raise UsageError("in-place needs a model that was read from a file")
        if loaded.path.is_symlink() and _has_data_beside(loaded):
            raise UsageError(
                f"{loaded.path}: is a symbolic link to a model with external data, or one of more than 2 GB, which "
                "gets some; name the file itself"
            )
        apart.replaceable(loaded.path, apart.data_of(loaded))
        return loaded.path.resolve()  # a link stays a link; the file that it names is replaced
    if output is None:
        return None
    destination = Path(output)
    try:
        there = destination.exists()
    except OSError as error:
        raise UsageError(f"{destination}: cannot be written: {error.strerror or error}") from None
    if loaded.path is not None and there and os.path.samefile(destination, loaded.path):
        raise UsageError(f"{destination}: is the input itself; ask for in-place if that is what you want")
    if destination.is_dir():
        raise UsageError(f"{destination}: is a directory; name the output file")
    real = regular.destination(destination)
    if not real.parent.is_dir():
        raise UsageError(f"{real.parent}: no such directory for the output")
    if real is not destination and _has_data_beside(loaded):
        raise UsageError(
            f"{destination}: is a symbolic link, and the model has external data, or is of more than 2 GB and gets "
            "some; name the file itself"
        )
    return real


def _has_data_beside(loaded: loading.Loaded) -> bool:
    """Whether the output will need other files beside it, which nobody finds through a link to it."""
    return loaded.oversize or bool(loaded.external)


def install(loaded: loading.Loaded, result: Result, destination: Path, *, in_place: bool) -> str:
    """Move the proven result to its place; returns the path. An unchanged model is copied byte for byte.

    Raises:
        ModelError: the input is not any more what was read: what was proven would be of another model.
        OnnxfixError: the output cannot be written.
    """
    loaded.check()
    if not result.changed:
        if in_place:
            return str(destination)
        result.candidate.copy()
    result.candidate.install(result.proto, in_place=in_place)
    return str(destination)
