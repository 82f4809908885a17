"""How much memory the models that run at once may use together, and which tasks have to wait.

The tasks that run at once stay below three quarters of the memory that is available when the run begins (a container's
limit counts, see ``_child.default_memory_mb``). It is divided evenly among the jobs. A model that needs more than an
even share by the estimate below gets more, up to all of it, and waits for that while no later task overtakes it. One
model runs in any case. Each process of a job (the worker, and the sandbox children that it starts) is limited to the
job's grant by RLIMIT_DATA.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from onnxfix.allowance import structure_limit
from onnxfix.fleet.work import Outcome, Task
from onnxfix.record import record

MINIMUM_MB = 1024
"""MiB of the smallest grant: imports, ONNX Runtime and a small model take 250 to 500 MiB of address space."""

_BASE_MB = 512
_WORKER, _RUNTIME, _TENSORRT, _IN_MEMORY = 0.25, 2.2, 3.5, 4.0
"""Memory as a multiple of the weights: of the worker alone, ONNX Runtime, TensorRT, other tools that edit the model."""

_GPU_RUNGS = ("ort-cuda", "trt-build", "trt-network", "trt-gpu")


@record
class Size:
    """The size of a task: ``data_mb`` are the MiB of its model's file and external data.

    ``claims`` is the file that it replaces. Two models with a claim in common must not run at once: of two links to one
    file, the second must find the fixed model.
    """

    data_mb: float = 0.0
    claims: frozenset[str] = frozenset()


def size_of(task: Task) -> Size:
    """The size of a task's model; zero for a model that cannot be read, which its own run reports."""
    from onnxfix.files import loading  # lazy: start-up
    from onnxfix.files.bounds import Budget  # lazy: start-up

    source = Path(task.source)
    try:
        size = source.stat().st_size
        with structure_limit(task.options.structure_mb):
            locations = loading.open_model(source, budget=Budget()).external
    except Exception:  # whatever it is, it must not end the other models' run
        return Size()
    for location in locations:
        with contextlib.suppress(OSError):  # the model's own run reports missing data
            size += (source.parent / location).stat().st_size
    claims = frozenset((str(source.resolve()),)) if task.options.output.in_place else frozenset[str]()
    return Size(size / (1 << 20), claims)


def need_mb(task: Task, size: Size) -> int:
    """Estimated MiB that a process of this task uses.

    Measured on full-size exports of 16 to 440 MB: the worker takes 80 to 110 MiB whatever the weights, ONNX Runtime's
    child twice the weights, and TensorRT's child what ``backends.tensorrt.need_mb`` says, which is 3.5 times the
    weights if they are in the model's file. Activations come on top and are unknown in advance: 7 times the weights on
    ViT in half precision, 6 GiB on SegFormer with 16 MB of weights. A model that exceeds its share is retried alone.
    """
    options = task.options
    if task.command == "check":
        factor = _TENSORRT if options.trt is not None else _WORKER
    elif not options.verification.enabled:
        factor = _WORKER
    else:
        judged = options.verification
        rungs = None if judged.rungs is None else {*judged.rungs, *judged.require}
        factor = _TENSORRT if rungs is None or rungs.intersection(_GPU_RUNGS) else _RUNTIME
    if options.fixes.simplify or options.fixes.graphsurgeon:
        factor = max(factor, _IN_MEMORY)
    need = int(_BASE_MB + factor * size.data_mb)
    return need if options.memory_mb is None else min(need, _BASE_MB + options.memory_mb)


def more_helps(outcome: Outcome, granted: int) -> bool:
    """Whether a model that ran out of ``granted`` MiB may succeed with more.

    It may not if it ran into the user's own limit for sandbox children, or if its file has been replaced already.
    """
    options, report = outcome.task.options, outcome.report
    if report is None:
        return True
    users_limit = options.memory_mb is not None and options.memory_mb <= granted and not report.problems
    return not users_limit and not (report.output and options.output.in_place)


class Closed(Exception):
    """The run ends: nothing more is granted."""


class Budget:
    """Grants memory to tasks in the order of their requests. ``total_mb`` None: unknown, so nothing is limited."""

    def __init__(self, total_mb: int | None, jobs: int) -> None:
        self.total_mb = total_mb
        self.jobs = jobs
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._granted: dict[object, tuple[int, frozenset[str]]] = {}
        self._closed = False

    @property
    def share_mb(self) -> int | None:
        """MiB of a job's even share."""
        if self.total_mb is None:
            return None
        return min(self.total_mb, max(MINIMUM_MB, self.total_mb // self.jobs))

    def amount(self, need: int) -> int | None:
        """MiB granted to a task that needs ``need``: the even share, or more if that is too little, or all."""
        share = self.share_mb
        return None if share is None or self.total_mb is None else min(self.total_mb, max(share, need))

    def queue(self) -> object:
        """A ticket for ``grant``. Its holder must call ``grant``: all later tickets wait for that."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        return ticket

    @contextlib.contextmanager
    def grant(
        self, need: int, claims: frozenset[str] = frozenset(), ticket: object | None = None
    ) -> Iterator[int | None]:
        """Wait until there is room; yields the MiB that may be used, None for no limit.

        Without a ``ticket`` the request goes to the end of the queue.

        Raises:
            Closed: ``close`` was called.
        """
        amount = self.amount(need)
        ticket = self.queue() if ticket is None else ticket
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._waiting[0] is ticket and self._fits(amount or 0, claims))
            )
            self._waiting.remove(ticket)
            if self._closed:
                raise Closed
            self._granted[ticket] = (amount or 0, claims)
            self._changed.notify_all()  # the next in the queue may fit as well
        try:
            yield amount
        finally:
            with self._changed:
                del self._granted[ticket]
                self._changed.notify_all()

    def _fits(self, amount: int, claims: frozenset[str]) -> bool:
        if any(claims & others for _, others in self._granted.values()):
            return False
        used = sum(granted for granted, _ in self._granted.values())
        return self.total_mb is None or used + amount <= self.total_mb  # no grant exceeds the total

    def close(self) -> None:
        """Grant nothing more; whoever waits gets ``Closed``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
