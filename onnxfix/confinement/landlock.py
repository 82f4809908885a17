"""Rules about files, TCP and signals (Linux, Landlock).

A process may give up rights for good, for itself and all that it starts, without any privilege. A process
under rules can also not debug one that is not, or read its memory or its environment.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable
from typing import Any

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FIRST_VERSION = (1 << 13) - 1
"""The rights to files that the first version knows."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
"""The rights that a rule about one file may give; the others are of folders."""
_PATH_BENEATH = 1
_TCP = 1 << 0 | 1 << 1  # bind, connect
_SCOPED = 1 << 0 | 1 << 1  # abstract sockets, signals
NETWORK_SINCE, SIGNALS_SINCE = 4, 6
"""Versions of Landlock that know TCP, and signals."""


def version(libc: Any) -> int:
    """The kernel's version of Landlock, 0 where it has none or does not use it."""
    return max(0, int(libc.syscall(_CREATE, None, 0, _VERSION)))


OWN = "/proc/self"
"""What the system shows of a process, which it may change: CUDA does not start without (error 304)."""


def ruleset(libc: Any, files: tuple[Iterable[str], Iterable[str]] | None = None) -> tuple[int, int]:
    """Rules for ``restrict``: no TCP, no signals to processes outside; with ``files``, none but those below the first
    paths, which stay as they are, and below the second. What does not exist is left out.

    Returns:
        an open file, which the caller closes, or -1 if there are no rules here; and the version of Landlock.
    """
    known = version(libc)
    # Before version 2 no file could be moved to another folder at all.
    rights = _FIRST_VERSION | _REFER | (_TRUNCATE if known >= 3 else 0)
    handled = rights if files is not None and known >= 2 else 0
    network = _TCP if known >= NETWORK_SINCE else 0
    scoped = _SCOPED if known >= SIGNALS_SINCE else 0
    if not (handled or network):
        return -1, 0
    size = 24 if scoped else 16 if network else 8
    rules = int(libc.syscall(_CREATE, struct.pack("=QQQ", handled, network, scoped)[:size], size, 0))
    if rules >= 0 and files is not None and handled:
        for paths, allowed in zip(files, (_READ, rights), strict=True):
            for path in paths:
                _allow(libc, rules, path, allowed)
    return rules, known


def restrict(libc: Any, rules: int) -> bool:
    """Put rules in force for this thread, and all that it starts. Returns whether the kernel agreed."""
    # Refused, and not needed, by rules that are not about files; before version 3 by those that are, as a whole.
    _allow(libc, rules, OWN, _FIRST_VERSION | _TRUNCATE)
    _allow(libc, rules, OWN, _FIRST_VERSION)
    given_up = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    return bool(given_up and libc.syscall(_RESTRICT, rules, 0) == 0)


def _allow(libc: Any, rules: int, path: str, rights: int) -> None:
    """Add a rule. What is gone, or on a file system without rules, gets none."""
    with contextlib.suppress(OSError, ValueError):
        place = os.open(path, getattr(os, "O_PATH", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            folder = stat.S_ISDIR(os.fstat(place).st_mode)
            allowed = rights if folder else rights & _OF_FILES
            libc.syscall(_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, place), 0)
        finally:
            os.close(place)
