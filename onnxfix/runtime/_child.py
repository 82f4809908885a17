"""Frames, outcomes and limits for both sides of the sandbox, and the child's loop that serves calls."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import pickle
import re
import signal
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from onnxfix.runtime import replies, system
from onnxfix.runtime.allowance import MEMORY_MB, memory_limit_mb
from onnxfix.runtime.causes import NO_MEMORY
from onnxfix.runtime.confinement import confine

_HEADER = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1
CALL_BEGINS = b"\0onnxfix\0\n"
_STATUS = {
    0xC0000005: "an access violation",
    0xC000001D: "an illegal instruction",
    0xC0000094: "a division by zero",
    0xC00000FD: "a stack overflow",
    0xC0000374: "a corrupted heap",
    0xC0000409: "a failed security check",
}
"""Exit codes of processes that Windows ended."""
Status = Literal["ok", "error", "crash", "timeout", "memory"]


@dataclass(frozen=True)
class Outcome:
    """How a guarded call ended. ``value`` is set when ``status`` is "ok", the one-line ``message`` else."""

    status: Status
    value: Any = None
    message: str = ""
    note: str = ""  # the last note() of the callee: where it was when it died
    killed: bool = False  # the message begins with the signal that it was killed by
    died: bool = False  # the child ended before it answered
    printed: str = ""  # the last line that a child that died wrote to stderr

    @property
    def ok(self) -> bool:
        """Whether ``value`` is what the callee returned."""
        return self.status == "ok"


def describe_exit(code: int, tail: str, note: str = "") -> Outcome:
    """The outcome of a child that ended by itself, by its return code (negative: a signal) and the end of its
    stderr."""
    name = f"exited with status {code}"
    if code in _STATUS:  # what Windows has instead of signals
        name = f"ended by {_STATUS[code]}"
    elif code < 0:
        known = {int(number): number.name for number in signal.Signals}
        name = f"killed by {known.get(-code, f'signal {-code}')}"
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    printed = one_line(lines[-1], 200) if lines else ""
    said = f": {printed}" if lines else ""
    ended = Outcome(
        "crash",
        message=name + said,
        note=note,
        killed=code < 0 or code in _STATUS,
        died=True,
        printed=printed,
    )
    if -code == getattr(signal, "SIGALRM", 0):
        return replace(ended, status="timeout", message="took too long and was stopped", killed=False)
    if NO_MEMORY.search(tail):
        return replace(ended, status="memory", message=f"ran out of memory ({name}){said}", killed=False)
    if -code == getattr(signal, "SIGKILL", 0):
        message = f"{name}, probably because memory ran out{said}"
        return replace(ended, status="memory", message=message)
    return ended


class Share(str):
    """How far the current step of a child is, as text."""


def decode(frame: bytes | bytearray) -> Outcome | str:
    """A reply: an outcome, or the text of a note or a share."""
    try:
        kind, *rest = replies.loads(frame)
    except Exception as error:
        return Outcome("error", message=f"the reply cannot be read: {one_line(error)}")
    texts = {"note": str, "share": Share}
    return texts[kind](rest[0]) if kind in texts else Outcome(rest[0], rest[1], rest[2])


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """The text of an error on one line of at most ``limit`` characters; exceptions that are no OnnxfixError
    are preceded by their type."""
    text = " ".join(str(error).split())
    if isinstance(error, BaseException):
        ours = any(base.__name__ == "OnnxfixError" for base in type(error).__mro__)
        text = text if ours and text else f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def default_memory_mb() -> int | None:
    """Memory limit of a child in MiB: that of the user, else three quarters of the available memory, and at most the
    environment's ``ONNXFIX_MEMORY_MB``; None if the available memory is unknown.
    """
    share, set_mb = os.environ.get(MEMORY_MB, ""), memory_limit_mb()
    own = _free_mb() if set_mb is None else set_mb
    limits = [found for found in (own, int(share) if share.isdecimal() else None) if found is not None]
    return min(limits, default=None)


def _free_mb() -> int | None:
    available: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                available.append(int(line.split()[1]) << 10)
    for folder in system.list_memory_groups():
        for names in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):
            # A container's limit may be far below that of /proc/meminfo. "max", no limit, is not a number.
            with contextlib.suppress(OSError, ValueError):
                available.append(_group_bytes(*(folder / f"memory.{name}" for name in (*names, "stat"))))
    return max(256, min(available) * 3 // 4 >> 20) if available else None


def _group_bytes(limit: Path, used: Path, statistics: Path) -> int:
    """Memory that a container may still use, in bytes. Its cache of files counts as free: after a large model was read,
    a container's memory is full of it.

    Raises:
        OSError, ValueError: there is no such limit.
    """
    found = int(limit.read_text(encoding="utf-8")) - int(used.read_text(encoding="utf-8"))
    with contextlib.suppress(OSError, ValueError, KeyError):
        held: dict[str, str] = dict(
            line.split(None, 1) for line in statistics.read_text(encoding="utf-8").splitlines()
        )
        kind = "total_" if "total_inactive_file" in held else ""
        found += int(held[f"{kind}inactive_file"]) + int(held[f"{kind}active_file"])
    return found


def limit(memory_mb: int | None, extra_bytes: int = 0) -> int | None:
    """Limit this process's data; returns the limit in bytes, None without one."""
    if sys.platform == "win32":  # has no such limits; the timeout still holds
        return None
    import resource  # lazy: missing on Windows

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if memory_mb is None:
        return None
    return _limit_data((memory_mb << 20) + extra_bytes)


def _limit_data(soft: int) -> int:
    if sys.platform == "win32":
        return soft
    import resource  # lazy: missing on Windows

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = soft if hard < 0 else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return soft


def allow_maps(more: int = 0) -> None:
    """In a sandboxed function: exclude the files that this process maps from its memory limit.

    Linux counts private writable mappings as data, and ONNX Runtime maps weights that way. The system can drop such
    pages and read them again, so that they take no memory from other processes. ``more`` are the bytes that are about
    to be mapped; call it again without it when they are.
    """
    if _Link.data_limit is not None:
        extra = _mapped_bytes() + more
        _limit_data(_Link.data_limit + extra)
        _Link.raised = extra > 0


def _mapped_bytes() -> int:
    """Bytes of files (not programs and libraries) that are mapped into this process privately and writable."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        program = os.readlink("/proc/self/exe")
        for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
            place, rights, _, _, inode, *name = line.split(None, 5)
            file = name[0] if name else ""
            if rights == "rw-p" and inode != "0" and file != program and not _LIBRARY.search(file):
                start, _, stop = place.partition("-")
                total += int(stop, 16) - int(start, 16)
    return total


_LIBRARY = re.compile(r"\.so(\.\d+)*( \(deleted\))?$")


def die_with(parent: int, number: int = system.KILL) -> None:
    """Ask the kernel to send this process a signal when its parent, or the parent's thread that started it, dies
    (Linux)."""
    if sys.platform.startswith("linux"):
        import ctypes  # lazy: start-up

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)


def arm(seconds: float) -> None:
    """A last resort that needs neither the parent nor the GIL: SIGALRM's default action ends the process."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds + 5.0 if seconds else 0.0)


def _failure(error: BaseException) -> bytes:
    """The pickled reply for an exception, whose text may not fit into memory."""
    try:
        starved = isinstance(error, MemoryError) or NO_MEMORY.search(str(error)) or _silent(error)
        return pickle.dumps(("done", "memory" if starved else "error", None, one_line(error)), protocol=5)
    except MemoryError as lack:
        return _failure(lack)


def _silent(error: BaseException) -> bool:
    """Whether code in C failed without saying why (Python's SystemError), in a process that has no memory left."""
    if not isinstance(error, SystemError) or _Link.data_limit is None:
        return False
    try:
        bytearray(_Link.data_limit // 4)
    except MemoryError:
        return True
    return False


def write_frame(stream: io.RawIOBase, payload: bytes) -> None:
    """Write ``payload`` after its length. Streams are raw: a buffered one has a lock, and a fork of this process that
    closes it would wait forever for a thread that does not exist there."""
    header = _HEADER.pack(len(payload))
    parts = [header + payload] if len(payload) < 65536 else [header, payload]
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[stream.write(rest) or 0 :]


def read_frame(stream: io.RawIOBase) -> bytearray | None:
    """The next payload; None at the end of the stream."""
    header = _read_exactly(stream, _HEADER.size)
    return _read_exactly(stream, _HEADER.unpack(header)[0]) if header is not None else None


def _read_exactly(stream: io.RawIOBase, size: int) -> bytearray | None:
    data = bytearray(size)
    with memoryview(data) as view:
        done = 0
        while done < size:
            count = stream.readinto(view[done:])
            if not count:
                return None
            done += count
    return data


@contextlib.contextmanager
def pipe() -> Iterator[list[int]]:
    """Both ends of a pipe; -1 replaces an end that is closed."""
    ends = list(os.pipe())
    try:
        yield ends
    finally:
        for end in ends:
            if end >= 0:
                os.close(end)


class _Link:
    """The child's connection to its parent."""

    replies: io.RawIOBase | None = None
    timeout = 0.0
    data_limit: int | None = None  # bytes
    raised = False  # the limit in force is higher, by what was mapped


def note(text: str, *, share: bool = False) -> None:
    """In a sandboxed function: report the next step. It restarts the timeout, and is ``Outcome.note`` if the child
    dies. Does nothing outside a sandbox. With ``share``, only how far the step is, for whoever watches: any thread may
    say so, since a short frame is written in one piece."""
    if _Link.replies is not None:
        if not share:
            arm(_Link.timeout)
        write_frame(_Link.replies, pickle.dumps(("share" if share else "note", text)))


def serve(*, forked: bool = False) -> None:
    """Answer calls on descriptor 0 by replies on descriptor 1, until the former ends. A process that was ``forked`` has
    data of its parent, which do not count against its limit."""
    requests = io.FileIO(os.dup(0), "rb")
    replies = io.FileIO(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    first = read_frame(requests)
    if first is None:
        return
    start = pickle.loads(first)
    confine(start["confinement"])
    os.environ.update(start["environment"])
    sys.path.extend(entry for entry in start["path"] if entry not in sys.path)
    with contextlib.suppress(OSError):
        os.chdir(start["cwd"])
    # `python -m` made this module `__main__`; note() in what we call belongs to the importable one.
    here: Any = importlib.import_module("onnxfix.runtime._child")
    link = here._Link
    link.data_limit = limit(start["memory_mb"], system.data_bytes() if forked else 0)
    if start["parent"]:
        die_with(start["parent"])
    link.replies = replies
    while (frame := read_frame(requests)) is not None:
        try:
            link.timeout, target, args, kwargs = pickle.loads(frame)
            arm(link.timeout)
            if link.raised:
                here.allow_maps()
            with contextlib.suppress(OSError):  # foreign code may have closed it
                os.write(2, CALL_BEGINS)
            module, _, name = target.partition(":")  # "package.module:function"
            function: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
            reply = pickle.dumps(("done", "ok", function(*args, **kwargs), ""), protocol=5)
        except BaseException as error:  # also one of a request that cannot be unpickled here
            reply = here._failure(error)
        arm(0.0)
        with contextlib.suppress(OSError, ValueError):  # foreign code may have closed sys.stdout
            sys.stdout.flush()
        write_frame(replies, reply)


if __name__ == "__main__":
    serve()
