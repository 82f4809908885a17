"""A connection to a Ray cluster: made with a clear error or not at all, quiet, and what its nodes offer."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onnxfix import _child
from onnxfix.errors import OnnxfixError, UsageError

CONNECT_SECONDS = 10.0
"""How long the cluster's port may take to answer; Ray itself asks a wrong address for many minutes."""


@dataclass(frozen=True)
class Node:
    """What a living node offers in all, whatever of it is in use: CPUs, and memory in MiB (0: it does not say)."""

    cpus: int
    memory_mb: int


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ``ray``, connected while the context lasts.

    ``address`` is "local" for an instance of its own on this machine, "auto" for the cluster that ``RAY_ADDRESS`` names
    or that runs here, or what ``ray start --address`` takes.

    Raises:
        UsageError: Ray is not installed, or there is no cluster.
        OnnxfixError: the cluster does not take us.
    """
    _reachable(address)
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs Ray: pip install 'onnxfix[ray]'") from None
    if ray.is_initialized():  # somebody's own program, which calls us: its connection is not ours to end
        yield ray
        return
    with _own_stdout():
        try:
            _connect(ray, address)
            yield ray
        finally:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints there what its threads held back
                ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    asked: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what we start sends nothing home
        asked.update(include_dashboard=False, num_cpus=_child.cores())
    try:
        ray.init(**asked)
    except KeyboardInterrupt:
        raise
    except ConnectionError as error:
        reason = _child.one_line(str(error))
        if address == "auto":
            reason = "start one with 'ray start --head', or use --ray local"
        elif "AuthenticationError" in str(error.__cause__):
            reason = "it asks for a token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
        raise UsageError(f"--ray {address}: no Ray cluster to connect to: {reason}") from None
    except Exception as error:  # versions that differ, a port that is somebody else's, ...
        raise OnnxfixError(f"--ray {address}: {_child.one_line(error)}") from None


def _reachable(address: str) -> None:
    """Refuse an address where nobody listens, before Ray waits for it.

    Raises:
        UsageError: nobody does, or it is no address.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "") or "auto"
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--ray {address}: is neither auto, nor local, nor HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--ray {address}: no Ray cluster answers there: {reason}") from None


def nodes_of(ray: Any, gpu: bool) -> list[Node]:
    """The living nodes that take work: those with a CPU and, if asked for, a GPU."""
    found = []
    for one in ray.nodes():
        has = one["Resources"]
        if one["Alive"] and has.get("CPU", 0) >= 1 and has.get("GPU", 0) >= int(gpu):
            found.append(Node(int(has["CPU"]), int(has.get("memory", 0)) >> 20))
    return found


@contextlib.contextmanager
def _own_stdout() -> Iterator[None]:
    """Keep what Ray's threads print, such as "a worker died", out of our standard output: what of it matters is in the
    outcome of the model."""
    before = sys.stdout
    quiet: Any = _WithoutRay(before)
    sys.stdout = quiet
    try:
        yield
    finally:
        if sys.stdout is quiet:
            sys.stdout = before


class _WithoutRay:
    """A text stream that drops what threads of Ray write to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return int(self._stream.write(text) or 0)
