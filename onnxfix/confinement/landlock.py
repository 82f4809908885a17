"""Rules about TCP and signals (Linux, Landlock).

A process may give up rights for good, for itself and all that it starts, without any privilege. A process
under rules can also not debug one that is not, or read its memory or its environment.
"""

from __future__ import annotations

import os
import struct
from typing import Any

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PR_SET_NO_NEW_PRIVS = 38

_TCP = 1 << 0 | 1 << 1  # bind, connect
_SCOPED = 1 << 0 | 1 << 1  # abstract sockets, signals
NETWORK_SINCE, SIGNALS_SINCE = 4, 6
"""Versions of Landlock that know TCP, and signals."""


def version(libc: Any) -> int:
    """The kernel's version of Landlock, 0 where it has none or does not use it."""
    return max(0, int(libc.syscall(_CREATE, None, 0, _VERSION)))


def restrict(libc: Any) -> int:
    """Restrict this thread, and all that it starts: no TCP, no signals to processes outside.

    Returns:
        the version in force, 0 if nothing is.
    """
    known = version(libc)
    network = _TCP if known >= NETWORK_SINCE else 0
    scoped = _SCOPED if known >= SIGNALS_SINCE else 0
    if not network:
        return 0
    size = 24 if scoped else 16
    rules = int(libc.syscall(_CREATE, struct.pack("=QQQ", 0, network, scoped)[:size], size, 0))
    if rules < 0:
        return 0
    try:
        given_up = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        return known if given_up and libc.syscall(_RESTRICT, rules, 0) == 0 else 0
    finally:
        os.close(rules)
