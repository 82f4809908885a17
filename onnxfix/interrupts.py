"""SIGTERM ends a run as Ctrl-C does, and no interrupt is lost."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

INTERRUPTED = 128 + 2
"""The exit code of a run that Ctrl-C ended, as shells report it; the number of SIGINT is 2 everywhere."""
_TERMINATED = 128 + 15
_last = INTERRUPTED


def exit_code() -> int:
    """The exit code for the interrupt that is being handled: 130 for Ctrl-C, 143 for SIGTERM."""
    return _last


def listen() -> None:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does. Call it in the main thread.

    Python drops an exception raised in a destructor or a weak reference's callback, of which there are many when a
    large model is freed: such an interrupt is raised again.
    """
    global _last
    _last = INTERRUPTED
    signal.signal(signal.SIGTERM, _terminate)
    before = sys.unraisablehook
    if getattr(before, "__name__", "") == "again":
        return  # a second command in one process

    def again(dropped: Any) -> None:
        lost = isinstance(dropped.exc_value, KeyboardInterrupt)
        if lost and sys.platform != "win32":
            signal.signal(signal.SIGALRM, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            before(dropped)

    sys.unraisablehook = again


def finish() -> None:
    """The interrupt is being handled: do not raise one again that a destructor drops from here on, since that would end
    the process by the signal, with another exit code."""
    sys.unraisablehook = _drop
    # CPython ends by SIGINT, whatever the exit code, if the last code that it compiled from a string was interrupted,
    # caught or not. Dataclasses compile such code, so that an interrupt during an import is enough.
    eval("None")
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, 0)


def _drop(dropped: Any) -> None:
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)


def _terminate(*_: object) -> NoReturn:
    global _last
    _last = _TERMINATED
    raise KeyboardInterrupt


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
