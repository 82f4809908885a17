"""Expected failures, each with a one-line message: what is wrong, where, and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


class OnnxfixError(Exception):
    """An expected failure. ``str(error)`` is one line that a user can act on; the CLI exits with 2.

    ``path`` is the file that the message is about and names; "" where that is not known."""

    def __init__(self, message: str, path: str | os.PathLike[str] = "") -> None:
        super().__init__(" ".join(message.split()))
        self.path = str(path)


class ModelError(OnnxfixError):
    """The model cannot be read, or is not a model that onnxfix can reason about."""


class MissingFile(ModelError):
    """There is no such file."""


class UsageError(OnnxfixError):
    """The options name something that does not exist, or contradict each other."""


class Fault(OnnxfixError):
    """onnxfix's own code failed in a child process: a bug, whatever the model."""


class TimeLimit(OnnxfixError):
    """The run was not finished within the time that it was given. The CLI exits with 3."""


class EditError(OnnxfixError):
    """A fix would break the graph (a name clash, a use of a removed value): it is refused as a whole."""


class ShadowedError(EditError):
    """The model uses the wanted name for something else, such as a local function, or what the fix replaces does not
    exist in ONNX: not a fault of the rule."""


@contextlib.contextmanager
def about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of a model within the context are about this file: their message begins with its name.

    Raises:
        ModelError: as raised inside, with the name.
    """
    try:
        yield
    except ModelError as error:
        name, text = " ".join(str(path).split()), str(error)
        if not error.path:
            error.path = str(path)
            error.args = (text if name in text else f"{name}: {text}",)
        raise


_NO_THREAD = "can't start new thread"
"""What Python's RuntimeError says where the system refuses a thread; it has no class of its own."""
_LIMITS = "its limit of processes (ulimit -u) or of memory is reached"


def explained(error: Exception, path: str | os.PathLike[str] | None = None) -> str:
    """A one-line message for any exception, with the model's ``path``."""
    name = f"{path}: " if path is not None else ""
    if isinstance(error, OnnxfixError) and not isinstance(error, Fault):
        text = str(error)
        return text if error.path or " ".join(str(path).split()) in text else name + text
    if isinstance(error, RecursionError):
        return f"{name}is nested too deeply to be processed"
    if isinstance(error, MemoryError):
        return f"{name}does not fit into memory"
    if type(error) is RuntimeError and error.args == (_NO_THREAD,):
        return f"{name}the system starts no more threads: {_LIMITS}"
    if isinstance(error, OSError) and error.errno == errno.EAGAIN and not error.filename:  # of a fork
        return f"{name}the system starts no more processes: {_LIMITS}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or path or 'onnxfix'}: {error.strerror}"
    return f"{name}internal error of onnxfix, please report it: {fault_of(error) or _unexpected(error)}"


def working_directory() -> str:
    """The working directory.

    Raises:
        UsageError: it was deleted, or may not be entered any more.
    """
    try:
        return os.getcwd()
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"the working directory cannot be used, change to another one: {why}") from None


#: Exceptions caused by the user, the model or the machine.
_NO_FAULTS = (OnnxfixError, OSError, MemoryError, RecursionError)


def fault_of(error: Exception) -> str:
    """The bug in onnxfix that an exception shows, in one line; "" if it shows none."""
    if isinstance(error, Fault):
        return str(error)
    return "" if isinstance(error, _NO_FAULTS) else _unexpected(error)


def _unexpected(error: Exception) -> str:
    """An unexpected exception in one line, with the place where it was raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + where


def decoded(text: str | bytes) -> str:
    """A text of a model, for messages and reports: one that is no UTF-8 is bytes in protobuf."""
    return text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")
