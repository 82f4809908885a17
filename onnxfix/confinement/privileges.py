"""The rights of the superuser that a child keeps (Linux, capabilities): those about files, memory and priorities.

Without it a child of root could still read other processes and change the machine. Other users have none to give up.
"""

from __future__ import annotations

import struct
from typing import Any

_VERSION = 0x20080522
_KEPT = (0, 1, 2, 3, 4, 14, 15, 23, 24)
"""chown, dac_override, dac_read_search, fowner, fsetid; ipc_lock, ipc_owner; sys_nice, sys_resource."""


def restrict(libc: Any) -> bool:
    """Give up this thread's other capabilities. Returns whether none of them is left."""
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
