"""SIGTERM and a closed terminal end a run as Ctrl-C does, and no further interrupt disturbs the cleaning up."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

INTERRUPTED = 128 + 2
"""The exit code of a run that Ctrl-C ended, as shells report it; the number of SIGINT is 2 everywhere."""


class _State:
    """The first interrupt of this run: its number, None where there was none."""

    number: int | None = None


def exit_code() -> int:
    """The exit code for the interrupt that is being handled: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return INTERRUPTED if _State.number is None else 128 + _State.number


def listen() -> None:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. Call it in the main thread.

    SIGHUP comes when a terminal is closed. A program that ignores it, as nohup does, goes on. The first of these
    signals raises KeyboardInterrupt; those after it would interrupt the cleaning up, and are ignored.
    """
    _State.number = None
    _handle(_interrupt)


def finish() -> None:
    """The interrupt is being handled: signals that come now are ignored."""
    if threading.current_thread() is threading.main_thread():
        _handle(_ignore)
    # CPython ends by SIGINT, whatever the exit code, if the last code that it compiled from a string was interrupted,
    # caught or not. Dataclasses compile such code, so that an interrupt during an import is enough.
    eval("None")


def leave() -> None:
    """The process ends: after an interrupt, further ones do not change its exit code. Python itself would give the
    signals back to the system, which kills."""
    if _State.number is not None:
        _handle(signal.SIG_IGN)


def _handle(handler: Any) -> None:
    """Set the handler of the signals that end a run, except of those that this process was started to ignore."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    for number in numbers:
        # A SIGINT that is handled by others is that of a program which runs onnxfix inside.
        mine = signal.getsignal(number) in (signal.default_int_handler, _interrupt, _ignore)
        if mine or (number is not signal.SIGINT and signal.getsignal(number) is not signal.SIG_IGN):
            signal.signal(number, handler)


def _interrupt(number: int, _: object) -> None:
    if _State.number is None:
        _State.number = number
        raise KeyboardInterrupt


def _ignore(*_: object) -> None:
    """A signal that comes while the run ends already."""
