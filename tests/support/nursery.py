"""Children for tests, forked by a process that has numpy, onnx and ONNX Runtime: a new one spends a fifth of a second
on importing them, a fork of this process a tenth on its pages, and the tests make two thousand.

``sandbox`` gets a child that differs from ``python -m onnxfix.runtime._child`` in one thing, what it has imported; a
command forks such children, too (``runtime.prefork``). It belongs to this process, as a new one does: the process that
forks it ends at once, and this one inherits it. Where a test sets variables or paths for its children they are new
processes, and so they are where it uses the fixture ``new_children``. Functions that would run in a fork of this
process run in such children, too, unless the test changes what they do (``monkeypatch``).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from onnxfix.runtime import prefork, sandbox

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans among this process's descendants become its children."""
OWN = ("PYTEST_CURRENT_TEST", "OPENBLAS_NUM_THREADS", "NVIDIA_TF32_OVERRIDE")
"""Variables that differ from test to test and mean nothing to what the nursery has loaded."""
SET = {
    "PYTHONSAFEPATH",
    "PYTHONPATH",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "ORT_DISABLE_TELEMETRY",
}
"""What ``sandbox`` adds to the variables of every child."""
new_process = sandbox._started
by_fork = sandbox._by_fork


class Nursery:
    """A process that forks children for this one."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self.made_for = circumstances(environment)
        self.link, other = socket.socketpair()
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.nursery", str(other.fileno())],
                cwd=folder,
                env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.lock = threading.Lock()

    def child(self) -> prefork.Spare:
        """A new child, which waits for its start frame.

        Raises:
            OSError: no process can be made.
        """
        with self.lock:
            return prefork.connected(self._forked)

    def _forked(self, ends: Sequence[int]) -> int:
        """Have the child forked, with these ends as descriptors 0 to 2. Returns its process id."""
        libc = ctypes.CDLL(None)
        libc.prctl(SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self.link, [b"."], list(ends))
            answer = int(json.loads(self.link.recv(64) or "0"))
        except BaseException:  # interrupted: the next answer would be that to this request
            Here.nursery = None
            self.link.close()
            raise
        finally:
            libc.prctl(SUBREAPER, 0, 0, 0, 0)
        if not answer:
            Here.nursery = None
            raise OSError("the nursery has ended")
        return answer


class Here:
    """What this process has."""

    nursery: Nursery | None = None
    usual: object = None
    instead_of_forks = True


def circumstances(environment: Mapping[str, str]) -> object:
    """What a child of the nursery has in common with a new one only if it is as when the nursery was started."""
    return {name: value for name, value in environment.items() if name not in OWN}, set(sys.path)


def remember() -> None:
    """What is so now is usual: before the first test changes anything."""
    Here.usual = circumstances(os.environ)


def started(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | prefork.Spare:
    """In the place of ``sandbox._started``."""
    nursery = Here.nursery
    if nursery is None or nursery.owner != os.getpid():
        if circumstances(os.environ) != Here.usual or environment.keys() - os.environ.keys() - SET:
            return new_process(folder, environment)
        nursery = Here.nursery = Nursery(folder, environment)
    if circumstances(environment) != nursery.made_for:
        return new_process(folder, environment)
    return nursery.child()


def forked(
    fn: Callable[..., Any], args: tuple[Any, ...], timeout: float, memory_mb: int | None
) -> sandbox.Outcome:
    """In the place of ``sandbox._by_fork``."""
    ours = fn.__module__.partition(".")[0] in ("onnxfix", "onnxfix_rules")
    usual = Here.instead_of_forks and circumstances(os.environ) == Here.usual
    if not (ours and usual):
        return by_fork(fn, args, timeout, memory_mb)
    return sandbox.call_once(sandbox.Worker(memory_mb=memory_mb), fn, args, timeout)


def serve(link: socket.socket) -> None:
    """In the nursery: fork a child for each message, with the three descriptors that came with it."""
    while True:
        message, ends, _, _ = socket.recv_fds(link, 1, 3)
        if not message:
            return
        parent, told = os.getppid(), os.pipe()
        between = os.fork()
        if between == 0:
            _orphan(parent, ends, told)
        os.close(told[1])
        os.waitpid(between, 0)  # now the child has its new parent
        link.sendall(os.read(told[0], 64))
        for end in (*ends, told[0]):
            os.close(end)


def _orphan(parent: int, ends: list[int], told: tuple[int, int]) -> NoReturn:
    """Fork the child and leave it to ``parent``."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        pid = os.fork()
        if pid == 0:
            while os.getppid() != parent:
                time.sleep(0.0005)
            prefork.become_child(parent, ends, mask)
        os.write(told[1], json.dumps(pid).encode())
    finally:
        os._exit(0)


def main() -> None:
    """The nursery's program; its argument is the number of a socket's descriptor."""
    import onnx.reference.ops._op_list  # noqa: F401
    import onnxruntime  # noqa: F401

    import onnxfix.proof.remote  # noqa: F401
    import onnxfix.proof.verify  # noqa: F401
    import onnxfix.tensorrt.lift  # noqa: F401
    import onnxfix_rules.ops.expansions._bodies  # noqa: F401

    gc.freeze()
    gc.disable()
    with socket.socket(fileno=int(sys.argv[1])) as link:
        serve(link)


if __name__ == "__main__":
    main()
