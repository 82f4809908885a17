"""SIGTERM and a closed terminal end a run as Ctrl-C does, and no further interrupt disturbs the cleaning up."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

INTERRUPTED = 128 + 2
"""The exit code of a run that Ctrl-C ended, as shells report it; the number of SIGINT is 2 everywhere."""
INSISTING = 20.0
"""Seconds after an interrupt from which on another one interrupts again, should the cleaning up hang."""


class _State:
    """The first interrupt of this run: its exit code, and when it came (None: never)."""

    code = INTERRUPTED
    since: float | None = None


def exit_code() -> int:
    """The exit code for the interrupt that is being handled: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return _State.code


def listen() -> None:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. Call it in the main thread.

    SIGHUP comes when a terminal is closed. Whoever ignores it, as nohup does, goes on. The first of these signals
    raises KeyboardInterrupt; those after it would interrupt the cleaning up, and are ignored for ``INSISTING`` seconds.
    """
    _State.code, _State.since = INTERRUPTED, None
    _catch(_interrupted)


def finish() -> None:
    """The interrupt is being handled: signals that come now are ignored."""
    if threading.current_thread() is threading.main_thread():
        _catch(_ignored)
    # CPython ends by SIGINT, whatever the exit code, if the last code that it compiled from a string was interrupted,
    # caught or not. Dataclasses compile such code, so that an interrupt during an import is enough.
    eval("None")


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
    if _State.since is None:
        _State.code = 128 + number
    elif now - _State.since < INSISTING:
        return
    _State.since = now
    raise KeyboardInterrupt


def _ignored(*_: object) -> None:
    """A signal that comes while the run ends already."""
