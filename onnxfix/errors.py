"""What onnxfix says when it cannot go on: one line with what, where and what to do."""

from __future__ import annotations

import os
from pathlib import Path


class OnnxfixError(Exception):
    """An expected failure. ``str(error)`` is one line that a user can act on; the CLI exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ModelError(OnnxfixError):
    """The model cannot be read, or is not a model that onnxfix can reason about."""


class MissingFile(ModelError):
    """There is no such file."""


class UsageError(OnnxfixError):
    """The caller asked for something that does not exist or that contradicts itself."""


class Fault(OnnxfixError):
    """Code of onnxfix's own failed in a child process: a bug, whatever model it was about."""


class EditError(OnnxfixError):
    """An edit would break the graph (a name clash, a use of a removed value): it is refused as a whole."""


class ShadowedError(EditError):
    """The model gives the wanted name to something else, to another value where a reader stands or to a function of its
    own: no fault of whoever asked for it."""


def explained(error: Exception, path: str | os.PathLike[str] | None = None) -> str:
    """What went wrong in one line that names the model, whatever was raised."""
    name = f"{path}: " if path is not None else ""
    if isinstance(error, OnnxfixError) and not isinstance(error, Fault):
        text = str(error)
        return text if " ".join(str(path).split()) in text else name + text
    if isinstance(error, RecursionError):
        return f"{name}is nested too deeply to be processed"
    if isinstance(error, MemoryError):
        return f"{name}does not fit into memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or path or 'onnxfix'}: {error.strerror}"
    return f"{name}internal error of onnxfix, please report it: {fault_of(error) or _unexpected(error)}"


#: What may be raised anywhere for the sake of the user, the model or the machine.
_NO_FAULTS = (OnnxfixError, OSError, MemoryError, RecursionError)


def fault_of(error: Exception) -> str:
    """In one line, what went wrong in onnxfix's own code; "" where it is not to blame for what was raised."""
    if isinstance(error, Fault):
        return str(error)
    return "" if isinstance(error, _NO_FAULTS) else _unexpected(error)


def _unexpected(error: Exception) -> str:
    """What nobody expected, in one line, with where it was raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + where
