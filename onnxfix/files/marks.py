"""Which process made a temporary file, as a part of the file's name."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

MARK = r"([0-9a-f]{10})-(\d+)-(\d+)"
"""A mark: the machine, the id of the process, and when that started."""


@functools.cache
def _machine(_: int) -> str:
    """This boot of this machine and its namespace of process ids, in 10 letters; "" where they are not known."""
    try:
        boot = int(Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").replace("-", ""), 16)
        space = os.stat("/proc/self/ns/pid").st_ino
    except (OSError, ValueError):
        return ""
    return f"{(boot * 1_000_003 + space) % 16**10:010x}"


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the boot; None if it does not exist.

    Raises:
        OSError: that is not known.
    """
    try:
        found = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return found.rpartition(")")[2].split()[19]


@functools.cache
def _mark(pid: int) -> str:
    try:
        machine, started = _machine(pid), _started(pid)
    except (OSError, IndexError):
        return ""
    return f"{machine}-{pid}-{started}" if machine and started else ""


def mark() -> str:
    """What says that a file is this process's; "" where the system does not tell."""
    return _mark(os.getpid())


def dead(found: re.Match[str] | None) -> bool:
    """Whether the name is that of a file whose process ended, on this machine since it booted."""
    if found is None or not mark() or found[1] != _machine(os.getpid()):
        return False
    try:
        return _started(int(found[2])) != found[3]
    except (OSError, IndexError):
        return False
