"""The connection to a Ray cluster, with clear errors and without Ray's own output; the resources of its nodes."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from onnxfix import _child, allowance
from onnxfix.errors import OnnxfixError, UsageError
from onnxfix.record import record

CONNECT_SECONDS = 10.0
"""Timeout of the cluster's port; Ray itself retries a wrong address for many minutes."""

_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable for whether a node listens at an address that others reach."""


@record
class Node:
    """The total resources of a node that is alive: CPUs, and memory in MiB (0: unknown)."""

    cpus: int
    memory_mb: int


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ``ray``, connected while the context lasts.

    ``address`` is "local" for a new instance on this machine, "auto" for the cluster that ``RAY_ADDRESS`` names or that
    runs here, or an address as for ``ray start --address``.

    Raises:
        UsageError: Ray is not installed, or there is no cluster.
        OnnxfixError: the cluster refuses the connection.
    """
    _reachable(address)
    try:
        import ray  # lazy: optional package
    except ImportError:
        raise UsageError("--ray needs Ray: pip install 'onnxfix[ray]'") from None
    if ray.is_initialized():  # by the program that calls onnxfix, which also ends the connection
        yield ray
        return
    with _without_rays_output(), _only_here() if address == "local" else contextlib.nullcontext():
        try:
            _connect(ray, address)
            yield ray
        finally:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints what its threads have buffered
                ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
        settings.update(include_dashboard=False, num_cpus=allowance.cores())
    try:
        ray.init(**settings)
        if address == "local" and not (here := ray.util.get_node_ip_address()).startswith("127."):
            raise OnnxfixError(
                f"Ray would listen at {here}, which other machines may reach; use another version"
            )
    except KeyboardInterrupt:
        raise
    except ConnectionError as error:
        reason = _child.one_line(str(error))
        if address == "auto":
            reason = "start one with 'ray start --head', or use --ray local"
        elif "AuthenticationError" in str(error.__cause__):
            reason = "it requires a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
        raise UsageError(f"--ray {address}: no Ray cluster to connect to: {reason}") from None
    except Exception as error:  # different versions, a port of another program, ...
        raise OnnxfixError(f"--ray {address}: {_child.one_line(error)}") from None


@contextlib.contextmanager
def _only_here() -> Iterator[None]:
    """Let an instance that is started inside listen at the loopback address alone: who reaches its ports can run code.

    Ray does so by itself on Windows and macOS, and elsewhere where a variable says that there are no clusters. This
    process has read it when it imported Ray, the others that Ray starts will.
    """
    from ray._private import ray_constants  # lazy: optional package

    before = os.environ.get(_CLUSTERS), getattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    os.environ[_CLUSTERS], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        os.environ.pop(_CLUSTERS)
        if before[0] is not None:
            os.environ[_CLUSTERS] = before[0]
        ray_constants.ENABLE_RAY_CLUSTER = before[1]


def _reachable(address: str) -> None:
    """Refuse an address that does not answer, before Ray waits for it.

    Raises:
        UsageError: it does not answer, or is not an address.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "") or "auto"
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--ray {address}: must be auto, local or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--ray {address}: no Ray cluster answers: {reason}") from None


def nodes_of(ray: Any, gpu: bool) -> list[Node]:
    """The nodes that are alive and have a CPU and, with ``gpu``, a GPU."""
    found = []
    for node in ray.nodes():
        resources = node["Resources"]
        if node["Alive"] and resources.get("CPU", 0) >= 1 and resources.get("GPU", 0) >= int(gpu):
            found.append(Node(int(resources["CPU"]), int(resources.get("memory", 0)) >> 20))
    return found


@contextlib.contextmanager
def _without_rays_output() -> Iterator[None]:
    """Keep what Ray's threads print, such as "a worker died", out of standard output; outcomes report what matters."""
    before = sys.stdout
    quiet: Any = _WithoutRay(before)
    sys.stdout = quiet
    try:
        yield
    finally:
        if sys.stdout is quiet:
            sys.stdout = before


class _WithoutRay:
    """A text stream that drops what Ray's threads write to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return int(self._stream.write(text) or 0)
