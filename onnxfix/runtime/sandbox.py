"""Run something that may crash, hang or eat memory in a child process that can be killed.

ONNX Runtime, onnx's C++ code and TensorRT do all three on real models. ``Worker`` keeps one child for many calls
(``python -m onnxfix.runtime._child``, or one of ``prefork``). ``forked`` guards a function of this process by
``os.fork``.

The child talks by length-prefixed pickles over copies of its stdin and stdout, made before foreign code can
print: file descriptor 1 then points at stderr, whose last bytes are kept for the message.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from onnxfix.errors import working_directory
from onnxfix.runtime import _child, deadline, prefork, system
from onnxfix.runtime._child import Outcome, Share, Status, allow_maps, default_memory_mb, note, one_line
from onnxfix.runtime.allowance import memory_limit_mb
from onnxfix.runtime.confinement import Policy, outdated, policy

__all__ = ["Outcome", "Status", "Worker", "allow_maps", "default_memory_mb", "note", "one_line", "shared"]


_TAIL_BYTES = 4096
WATCHERS: list[Callable[[str], None]] = []
"""Called with how far the step of a child is, and with "" when that is over."""


_Process = subprocess.Popen[bytes] | prefork.Spare


def _kill_group(process: _Process, owner: int) -> None:
    """Kill the child and whatever it started, and reap it; in a fork of its owner, leave it alone."""
    if os.getpid() != owner:
        return
    if process.returncode is None:  # not reaped, so that its id cannot belong to another process
        system.kill(process)
    process.wait()


def _pump_replies(stream: io.RawIOBase, into: queue.SimpleQueue[bytearray | None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while (frame := _child.read_frame(stream)) is not None:
            into.put(frame)
    into.put(None)


def _pump_stderr(stream: io.RawIOBase, tail: bytearray) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := os.read(stream.fileno(), 65536):
            tail[:] = (tail + data)[-_TAIL_BYTES:]


def _started(folder: Path, environment: Mapping[str, str]) -> _Process:
    """A new child. It starts in the package's folder, not in the user's: files there could shadow modules."""
    return subprocess.Popen(
        [sys.executable, "-m", "onnxfix.runtime._child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
        start_new_session=True,
        creationflags=system.NEW_GROUP,
        bufsize=0,
    )


class _Child:
    """One process with its three pipes, and what it gave up (None: nothing, or not known)."""

    def __init__(self, process: _Process, policy: Policy | None) -> None:
        self.process, self.policy = process, policy
        streams = self.process.stdin, self.process.stdout, self.process.stderr
        self.requests, replies, stderr = (cast(io.RawIOBase, stream) for stream in streams)
        self._streams = (self.requests, replies, stderr)
        self.replies: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        self.tail = bytearray()  # the last bytes that it wrote to stderr
        self._threads: list[threading.Thread] = []  # that were started
        self._finalizer = weakref.finalize(self, _kill_group, self.process, os.getpid())
        try:
            for thread in (
                threading.Thread(target=_pump_replies, args=(replies, self.replies), daemon=True),
                threading.Thread(target=_pump_stderr, args=(stderr, self.tail), daemon=True),
            ):
                thread.start()
                self._threads.append(thread)
        except BaseException:  # the system may refuse threads
            self.close()
            raise

    def send(self, payload: bytes, timeout: float) -> None:
        """Write a request; a child that does not read a large one is killed after ``timeout`` seconds."""
        large = len(payload) > 32768
        watchdog = threading.Timer(timeout, _kill_group, (self.process, os.getpid())) if large else None
        if watchdog is not None:
            watchdog.daemon = True
            watchdog.start()
        try:
            with contextlib.suppress(OSError):
                _child.write_frame(self.requests, payload)
        finally:
            if watchdog is not None:
                watchdog.cancel()

    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> int:
        """Kill, reap and release everything. Returns the return code."""
        self._finalizer()
        for thread in self._threads:
            thread.join(timeout=2.0)
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.close()
        return self.process.returncode or 0  # None in a fork of the owner, which reaps nothing


def _start_child(memory_mb: int | None, variables: Mapping[str, str], spare: prefork.Spare | None) -> _Child:
    """A child that waits for calls: the ``spare`` one, one that was forked before, or a new one."""
    above = Path(__file__).resolve().parents[2]  # the folder that onnxfix is in
    environment = dict(os.environ, PYTHONSAFEPATH="1", **variables)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(above), environment.get("PYTHONPATH")]))
    # Several BLAS threads cost memory and start-up time, and may change the last bit of sums.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    # ONNX Runtime 1.32 reports sessions to its maker, and keeps a database for that in the user's cache folder.
    environment.setdefault("ORT_DISABLE_TELEMETRY", "1")
    rights = policy()
    child = _Child(spare or prefork.take() or _started(above, environment), rights)
    start = {
        "path": [os.path.abspath(entry) for entry in sys.path if entry],
        "cwd": working_directory(),
        "memory_mb": memory_mb,
        # The kernel sends the signal to die when the thread that forked ends, so that other threads ask for none.
        "parent": os.getpid() if threading.current_thread() is threading.main_thread() else 0,
        "confinement": rights,
        "environment": environment,
    }
    with contextlib.suppress(OSError):
        _child.write_frame(child.requests, pickle.dumps(start))
    return child


_LATE = "took more than {:g} s and was stopped"
SLICE = 0.2
"""Seconds that a wait blocks at a time. A signal may reach another thread than the main one; Python's handler then
runs when the main thread next wakes, and an interrupt must not wait for the end of a model's run."""


def _next(replies: queue.SimpleQueue[bytearray | None], timeout: float) -> bytearray | None:
    """The next frame.

    Raises:
        queue.Empty: there was none within ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            return replies.get(timeout=max(0.0, min(left, SLICE)))
        except queue.Empty:
            if left <= SLICE:
                raise


@dataclass(eq=False)
class Posted:
    """A call that ``Worker.post`` started. ``outcome`` is None until it ended and was waited for; it stays None where
    the child ended before it came to this call."""

    timeout: float
    outcome: Outcome | None = None


class Worker(contextlib.AbstractContextManager["Worker"]):
    """A reusable child process. Not for use by two threads at once.

    ``memory_mb`` limits the child's data (RLIMIT_DATA, Linux); by default to three quarters of the memory
    that is available when it starts, or to that of ``memory_limit``: a child that was started under another limit is
    replaced. ``generation`` counts the starts: a new child has lost the state of the one before. ``limit_mb`` is the
    limit of the last child. ``variables`` are environment variables that the child starts with. The child is confined
    (``onnxfix.runtime.confinement``); one that cannot open what was named since it started is replaced. ``spare`` is
    the first child.
    """

    def __init__(
        self,
        *,
        memory_mb: int | None = None,
        variables: Mapping[str, str] | None = None,
        spare: prefork.Spare | None = None,
    ) -> None:
        self._memory_mb, self._spare = memory_mb, spare
        self._variables = dict(variables or {})
        self._posted: deque[Posted] = deque()  # calls that were not waited for, in order
        self._set_mb: int | None = None
        self.limit_mb: int | None = memory_mb
        self._child: _Child | None = None
        self.generation = 0

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the running child, None when there is none."""
        return self._child.process.pid if self._child is not None else None

    def close(self) -> None:
        """End the child. A later call starts another."""
        self._posted.clear()
        if self._child is not None:
            child, self._child = self._child, None
            child.close()

    def start(self) -> None:
        """Start the child, unless it runs."""
        limit = self._memory_mb if self._memory_mb is not None else memory_limit_mb()
        if self._child is not None and not (
            self._child.alive() and limit == self._set_mb and not outdated(self._child.policy)
        ):
            self.close()
        if self._child is None:
            self._set_mb = limit
            self.limit_mb = self._memory_mb if self._memory_mb is not None else default_memory_mb()
            self._child = _start_child(self.limit_mb, self._variables, self._spare)
            self._spare = None
            self.generation += 1

    def post(self, target: str, *, timeout: float, **kwargs: Any) -> Posted:
        """Start ``call`` without waiting; ``collect`` gives its result. Calls run one after the other, as posted, and
        every later one waits for them. The child itself keeps the ``timeout`` until somebody waits."""
        deadline.check()
        if not self._posted:
            self.start()
        assert self._child is not None
        self._child.send(pickle.dumps((timeout, target, (), kwargs), protocol=5), timeout)
        posted = Posted(timeout)
        self._posted.append(posted)
        return posted

    def collect(self, posted: Posted) -> Outcome | None:
        """Wait for the result of a call that was posted; see ``call``. None where the child ended, or was ended,
        before it came to this call."""
        try:
            while posted in self._posted:
                self._await()
        except BaseException:
            self.close()
            raise
        return posted.outcome

    def _await(self) -> None:
        """Wait for the first call that was posted. Where the child dies of it, the others are lost."""
        assert self._child is not None
        first = self._posted[0]
        outcome = self._receive(self._child, first.timeout)
        if outcome.status == "timeout":  # whoever stopped it
            outcome = replace(outcome, message=_LATE.format(first.timeout))
        first.outcome = outcome
        if self._posted:
            self._posted.popleft()

    def call(self, target: str, *, timeout: float, positional: Any = (), **kwargs: Any) -> Outcome:
        """Call ``target`` ("package.module:function") with ``positional`` arguments and ``kwargs`` in the child.

        ``timeout`` is in seconds, and each ``note()`` restarts it. Failures of the callee raise nothing here;
        KeyboardInterrupt kills the child and is raised, as is ``deadline.Expired`` when a limit around the call is
        over. After any status but "ok" and "error" the child has ended.
        """
        timeout = deadline.least(timeout)
        try:
            payload = pickle.dumps((timeout, target, positional, kwargs), protocol=5)
        except Exception as error:
            return Outcome("error", message=f"the arguments of {target} cannot be sent: {one_line(error)}")
        try:
            while self._posted:
                self._await()
            self.start()
            assert self._child is not None
            self._child.send(payload, timeout)
            return self._receive(self._child, timeout)
        except BaseException:
            self.close()
            raise

    def _receive(self, child: _Child, timeout: float) -> Outcome:
        last, ends = "", time.monotonic() + timeout
        while True:
            try:
                frame = _next(child.replies, deadline.least(ends - time.monotonic()))
            except queue.Empty:
                self.close()
                deadline.check()
                return Outcome("timeout", message=_LATE.format(timeout), note=last)
            if frame is None:
                self._child = None
                self._posted.clear()
                code = child.close()
                # since the last call began: the pipe may still contain text of the call before
                said = child.tail.rpartition(_child.CALL_BEGINS)[2].decode("utf-8", "replace")
                return self._limited(_child.describe_exit(code, said, last))
            reply = _child.decode(frame)
            for watch in WATCHERS:
                watch(reply if isinstance(reply, Share) else "")
            if isinstance(reply, Share):
                continue
            if isinstance(reply, Outcome):
                if reply.status == "memory":  # its heap is at the limit: the next call would fail too
                    self.close()
                return self._limited(Outcome(reply.status, reply.value, reply.message, last))
            last, ends = reply, time.monotonic() + timeout

    def _limited(self, outcome: Outcome) -> Outcome:
        """The outcome, with the limit in the message if memory ran out."""
        lack = outcome.status == "memory"
        return replace(outcome, message=self.starved(outcome.message)) if lack else outcome

    def starved(self, error: str) -> str:
        """The message of an out-of-memory error in the child, with the limit and how to change it."""
        if self.limit_mb is None:
            return error
        limit = f"memory is limited to {self.limit_mb} MiB: --memory-limit sets it"
        return error if limit in error else f"{error} ({limit})"


_SHARED = threading.local()


def shared(purpose: str = "", variables: Mapping[str, str] | None = None) -> Worker:
    """The worker that this thread shares between all callers, to start it only once.

    There is one for each ``purpose``, for libraries that conflict in one process or need other environment
    ``variables``. It lives until the thread or the process ends. Do not close it.
    """
    if getattr(_SHARED, "owner", 0) != os.getpid():  # a fork must not talk through its parent's pipes
        _SHARED.workers, _SHARED.owner = {}, os.getpid()
    workers: dict[str, Worker] = _SHARED.workers
    return workers.setdefault(purpose, Worker(variables=variables))


def close_shared() -> None:
    """End this thread's shared workers. A later call of ``shared`` starts a new child."""
    if getattr(_SHARED, "owner", 0) == os.getpid():
        for worker in _SHARED.workers.values():
            worker.close()


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
