"""Children that a command forks before it reads a model: they have numpy and onnx, and need not import them again.

A fork of a process that runs nothing else yet is as good as a new one, and starts in milliseconds. It becomes one: it
loses the command's open files, signal handlers and output streams, and waits for its start frame as
``python -m onnxfix.runtime._child`` does. Where a process cannot be forked safely, ``sandbox`` starts new ones.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import gc
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from onnxfix.runtime import _child, system

FOR_A_PROOF = 2
"""Children that a proof needs: one for ONNX Runtime, one for TensorRT."""


class Spare:
    """A forked child, with what ``subprocess.Popen`` has of it."""

    def __init__(self, pid: int, ends: tuple[int, int, int]) -> None:
        self.pid = pid
        self.stdin = io.FileIO(ends[0], "wb")
        self.stdout = io.FileIO(ends[1], "rb")
        self.stderr = io.FileIO(ends[2], "rb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The return code; None while it runs."""
        return self._reaped(getattr(os, "WNOHANG", 0))

    def wait(self) -> int | None:
        """Wait for its end. Returns the return code."""
        return self._reaped(0)

    def kill(self) -> None:
        """Kill the process, unless it was reaped."""
        if self.returncode is None:
            os.kill(self.pid, system.KILL)

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # an interrupt came between these lines
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class _State:
    waiting: list[Spare] = []  # noqa: RUF012  shared on purpose
    owner = 0


def fork(count: int) -> None:
    """Fork ``count`` children for the next that ``sandbox`` needs. Call it in a command before it reads a model. Those
    that are not needed end with this process, which closes their pipes.

    Does nothing where this process cannot be forked safely: it has other threads, or the system is not Linux.
    """
    # a child ends with the thread that forked it
    main = threading.current_thread() is threading.main_thread()
    if not sys.platform.startswith("linux") or not main or _State.owner == os.getpid():
        return
    with contextlib.suppress(OSError):  # no more processes, or descriptors: new ones may be possible later
        if len(os.listdir("/proc/self/task")) > 1:
            return
        _State.waiting, _State.owner = [], os.getpid()
        gc.freeze()  # what is here stays: looking at it would copy its pages
        for _ in range(count):
            _State.waiting.append(fork_one())


def take() -> Spare | None:
    """A child that waits for its start frame; None where there is none."""
    return _State.waiting.pop(0) if _State.waiting and _State.owner == os.getpid() else None


def fork_one() -> Spare:
    """Fork a child that waits for its start frame."""
    if sys.platform == "win32":  # for the type checker: ``fork`` does not come here
        raise NotImplementedError
    parent = os.getpid()
    # A signal is for this process: until the child has no handlers of its parent, none reaches it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def start(ends: Sequence[int]) -> int:
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads: the child runs what it is called for alone.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            become_child(parent, ends, before)
        return pid

    try:
        return connected(start)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def connected(start: Callable[[Sequence[int]], int]) -> Spare:
    """The child that ``start`` makes, with pipes to it. ``start`` is given the ends that become the child's descriptors
    0 to 2, and returns its process id."""
    with contextlib.ExitStack() as pipes:
        requests, replies, errors = (pipes.enter_context(_child.pipe()) for _ in range(3))
        spare = Spare(start((requests[0], replies[1], errors[1])), (requests[1], replies[0], errors[0]))
        requests[1] = replies[0] = errors[0] = -1
    return spare


def become_child(parent: int, ends: Sequence[int], mask: set[int | signal.Signals]) -> NoReturn:
    """In a fork: give up what is the parent's, and serve calls as ``python -m onnxfix.runtime._child`` does. ``ends``
    become descriptors 0 to 2; ``mask`` is that of the signals which it blocks."""
    if sys.platform == "win32":  # for the type checker
        raise NotImplementedError
    code = 1
    try:
        os.setsid()
        for target, source in enumerate(ends):
            os.dup2(source, target)
        # Python's streams may hold text of the parent, or may have been redirected by it.
        sys.stdout, sys.stderr = (
            open(end, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            for end in (1, 2)
        )
        faulthandler.disable()  # a crash is expected, and its dump of no use to the user
        _child.die_with(parent)
        _give_up_files()
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.environ.clear()  # the start frame has that of the call
        if not sys.flags.safe_path and sys.path:  # files of the user's folder must not shadow modules
            sys.path.append(sys.path.pop(0))
        gc.enable()
        contextvars.Context().run(_child.serve, forked=True)
        code = 0
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    finally:
        os._exit(code)  # never run the parent's exit handlers


def _give_up_files() -> None:
    """Let all descriptors but the first three lead nowhere.

    They stay taken: an object of the parent that still has one may close it, which must not hit a file of this process.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # that of the listing is gone
            if number > 2 and number != nothing:
                os.dup2(nothing, number, inheritable=False)
