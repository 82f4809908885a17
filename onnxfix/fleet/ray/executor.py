"""Runs each model as a Ray task.

Ray places the tasks. This module adds what Ray does not know: how much memory and which kind of node each task needs,
which tasks must not run at once, and what to do when a worker is lost. The model of a lost worker is retried elsewhere,
once for each entry of ``PAUSES``. Ray's own retries would neither be counted nor stop for a model that is too large for
every node.

Workers share the driver's files: local paths must mean the same on each node, or be URLs. They need the same onnxfix,
which each worker checks before its first model.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from onnxfix import _child, allowance, packs
from onnxfix.errors import OnnxfixError, UsageError, explained
from onnxfix.fleet import paths
from onnxfix.fleet.budget import more_helps, need_mb, replaced_file, size_mb
from onnxfix.fleet.here import Progress
from onnxfix.fleet.leftovers import tidy
from onnxfix.fleet.ray import cluster
from onnxfix.fleet.versions import versions
from onnxfix.fleet.work import Outcome, Task
from onnxfix.record import record

PAUSES = (1.0, 5.0, 20.0)
"""Seconds before each retry of a model whose worker was lost. Ray may send work to a lost node until it notices the
loss, so that immediate retries would all be lost too."""

IN_FLIGHT = 256
"""Tasks that are submitted to Ray at once, or four for each CPU if that is more."""

GRACE = 10.0
"""Seconds in which workers must clean up when the run is interrupted."""

GPU_RUNGS = frozenset(("ort-cuda", "trt-gpu"))

_POLL_SECONDS = 0.5  # a wait blocks no longer, so that an interrupt is noticed
_NODE_CHECK_SECONDS = 5.0  # between two checks of the nodes
_NO_NODE_SECONDS = 60.0  # without any node, until the run ends


class RayExecutor:
    """Runs tasks on the cluster at ``address`` (see ``cluster.connected``)."""

    def __init__(self, address: str = "auto") -> None:
        self.address = address

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
        """See ``work.Executor``. ``progress`` is not called: Ray does not report which tasks have started.

        Raises:
            UsageError: Ray is not installed, there is no cluster, it has no GPU although one is required, or a node has
                another onnxfix.
            OnnxfixError: no node is left, or the one of this connection died.
        """
        if not tasks:
            return
        with cluster.connected(self.address) as ray:
            state = _Run(ray, tasks)
            try:
                yield from state.outcomes()
            finally:
                state.end()


@record
class _Attempt:
    """The ``number``-th attempt at a task. ``need`` and ``granted`` are MiB, 0 where not known yet."""

    task: Task
    number: int = 1
    need: int = 0
    granted: int = 0


class _Run:
    """The tasks of a run: waiting here, submitted to Ray, or pausing after a loss."""

    def __init__(self, ray: Any, tasks: Sequence[Task]) -> None:
        self.ray = ray
        self.started = time.time()
        self.waiting = deque(_Attempt(task) for task in tasks)
        self.submitted: dict[Any, _Attempt] = {}
        self.pausing: list[tuple[float, _Attempt]] = []
        self.lost_tasks: list[Task] = []
        self.gpu = any(_wants_gpu(task) for task in tasks)
        self.nodes = cluster.nodes_of(ray, self.gpu)
        self.checked = self.node_seen = time.monotonic()
        self.function = ray.remote(_entry())
        self.call = (same_installation(), os.getcwd(), packs.setting())
        if not self.nodes:
            gpu = " and a GPU, which a requested check needs" if self.gpu else ""
            raise UsageError(f"--ray: no node of the cluster has a CPU{gpu}")

    def outcomes(self) -> Iterator[Outcome]:
        """Each task's outcome, as it arrives."""
        while self.waiting or self.submitted or self.pausing:
            self._resume_paused()
            self._submit_waiting()
            for ref in self._ready():
                outcome = self._outcome(self.submitted.pop(ref), ref)
                if outcome is not None:
                    yield outcome
            if time.monotonic() - self.checked > _NODE_CHECK_SECONDS:
                self._check_nodes()

    def _resume_paused(self) -> None:
        """Queue the attempts whose pause is over."""
        now = time.monotonic()
        self.waiting.extend(attempt for until, attempt in self.pausing if until <= now)
        self.pausing = [one for one in self.pausing if one[0] > now]

    def _ready(self) -> list[Any]:
        """References of attempts that ended, none if no attempt ends in ``_POLL_SECONDS``."""
        if not self.submitted:  # the rest pauses, or there is no node
            time.sleep(_POLL_SECONDS)
            return []
        ready, _ = self.ray.wait(list(self.submitted), num_returns=1, timeout=_POLL_SECONDS)
        return list(ready)

    def end(self) -> None:
        """Cancel running attempts, first as Ctrl-C would, then by force; delete the temporary files of lost workers."""
        self.waiting.clear()
        refs = list(self.submitted)
        for forced, seconds in ((False, GRACE), (True, _POLL_SECONDS)):
            if not refs:
                break
            for ref in refs:
                with contextlib.suppress(Exception):  # it may have ended, or its node may be lost
                    self.ray.cancel(ref, force=forced)
            _, refs = self.ray.wait(refs, num_returns=len(refs), timeout=seconds)
        for task in (*self.lost_tasks, *(attempt.task for attempt in self.submitted.values())):
            tidy(task, self.started)

    def _submit_waiting(self) -> None:
        """Submit attempts in order, up to the limit. None overtakes another, so that none waits forever."""
        limit = max(IN_FLIGHT, 4 * sum(node.cpus for node in self.nodes))
        replaced = {replaced_file(attempt.task) for attempt in self.submitted.values()} - {""}
        while self.waiting and self.nodes and len(self.submitted) < limit:
            attempt = self.waiting[0]
            if not attempt.need:
                need = need_mb(attempt.task, _size_mb(attempt.task))
                attempt = self.waiting[0] = replace(attempt, need=need)
            file = replaced_file(attempt.task)
            if file in replaced:
                return
            self.waiting.popleft()
            attempt = replace(attempt, granted=_grant(attempt, self.nodes))
            replaced |= {file} - {""}
            self.submitted[self._submit(attempt)] = attempt

    def _submit(self, attempt: _Attempt) -> Any:
        resources: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(self.gpu), "max_retries": 0}
        if attempt.granted:
            resources["memory"] = attempt.granted << 20
        return self.function.options(**resources).remote(
            pickle.dumps(attempt.task), attempt.granted, *self.call
        )

    def _outcome(self, attempt: _Attempt, ref: Any) -> Outcome | None:
        """The outcome of an attempt that ended; None where the task will be retried."""
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
            return self._retry(attempt, error)
        if isinstance(reply, str):
            raise UsageError(f"--ray: {reply}")
        outcome: Outcome = replace(pickle.loads(reply), task=task, attempts=attempt.number)
        most = _largest_mb(self.nodes)
        if outcome.memory and attempt.granted < most and more_helps(outcome, attempt.granted):
            self.waiting.append(replace(attempt, need=most, number=attempt.number + 1))
            return None
        return _explained(outcome)

    def _retry(self, attempt: _Attempt, error: Exception) -> Outcome | None:
        """Retry a lost attempt after a pause; the outcome if it was the last one."""
        self.lost_tasks.append(attempt.task)
        if attempt.number <= len(PAUSES):
            until = time.monotonic() + PAUSES[attempt.number - 1]
            self.pausing.append((until, replace(attempt, number=attempt.number + 1)))
            return None
        memory = type(error).__name__ == "OutOfMemoryError"
        text = f"{attempt.task.source}: its Ray worker died {attempt.number} times: {_child.one_line(str(error))}"
        return Outcome(
            attempt.task, error=text, worker="died", attempts=attempt.number, memory=memory, crashed=True
        )

    def _check_nodes(self) -> None:
        """Update the nodes, and withdraw attempts that are too large for all of them.

        Raises:
            OnnxfixError: there has been no node for a minute.
        """
        self.nodes = cluster.nodes_of(self.ray, self.gpu)
        self.checked = time.monotonic()
        if self.nodes:
            self.node_seen = self.checked
        elif self.checked - self.node_seen > _NO_NODE_SECONDS:
            raise OnnxfixError("no node of the Ray cluster is left to work on")
        for ref, attempt in list(self.submitted.items()):
            if self.nodes and attempt.granted > _largest_mb(self.nodes):
                self.ray.cancel(ref)
                self.waiting.append(self.submitted.pop(ref))


def _explained(outcome: Outcome) -> Outcome:
    """The outcome; if a file is missing on the node but exists here, its error says why."""
    source = outcome.task.source
    if not outcome.missing or paths.remote(source) or not os.path.exists(source):
        return outcome
    where = f"on Ray's node {outcome.node}; with local paths, all nodes must share the folder"
    return replace(outcome, error=f"{outcome.error} ({where})")


def _size_mb(task: Task) -> float:
    """MiB of a task's model; of a remote one without its external data, which only the file itself lists."""
    if not paths.remote(task.source):
        return size_mb(task)
    from onnxfix.fleet.remote import store  # lazy: URLs only

    try:
        return store.size(task.source) / (1 << 20)
    except OnnxfixError:  # the model's own run reports it
        return 0.0


def _wants_gpu(task: Task) -> bool:
    verification = task.options.verification
    return not GPU_RUNGS.isdisjoint((*(verification.rungs or ()), *verification.require))


def _largest_mb(nodes: Sequence[cluster.Node]) -> int:
    """MiB of the largest node; 0 where there is none."""
    return max((node.memory_mb for node in nodes), default=0)


def _grant(attempt: _Attempt, nodes: Sequence[cluster.Node]) -> int:
    """MiB to request: a CPU's even share of the smallest node, more if that is too little, at most the largest node."""
    share = min(node.memory_mb // node.cpus for node in nodes)
    return min(max(share, attempt.need), _largest_mb(nodes))


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


def _entry() -> Callable[..., Any]:
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
            from onnxfix.fleet.ray.executor import same_installation, settle  # lazy: as above
            from onnxfix.fleet.work import perform  # lazy: as above
        except ImportError as error:
            return f"onnxfix cannot be imported by process {where} ({error}); install the same onnxfix on each node"
        os.environ["ONNXFIX_PACKS"] = packs  # before any rule is loaded
        if same_installation() != expected:
            return (
                f"process {where} has another version of onnxfix or other rules; "
                "install the same onnxfix on each node"
            )
        settle(memory_mb, folder)
        return pickle.dumps(replace(perform(pickle.loads(payload)), worker=where, node=node))

    return work
