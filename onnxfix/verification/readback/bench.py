"""The sandbox in which a model and the network that was read back run, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnx import ModelProto

from onnxfix.causes import ENDED, Cause
from onnxfix.errors import Fault
from onnxfix.sandbox import Worker, one_line
from onnxfix.trt.engine import Ran
from onnxfix.verification.compare.compare import Metrics
from onnxfix.verification.readback.child import THREADS, Reply
from onnxfix.verification.request import REMOTE

_CHILD = "onnxfix.verification.readback.child"
_DROPPING = 30.0  # seconds
_KEPT = 512 << 20  # bytes of outputs that are kept at once
_DEATHS = 3  # of the child, after which it is not used any more
#: How each backend loads a model here. Several threads, since identical bits are not required. CUDA's kernels check no
#: index, so the original runs on the CPU first.
_OPTIONS: dict[str, dict[str, Any]] = {"ort-cpu": {"threads": THREADS}}


class Bench:
    """Runs one model at a time and keeps its outputs until they are compared. ``step`` is in seconds."""

    def __init__(self, worker: Worker, step: float) -> None:
        self._worker, self.step = worker, step
        self._generation = -1
        self._held: set[tuple[str, str]] = set()
        self.loaded = ("", "")  # the backend and the file of the session
        self.deaths = 0
        if worker.pid is not None:  # what the ladder's other rungs have loaded
            worker.call(f"{REMOTE}:unload", timeout=_DROPPING)
        self.drop()

    def drop(self) -> None:
        """Release everything."""
        self._held.clear()
        self.loaded = ("", "")
        if self._worker.pid is not None:
            self._worker.call(f"{_CHILD}:drop", timeout=_DROPPING)

    @property
    def alive(self) -> bool:
        """Whether the sandbox is the one that the last model was loaded in."""
        return self._worker.pid is not None and self._worker.generation == self._generation

    @property
    def spent(self) -> bool:
        """Whether too many models ended it."""
        return self.deaths >= _DEATHS

    def _call(self, function: str, **arguments: Any) -> Any:
        """What the function returns, or a Reply about a child that died."""
        outcome = self._worker.call(f"{_CHILD}:{function}", timeout=self.step, **arguments)
        if outcome.ok:
            value = outcome.value
            starved = isinstance(value, Reply) and value.starved
            return replace(value, error=self._worker.starved(value.error)) if starved else value
        if outcome.status == "error":  # errors of models come back as values
            raise Fault(outcome.message)
        self.deaths += 1
        return Reply(outcome.message, died=True, cause=ENDED[outcome.status])

    def sketch(self, path: str) -> ModelProto | Reply:
        """The model file without its weights, or why it cannot be read."""
        outcome = self._worker.call(f"{_CHILD}:sketch", timeout=self.step, path=path)
        if outcome.ok:
            return outcome.value if isinstance(outcome.value, Reply) else ModelProto.FromString(outcome.value)
        return Reply(one_line(outcome.message), died=outcome.status != "error", cause=ENDED[outcome.status])

    def load(self, backend: str, path: str, *, guarded: bool = False) -> Reply:
        """Load a model file in place of the last; ``guarded``: the CPU must accept the inputs that CUDA gets."""
        options = {"guarded": True} if guarded and backend == "ort-cuda" else _OPTIONS.get(backend, {})
        return self._loaded(backend=backend, path=path, options=options)

    def load_with(self, backend: str, path: str, names: Sequence[str], scratch: str) -> Reply:
        """The same with these tensors as outputs, and on the CPU instead of CUDA."""
        backend = "ort-cpu" if backend == "ort-cuda" else backend
        return self._loaded(backend=backend, path=path, extra=tuple(names), scratch=scratch)

    def _loaded(self, **arguments: Any) -> Reply:
        if not self.alive:
            self._held.clear()
        reply: Reply = self._call("load", **arguments)
        self._generation = self._worker.generation
        whole = not reply.error and "extra" not in arguments
        self.loaded = (arguments["backend"], arguments["path"]) if whole else ("", "")
        return reply

    def knows(self, path: str) -> bool:
        """Whether the rung of ONNX Runtime has left outputs of the model in the sandbox."""
        return self._worker.pid is not None and self._call("knows", path=path) is True

    def recall(self, key: str, path: str, feed: Mapping[str, Any]) -> Reply | None:
        """Take outputs that were left there for a run of the model; None where there are none on this feed."""
        found: Reply | None = self._call("recall", key=key, path=path, feed=dict(feed))
        if self._worker.generation != self._generation:  # a child that has nothing yet
            self._held.clear()
            self.loaded = ("", "")
        self._generation = self._worker.generation
        if found is not None and not found.error:
            self._held.add(("onnx", key))
        return found

    def unload(self) -> None:
        """Release the model, but keep its outputs."""
        self.loaded = ("", "")
        self._call("unload")

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
        reply: Reply = self._call("run", side=side, key=key, feed=dict(feed), wires=wires, moved=moved)
        if not reply.error:
            self._held.add((side, key))
        return reply

    def holds(self, side: str, key: str) -> bool:
        """Whether the outputs are still there."""
        return self.alive and (side, key) in self._held

    def judge(
        self,
        key: str,
        pairs: Sequence[tuple[str, str]],
        coarse: str,
        noise: Mapping[str, float] | None = None,
    ) -> tuple[Metrics, ...] | Reply:
        """See ``child.judge``; Reply where the outputs were lost with the sandbox."""
        if not self.alive:
            return Reply("the sandbox ended and its results are lost", died=True)
        found: tuple[Metrics, ...] | Reply = self._call(
            "judge", key=key, pairs=tuple(pairs), coarse=coarse, noise=dict(noise or {})
        )
        return found

    def wobble(self, key: str, names: Sequence[str]) -> dict[str, float]:
        """See ``child.wobble``; empty where the child died."""
        if not self.alive:
            return {}
        found = self._call("wobble", key=key, names=tuple(names))
        return {} if isinstance(found, Reply) else found

    def chooses_alike(
        self, key: str, data: tuple[str, str], pair: tuple[str, str], axis: int, coarse: str
    ) -> bool:
        """See ``child.chooses_alike``; False where the child died."""
        arguments = {"key": key, "data": data, "pair": pair, "axis": axis, "coarse": coarse}
        return self.alive and self._call("chooses_alike", **arguments) is True

    def forget(self, key: str) -> None:
        """Release the outputs for a feed."""
        self._held = {one for one in self._held if one[1] != key}
        self._call("forget", key=key)


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
        if self.bench.spent:
            return Ran(error="too many runs ended the process")
        key = str(len(self.taken) + len(self.words))
        ran = self.bench.recall(key, self.path, values) if self.path else None
        runs = 1  # those of the network
        if ran is None or ran.died:
            runs = 2
            again = Reply() if self.bench.alive and self.bench.loaded[1] else self.load()
            ran = again if again.error else self.bench.run("onnx", key, values)
        if ran.error:
            if ran.cause == "timeout" and not self.taken:  # the inputs are not why: others would take as long
                self.bench.deaths = _DEATHS
            self.words.append(ran.error)
            self.causes.append(ran.cause)
            return Ran(error=ran.error, cause=ran.cause)
        self.kept += ran.size
        self.taken.append(key)
        return Ran(seconds=runs * ran.seconds)
