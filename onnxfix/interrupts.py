"""SIGTERM and a closed terminal end a run as Ctrl-C does; no interrupt is lost, and none disturbs the cleaning up."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any, NoReturn

INTERRUPTED = 128 + 2
"""The exit code of a run that Ctrl-C ended, as shells report it; the number of SIGINT is 2 everywhere."""
INSISTING = 20.0
"""Seconds after an interrupt from which on another one interrupts again, should the cleaning up hang."""


class _State:
    """The interrupts of this run: the exit code of the first, when it came (None: never), and how many there were."""

    code = INTERRUPTED
    since: float | None = None
    count = 0


def exit_code() -> int:
    """The exit code for the interrupt that is being handled: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return _State.code


def insisted() -> bool:
    """Whether the user interrupted more than once: what takes long should not be waited for."""
    return _State.count > 1


def listen() -> None:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. Call it in the main thread.

    SIGHUP comes when a terminal is closed. Whoever ignores it, as nohup does, goes on. The first of these signals
    raises KeyboardInterrupt; those after it would interrupt the cleaning up, and are only counted.

    Python drops an exception raised in a destructor or a weak reference's callback, of which there are many when a
    large model is freed: such an interrupt is raised again.
    """
    _State.code, _State.since, _State.count = INTERRUPTED, None, 0
    _catch(_interrupted)
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
    the process by the signal, with another exit code. Signals that come now are ignored."""
    sys.unraisablehook = _drop
    if threading.current_thread() is threading.main_thread():
        _catch(_ignored)
    # CPython ends by SIGINT, whatever the exit code, if the last code that it compiled from a string was interrupted,
    # caught or not. Dataclasses compile such code, so that an interrupt during an import is enough.
    eval("None")
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, 0)


def leave() -> None:
    """The process ends: after an interrupt, further ones do not change its exit code. Python itself would give the
    signals back to the system, which kills."""
    if _State.since is not None:
        _catch(signal.SIG_IGN)


def _catch(handler: Any) -> None:
    """Set the handler of the signals that end a run, except of those that whoever started it ignores."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    for number in numbers:
        # A SIGINT that is handled by others is that of a program which runs onnxfix inside.
        mine = signal.getsignal(number) in (signal.default_int_handler, _interrupted, _ignored)
        if mine or (number is not signal.SIGINT and signal.getsignal(number) is not signal.SIG_IGN):
            signal.signal(number, handler)


def _interrupted(number: int, _: object) -> None:
    now = time.monotonic()
    _State.count += 1
    if _State.since is None:
        _State.code = 128 + number
    elif now - _State.since < INSISTING:
        return
    _State.since = now
    raise KeyboardInterrupt


def _ignored(*_: object) -> None:
    """A signal that comes while the run ends already."""


def _drop(dropped: Any) -> None:
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
