"""Run a function in a fork of this process, which can be killed and costs a millisecond: nothing is imported again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from onnxfix.runtime import deadline, prefork
from onnxfix.runtime._child import Outcome
from onnxfix.runtime.sandbox import Worker


def forked(fn: Callable[..., Any], *args: Any, timeout: float, memory_mb: int | None = None) -> Outcome:
    """Call ``fn(*args)`` in a fork of this process; ``fn`` must be importable, and ``args`` and its result must pickle.

    ``timeout`` is in seconds. ``memory_mb`` limits what it may use in addition to this process. Where ``os.fork`` is
    missing, it runs in a new child. ``deadline.Expired`` is raised when a limit around the call is over.
    """
    timeout = deadline.least(timeout)
    if sys.platform == "win32" or not hasattr(os, "fork"):
        return call_once(Worker(memory_mb=memory_mb), fn, args, timeout)
    return _by_fork(fn, args, timeout, memory_mb)


def _by_fork(fn: Callable[..., Any], args: tuple[Any, ...], timeout: float, memory_mb: int | None) -> Outcome:
    worker = Worker(memory_mb=memory_mb, spare=prefork.fork_one())
    worker.start()
    if memory_mb is not None:  # not the user's limit, so that it is not named where memory runs out
        worker.limit_mb = None
    return call_once(worker, fn, args, timeout)


def call_once(worker: Worker, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> Outcome:
    """Call an importable function in a child, and end that."""
    with worker:
        return worker.call(f"{fn.__module__}:{fn.__qualname__}", timeout=timeout, positional=args)
