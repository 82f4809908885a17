"""Time limits: of a whole call, of one rung in it, and so on. Of nested ones the earliest holds.

Children are given what is left at most, and loops of this process ask ``check``. What does neither is stopped by
``watched``, a little later. In all three cases ``Expired`` is raised, and whoever set the limit handles it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

GRACE = 3.0
"""Seconds after a limit at which ``watched`` interrupts code that did not notice it."""

_ENDS: ContextVar[float | None] = ContextVar("deadline", default=None)


class Expired(BaseException):
    """A time limit is over. Like KeyboardInterrupt it is no Exception: what handles failures must not handle it."""


@contextlib.contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Limit what happens in the context to so many seconds, or to the limit around it; None sets no limit. A new thread
    has a limit only if it runs in a copy of this context (``contextvars.copy_context``)."""
    around, own = _ENDS.get(), None if seconds is None else time.monotonic() + seconds
    token = _ENDS.set(min((end for end in (around, own) if end is not None), default=None))
    try:
        yield
    finally:
        _ENDS.reset(token)


def left() -> float | None:
    """Seconds until the limit, 0 where it is over, None without one."""
    ends = _ENDS.get()
    return None if ends is None else max(0.0, ends - time.monotonic())


def over() -> bool:
    """Whether a limit is over."""
    return left() == 0.0


def check() -> None:
    """Raise ``Expired`` if a limit is over."""
    if over():
        raise Expired


def least(seconds: float) -> float:
    """So many seconds, or what is left if that is less.

    Raises:
        Expired: nothing is left.
    """
    check()
    rest = left()
    return seconds if rest is None else min(seconds, rest)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Interrupt what happens in the context if it goes on ``GRACE`` seconds after the limit.

    ``Expired`` is raised between two instructions of Python in the thread that entered the context, as an interrupt is:
    one long call of C code is not cut short, and Python drops what is raised in a destructor.
    """
    rest = left()
    if rest is None:
        yield
        return
    watch = _Watch(rest + GRACE)
    try:
        try:
            watch.start()
            yield
        finally:
            watch.stop()
    finally:
        watch.stop()  # again: the interrupt may have come at the first instruction of the other call


class _Watch:
    """Raises ``Expired`` in the thread that made it, so many seconds after its start, unless it is stopped before."""

    def __init__(self, seconds: float) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._stopped = False
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True

    def start(self) -> None:
        """Raise after the seconds."""
        self._timer.start()

    def stop(self) -> None:
        """Nothing is raised after this. An ``Expired`` on its way may be raised here, and then stop again."""
        with self._lock:
            self._stopped = True
            self._timer.cancel()
        # What is on its way arrives here and not later. To take it back is no option: CPython 3.11 then runs into an
        # endless loop where calls are traced.
        for _ in range(100):
            pass

    def _fire(self) -> None:
        with self._lock:
            if not self._stopped:
                _raise_in(self._thread)


def _raise_in(thread: int) -> None:
    import ctypes  # lazy: start-up, seldom used

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Expired))
