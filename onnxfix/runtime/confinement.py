"""What a child process may not do: use the network, reach into other processes, open private files (Linux).

Children run native libraries on models that nobody has vetted. Each gives up these rights by ``confine`` before it
does anything else, for good and for all that it starts. It needs no privilege, so that it works for any user and in
most containers. A filter of system calls (seccomp) denies sockets and ways into other processes; Landlock has rules
about files, TCP and signals. What a system lacks is left out, and ``in_force`` says what holds.
``ONNXFIX_CONFINEMENT=off`` turns all of it off, ``network`` leaves the files alone.
"""

# Long because: one promise, and what is given up for it stands behind one call.

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

SWITCH = "ONNXFIX_CONFINEMENT"
"""Environment variable: "off" starts children that may do what onnxfix may, "network" such without network, to find out
whether one or the other is in the way."""


@dataclass(frozen=True)
class Policy:
    """What a child keeps. ``local_sockets``: sockets of this machine (AF_UNIX). ``files``: it can open only those below
    ``read``, which it may not change, and below ``write``, each with its identity when this was made."""

    local_sockets: bool = False
    files: bool = False
    read: tuple[str, ...] = ()
    write: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class InForce:
    """What was tried in a child and refused there: to make a ``network`` socket, to signal its parent (``processes``),
    and to list a folder that is not open to it (``files``).

    ``reason`` says why something is missing, "" if nothing is.
    """

    network: bool = False
    processes: bool = False
    files: bool = False
    reason: str = ""


def policy() -> Policy | None:
    """What children that are started now give up; None for nothing."""
    level = os.environ.get(SWITCH, "").strip().lower()
    if level == "off" or not sys.platform.startswith("linux"):
        return None
    # CUDA does not start without local sockets (error 304); by one it talks to the service for sharing a GPU (MPS).
    sharing = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    local = bool(nvidia_devices()) or os.path.isdir(sharing)
    if level == "network" or _has_other_driver():
        return Policy(local)
    return Policy(local, True, *_open_to_children())


def confine(policy: Policy | None) -> None:
    """Give up what a policy takes, for good. Call it in a new process that has one thread, before foreign code runs."""
    if policy is None:
        return
    import ctypes  # lazy: start-up, only in a child

    libc = ctypes.CDLL(None, use_errno=True)
    _drop_capabilities(libc)
    version = _restrict_files(libc, (policy.read, policy.write) if policy.files else None)
    _filter_calls(libc, policy.local_sockets, signals=version >= _SIGNALS_SINCE)


def in_force() -> InForce:
    """Try it, in a child: what is refused there."""
    import socket  # lazy: start-up, only in a child

    network = _is_refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close())
    processes = _is_refused(lambda: os.kill(os.getppid(), 0))
    files = _is_refused(lambda: os.listdir(os.sep))  # what is below is open, but not this itself
    return InForce(network, processes, files, "" if network and processes and files else _why_missing())


def _is_refused(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


def _why_missing() -> str:
    level = os.environ.get(SWITCH, "").strip().lower()
    if level in ("off", "network"):
        return f"{SWITCH}={level}"
    if not sys.platform.startswith("linux"):
        return "only Linux has what this needs"
    if _has_other_driver():
        return "NVIDIA's driver works in another way here"
    return "this system lacks seccomp or Landlock, or does not allow them here"


# ------------------------------------------------------------------------------------ which files a child may open
#
# A rule is about a folder with everything below, or about a file. So what is not private is listed: the entries of the
# folders on the way to something private, without that. What appears in such a folder later cannot be opened, unless it
# is named; a child that cannot open what was named since it started is replaced (``sandbox``).

_SECRETS = ("/run/secrets", "/run/user", "/var/run/secrets", "/var/run/user")
"""Where containers get credentials, and where a session's sockets and keys are."""
_READ_ONLY = (
    *("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/opt", "/boot", "/nix", "/snap", "/proc", "/sys"),
)
"""Programs and settings of the system."""
_DEVICES = "/dev"
_LIBRARY_FOLDERS = ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH")
"""Environment variables with folders of libraries."""
_MOST_NAMED = 64
"""How many of the files named last are kept; a long-lived process names many, and a call is about few."""
_lock = threading.Lock()
_named: dict[str, None] = {}


def name(path: str | os.PathLike[str], *, whole: bool = False) -> None:
    """Let children that are used from now on read and write the folder of this file; links are followed, too.

    In a home directory itself, or above one, that is the file alone, since nothing else in there was meant; it is the
    ``whole`` folder only where a child makes files there.
    """
    with contextlib.suppress(OSError, ValueError):
        given = os.path.abspath(os.fspath(path))
        for place in dict.fromkeys((given, os.path.realpath(given))):
            folder = os.path.realpath(os.path.dirname(place))
            if _is_below(folder, os.path.realpath(tempfile.gettempdir())):
                continue  # open to children anyway
            alone = not whole and any(_is_below(home, folder) for home in _homes())
            root = os.path.join(folder, os.path.basename(place)) if alone else folder
            with _lock:
                _named.pop(root, None)
                _named[root] = None
                for oldest in list(_named)[:-_MOST_NAMED]:
                    del _named[oldest]


def outdated(policy: Policy | None) -> bool:
    """Whether something was named since that a child with this policy cannot open."""
    if policy is None or not policy.files:
        return False
    known = policy.write
    return any(
        _identity(path) is not None
        and not any(_is_below(path, root) and _identity(root) == known[root] for root in known)
        for path in list(_named)
    )


def _identity(path: str) -> tuple[int, int] | None:
    """Of the file or folder that is there now; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or something in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@cache
def _homes() -> tuple[str, ...]:
    """The home directories of this machine's users, as far as they can be listed."""
    homes = [os.path.expanduser("~"), "/root"]
    with contextlib.suppress(OSError):
        homes += [entry.path for entry in os.scandir("/home")]
    if sys.platform != "win32":
        import pwd  # lazy: missing on Windows

        with contextlib.suppress(KeyError):
            homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    real = dict.fromkeys(os.path.realpath(home) for home in homes if os.path.isabs(home))
    return tuple(home for home in real if home != os.sep and os.path.isdir(home))


def _open_to_children() -> tuple[tuple[str, ...], dict[str, tuple[int, int]]]:
    """Files and folders that a child may only read, and those that it may write as well, each with its identity."""
    temporary = os.path.realpath(tempfile.gettempdir())
    # with the folders in which NVIDIA's driver keeps compiled kernels
    caches = list(filter(os.path.isabs, os.environ.get("CUDA_CACHE_PATH", "").split(os.pathsep)))
    if nvidia_devices():
        caches.append(os.path.expanduser("~/.nv"))
        with contextlib.suppress(OSError):
            os.makedirs(caches[-1], mode=0o700, exist_ok=True)
    writable, read = [temporary, *list(_named), *caches], _needed()
    secrets = frozenset(map(os.path.realpath, _SECRETS))
    above = {*_homes()}  # folders that contain something private, home directories included
    for path in (*_homes(), *secrets):
        while (path := os.path.dirname(path)) not in above:
            above.add(path)
    for path in _list_public(os.sep, secrets, above - {temporary}):
        (read if path in _READ_ONLY else writable).append(path)
    identities = {path: _identity(path) for path in writable}
    return tuple(read), {path: identity for path, identity in identities.items() if identity is not None}


def _list_public(folder: str, secrets: Set[str], above: Set[str]) -> Iterator[str]:
    """What is in a folder and not private. Links lead to what is listed elsewhere, or is private."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.is_symlink()]
    except OSError:
        if folder == os.sep:  # such as in a confined child, which may have children of its own
            system = (path for path in (*_READ_ONLY, _DEVICES) if path not in above)
            yield from (path for path in system if os.path.isdir(path) and not os.path.islink(path))
        return
    for entry in entries:
        if entry.path in secrets or (folder in _homes() and entry.name.startswith(".")):
            continue
        if entry.path in above:
            yield from _list_public(entry.path, secrets, above)
        else:
            yield entry.path


def _needed() -> list[str]:
    """What Python and the libraries need, wherever they are installed, by ``sys.path`` and environment variables."""
    # the folder that onnxfix is in
    here = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, here]
    folders += [os.path.abspath(entry) for entry in sys.path if entry]
    for name in _LIBRARY_FOLDERS:
        folders += filter(os.path.isabs, os.environ.get(name, "").split(os.pathsep))
    # A folder above a home directory cannot be opened without opening that.
    real = dict.fromkeys(map(os.path.realpath, folders))
    return [folder for folder in real if not any(_is_below(home, folder) for home in _homes())]


def nvidia_devices() -> list[str]:
    """The names of NVIDIA's devices, and of what stands for them (WSL, Jetson)."""
    try:
        names = os.listdir(_DEVICES)
    except OSError:
        return []
    return [name for name in names if name.startswith(("nv", "dxg")) and "nvme" not in name]


def _has_other_driver() -> bool:
    """Whether NVIDIA's driver works in another way (WSL, Jetson): nobody has tried which files it needs there."""
    return any(name.startswith(("dxg", "nvmap", "nvhost")) for name in nvidia_devices())


# ---------------------------------------------------------------------------------------------------- Landlock
#
# A process may give up rights for good, for itself and all that it starts, without any privilege. A process under rules
# can also not debug one that is not, or read its memory or its environment.

_CREATE_RULES, _ADD_RULE, _RESTRICT = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FIRST_VERSION = (1 << 13) - 1
"""The rights to files that the first version knows."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
"""The rights that a rule about one file may give; the others are of folders."""
_TCP = 1 << 0 | 1 << 1  # bind, connect
_SCOPED = 1 << 0 | 1 << 1  # abstract sockets, signals
_NETWORK_SINCE, _SIGNALS_SINCE = 4, 6
"""Versions of Landlock that know TCP, and signals."""
_OWN = "/proc/self"
"""What the system shows of a process, which it may change: CUDA does not start without (error 304)."""


def _restrict_files(libc: Any, files: tuple[Iterable[str], Iterable[str]] | None) -> int:
    """No TCP, no signals to processes outside; with ``files``, none but those below the first paths, which stay as they
    are, and below the second. Returns the version of Landlock that is in force, 0 for none."""
    version = max(0, int(libc.syscall(_CREATE_RULES, None, 0, _GET_VERSION)))
    # Before version 2 no file could be moved to another folder at all.
    rights = _FIRST_VERSION | _REFER | (_TRUNCATE if version >= 3 else 0)
    handled = rights if files is not None and version >= 2 else 0
    network = _TCP if version >= _NETWORK_SINCE else 0
    scoped = _SCOPED if version >= _SIGNALS_SINCE else 0
    if not (handled or network):
        return 0
    size = 24 if scoped else 16 if network else 8
    rules = int(libc.syscall(_CREATE_RULES, struct.pack("=QQQ", handled, network, scoped)[:size], size, 0))
    if rules < 0:
        return 0
    try:
        if files is not None and handled:
            for paths, allowed in zip(files, (_READ, rights), strict=True):
                for path in paths:
                    _allow(libc, rules, path, allowed)
            _allow(libc, rules, _OWN, _FIRST_VERSION | (_TRUNCATE & rights))
        given_up = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        return version if given_up and libc.syscall(_RESTRICT, rules, 0) == 0 else 0
    finally:
        os.close(rules)


def _allow(libc: Any, rules: int, path: str, rights: int) -> None:
    """Add a rule. What is gone, or on a file system without rules, gets none."""
    with contextlib.suppress(OSError, ValueError):
        place = os.open(path, getattr(os, "O_PATH", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            folder = stat.S_ISDIR(os.fstat(place).st_mode)
            allowed = rights if folder else rights & _OF_FILES
            libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, place), 0)
        finally:
            os.close(place)


# ----------------------------------------------------------------------------------------------------- seccomp
#
# The filter is a small program for the kernel, made here: it looks at the number of a call and, for a few calls, at one
# argument. A denied call fails with EACCES ("Permission denied"), as for a user who may not.

_AF_UNIX = 1
_SET_MODE_FILTER = 1
_SPEC_ALLOW = 1 << 2  # older kernels slow a filtered process down (speculative store bypass) without it
_X32 = 0x40000000  # the third way to call x86 kernels, with numbers of its own
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | errno.EACCES
_NUMBER, _ARCH, _FIRST = 0, 4, 16  # offsets in the kernel's record of a call; arguments are little-endian


class _Machine(NamedTuple):
    """The kernel's identifier of an architecture, and its numbers of calls."""

    arch: int
    seccomp: int
    socket: int
    kill: int
    tgkill: int
    queued: tuple[int, ...]
    denied: tuple[int, ...]


# queued: tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, which send signals too. denied, in this order:
# ptrace, process_vm_readv and _writev, kcmp, pidfd_getfd and _send_signal, process_madvise: other processes.
# io_uring_setup: makes sockets without the call `socket`. bpf, perf_event_open, userfaultfd: parts of the kernel that
# attacks need. add_key, request_key, keyctl: the user's keys. unshare, setns, mount, umount2, pivot_root, chroot,
# open_tree, move_mount, fsopen, fsmount: other views of the file system.
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, 317, 41, 62, 234, (200, 129, 297),
        (101, 310, 311, 312, 438, 424, 440, 425, 321, 298, 323, 248, 249, 250,
         272, 308, 165, 166, 155, 161, 428, 429, 430, 432),
    ),
    "aarch64": _Machine(
        0xC00000B7, 277, 198, 129, 131, (130, 138, 240),
        (117, 270, 271, 272, 438, 424, 440, 425, 280, 241, 282, 217, 218, 219,
         97, 268, 40, 39, 41, 51, 428, 429, 430, 432),
    ),
}  # fmt: skip


def _filter_calls(libc: Any, local_sockets: bool, *, signals: bool) -> bool:
    """Deny this thread, and all that it starts, the calls named above. Returns whether the kernel agreed.

    ``local_sockets`` leaves sockets of the machine itself (AF_UNIX); ``signals`` leaves signals to other processes.
    """
    machine = _MACHINES.get(os.uname().machine) if sys.platform.startswith("linux") else None
    if machine is None or struct.calcsize("P") != 8:
        return False
    import ctypes  # lazy: start-up, only in a child

    program = _make_program(machine, local_sockets, signals)
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, and where they are.
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.syscall(machine.seccomp, _SET_MODE_FILTER, _SPEC_ALLOW, head) == 0)


def _make_program(machine: _Machine, local_sockets: bool, signals: bool) -> bytes:
    """The filter, 8 bytes an instruction. Every test that applies ends the program, so that jumps are short."""
    lines = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, machine.arch),
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine.arch == _MACHINES["x86_64"].arch:
        lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _DENY)]
    for number in (*machine.denied, *(() if signals else machine.queued)):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    lines += _allow_only(machine.socket, [_AF_UNIX] if local_sockets else [])
    for number in () if signals else (machine.kill, machine.tgkill):
        lines += _allow_only(number, [os.getpid()])
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _allow_only(number: int, firsts: Iterable[int]) -> list[tuple[int, int, int, int]]:
    """Deny a call unless the lower half of its first argument is one of these."""
    tests: list[tuple[int, int, int, int]] = []
    for value in firsts:
        tests += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    body = [(_LOAD, 0, 0, _FIRST), *tests, (_RETURN, 0, 0, _DENY)]
    return [(_EQUAL, 0, len(body), number), *body]


# ------------------------------------------------------------------------------------------------- capabilities

_CAPABILITY_VERSION = 0x20080522
_KEPT = (0, 1, 2, 3, 4, 14, 15, 23, 24)
"""chown, dac_override, dac_read_search, fowner, fsetid; ipc_lock, ipc_owner; sys_nice, sys_resource."""


def _drop_capabilities(libc: Any) -> None:
    """Give up all of the superuser's rights but those about files, memory and priorities.

    With them a child of root could read other processes and change the machine. Other users have none to give up.
    """
    import ctypes  # lazy: start-up, only in a child

    # Effective, permitted and inheritable: their lower halves, then their upper halves.
    kept = sum(1 << number for number in _KEPT)
    head = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION, 0))
    data = ctypes.create_string_buffer(24)
    with contextlib.suppress(AttributeError):  # a C library without these functions
        if libc.capget(head, data) == 0:
            had = struct.unpack_from("=6I", data)
            struct.pack_into(
                "=6I", data, 0, *(value & (kept if at < 3 else 0) for at, value in enumerate(had))
            )
            libc.capset(head, data)
