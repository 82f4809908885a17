"""What the user allows: memory for a model's structure (``files.bounds`` judges by it) and for children, cores, and
what a proof may cost."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from onnxfix.errors import UsageError
from onnxfix.runtime import system

STRUCTURE_MB = "ONNXFIX_STRUCTURE_MB"
"""Environment variable with the limit of a model's structure in MiB."""
MEMORY_MB = "ONNXFIX_MEMORY_MB"
"""Environment variable that limits the memory of each child, in MiB."""
LEAST_MB = 64
"""Minimum memory limit of a child, in MiB: below, Python does not start."""
_CHILD_MB: ContextVar[int | None] = ContextVar("memory_mb", default=None)
CORES = "ONNXFIX_CORES"
"""Environment variable: the number of cores that this process may use, if it is one of several."""


def structure_mb() -> int | None:
    """The limit of a model's structure in MiB that the environment sets; None for the default one.

    Raises:
        UsageError: the environment has something else.
    """
    text = os.environ.get(STRUCTURE_MB, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= len(text) <= 9 or int(text) < 1:
        raise UsageError(f"{STRUCTURE_MB}={text}: is not a number of MiB from 1")
    return int(text)


@contextlib.contextmanager
def memory_limit(memory_mb: int | None) -> Iterator[None]:
    """Limit the memory of every child that is used inside the context, in MiB; None sets no limit.

    The environment variable ``ONNXFIX_MEMORY_MB`` limits a whole process, one of several; nothing exceeds it. A limit
    of a single call (``memory_mb`` of ``Worker``, ``run`` and ``forked``) takes precedence over both.

    Raises:
        UsageError: it is too little to start Python.
    """
    if memory_mb is not None and memory_mb < LEAST_MB:
        raise UsageError(
            f"a memory limit of {memory_mb} MiB is too little for Python itself: the minimum is {LEAST_MB}"
        )
    token = _CHILD_MB.set(memory_mb if memory_mb is not None else _CHILD_MB.get())
    try:
        yield
    finally:
        _CHILD_MB.reset(token)


def memory_limit_mb() -> int | None:
    """The present limit set by ``memory_limit``, in MiB."""
    return _CHILD_MB.get()


def cores() -> int:
    """Number of cores that this process may use."""
    share = os.environ.get(CORES, "")
    if share.isdecimal() and int(share):
        return int(share)
    return system.cores()


LEVELS = ("quick", "default", "thorough")


@dataclass(frozen=True)
class Effort:
    """What share of its work a check that runs models does. ``name`` is one of ``LEVELS``, or "" for ``seconds``.

    The price of a check is what it costs to load both models and to run each of them once. What it spends on more
    inputs is ``multiple`` times that, and at least ``floor`` seconds. So models that run fast get all of their inputs.
    With ``essential``, a second shape and the hardest values run whatever they cost; with
    ``whole``, nothing is left out.
    """

    name: str = "default"
    multiple: float = 1.5
    floor: float = 2.0
    whole: bool = False
    essential: bool = True

    def budget(self, price: float) -> float:
        """The seconds that all inputs after the first may take, if loading and the first run took ``price`` seconds."""
        return math.inf if self.whole else max(self.floor, self.multiple * price)

    def __str__(self) -> str:
        return self.name or f"{self.floor:g}"


DEFAULT = Effort()
QUICK = Effort("quick", 1.0, 0.25, essential=False)
THOROUGH = Effort("thorough", whole=True)
_NAMED = {one.name: one for one in (QUICK, DEFAULT, THOROUGH)}


def effort_of(given: str | float) -> Effort:
    """The effort of that name, or the one that spends so many seconds, as a number or as text.

    Raises:
        UsageError: there is none.
    """
    named = _NAMED.get(given) if isinstance(given, str) else None
    if named is not None:
        return named
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not (0 <= seconds < math.inf):
        raise UsageError(f"unknown effort {given!r}; choose from {', '.join(LEVELS)}, or a number of seconds")
    return Effort("", 0.0, seconds, essential=False)
