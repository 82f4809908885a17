"""Time limits: of a whole call, of one check in it, and so on. Of nested ones the earliest holds.

Children are given what is left at most, and loops of this process ask ``check``. What does neither is stopped by
``watched``, a little later. In all three cases ``Expired`` is raised, and whoever set the limit handles it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

GRACE = 3.0
"""Seconds after a limit at which ``watched`` interrupts code that did not notice it."""
_LONGEST = 1e8
"""Seconds: a limit of three years. The system's clocks take no infinite one."""

_ENDS: ContextVar[float | None] = ContextVar("deadline", default=None)


class Expired(BaseException):
    """A time limit is over. Like KeyboardInterrupt it is no Exception: what handles failures must not handle it."""


@contextlib.contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Limit what happens in the context to so many seconds, or to the limit around it; None sets no limit. A new thread
    has a limit only if it runs in a copy of this context (``contextvars.copy_context``)."""
    around, own = _ENDS.get(), None if seconds is None else time.monotonic() + min(seconds, _LONGEST)
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

    ``Expired`` is raised by an alarm between two instructions of Python, as an interrupt is: one long call of C code is
    not cut short, and Python drops what is raised in a destructor. Other threads than the main one have no alarm, nor
    has Windows. An alarm of the program around this one that rings sooner stays as it is, and nothing is watched.
    """
    rest, began = left(), time.monotonic()
    main = threading.current_thread() is threading.main_thread()
    if sys.platform == "win32" or rest is None or not main:
        yield
        return
    other, _ = signal.getitimer(signal.ITIMER_REAL)
    if 0.0 < other < rest + GRACE or signal.getsignal(signal.SIGALRM) is None:  # None: that of a C library
        yield
        return
    active = True

    def expire(*_: object) -> None:
        if active:
            raise Expired

    handler = signal.signal(signal.SIGALRM, expire)
    earlier, interval = signal.setitimer(signal.ITIMER_REAL, max(rest + GRACE, 1e-6))
    try:
        try:
            yield
        finally:
            active = False
    finally:  # also where the alarm rang at the first instruction of the other block
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if earlier:  # that of a context around this one
            signal.setitimer(signal.ITIMER_REAL, max(earlier - (time.monotonic() - began), 1e-6), interval)
