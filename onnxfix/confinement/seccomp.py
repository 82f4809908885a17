"""A filter of system calls (Linux, seccomp): no sockets, and no way into other processes.

The filter is a small program for the kernel, made here: it looks at the number of a call and, for a few calls, at one
argument. A denied call fails with EACCES ("Permission denied"), as for a user who may not.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Iterable
from typing import Any

from onnxfix.record import record

_AF_UNIX = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_SET_MODE_FILTER = 1
_SPEC_ALLOW = 1 << 2  # older kernels slow a filtered process down (speculative store bypass) without it
_X32 = 0x40000000  # the third way to call x86 kernels, with numbers of its own

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | errno.EACCES
_NUMBER, _ARCH, _FIRST = 0, 4, 16  # offsets in the kernel's record of a call; arguments are little-endian


@record
class _Machine:
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


def restrict(libc: Any, *, local_sockets: bool, signals: bool) -> bool:
    """Deny this thread, and all that it starts, the calls named above. Returns whether the kernel agreed.

    ``local_sockets`` leaves sockets of the machine itself (AF_UNIX); ``signals`` leaves signals to other processes.
    """
    if not sys.platform.startswith("linux"):
        return False
    machine = _MACHINES.get(os.uname().machine)
    if machine is None or struct.calcsize("P") != 8:
        return False
    import ctypes  # lazy: start-up

    program = _program(machine, local_sockets, signals)
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, and where they are.
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    if libc.syscall(machine.seccomp, _SET_MODE_FILTER, _SPEC_ALLOW, head) == 0:
        return True
    return bool(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, head, 0, 0) == 0)


def _program(machine: _Machine, local_sockets: bool, signals: bool) -> bytes:
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
    lines += _only(machine.socket, [_AF_UNIX] if local_sockets else [])
    for number in () if signals else (machine.kill, machine.tgkill):
        lines += _only(number, [os.getpid()])
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _only(number: int, firsts: Iterable[int]) -> list[tuple[int, int, int, int]]:
    """Deny a call unless the lower half of its first argument is one of these."""
    tests: list[tuple[int, int, int, int]] = []
    for value in firsts:
        tests += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    body = [(_LOAD, 0, 0, _FIRST), *tests, (_RETURN, 0, 0, _DENY)]
    return [(_EQUAL, 0, len(body), number), *body]
