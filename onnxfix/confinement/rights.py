"""Giving up what a policy takes."""

from __future__ import annotations

import os
import struct
from typing import Any

from onnxfix.confinement import Policy, landlock, seccomp


class Confinement:
    """What a policy takes from a process, prepared: most of the work may be done before a fork.

    ``confine`` gives it up, for good, in a process that has one thread, before foreign code runs. ``close`` ends the
    preparation, where nothing is given up.
    """

    def __init__(self, wanted: Policy | None) -> None:
        self._wanted = wanted
        self._rules, self._version = -1, 0
        self._libc: Any = None
        if wanted is not None:
            import ctypes  # lazy: start-up

            self._libc = ctypes.CDLL(None, use_errno=True)
            files = (wanted.read, wanted.write) if wanted.files else None
            self._rules, self._version = landlock.ruleset(self._libc, files)

    def confine(self) -> None:
        if self._wanted is None:
            return
        _drop_capabilities(self._libc)
        held = self._rules >= 0 and landlock.restrict(self._libc, self._rules)
        self.close()
        signals = held and self._version >= landlock.SIGNALS_SINCE
        seccomp.restrict(self._libc, local_sockets=self._wanted.local_sockets, signals=signals)

    def close(self) -> None:
        if self._rules >= 0:
            os.close(self._rules)
            self._rules = -1


def confine(wanted: Policy | None) -> None:
    """Give up what a policy takes, for good. Call it in a new process that has one thread, before foreign code runs."""
    Confinement(wanted).confine()


_VERSION = 0x20080522
_KEPT = (0, 1, 2, 3, 4, 14, 15, 23, 24)
"""chown, dac_override, dac_read_search, fowner, fsetid; ipc_lock, ipc_owner; sys_nice, sys_resource."""


def _drop_capabilities(libc: Any) -> bool:
    """Give up all of the superuser's rights but those about files, memory and priorities. Returns whether none is left.

    With them a child of root could read other processes and change the machine. Other users have none to give up.
    """
    import ctypes  # lazy: start-up

    # Effective, permitted and inheritable: their lower halves, then their upper halves.
    kept = sum(1 << number for number in _KEPT)
    head = ctypes.create_string_buffer(struct.pack("=Ii", _VERSION, 0))
    data = ctypes.create_string_buffer(24)
    try:
        if libc.capget(head, data) != 0:
            return False
        had = struct.unpack_from("=6I", data)
        left = tuple(value & (kept if at < 3 else 0) for at, value in enumerate(had))
        struct.pack_into("=6I", data, 0, *left)
        return left == had or libc.capset(head, data) == 0
    except AttributeError:  # a C library without these functions
        return False
