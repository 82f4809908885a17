"""With this folder in PYTHONPATH, Linux looks like Windows to onnxfix, its rules and its child processes, as far as
that can be made so. Everything else in the process, pytest and ONNX Runtime among it, sees Linux.

- ``os``, ``signal``, ``select`` and ``time`` lack what Windows' do not have, and modules that Windows lacks cannot be
  imported; ``sys.platform`` and ``os.name`` are those of Windows; nothing is addressed relative to an open folder.
- ``os.open`` without O_BINARY is an error: Windows would translate line ends.
- A file that this process or a child of it holds open or mapped can neither be renamed, replaced nor deleted.
- ``msvcrt.locking`` is there, by Linux' locks.

What this does not show: paths with drives and backslashes, reserved names, code pages, the console's Ctrl-C, and how
ONNX Runtime and TensorRT behave there.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from missing_names import MISSING, MODULES

OURS = ("onnxfix", "onnxfix_rules")
O_BINARY = 1 << 30


class Seen(ModuleType):
    """A module as Windows has it: without some names, with others in their place."""

    def __init__(self, real: ModuleType, **instead: Any) -> None:
        ModuleType.__getattribute__(self, "__dict__").update(_real=real, _instead=instead)

    def __getattribute__(self, name: str) -> Any:
        own = ModuleType.__getattribute__(self, "__dict__")
        if name in own["_instead"]:
            return own["_instead"][name]
        if name in MISSING.get(own["_real"].__name__, ()):
            raise AttributeError(f"module {own['_real'].__name__!r} has no attribute {name!r}")
        return getattr(own["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(ModuleType.__getattribute__(self, "__dict__")["_real"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(ModuleType.__getattribute__(self, "__dict__")["_real"], name)


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    assert dir_fd is None, "folders have no descriptors"
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)
    python = flags & os.O_CLOEXEC  # Python's own open, with an opener of ours; it adds O_BINARY on Windows
    assert python or flags & O_BINARY or path == os.devnull, f"{path} was opened as text"
    return os.open(path, flags & ~O_BINARY, mode)


def _family() -> Iterator[int]:
    """This process and its descendants."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file,
            ):
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    yield from family


def _in_use(path: Any) -> bool:
    """Whether a process of ours holds the file open or mapped."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISREG(found.st_mode):
        return False
    for pid in _family():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), found):
                        return True
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
                if any(line.split(None, 5)[4] == str(found.st_ino) for line in file):
                    return True
    return False


def _refusing(act: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``os`` that changes the names of files, for files that nobody has open."""

    def checked(*paths: Any, **options: Any) -> Any:
        if set(options.values()) <= {None}:
            for path in paths:
                if _in_use(path):
                    raise PermissionError(errno.EACCES, "The process cannot access the file", path)
        return act(*paths, **options)

    return checked


def _locking(fd: int, mode: int, count: int) -> None:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, count, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
    except OSError:
        raise PermissionError(errno.EACCES, "Permission denied") from None


def _started(self: subprocess.Popen[Any], *arguments: Any, creationflags: int = 0, **options: Any) -> None:
    _START(self, *arguments, **options)


_START = subprocess.Popen.__init__
subprocess.Popen.__init__ = _started  # type: ignore[method-assign]
for _name in ("replace", "rename", "unlink", "remove"):
    setattr(os, _name, _refusing(getattr(os, _name)))
shutil._use_fd_functions = False  # type: ignore[attr-defined]

_MSVCRT = ModuleType("msvcrt")
_MSVCRT.__dict__.update(locking=_locking, LK_NBLCK=2)
_SEEN = {
    "os": Seen(
        os,
        name="nt",
        open=_open,
        O_BINARY=O_BINARY,
        supports_dir_fd=set(),
        supports_follow_symlinks={os.stat},
        supports_fd={os.stat, os.truncate},
    ),
    "sys": Seen(sys, platform="win32"),
    "signal": Seen(signal),
    "select": Seen(select),
    "time": Seen(time),
    "msvcrt": _MSVCRT,
}
_import = builtins.__import__


def _import_as_seen(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> ModuleType:
    importer = (globals or {}).get("__name__", "").partition(".")[0]
    spec = (globals or {}).get("__spec__")
    if importer == "__main__" and spec is not None:  # python -m onnxfix._child
        importer = spec.name.partition(".")[0]
    if level == 0 and importer in OURS:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name.partition(".")[0] in _SEEN and name != "os.path":
            return _SEEN[name]
    return _import(name, globals, locals, fromlist, level)


builtins.__import__ = _import_as_seen
