"""What a child process may not do: use the network, reach into other processes (Linux).

Children run native libraries on models that nobody has vetted. Each gives up these rights by itself before it does
anything else, for good and for all that it starts. It needs no privilege, so that it works for any user and in most
containers. ``seccomp`` filters system calls, ``landlock`` has rules about files, TCP and signals; what a system lacks
is left out, and ``in_force`` says what holds. ``ONNXFIX_CONFINEMENT=off`` turns all of it off.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from onnxfix.confinement import landlock, privileges, seccomp

SWITCH = "ONNXFIX_CONFINEMENT"
"""Environment variable: "off" starts children that may do what onnxfix may, to find out whether that is in the way."""
_MPS = "CUDA_MPS_PIPE_DIRECTORY"


@dataclass(frozen=True)
class Policy:
    """What a child gives up. ``local_sockets``: it may use sockets of this machine (AF_UNIX)."""

    local_sockets: bool = False


@dataclass(frozen=True)
class InForce:
    """What was tried in a child and refused there: to make a ``network`` socket, to signal its parent (``processes``).

    ``reason`` says why something is missing, "" if nothing is.
    """

    network: bool = False
    processes: bool = False
    reason: str = ""


def policy() -> Policy | None:
    """What children that are started now give up; None for nothing."""
    if os.environ.get(SWITCH, "").strip().lower() == "off":
        return None
    # CUDA talks to NVIDIA's service for sharing a GPU (MPS) by a local socket.
    return Policy(local_sockets=os.path.isdir(os.environ.get(_MPS, "/tmp/nvidia-mps")))


def confine(wanted: Policy | None) -> None:
    """Give up rights, for good. Call it in a new process that has one thread, and before foreign code runs."""
    if wanted is None or not sys.platform.startswith("linux"):
        return
    import ctypes  # lazy: start-up

    libc = ctypes.CDLL(None, use_errno=True)
    privileges.restrict(libc)
    known = landlock.restrict(libc)
    seccomp.restrict(libc, local_sockets=wanted.local_sockets, signals=known >= landlock.SIGNALS_SINCE)


def in_force() -> InForce:
    """Try it, in a child: what is refused there."""
    import socket  # lazy: start-up, only in a child

    network = processes = False
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    except OSError:
        network = True
    try:
        os.kill(os.getppid(), 0)
    except OSError:
        processes = True
    return InForce(network, processes, "" if network and processes else _missing())


def _missing() -> str:
    if os.environ.get(SWITCH, "").strip().lower() == "off":
        return f"{SWITCH}=off"
    if not sys.platform.startswith("linux"):
        return "only Linux has what this needs"
    return "this system allows neither seccomp nor Landlock, or not all of what onnxfix needs of them"
