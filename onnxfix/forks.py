"""Run a function in a fork of this process, which can be killed and costs a millisecond: nothing is imported again."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onnxfix import _child, deadline, spares, system
from onnxfix._child import Outcome, default_memory_mb
from onnxfix.confinement import Policy, confine, policy
from onnxfix.sandbox import SLICE, Worker, within


def forked(fn: Callable[..., Any], *args: Any, timeout: float, memory_mb: int | None = None) -> Outcome:
    """Call ``fn(*args)`` in a fork of this process; ``fn`` may be any callable, its result must pickle.

    ``timeout`` is in seconds. ``memory_mb`` limits what it may use in addition to this process. Where ``os.fork`` is
    missing, ``fn`` must be importable and runs in a fresh child. ``deadline.Expired`` is raised when a limit around the
    call is over.
    """
    timeout = deadline.least(timeout)
    if sys.platform == "win32" or not hasattr(os, "fork"):
        return in_new_child(fn, args, timeout, memory_mb)
    return _by_fork(fn, args, timeout, memory_mb)


def in_new_child(
    fn: Callable[..., Any], args: tuple[Any, ...], timeout: float, memory_mb: int | None
) -> Outcome:
    """Call an importable ``fn`` in a child that is started for that, as ``forked`` does where nothing can be forked."""
    with Worker(memory_mb=memory_mb) as worker:
        return worker.call_with(f"{fn.__module__}:{fn.__qualname__}", args, {}, timeout)


def _by_fork(fn: Callable[..., Any], args: tuple[Any, ...], timeout: float, memory_mb: int | None) -> Outcome:
    if sys.platform == "win32":  # for the type checker
        raise NotImplementedError
    limit = memory_mb if memory_mb is not None else default_memory_mb()
    parent = os.getpid()
    lasting = threading.current_thread() is threading.main_thread()
    rights = policy()  # here: what a fork writes to is copied first
    with _child.pipe() as result, _child.pipe() as stderr:
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads: the child runs `fn` alone and leaves by _exit.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            ends = result[1], stderr[1]
            _in_fork((fn, args), ends, timeout, limit, parent if lasting else 0, rights)
        outcome = _await_fork(pid, result, stderr, timeout)
    if outcome.status == "memory" and memory_mb is None and limit is not None:
        return replace(outcome, message=f"{outcome.message} ({within(limit)})")
    return outcome


def _in_fork(
    call: tuple[Callable[..., Any], tuple[Any, ...]],
    ends: tuple[int, int],
    timeout: float,
    memory_mb: int | None,
    parent: int,
    rights: Policy | None,
) -> None:
    if sys.platform == "win32":  # for the type checker: ``forked`` does not come here
        raise NotImplementedError
    result, stderr = ends
    try:
        spares.detach((os.open(os.devnull, os.O_RDONLY), stderr, stderr))
        _child.limit(memory_mb, system.data_bytes())
        if parent:
            _child.die_with(parent)
        confine(rights)
        _child.arm(timeout)
        reply = _child.invoke(*call, {})
        while reply:
            reply = reply[os.write(result, reply) :]
    finally:
        os._exit(0)  # never run the parent's exit handlers


def _await_fork(pid: int, result: list[int], stderr: list[int], timeout: float) -> Outcome:
    if sys.platform == "win32":
        raise NotImplementedError
    code: int | None = None
    try:
        for ends in (result, stderr):
            os.close(ends[1])
            ends[1] = -1
        reply, tail, late = _collect(result[0], stderr[0], timeout)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)  # in case it died before setsid
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if late:
        deadline.check()
        return Outcome("timeout", message=f"took more than {timeout:g} s and was stopped")
    if reply:
        decoded = _child.decode(reply)
        if isinstance(decoded, Outcome):
            return decoded
    return _child.obituary(code, tail.text())


def _collect(result: int, stderr: int, timeout: float) -> tuple[bytes, _child.Tail, bool]:
    """Read until ``result`` ends. Returns the bytes, the end of stderr and whether time ran out."""
    if sys.platform == "win32":
        raise NotImplementedError
    deadline = time.monotonic() + timeout
    chunks: list[bytes] = []
    tail = _child.Tail()
    with selectors.DefaultSelector() as selector:
        selector.register(result, selectors.EVENT_READ)
        selector.register(stderr, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(min(left, SLICE)):
                data = os.read(key.fd, 1 << 20)
                if key.fd == stderr:
                    tail.add(data)
                    if not data:
                        selector.unregister(stderr)
                elif data:
                    chunks.append(data)
                else:
                    os.set_blocking(stderr, False)
                    with contextlib.suppress(BlockingIOError):
                        tail.add(os.read(stderr, 1 << 16))
                    return b"".join(chunks), tail, False
    return b"", tail, True
