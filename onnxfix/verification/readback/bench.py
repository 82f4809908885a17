"""The sandbox in which a model and the network that was read back run, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnxfix.causes import ENDED, Cause
from onnxfix.errors import Fault
from onnxfix.sandbox import Worker
from onnxfix.trt.engine import Ran
from onnxfix.verification.readback.child import THREADS, Reply
from onnxfix.verification.request import REMOTE

_CHILD = "onnxfix.verification.readback.child"
_DROPPING = 30.0  # seconds
_KEPT = 512 << 20  # bytes of outputs that are kept at once
_DEATHS = 3  # of the child, after which it is not used any more


class Bench:
    """Runs one model at a time and keeps its outputs until they are compared. ``step`` is in seconds, ``deaths`` counts
    how often a model ended the child."""

    def __init__(self, worker: Worker, step: float) -> None:
        self._worker, self.step = worker, step
        self.deaths = 0
        if worker.pid is not None:  # what the ladder's other rungs have loaded
            worker.call(f"{REMOTE}:unload", timeout=_DROPPING)
        self.drop()

    def drop(self) -> None:
        """Release everything."""
        if self._worker.pid is not None:
            self._worker.call(f"{_CHILD}:drop", timeout=_DROPPING)

    def ask(self, function: str, **arguments: Any) -> Reply:
        """Call a function of ``child``. What it returns is a reply, or the ``value`` of one."""
        outcome = self._worker.call(f"{_CHILD}:{function}", timeout=self.step, **arguments)
        if outcome.status == "error":  # errors of models come back as values
            raise Fault(outcome.message)
        if not outcome.ok:
            self.deaths += 1
            return Reply(outcome.message, died=True, cause=ENDED[outcome.status])
        reply = outcome.value if isinstance(outcome.value, Reply) else Reply(value=outcome.value)
        return replace(reply, error=self._worker.starved(reply.error)) if reply.starved else reply

    def load(self, backend: str, path: str, *, guarded: bool = False) -> Reply:
        """Load a model file in place of the last; ``guarded``: the CPU must accept the inputs that CUDA gets, whose
        kernels check no index. Several threads run on the CPU, since identical bits are not required."""
        options: dict[str, Any] = {"threads": THREADS} if backend == "ort-cpu" else {}
        options = {"guarded": True} if guarded and backend == "ort-cuda" else options
        return self.ask("load", backend=backend, path=path, options=options)

    def load_with(self, backend: str, path: str, names: Sequence[str], scratch: str) -> Reply:
        """The same with these tensors as outputs, and on the CPU instead of CUDA."""
        backend = "ort-cpu" if backend == "ort-cuda" else backend
        return self.ask("load", backend=backend, path=path, extra=tuple(names), scratch=scratch)

    def run(
        self,
        side: str,
        key: str,
        feed: Mapping[str, Any],
        wires: Mapping[str, tuple[str, int]] | None = None,
        *,
        moved: bool = False,
    ) -> Reply:
        """Run the model that is loaded; see ``child.run``."""
        return self.ask("run", side=side, key=key, feed=dict(feed), wires=wires, moved=moved)

    def judge(
        self,
        key: str,
        pairs: Sequence[tuple[str, str]],
        coarse: str,
        noise: Mapping[str, float] | None = None,
    ) -> Reply:
        """See ``child.judge``; the metrics are the reply's ``value``."""
        return self.ask("judge", key=key, pairs=tuple(pairs), coarse=coarse, noise=dict(noise or {}))


@dataclass
class Tried:
    """Tries inputs on the model, which ``load`` loads where it has to run. ``path`` is its file where outputs of it
    were left ("": nowhere). ``taken`` are the keys under which the sandbox keeps its outputs, in order; ``words``
    are the errors for inputs that it rejects."""

    bench: Bench
    load: Callable[[], Reply]
    path: str = ""
    taken: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    kept: int = 0

    def expect(self, values: dict[str, Any]) -> Ran:
        """Whether the model accepts these inputs, for ``Finder``, and the seconds of the processor that a comparison on
        them costs."""
        if self.kept > _KEPT:
            return Ran(error="no memory for the outputs of more inputs")
        if self.bench.deaths >= _DEATHS:
            return Ran(error="too many runs ended the process")
        key = str(len(self.taken) + len(self.words))
        left = self.bench.ask("recall", key=key, path=self.path, feed=dict(values)) if self.path else Reply()
        runs = 1  # those of the network
        reply = left
        if not left.recalled:
            runs = 2
            reply = self.bench.run("onnx", key, values)
            if reply.unloaded:
                reply = self.load()
                reply = reply if reply.error else self.bench.run("onnx", key, values)
        if reply.error:
            if reply.cause == "timeout" and not self.taken:
                self.bench.deaths = _DEATHS  # the inputs are not why: others would take as long
            self.words.append(reply.error)
            self.causes.append(reply.cause)
            return Ran(error=reply.error, cause=reply.cause)
        self.kept += reply.size
        self.taken.append(key)
        return Ran(seconds=runs * reply.seconds)
