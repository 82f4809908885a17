"""Which files a child may use: those that are named, and all but hidden ones of home directories and services' secrets.

A rule is about a folder with everything below, or about a file. So what is not private is listed: the entries of the
folders on the way to something private, without that. What appears in such a folder later cannot be used, unless it is
named; a child that lacks a folder that was named since is replaced (``sandbox``).
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

_SECRETS = ("/run/secrets", "/run/user", "/var/run/secrets", "/var/run/user")
"""Where containers get credentials, and where a session's sockets and keys are."""
_READ_ONLY = (
    "/usr",
    "/etc",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/boot",
    "/nix",
    "/snap",
    "/proc",
    "/sys",
)
"""Programs and settings of the system."""
_DEVICES = "/dev"
_FOLDERS = ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH")
"""Environment variables with folders of libraries."""
_MOST_NAMED = 64
"""The files named last that are known; a long-lived process names many, and a call is about few."""
_lock = threading.Lock()
_named: dict[str, None] = {}


def name(path: str | os.PathLike[str], *, whole: bool = False) -> None:
    """Let children that are used from now on read and write the folder of this file; links are followed, too.

    In a home directory itself, or above one, that is the file alone, since nothing else in there was meant; it is the
    ``whole`` folder only where a child makes files there.
    """
    with contextlib.suppress(OSError, ValueError):
        given = os.path.abspath(os.fspath(path))
        for one in dict.fromkeys((given, os.path.realpath(given))):
            folder = os.path.realpath(os.path.dirname(one))
            real = os.path.join(folder, os.path.basename(one))
            if below(folder, os.path.realpath(tempfile.gettempdir())):
                continue  # open to children anyway
            found = real if not whole and any(below(home, folder) for home in homes()) else folder
            with _lock:
                _named.pop(found, None)
                _named[found] = None
                while len(_named) > _MOST_NAMED:
                    del _named[next(iter(_named))]


def named() -> list[str]:
    """What was named."""
    with _lock:
        return list(_named)


def identity(path: str) -> tuple[int, int] | None:
    """Of the file or folder that is there now; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def unknown_to(allowed: Mapping[str, tuple[int, int]]) -> bool:
    """Whether something was named that exists and is not below what was ``allowed``, as it was at that moment."""
    for path in named():
        over = [root for root in allowed if below(path, root)]
        if identity(path) is not None and not any(identity(root) == allowed[root] for root in over):
            return True
    return False


def below(path: str, folder: str) -> bool:
    """Whether a path is a folder or something in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@cache
def homes() -> tuple[str, ...]:
    """The home directories of this machine's users, as far as they can be listed."""
    found = [os.path.expanduser("~"), "/root"]
    with contextlib.suppress(OSError):
        found += [entry.path for entry in os.scandir("/home")]
    if sys.platform != "win32":
        import pwd  # lazy: missing on Windows

        with contextlib.suppress(KeyError):
            found.append(pwd.getpwuid(os.getuid()).pw_dir)
    real = dict.fromkeys(os.path.realpath(one) for one in found if os.path.isabs(one))
    return tuple(one for one in real if one != os.sep and os.path.isdir(one))


def open_to_children() -> tuple[tuple[str, ...], dict[str, tuple[int, int]]]:
    """Files and folders that a child may only read, and those that it may write as well, each with its identity."""
    writable = [os.path.realpath(tempfile.gettempdir()), *named(), *_caches()]
    variables = tuple(os.environ.get(variable, "") for variable in _FOLDERS)
    read = [*_needed(tuple(sys.path), variables)]
    for one in _listed(os.sep, _above(homes()), writable[0]):
        (read if one in _READ_ONLY else writable).append(one)
    known = {one: identity(one) for one in writable}
    return tuple(read), {one: found for one, found in known.items() if found is not None}


class _Private(NamedTuple):
    homes: frozenset[str]
    secrets: frozenset[str]
    above: frozenset[str]


@cache
def _above(homes: tuple[str, ...]) -> _Private:
    """What is private, and the folders that contain some of it, home directories included."""
    secrets = frozenset(map(os.path.realpath, _SECRETS))
    above = {*homes}
    for one in (*homes, *secrets):
        while (one := os.path.dirname(one)) not in above:
            above.add(one)
    return _Private(frozenset(homes), secrets, frozenset(above))


def _listed(folder: str, private: _Private, temporary: str) -> Iterator[str]:
    """What is in a folder and not private. Links lead to what is listed elsewhere, or is private."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.is_symlink()]
    except OSError:
        if folder == os.sep:  # such as in a confined child, which may have children of its own
            yield from (one for one in (*_READ_ONLY, _DEVICES) if _is_system(one, private))
        return
    for entry in entries:
        if entry.path in private.secrets or (folder in private.homes and entry.name.startswith(".")):
            continue
        if entry.path in private.above and entry.path != temporary:
            yield from _listed(entry.path, private, temporary)
        else:
            yield entry.path


def _is_system(folder: str, private: _Private) -> bool:
    """Whether a folder of the system is there, and holds nothing private."""
    return folder not in private.above and os.path.isdir(folder) and not os.path.islink(folder)


@cache
def _needed(path: tuple[str, ...], variables: tuple[str, ...]) -> tuple[str, ...]:
    """What Python and the libraries need, wherever they are installed, by ``sys.path`` and environment variables."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, package]
    found += [os.path.abspath(entry) for entry in path if entry]
    for value in variables:
        found += filter(os.path.isabs, value.split(os.pathsep))
    for finder in list(sys.modules.values()):  # packages that are installed as links to their sources
        if getattr(finder, "__name__", "").startswith("__editable__"):
            found += [os.path.dirname(place) for place in getattr(finder, "MAPPING", {}).values()]
    # A folder above a home directory cannot be opened without opening that.
    real = dict.fromkeys(map(os.path.realpath, found))
    return tuple(one for one in real if not any(below(home, one) for home in homes()))


def _caches() -> Iterator[str]:
    """Where NVIDIA's driver keeps compiled kernels."""
    yield from filter(os.path.isabs, os.environ.get("CUDA_CACHE_PATH", "").split(os.pathsep))
    if nvidia_devices():
        found = os.path.expanduser("~/.nv")
        with contextlib.suppress(OSError):
            os.makedirs(found, mode=0o700, exist_ok=True)
        yield found


def nvidia_devices() -> list[str]:
    """The names of NVIDIA's devices, and of what stands for them (WSL, Jetson)."""
    try:
        return [
            name for name in os.listdir(_DEVICES) if name.startswith(("nv", "dxg")) and "nvme" not in name
        ]
    except OSError:
        return []
