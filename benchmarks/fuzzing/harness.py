"""Run the command line in a fork that has everything imported, and measure it: a millisecond instead of a second.

Linux only: what a run leaves behind is found by ``PR_SET_CHILD_SUBREAPER``, its own memory and time by ``getrusage``.
It is not ``onnxfix.runtime.sandbox``: what judges onnxfix must not depend on it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import pkgutil
import resource
import select
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer

_SUBREAPER = 36
_DEATH_SIGNAL = 1
_RECORD = struct.Struct("ddq")
MOST_OUTPUT = 64 << 20
"""Bytes of output that are read."""
MEMORY_MB = 2048
"""What each child that onnxfix starts may use, MiB: foreign code may ask for all of it."""
DATA_LIMIT = 6 << 30
"""Bytes beyond which the main process cannot go, so that a memory bomb harms nobody else."""
ABSENT_IMPORTS = ("ray", "torch", "onnxsim", "polygraphy", "fsspec", "pandas", "onnx_graphsurgeon")


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int
    """The exit code; negative: the signal that ended it."""
    out: bytes
    err: bytes
    cpu: float
    """Seconds of processor time of the main process alone; of all where it was killed."""
    wall: float
    memory: int
    """Bytes by which the main process grew at most."""
    hung: bool
    """It was killed because time was up."""
    orphans: int
    """Processes that it left running."""


def prepare() -> None:
    """Import all of onnxfix, and what it imports for ``check`` and ``apply``; become the parent of orphans.

    Raises:
        RuntimeError: that started threads, which forks would lack.
    """
    import onnxfix
    import onnxfix_rules

    for package in (onnxfix, onnxfix_rules):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(("._child", ".__main__")):
                try:
                    importlib.import_module(found.name)
                except ImportError as error:
                    if str(error.name).partition(".")[0] not in ABSENT_IMPORTS:
                        raise
    from onnxfix.cli.app import app
    from onnxfix.rewrite.registry import registry

    for rule in registry().choose():
        rule.examples  # noqa: B018  # loads the rule
    for name in ("rich.console", "rich.text", "onnx.checker", "onnx.shape_inference", "onnx.numpy_helper"):
        importlib.import_module(name)
    # Built from signatures by typer, which takes longer than a check of a small model. Each fork has a copy.
    built = typer.main.get_command(app)
    typer.main.get_command = lambda _: built
    adopt_orphans()
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a library started threads, which a fork would lack")
    gc.collect()
    gc.freeze()


def adopt_orphans() -> None:
    """Become the parent of what runs leave behind, so that ``run`` can count it."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)


def run(words: Sequence[str], folder: Path, scratch: Path, seconds: float) -> Ended:
    """``onnxfix`` with these words in ``folder``, for at most ``seconds``; ``scratch`` becomes its folder for temporary
    files, its home and so on."""
    with contextlib.ExitStack() as stack:
        out, err, record = (_memory_file(stack, name) for name in ("out", "err", "record"))
        began = time.monotonic()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            _child(words, folder, scratch, (out, err, record))
        status, usage, hung = _wait(pid, began + seconds)
        wall = time.monotonic() - began
        orphans = _kill_orphans()
        written = os.pread(record, _RECORD.size, 0)
        cpu, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
        if len(written) == _RECORD.size:
            start, cpu, memory = _RECORD.unpack(written)
            cpu -= start
        return Ended(
            os.waitstatus_to_exitcode(status), _content(out), _content(err), cpu, wall, memory, hung, orphans
        )


def _memory_file(stack: contextlib.ExitStack, name: str) -> int:
    found = os.memfd_create(name)
    stack.callback(os.close, found)
    return found


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, MOST_OUTPUT, 0)


def _wait(pid: int, deadline: float) -> tuple[int, resource.struct_rusage, bool]:
    """Wait for a child, and kill it when time is up."""
    process = os.pidfd_open(pid)
    try:
        hung = not select.select([process], [], [], max(0.0, deadline - time.monotonic()))[0]
    finally:
        os.close(process)
    if hung:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return status, usage, hung


def _kill_orphans(grace: float = 1.0) -> int:
    """Wait a moment for what a run left behind, then kill it; how many there were. Everything that this process is the
    parent of is such an orphan."""
    deadline, killed = time.monotonic() + grace, set()
    while True:
        try:
            found = os.waitpid(-1, os.WNOHANG)[0]
        except ChildProcessError:
            return len(killed)
        if found == 0 and time.monotonic() > deadline:
            for text in (
                Path("/proc/self/task", str(threading.get_native_id()), "children")
                .read_text(encoding="utf-8")
                .split()
            ):
                killed.add(int(text))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(text), signal.SIGKILL)
        if found == 0:
            time.sleep(0.005)


def _child(words: Sequence[str], folder: Path, scratch: Path, files: tuple[int, int, int]) -> NoReturn:
    """What a fresh process would do with these words. Never returns into the parent's code."""
    code = 70
    try:
        _become_fresh(folder, scratch, files)
        start = resource.getrusage(resource.RUSAGE_SELF)
        began, before = start.ru_utime + start.ru_stime, _resident()
        sys.argv = ["onnxfix", *words]
        code = _call()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        grown = max(0, (usage.ru_maxrss << 10) - before)
        os.write(files[2], _RECORD.pack(began, usage.ru_utime + usage.ru_stime, grown))
    except BaseException:
        os.write(files[1], b"fuzzing: " + traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _resident() -> int:
    """Bytes of this process in memory now: a fork begins with those of its parent."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


def _become_fresh(folder: Path, scratch: Path, files: tuple[int, int, int]) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # what the parent would clean up
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_LIMIT, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for target, source in ((1, files[0]), (2, files[1])):
        os.dup2(source, target)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8")  # noqa: SIM115  # stays open
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding="utf-8")  # noqa: SIM115
    errors = open(2, "wb", 0, closefd=False)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(errors, encoding="utf-8", errors="backslashreplace", write_through=True)
    home = str(scratch)
    os.environ.update(
        HOME=home, TMPDIR=home, XDG_CACHE_HOME=home, XDG_CONFIG_HOME=home, COLUMNS="4000", LC_ALL="C.UTF-8",
        ONNXFIX_MEMORY_MB=str(MEMORY_MB), OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1",
    )  # fmt: skip
    tempfile.tempdir = None
    os.chdir(folder)


def _call() -> int:
    """The exit code of the command in this process, after all that an interpreter does when it ends."""
    from onnxfix.__main__ import main

    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    weakref.finalize._exitfunc()  # type: ignore[attr-defined]
    sys.stdout.flush()
    return code
