"""Runs each model as a Ray task.

Ray places the tasks. This module adds what Ray does not know: how much memory each task may use, that a lost worker is
tried again ``len(PAUSES)`` times, and that a model that ran out of its share gets the largest node once. Ray's own
retries would not stop for a model that is too large for every node.

Workers share the driver's files: local paths must mean the same on each node, or be URLs. They need the same onnxfix,
which each worker checks before its first model.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from onnxfix.errors import OnnxfixError, UsageError, explained
from onnxfix.rewrite import packs
from onnxfix.runtime import _child, allowance
from onnxfix.verbs.fleet import paths
from onnxfix.verbs.fleet.contents import versions
from onnxfix.verbs.fleet.work import Outcome, Progress, Task, in_turns, more_memory_helps, sweeping

PAUSES = (1.0, 5.0, 20.0)
"""Seconds before each retry of a model whose worker was lost. Ray may send work to a lost node until it notices the
loss, so that immediate retries would all be lost too."""
CONNECT_SECONDS = 10.0
"""Timeout of the cluster's port; Ray itself retries a wrong address for many minutes."""
CLOCK_SKEW = 60.0
"""Seconds by which a file server's clock may be behind ours."""
GRACE = 10.0
"""Seconds in which workers must clean up when the run is interrupted."""
_POLL_SECONDS = 0.5  # a wait blocks no longer, so that an interrupt is noticed
_NO_NODE_SECONDS = 60.0  # without any node, until the run ends
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable for whether a node listens at an address that others reach."""


class RayExecutor:
    """Runs tasks on the cluster at ``address`` (see ``connected``)."""

    def __init__(self, address: str = "auto") -> None:
        self.address = address

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
        """See ``work.Executor``. ``progress`` is not called: Ray does not report which tasks have started.

        Raises:
            UsageError: Ray is not installed, there is no cluster, it has no GPU although one is required, or a node has
                another onnxfix.
            OnnxfixError: no node is left, or the one of this connection died.
        """
        return sweeping(tasks, self._outcomes(tasks), CLOCK_SKEW)

    def _outcomes(self, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        if not tasks:
            return
        with connected(self.address) as ray:
            together, waiting = in_turns(tasks)
            for group in (together, *([task] for task in waiting)):
                yield from Run(ray, group).outcomes()


class _Attempt(NamedTuple):
    """The ``number``-th attempt at a task, which asks for ``memory_mb`` MiB (0: unknown)."""

    task: Task
    memory_mb: int
    number: int = 1


class _Node(NamedTuple):
    """The total resources of a node that is alive: CPUs, and memory in MiB (0: unknown)."""

    cpus: int
    memory_mb: int


class Run:
    """Tasks that may run at once, submitted to Ray.

    Raises:
        UsageError: no node can run them.
    """

    def __init__(self, ray: Any, tasks: Sequence[Task]) -> None:
        self.ray = ray
        options = [task.options.verification for task in tasks]
        checks = {name for one in options for name in (*(one.rungs or ()), *one.require)}
        self.gpu = not checks.isdisjoint({"ort-cuda", "ort-trt", "trt-gpu"})
        self.nodes = self._list_nodes()
        self.node_seen = time.monotonic()
        if not self.nodes:
            gpu = " and a GPU, which a requested check needs" if self.gpu else ""
            raise UsageError(f"--ray: no node of the cluster has a CPU{gpu}")
        self.function = ray.remote(_make_remote_function())
        self.setting = (same_installation(), os.getcwd(), packs.setting())
        self.submitted: dict[Any, _Attempt] = {}
        share = min(node.memory_mb // node.cpus for node in self.nodes)
        for task in tasks:
            self._submit(_Attempt(task, share))

    def outcomes(self) -> Iterator[Outcome]:
        """Each task's outcome, as it arrives."""
        try:
            while self.submitted:
                ready, _ = self.ray.wait(list(self.submitted), num_returns=1, timeout=_POLL_SECONDS)
                for ref in ready:
                    outcome = self._outcome(self.submitted.pop(ref), ref)
                    if outcome is not None:
                        yield outcome
                if not ready:
                    self._check_nodes()
        finally:
            self._cancel()

    def _submit(self, attempt: _Attempt) -> None:
        resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(self.gpu), "max_retries": 0}
        if attempt.memory_mb:
            resources["memory"] = attempt.memory_mb << 20
        remote = self.function.options(**resources).remote
        self.submitted[remote(pickle.dumps(attempt.task), attempt.memory_mb, *self.setting)] = attempt

    def _outcome(self, attempt: _Attempt, ref: Any) -> Outcome | None:
        """The outcome of an attempt that ended; None where the task was submitted again."""
        from ray.exceptions import LocalRayletDiedError, RayError, RayTaskError  # lazy: optional package

        task = attempt.task
        try:
            reply = self.ray.get(ref)
        except RayTaskError as error:
            text = explained(error.cause if isinstance(error.cause, Exception) else error, task.source)
            return Outcome(task, error=text, attempts=attempt.number)
        except LocalRayletDiedError:
            raise OnnxfixError("the Ray node of this run's connection died") from None
        except RayError as error:  # a lost worker, node or result
            if attempt.number <= len(PAUSES):
                time.sleep(PAUSES[attempt.number - 1])
                self._submit(attempt._replace(number=attempt.number + 1))
                return None
            text = f"{task.source}: its Ray worker died {attempt.number} times: {_child.one_line(str(error))}"
            memory = type(error).__name__ == "OutOfMemoryError"
            return Outcome(task, error=text, attempts=attempt.number, memory=memory, crashed=True)
        if isinstance(reply, str):
            raise UsageError(f"--ray: {reply}")
        outcome: Outcome = replace(pickle.loads(reply), task=task, attempts=attempt.number)
        most = self._largest_mb()
        if attempt.memory_mb < most and more_memory_helps(outcome, attempt.memory_mb):
            self._submit(_Attempt(task, most, attempt.number + 1))
            return None
        if outcome.missing and not paths.is_remote(task.source) and os.path.exists(task.source):
            where = f"on Ray's node {outcome.node}; with local paths, all nodes must share the folder"
            return replace(outcome, error=f"{outcome.error} ({where})")
        return outcome

    def _check_nodes(self) -> None:
        """Submit attempts again that are too large for all nodes that are left.

        Raises:
            OnnxfixError: there has been no node for a minute.
        """
        self.nodes = self._list_nodes()
        if self.nodes:
            self.node_seen = time.monotonic()
        elif time.monotonic() - self.node_seen > _NO_NODE_SECONDS:
            raise OnnxfixError("no node of the Ray cluster is left to work on")
        for ref, attempt in list(self.submitted.items()):
            if self.nodes and attempt.memory_mb > self._largest_mb():
                self.ray.cancel(ref)
                self._submit(self.submitted.pop(ref)._replace(memory_mb=self._largest_mb()))

    def _cancel(self) -> None:
        """Cancel what still runs, first as Ctrl-C would, then by force."""
        refs = list(reversed(self.submitted))  # those that wait first, so that none begins meanwhile
        for forced, seconds in ((False, GRACE), (True, _POLL_SECONDS)):
            if not refs:
                break
            for ref in refs:
                with contextlib.suppress(Exception):  # it may have ended, or its node may be lost
                    self.ray.cancel(ref, force=forced)
            _, refs = self.ray.wait(refs, num_returns=len(refs), timeout=seconds)

    def _list_nodes(self) -> list[_Node]:
        """The nodes that are alive and have a CPU and, where one is needed, a GPU."""
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [
            _Node(int(node["CPU"]), int(node.get("memory", 0)) >> 20)
            for node in alive
            if node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= int(self.gpu)
        ]

    def _largest_mb(self) -> int:
        """MiB of the largest node; 0 where there is none."""
        return max((node.memory_mb for node in self.nodes), default=0)


# ------------------------------------------------------------------------------------------------ in the worker


def same_installation() -> str:
    """A text that is equal on two machines with the same onnxfix and rules."""
    found = versions()
    return repr(
        sorted((name, found[name]) for name in found if name == "onnxfix" or name.startswith("source"))
    )


def settle(memory_mb: int, folder: str) -> None:
    """Prepare a worker before each task: change to the driver's folder, so that relative paths mean the same, and limit
    the sandbox's children to one task's share of memory in MiB (0: no limit)."""
    # URLs need no folder; a model whose file is missing reports that itself.
    with contextlib.suppress(OSError):
        os.chdir(folder)
    os.environ[allowance.CORES] = "1"
    if memory_mb:
        os.environ[allowance.MEMORY_MB] = str(memory_mb)


def _make_remote_function() -> Callable[..., Any]:
    """The remote function. Made here so that Ray pickles it by value: it can report that onnxfix is missing."""

    def work(payload: bytes, memory_mb: int, expected: str, folder: str, packs: str) -> bytes | str:
        """A pickled ``Outcome``, or a message why this node cannot work."""
        import os  # lazy: Ray pickles this function by value, without this module's names
        import pickle  # lazy: as above
        from dataclasses import replace  # lazy: as above

        import ray  # lazy: as above

        node = ray.util.get_node_ip_address()
        where = f"{os.getpid()} on {node}"
        try:
            from onnxfix.verbs.fleet.ray import same_installation, settle  # lazy: as above
            from onnxfix.verbs.fleet.work import perform  # lazy: as above
        except ImportError as error:
            return f"onnxfix cannot be imported by process {where} ({error}); install the same onnxfix on each node"
        os.environ["ONNXFIX_PACKS"] = packs  # before any rule is loaded
        if same_installation() != expected:
            return (
                f"process {where} has another version of onnxfix or other rules; "
                "install the same onnxfix on each node"
            )
        settle(memory_mb, folder)
        return pickle.dumps(replace(perform(pickle.loads(payload)), node=node))

    return work


# -------------------------------------------------------------------------------------------------- connecting


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ``ray``, connected while the context lasts.

    ``address`` is "local" for a new instance on this machine, "auto" for the cluster that ``RAY_ADDRESS`` names or that
    runs here, or an address as for ``ray start --address``.

    Raises:
        UsageError: Ray is not installed, or there is no cluster.
        OnnxfixError: the cluster refuses the connection.
    """
    _require_answer(address)
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


def _require_answer(address: str) -> None:
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
