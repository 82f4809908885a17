"""Runs models, and parts of them, in the sandbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfix.diagnosis import child
from onnxfix.diagnosis.child import Reply, Values
from onnxfix.diagnosis.graph import Graph, Part
from onnxfix.errors import Fault
from onnxfix.runtime.causes import ENDED
from onnxfix.runtime.sandbox import Outcome, Worker, note

_CHILD = "onnxfix.diagnosis.child"
_LEAST = 5.0  # seconds
_FEW = 32  # nodes that are evaluated in Python

Run = Callable[[ModelProto, Values], Reply]
"""Runs a part of a model."""


class Clock:
    """A deadline of ``seconds`` from now (None: none)."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether it has passed."""
        return self._end is not None and time.monotonic() > self._end

    def within(self, seconds: float) -> float:
        """At most these seconds, and until the deadline; never less than what starting a child takes."""
        if self._end is None:
            return seconds
        return min(seconds, max(_LEAST, self._end - time.monotonic()))


class Inside(Worker):
    """A worker in the sandbox itself, for ``child.run``."""

    def call(self, target: str, *, timeout: float, positional: Any = (), **kwargs: Any) -> Outcome:
        """What it returns. The call has the whole time again."""
        note("")
        return Outcome("ok", child.run(*positional, **kwargs))


@dataclass
class Bench:
    """The sandbox ``worker``, a ``scratch`` folder, and the seconds that one call may take, within ``clock``. ``runs``
    counts what was executed, in whole graphs. ``rounding``: values in half precision are rounded between nodes
    (``child.exact``). ``evaluated``: a part ran in the reference evaluator."""

    worker: Worker
    scratch: Path
    timeout: float = 600.0
    runs: float = 0.0
    clock: Clock = field(default_factory=Clock)
    rounding: bool = True
    evaluated: bool = False
    _files: int = field(default=0, repr=False)

    def inside(self) -> Bench:
        """The same in the sandbox."""
        return replace(self, worker=Inside(), runs=0.0, evaluated=False)

    def path(self, ending: str = "") -> Path:
        """A new file in the scratch folder."""
        self._files += 1
        return self.scratch / f"{self._files}{ending}"

    def run(
        self,
        model: ModelProto,
        feed: Values,
        *,
        of: Graph | None = None,
        backend: str = "ort-cpu",
        moved: float = 0.0,
        seed: int = 0,
    ) -> Reply:
        """Run a part of the graph ``of``; a child that dies is a reply too. A part of a few nodes for which ONNX
        Runtime has no kernel runs in the reference evaluator.

        Raises:
            Fault: the sandbox's own code failed.
        """
        self.runs += of.share(model) if of is not None else 0.0
        data = model.SerializeToString()
        where: dict[str, Any] = {"folder": of.folder, "mapped": of.mapped} if of is not None else {}
        reply = self._run(data, feed, backend=backend, moved=moved, seed=seed, **where)
        if not reply.no_kernel or backend != "ort-cpu" or len(model.graph.node) > _FEW:
            return reply
        evaluated = self._run(data, feed, backend="reference", moved=moved, seed=seed, **where)
        self.evaluated |= not evaluated.error
        return reply if evaluated.error else evaluated

    def run_part(
        self,
        graph: Graph,
        numbers: Collection[int],
        outputs: Sequence[str],
        known: Values,
        *,
        moved: float = 0.0,
        run: Run | None = None,
    ) -> Reply:
        """Compute these outputs by these nodes of a graph, from the values that are ``known``. ``run`` runs the part
        instead of ONNX Runtime on the CPU.

        Raises:
            Fault: the sandbox's own code failed.
        """
        if not outputs:
            return Reply()
        part, inputs = graph.part(numbers, outputs, known)
        return _run_on(part, inputs, known, run or partial(self.run, of=graph, moved=moved))

    def run_apart(
        self,
        graph: Graph,
        regions: Sequence[Part],
        known: Values,
        *,
        moved: float = 0.0,
        seed: int = 0,
        run: Run | None = None,
    ) -> list[Reply]:
        """The same for regions that compute apart from each other: a reply for each. Those that do not run together
        are run in halves."""
        if not regions:
            return []
        part, inputs, names = graph.apart(regions, known)
        reply = _run_on(part, inputs, known, run or partial(self.run, of=graph, moved=moved, seed=seed))
        if not reply.error:
            return [Reply({name: reply.values[new] for name, new in one.items()}) for one in names]
        if len(regions) == 1:
            return [reply]
        half = len(regions) // 2
        some, others = (
            self.run_apart(graph, part, known, moved=moved, seed=seed, run=run)
            for part in (regions[:half], regions[half:])
        )
        return [*some, *others]

    def run_file(
        self, path: Path, feed: Values, *, backend: str = "ort-cpu", moved: float = 0.0, seed: int = 0
    ) -> Reply:
        """Run a model file. A fault of the sandbox's own code is a reply too: other models can still be run."""
        try:
            return self._run(str(path), feed, backend=backend, moved=moved, seed=seed)
        except Fault as error:
            return Reply(error=str(error), cause="fault", unable=True)

    def _run(self, model: bytes | str, feed: Values, **options: Any) -> Reply:
        outcome = self.worker.call(
            f"{_CHILD}:run",
            timeout=self.clock.within(self.timeout),
            model=model,
            feed=dict(feed),
            scratch=str(self.path(".onnx")),
            rounding=self.rounding,
            **options,
        )
        if outcome.ok:
            reply: Reply = outcome.value
            return (
                replace(reply, error=self.worker.starved(reply.error)) if reply.cause == "memory" else reply
            )
        if outcome.status == "error":
            raise Fault(outcome.message)
        return Reply(error=outcome.message, cause=ENDED[outcome.status], unable=outcome.status == "memory")

    def call(self, function: str, **arguments: Any) -> Any:
        """What another function of the child, or that of "module:function", returns.

        Raises:
            Fault: it failed, or the child died.
        """
        target = function if ":" in function else f"{_CHILD}:{function}"
        outcome = self.worker.call(target, timeout=self.clock.within(self.timeout), **arguments)
        if not outcome.ok:
            raise Fault(outcome.message)
        return outcome.value


def _run_on(part: ModelProto, inputs: Sequence[str], known: Values, run: Run) -> Reply:
    unknown = next((name for name in inputs if name not in known), None)
    if unknown is not None:
        return Reply(error=f"the value of {unknown} is not known", cause="fault")
    return run(part, {name: known[name] for name in inputs})
