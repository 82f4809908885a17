"""How much memory the models that are worked on at once may use together, and who has to wait.

What runs at once stays below three quarters of the memory that is available when the run begins (a container's limit
counts, see ``_child.default_memory_mb``). That is divided evenly among the jobs; a model for which one job's share is
too little by the rule of thumb below gets more, up to all of it, and waits for it while nobody who comes later
overtakes. One model runs in any case. Each process of a job (the worker, and the sandbox children that it starts) is
held to what the job was granted, by RLIMIT_DATA.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnxfix.fleet.work import Outcome, Task

LEAST_MB = 1024
"""MiB that a job gets at least: imports, ONNX Runtime and a small model take 250 to 500 MiB of address space."""

_BASE_MB = 512
_WORKER, _RUNTIME, _TENSORRT, _IN_MEMORY = 0.25, 2.2, 3.5, 4.0
"""Times the weights that these take: the worker alone, ONNX Runtime, TensorRT, other tools that change the model."""

_GPU_RUNGS = ("ort-cuda", "trt-build", "trt-network", "trt-gpu")


@dataclass(frozen=True)
class Size:
    """What a task weighs: ``data_mb`` are the MiB of its model's file and external data.

    ``claims`` are the external data files that its result brings to another folder, or the file that it replaces. Two
    models that share such a file must not run at once: the one that fails would take the data away from the other, and
    of two links to one file the second is to find the fixed one.
    """

    data_mb: float = 0.0
    claims: frozenset[str] = frozenset()


def size_of(task: Task) -> Size:
    """The size of a task's model; of one that cannot be read, nothing: its own run tells."""
    from onnxfix.files import loading

    source = Path(task.source)
    try:
        size = source.stat().st_size
        locations = loading.open_model(source).external
    except Exception:  # whatever it is, it must not end the other models' run
        return Size()
    for location in locations:
        with contextlib.suppress(OSError):  # missing data is told when the model's turn comes
            size += (source.parent / location).stat().st_size
    claims = frozenset((str(source.resolve()),)) if task.options.in_place else frozenset[str]()
    if task.target and locations:
        folder = Path(task.target).parent.resolve()
        claims = frozenset(str(folder / location) for location in locations)
    return Size(size / (1 << 20), claims)


def need_mb(task: Task, size: Size) -> int:
    """MiB that a process of this task uses, by rule of thumb.

    Measured on full-size exports of 16 to 440 MB: the worker takes 80 to 110 MiB whatever the weights, ONNX Runtime's
    child twice the weights, and TensorRT's what ``backends.tensorrt.need_mb`` says, which is 3.5 times weights in the
    model's own file. What a model computes comes on top and is not known before: 7 times the weights on ViT in half
    precision, 6 GiB on SegFormer with 16 MB of weights. A model that runs out of its share is tried again alone.
    """
    asked = task.options
    if task.command == "check":
        factor = _TENSORRT if asked.trt is not None else _WORKER
    elif not asked.verify:
        factor = _WORKER
    else:
        rungs = None if asked.rungs is None else {*asked.rungs, *asked.require}
        factor = _TENSORRT if rungs is None or rungs.intersection(_GPU_RUNGS) else _RUNTIME
    if asked.simplify or asked.graphsurgeon:
        factor = max(factor, _IN_MEMORY)
    need = int(_BASE_MB + factor * size.data_mb)
    return need if asked.memory_mb is None else min(need, _BASE_MB + asked.memory_mb)


def more_helps(outcome: Outcome, granted: int) -> bool:
    """Whether a model that lacked memory with ``granted`` MiB may do better with more: not where what the user allows
    its children is what they ran into, and not where its file has been replaced."""
    asked, report = outcome.task.options, outcome.report
    if report is None:
        return True
    bound = asked.memory_mb is not None and asked.memory_mb <= granted and not report.problems
    return not bound and not (report.output and asked.in_place)


class Closed(Exception):
    """The run ends: nothing more is granted."""


class Budget:
    """Grants memory to tasks in the order in which they ask. ``total_mb`` None: unknown, and nothing is limited."""

    def __init__(self, total_mb: int | None, jobs: int) -> None:
        self.total_mb = total_mb
        self.jobs = jobs
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._granted: dict[object, tuple[int, frozenset[str]]] = {}
        self._closed = False

    @property
    def share_mb(self) -> int | None:
        """MiB of a job whose model needs nothing special."""
        if self.total_mb is None:
            return None
        return min(self.total_mb, max(LEAST_MB, self.total_mb // self.jobs))

    def amount(self, need: int) -> int | None:
        """MiB that are granted to who needs ``need``: the even share, more where that is too little, or all."""
        share = self.share_mb
        return None if share is None or self.total_mb is None else min(self.total_mb, max(share, need))

    def queue(self) -> object:
        """A place in the line, for ``grant``: who has one has to ask, since all who come later wait for that."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        return ticket

    @contextlib.contextmanager
    def grant(
        self, need: int, claims: frozenset[str] = frozenset(), ticket: object | None = None
    ) -> Iterator[int | None]:
        """Wait until there is room; yields the MiB that may be used, None for no limit. Without a ``ticket`` the place
        in the line is the last one.

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
            self._changed.notify_all()  # who is first now may fit as well
        try:
            yield amount
        finally:
            with self._changed:
                del self._granted[ticket]
                self._changed.notify_all()

    def _fits(self, amount: int, claims: frozenset[str]) -> bool:
        if any(claims & held for _, held in self._granted.values()):
            return False
        used = sum(taken for taken, _ in self._granted.values())
        return self.total_mb is None or used + amount <= self.total_mb  # nobody is granted more than all

    def close(self) -> None:
        """Grant nothing more; whoever waits gets ``Closed``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
