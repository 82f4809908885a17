"""SIGTERM ends a run as Ctrl-C does, and no interrupt is lost."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn


def listen() -> None:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does. Call it in the main thread.

    Python drops an exception raised in a destructor or a weak reference's callback, of which there are many when a
    large model is freed: such an interrupt is raised again.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    before = sys.unraisablehook
    if getattr(before, "__name__", "") == "again":
        return  # a second command in one process

    def again(dropped: Any) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt) and hasattr(signal, "setitimer"):
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
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _drop(dropped: Any) -> None:
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
