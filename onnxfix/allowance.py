"""How much memory a model's structure may take: what the user says. ``files.bounds`` judges by it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar

from onnxfix.errors import UsageError

STRUCTURE_MB = "ONNXFIX_STRUCTURE_MB"
"""Environment variable with the limit in MiB, where no option sets it."""
_LIMIT_MB: ContextVar[int | None] = ContextVar("structure_mb", default=None)


@contextlib.contextmanager
def structure_limit(structure_mb: int | None) -> Iterator[None]:
    """Limit the structure of every model that is read inside the context, in MiB; None changes nothing.

    Raises:
        UsageError: it is less than 1.
    """
    if structure_mb is not None and structure_mb < 1:
        raise UsageError(
            f"a structure limit of {structure_mb} MiB leaves no room for a model: the minimum is 1"
        )
    token = _LIMIT_MB.set(structure_mb if structure_mb is not None else _LIMIT_MB.get())
    try:
        yield
    finally:
        _LIMIT_MB.reset(token)


def structure_mb() -> int | None:
    """The present limit in MiB; None for the default one.

    Raises:
        UsageError: the environment has something else.
    """
    limit = _LIMIT_MB.get()
    text = os.environ.get(STRUCTURE_MB, "") if limit is None else ""
    if not text:
        return limit
    if not text.isascii() or not text.isdecimal() or not 1 <= len(text) <= 9 or int(text) < 1:
        raise UsageError(f"{STRUCTURE_MB}={text}: is not a number of MiB from 1")
    return int(text)
