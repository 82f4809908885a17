"""What operating systems do differently, each in a form that works on all of them, and what this one lacks.

Everything else in onnxfix uses a call that some system lacks only where ``hasattr`` has found it. Loads nothing: the
child processes and ``doctor`` import it first.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    class Process(Protocol):
        """A child process."""

        pid: int

        def kill(self) -> None: ...


KILL: int = getattr(signal, "SIGKILL", signal.SIGTERM)
"""The signal that ends a process at once; on Windows every signal does."""
NEW_GROUP = 0x200 if os.name == "nt" else 0
"""CREATE_NEW_PROCESS_GROUP for Popen's ``creationflags``, beside ``start_new_session``, which Windows ignores: the
console's Ctrl-C does not reach the child."""
READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
"""Flags of ``os.open`` for reading bytes. Without O_BINARY, Windows translates line ends and stops at a byte 0x1A."""
OPEN_FILES_CAN_BE_REPLACED = os.name != "nt"
"""Whether a file can be renamed, replaced and deleted while a process has it open. Where not, models are read whole."""
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where Linux shows its memory groups, and of which this process is one."""
_LOCKED_BYTE = 0x7FFF_0000
"""What Windows locks is unreadable for others, so that it is a byte which no journal has."""
_POSITIONS = threading.Lock()


class Lack(enum.Enum):
    """What a system may lack."""

    FORK = "fork"
    FOLDER_DESCRIPTORS = "folder-descriptors"
    FILE_LOCKS = "file-locks"
    MEMORY_LIMITS = "memory-limits"
    DEATH_SIGNAL = "death-signal"
    ALARM = "alarm"
    REPLACING_OPEN_FILES = "replacing-open-files"
    OWNERS = "owners"


def lacks() -> tuple[Lack, ...]:
    """What this system lacks of that which onnxfix uses where it is there."""
    linux = sys.platform.startswith("linux")
    here = {
        Lack.FORK: hasattr(os, "fork"),
        Lack.FOLDER_DESCRIPTORS: os.open in os.supports_dir_fd,
        Lack.FILE_LOCKS: _importable("fcntl") or _importable("msvcrt"),
        Lack.MEMORY_LIMITS: linux and _importable("resource"),
        Lack.DEATH_SIGNAL: linux,
        Lack.ALARM: hasattr(signal, "setitimer"),
        Lack.REPLACING_OPEN_FILES: OPEN_FILES_CAN_BE_REPLACED,
        Lack.OWNERS: hasattr(os, "geteuid"),
    }
    return tuple(lack for lack, present in here.items() if not present)


def _importable(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def kill(process: Process) -> None:
    """Kill a process that was started in a session of its own and has not been reaped, and whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, KILL)
                return
            os.kill(process.pid, KILL)  # a fork that does not lead a group yet
            return
        if os.name == "nt":  # a process there has no group that ends with it
            import subprocess  # lazy: start-up

            with contextlib.suppress(OSError, subprocess.SubprocessError):
                tree = ["taskkill", "/T", "/F", "/PID", str(process.pid)]
                subprocess.run(tree, stdin=subprocess.DEVNULL, capture_output=True, timeout=10.0, check=False)
        process.kill()


def reader_left(error: OSError) -> bool:
    """Whether writing failed because whoever read the pipe has closed it; Windows calls that an invalid argument."""
    return isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL)


def read_at(fd: int, length: int, offset: int) -> bytes:
    """At most ``length`` bytes of an open file from ``offset`` on. Where threads share its position, they take turns.

    Raises:
        OSError: it cannot be read.
    """
    if hasattr(os, "pread"):
        data: bytes = os.pread(fd, length, offset)
        return data
    with _POSITIONS:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, length)


def quoted(text: str) -> str:
    """An argument as the system's shell takes it; Windows' takes single quotes as part of a name."""
    if sys.platform == "win32":
        plain = text and all(letter.isalnum() or letter in r"\/:._-+=@" for letter in text)
        return text if plain else f'"{text}"'
    import shlex  # lazy: start-up

    return shlex.quote(text)


def quoted_path(path: str) -> str:
    """A file's name as an argument: quoted, and never read as an option."""
    return quoted(f"./{path}" if path.startswith("-") else path)


def relative(path: str | os.PathLike[str], start: str | os.PathLike[str]) -> str:
    """``os.path.relpath``; the absolute path where none leads from one to the other: Windows has several drives."""
    try:
        return os.path.relpath(path, start)
    except ValueError:
        return os.path.abspath(path)


_DEVICES = frozenset(
    ("con", "prn", "aux", "nul", "conin$", "conout$", *(f"{one}{i}" for one in ("com", "lpt") for i in "123456789¹²³"))
)  # fmt: skip
"""Names that Windows has for devices, with whatever suffix, in any folder."""


def unusable(name: str, *, windows: bool = os.name == "nt") -> bool:
    """Whether a file or folder of this name would be something else: on Windows a device (``NUL.onnx``), a stream of
    another file (``a:b``) or a file of another name (``a.``)."""
    if not windows or name in ("", os.curdir, os.pardir):
        return False
    if name[-1] in " ." or any(letter in '<>:"|?*' or letter < " " for letter in name):
        return True
    return name.partition(".")[0].rstrip(" ").lower() in _DEVICES


def ignores_case(folder: str) -> bool:
    """Whether names that differ only by case are one in a folder, which need not exist yet. Writes nothing.

    A name that is there is looked for in the other case: one in the folder, or in the nearest one above that exists.
    """
    place = os.path.realpath(folder)
    while True:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.name.swapcase() != entry.name:
                    return _same(entry.path, os.path.join(place, entry.name.swapcase()))
        above, name = os.path.split(place)
        if name and name.swapcase() != name and os.path.lexists(place):
            return _same(place, os.path.join(above, name.swapcase()))
        if above == place:
            return sys.platform in ("win32", "darwin")
        place = above


def _same(one: str, other: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return os.path.samestat(os.lstat(one), os.lstat(other))
    return False


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def data_bytes() -> int:
    """Bytes that count against RLIMIT_DATA already (Linux)."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


def list_memory_groups() -> list[Path]:
    """The folders of this process's memory group, and of those around it (cgroups of Linux, version 2 or 1). A
    container may see its own group as the outermost one, whatever path the kernel names."""
    found = [GROUPS, GROUPS / "memory"]
    with contextlib.suppress(OSError, ValueError):
        for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                parts = ("memory" * bool(kinds), *filter(None, path.split("/")))
                found += [GROUPS.joinpath(*parts[:end]) for end in range(2, len(parts) + 1)]
    return found


def lock(fd: int) -> bool:
    """Lock an open file against other processes until it is closed, where the file system has locks.

    Returns:
        False if another process has locked it.
    """
    try:
        if sys.platform == "win32":
            import msvcrt  # lazy: Windows alone has it

            before = os.lseek(fd, 0, os.SEEK_CUR)
            os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(fd, before, os.SEEK_SET)
        else:
            import fcntl  # lazy: missing on Windows

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # what Linux and Windows say of a file that another has locked
        return False
    except (ImportError, OSError):  # a system or a file system without locks
        return True
    return True
