"""Being told to end: SIGTERM ends a run as Ctrl-C does, and neither gets lost."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn


def listen() -> None:
    """Let SIGTERM end this process as Ctrl-C does, by KeyboardInterrupt. For the main thread.

    Python drops an exception that is raised while it runs a destructor or a weak reference's callback, of which there
    are many when a large model goes: such an interrupt is delivered once more.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    before = sys.unraisablehook
    if getattr(before, "__name__", "") == "again":
        return  # a second command in one process

    def again(lost: Any) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt) and hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            before(lost)

    sys.unraisablehook = again


def heard() -> None:
    """The interrupt has arrived: what a destructor drops on the way out is not delivered once more, for that would end
    the process by the signal, with another exit code."""
    sys.unraisablehook = _drop
    # CPython ends by SIGINT, whatever the exit code, when the last code that it compiled from a string was interrupted,
    # caught or not. Dataclasses are such code, so an interrupt while a module is imported is enough.
    eval("None")
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _drop(lost: Any) -> None:
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
