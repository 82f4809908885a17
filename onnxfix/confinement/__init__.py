"""What a child process may not do: use the network, reach into other processes, open private files (Linux).

Children run native libraries on models that nobody has vetted. Each gives up these rights by itself before it does
anything else (``rights``), for good and for all that it starts. It needs no privilege, so that it works for any user
and in most containers. ``seccomp`` filters system calls, ``landlock`` has rules about files, TCP and signals; what a
system lacks is left out, and ``in_force`` says what holds. ``ONNXFIX_CONFINEMENT=off`` turns all of it off, ``network``
all but the network's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import field

from onnxfix.confinement import places
from onnxfix.confinement.places import name
from onnxfix.record import record

__all__ = ["SWITCH", "InForce", "Policy", "in_force", "name", "outdated", "policy"]

SWITCH = "ONNXFIX_CONFINEMENT"
"""Environment variable: "off" starts children that may do what onnxfix may, "network" such without network, to find out
whether one or the other is in the way."""
_OTHER_DRIVERS = ("dxg", "nvmap", "nvhost")
"""Devices where NVIDIA's driver works in another way (WSL, Jetson): nobody has tried which files it needs there."""
_MPS = "CUDA_MPS_PIPE_DIRECTORY"


@record
class Policy:
    """What a child keeps. ``local_sockets``: sockets of this machine (AF_UNIX). ``files``: it can open only those below
    ``read``, which it may not change, and below ``write``, each with its identity when this was made."""

    local_sockets: bool = False
    files: bool = False
    read: tuple[str, ...] = ()
    write: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@record
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
    local = bool(places.nvidia_devices()) or os.path.isdir(os.environ.get(_MPS, "/tmp/nvidia-mps"))
    if level == "network" or _another_driver():
        return Policy(local)
    return Policy(local, True, *places.open_to_children())


def _another_driver() -> bool:
    return any(name.startswith(_OTHER_DRIVERS) for name in places.nvidia_devices())


def outdated(given: Policy | None) -> bool:
    """Whether something was named since that a child with this policy cannot open."""
    return given is not None and given.files and places.unknown_to(given.write)


def in_force() -> InForce:
    """Try it, in a child: what is refused there."""
    import socket  # lazy: start-up, only in a child

    network = _refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close())
    processes = _refused(lambda: os.kill(os.getppid(), 0))
    files = _refused(lambda: os.listdir(os.sep))  # what is below is open, but not this itself
    return InForce(network, processes, files, "" if network and processes and files else _missing())


def _refused(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


def _missing() -> str:
    level = os.environ.get(SWITCH, "").strip().lower()
    if level in ("off", "network"):
        return f"{SWITCH}={level}"
    if not sys.platform.startswith("linux"):
        return "only Linux has what this needs"
    if _another_driver():
        return "NVIDIA's driver works in another way here"
    return "this system lacks seccomp or Landlock, or does not allow them here"
