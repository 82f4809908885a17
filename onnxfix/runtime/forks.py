"""Run a function in a fork of this process, which can be killed and costs a millisecond: nothing is imported again."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from onnxfix.runtime import _child, deadline, prefork, system
from onnxfix.runtime._child import Outcome, default_memory_mb
from onnxfix.runtime.confinement import Policy, confine, policy
from onnxfix.runtime.sandbox import Worker, lasting_parent


def forked(fn: Callable[..., Any], *args: Any, timeout: float, memory_mb: int | None = None) -> Outcome:
    """Call ``fn(*args)`` in a fork of this process; ``fn`` may be any callable, its result must pickle.

    ``timeout`` is in seconds. ``memory_mb`` limits what it may use in addition to this process. Where ``os.fork`` is
    missing, ``fn`` must be importable and runs in a fresh child. ``deadline.Expired`` is raised when a limit around the
    call is over.
    """
    timeout = deadline.least(timeout)
    if sys.platform == "win32" or not hasattr(os, "fork"):
        with Worker(memory_mb=memory_mb) as worker:
            return worker.call(f"{fn.__module__}:{fn.__qualname__}", timeout=timeout, positional=args)
    return _by_fork(fn, args, timeout, memory_mb)


def _by_fork(fn: Callable[..., Any], args: tuple[Any, ...], timeout: float, memory_mb: int | None) -> Outcome:
    if sys.platform == "win32":  # for the type checker
        raise NotImplementedError
    limit = memory_mb if memory_mb is not None else default_memory_mb()
    parent, rights = lasting_parent(), policy()  # here: what a fork writes to is copied first

    def start(ends: Sequence[int]) -> int:
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads: the child runs `fn` alone and leaves by _exit.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _in_fork((fn, args), ends, timeout, limit, parent, rights)
        return pid

    worker = Worker()
    worker.limit_mb = limit if memory_mb is None else None  # named where memory runs out
    return worker.receive(prefork.connected(start), timeout)


def _in_fork(
    call: tuple[Callable[..., Any], tuple[Any, ...]],
    ends: Sequence[int],
    timeout: float,
    memory_mb: int | None,
    parent: int,
    rights: Policy | None,
) -> NoReturn:
    """Call, and send the reply to the second of ``ends``; the third is for what is printed."""
    if sys.platform == "win32":  # for the type checker
        raise NotImplementedError
    try:
        prefork.detach((os.open(os.devnull, os.O_RDONLY), ends[2], ends[2]))
        if os.path.isdir("/proc/self/fd"):
            prefork.give_up_files(ends, pipes=True)  # what runs here must not answer for another process
        _child.limit(memory_mb, system.data_bytes())
        if parent:
            _child.die_with(parent)
        confine(rights)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the handler of a time limit around this call
        _child.arm(timeout)
        _child.write_frame(io.FileIO(ends[1], "wb", closefd=False), _child.invoke(*call, {}))
    finally:
        os._exit(0)  # never run the parent's exit handlers
