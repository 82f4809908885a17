"""On a Ray cluster: each model a Ray task, wherever there is room for it.

Ray places the tasks; here is what Ray does not know of them: how much memory and which kind of node each needs, which
two must not run at once, and what to make of a worker that is lost. A lost worker's model is done again elsewhere, as
often as ``PAUSES`` has entries. Ray could do that by itself, but it would neither count nor stop where a model is too
large for every node (it retries those without end).

Workers share the driver's files: local paths mean the same on each node, or are URLs. They need the same onnxfix, which
each of them proves before its first model.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnxfix import _child
from onnxfix.errors import OnnxfixError, UsageError, explained
from onnxfix.fleet import cluster, paths
from onnxfix.fleet.budget import Size, more_helps, need_mb, size_of
from onnxfix.fleet.leftovers import tidy
from onnxfix.fleet.versions import versions
from onnxfix.fleet.work import Outcome, Task

PAUSES = (1.0, 5.0, 20.0)
"""Seconds after which a model whose worker was lost is begun again, each time. Ray takes a while to see that a node is
gone, and until then it may send work to it: attempts that follow at once would all be lost."""

IN_FLIGHT = 256
"""Tasks that Ray is given at once, or four for each CPU if that is more: it need not hold a whole fleet."""

GRACE = 10.0
"""Seconds that workers have to clean up after themselves when the run is interrupted."""

GPU_RUNGS = frozenset(("ort-cuda", "trt-gpu"))

_SLICE = 0.5  # seconds that a wait blocks, so that an interrupt is heard
_LOOK_SECONDS = 5.0  # between two looks at the nodes
_LONELY_SECONDS = 60.0  # without any node, until the run is given up

Progress = Callable[[Task, str], None]


class RayExecutor:
    """Does tasks on the cluster at ``address`` (see ``cluster.connected``)."""

    def __init__(self, address: str = "auto") -> None:
        self.address = address

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> Iterator[Outcome]:
        """See ``work.Executor``. ``progress`` is not called: which of its tasks Ray has begun is not told.

        Raises:
            UsageError: Ray is not installed, there is no cluster, it lacks a GPU that is asked for, or a node has
                another onnxfix.
            OnnxfixError: no node is left, or not the one through which we are connected.
        """
        if not tasks:
            return
        with cluster.connected(self.address) as ray:
            flight = _Flight(ray, tasks)
            try:
                yield from flight.outcomes()
            finally:
                flight.end()


@dataclass(frozen=True)
class _Attempt:
    """A task that is to be done for the ``number``-th time. ``need`` and ``granted`` are MiB; 0 where not known yet."""

    task: Task
    number: int = 1
    need: int = 0
    granted: int = 0
    claims: frozenset[str] = field(default=frozenset())


class _Flight:
    """The tasks of a run: those that wait here, those that Ray holds, and those that pause after a loss."""

    def __init__(self, ray: Any, tasks: Sequence[Task]) -> None:
        self.ray = ray
        self.began = time.time()
        self.waiting = deque(_Attempt(task) for task in tasks)
        self.flying: dict[Any, _Attempt] = {}
        self.pausing: list[tuple[float, _Attempt]] = []
        self.lost: list[Task] = []
        self.gpu = any(_wants_gpu(task) for task in tasks)
        self.nodes = cluster.nodes_of(ray, self.gpu)
        self.looked = self.seen = time.monotonic()
        self.function = ray.remote(_entry())
        self.call = (same_installation(), os.getcwd())
        if not self.nodes:
            gpu = " and a GPU, which a rung that was asked for needs" if self.gpu else ""
            raise UsageError(f"--ray: no node of the cluster has a CPU{gpu}")

    def outcomes(self) -> Iterator[Outcome]:
        """Each task's outcome, as it comes."""
        while self.waiting or self.flying or self.pausing:
            self._wake()
            self._launch()
            for ref in self._ready():
                outcome = self._landed(self.flying.pop(ref), ref)
                if outcome is not None:
                    yield outcome
            if time.monotonic() - self.looked > _LOOK_SECONDS:
                self._look()

    def _wake(self) -> None:
        """Let those wait in line whose pause is over."""
        now = time.monotonic()
        self.waiting.extend(attempt for until, attempt in self.pausing if until <= now)
        self.pausing = [one for one in self.pausing if one[0] > now]

    def _ready(self) -> list[Any]:
        """References of attempts that ended; none after a moment."""
        if not self.flying:  # all that is left pauses, or no node is there
            time.sleep(_SLICE)
            return []
        ready, _ = self.ray.wait(list(self.flying), num_returns=1, timeout=_SLICE)
        return list(ready)

    def end(self) -> None:
        """Cancel what is under way, first as Ctrl-C would, then by force; delete what lost workers left."""
        self.waiting.clear()
        refs = list(self.flying)
        for forced, seconds in ((False, GRACE), (True, _SLICE)):
            if not refs:
                break
            for ref in refs:
                with contextlib.suppress(Exception):  # it may have ended, or its node may be gone
                    self.ray.cancel(ref, force=forced)
            _, refs = self.ray.wait(refs, num_returns=len(refs), timeout=seconds)
        for task in (*self.lost, *(attempt.task for attempt in self.flying.values())):
            tidy(task, self.began)

    def _launch(self) -> None:
        """Give Ray what it may have. Who comes later does not overtake, so that nobody waits for ever."""
        limit = max(IN_FLIGHT, 4 * sum(node.cpus for node in self.nodes))
        held = {claim for attempt in self.flying.values() for claim in attempt.claims}
        while self.waiting and self.nodes and len(self.flying) < limit:
            attempt = self.waiting[0]
            if not attempt.need:
                size = _size(attempt.task)
                need = need_mb(attempt.task, size)
                attempt = self.waiting[0] = replace(attempt, need=need, claims=size.claims)
            if held & attempt.claims and self.flying:
                return
            self.waiting.popleft()
            attempt = replace(attempt, granted=_grant(attempt, self.nodes))
            held |= attempt.claims
            self.flying[self._sent(attempt)] = attempt

    def _sent(self, attempt: _Attempt) -> Any:
        asked: dict[str, Any] = {"num_cpus": 1, "num_gpus": int(self.gpu), "max_retries": 0}
        if attempt.granted:
            asked["memory"] = attempt.granted << 20
        return self.function.options(**asked).remote(pickle.dumps(attempt.task), attempt.granted, *self.call)

    def _landed(self, attempt: _Attempt, ref: Any) -> Outcome | None:
        """What came of an attempt; None where the task has to be begun again."""
        from ray.exceptions import LocalRayletDiedError, RayError, RayTaskError

        task = attempt.task
        try:
            reply = self.ray.get(ref)
        except RayTaskError as error:
            text = explained(error.cause if isinstance(error.cause, Exception) else error, task.source)
            return Outcome(task, error=text, attempts=attempt.number)
        except LocalRayletDiedError:
            raise OnnxfixError("the Ray node through which this run is connected died") from None
        except RayError as error:  # whatever a lost worker, node or result is called
            return self._lost(attempt, error)
        if isinstance(reply, str):
            raise UsageError(f"--ray: {reply}")
        outcome: Outcome = replace(pickle.loads(reply), task=task, attempts=attempt.number)
        most = _most(self.nodes)
        if outcome.memory and attempt.granted < most and more_helps(outcome, attempt.granted):
            self.waiting.append(replace(attempt, need=most, number=attempt.number + 1))
            return None
        return self._hinted(outcome)

    def _lost(self, attempt: _Attempt, error: Exception) -> Outcome | None:
        self.lost.append(attempt.task)
        if attempt.number <= len(PAUSES):
            until = time.monotonic() + PAUSES[attempt.number - 1]
            self.pausing.append((until, replace(attempt, number=attempt.number + 1)))
            return None
        memory = type(error).__name__ == "OutOfMemoryError"
        text = f"{attempt.task.source}: its Ray worker died {attempt.number} times: {_child.one_line(str(error))}"
        return Outcome(
            attempt.task, error=text, worker="died", attempts=attempt.number, memory=memory, crashed=True
        )

    def _hinted(self, outcome: Outcome) -> Outcome:
        """The outcome; of a file that is missing there and not here, with the reason."""
        source = outcome.task.source
        if not outcome.missing or paths.remote(source) or not os.path.exists(source):
            return outcome
        where = f"on Ray's node {outcome.node}; with local paths, all nodes must share the folder"
        return replace(outcome, error=f"{outcome.error} ({where})")

    def _look(self) -> None:
        """See which nodes are left, and take back what none of them has room for.

        Raises:
            OnnxfixError: there has been none for a minute.
        """
        self.nodes = cluster.nodes_of(self.ray, self.gpu)
        self.looked = time.monotonic()
        if self.nodes:
            self.seen = self.looked
        elif self.looked - self.seen > _LONELY_SECONDS:
            raise OnnxfixError("no node of the Ray cluster is left to work on")
        for ref, attempt in list(self.flying.items()):
            if self.nodes and attempt.granted > _most(self.nodes):
                self.ray.cancel(ref)
                self.waiting.append(self.flying.pop(ref))


def _size(task: Task) -> Size:
    """The size of a task's model, of a remote one without its external data: those are named in it."""
    if not paths.remote(task.source):
        return size_of(task)
    try:
        return Size(paths.size(task.source) / (1 << 20))
    except OnnxfixError:  # its own run tells
        return Size()


def _wants_gpu(task: Task) -> bool:
    asked = task.options.verification
    return not GPU_RUNGS.isdisjoint((*(asked.rungs or ()), *asked.require))


def _most(nodes: Sequence[cluster.Node]) -> int:
    """MiB of the largest node; 0 where there is none."""
    return max((node.memory_mb for node in nodes), default=0)


def _grant(attempt: _Attempt, nodes: Sequence[cluster.Node]) -> int:
    """MiB to ask for: what a CPU's even share is everywhere, more where that is too little, at most a whole node."""
    share = min(node.memory_mb // node.cpus for node in nodes)
    return min(max(share, attempt.need), _most(nodes))


def same_installation() -> str:
    """Equal on two machines whose onnxfix does the same."""
    found = versions()
    return repr(
        sorted((name, found[name]) for name in found if name == "onnxfix" or name.startswith("source"))
    )


def settle(memory_mb: int, folder: str) -> None:
    """On a worker, before each task: go to the driver's folder, so that relative paths mean the same, and limit what
    the sandbox's children take to one task's share."""
    # With URLs alone no folder is needed; a file that is missing is told for its model.
    with contextlib.suppress(OSError):
        os.chdir(folder)
    os.environ[_child.CORES] = "1"
    if memory_mb:
        os.environ[_child.MEMORY_MB] = str(memory_mb)


def _entry() -> Callable[..., Any]:
    """The remote function. It is made here so that it travels by value: where onnxfix is missing it can say so."""

    def work(payload: bytes, memory_mb: int, expected: str, folder: str) -> bytes | str:
        """An ``Outcome``, pickled, or in words why this node does no work."""
        import os
        import pickle
        from dataclasses import replace

        import ray

        node = ray.util.get_node_ip_address()
        where = f"{os.getpid()} on {node}"
        try:
            from onnxfix.fleet.ray_ import same_installation, settle
            from onnxfix.fleet.work import perform
        except ImportError as error:
            return f"onnxfix cannot be imported by process {where} ({error}); install the same onnxfix on each node"
        if same_installation() != expected:
            return (
                f"process {where} has another onnxfix or other rules; install the same onnxfix on each node"
            )
        settle(memory_mb, folder)
        return pickle.dumps(replace(perform(pickle.loads(payload)), worker=where, node=node))

    return work
