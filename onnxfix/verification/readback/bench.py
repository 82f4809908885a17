"""The sandbox in which a model and the network that TensorRT made of it run, one after the other."""

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
from onnxfix.verification.readback.child import THREADS, Told
from onnxfix.verification.request import REMOTE

_CHILD = "onnxfix.verification.readback.child"
_DROPPING = 30.0  # seconds
_KEPT = 512 << 20  # bytes of outputs that are kept at once
_DEATHS = 3  # of the child: then it is left alone
#: How each backend runs a model here. Several threads: nothing is asked for bit by bit. CUDA's kernels check no index,
#: so that the original is put to the CPU first.
_OPTIONS: dict[str, dict[str, Any]] = {"ort-cpu": {"threads": THREADS}}


class Bench:
    """Runs one model at a time and keeps what was computed until it is compared. ``step`` is in seconds."""

    def __init__(self, worker: Worker, step: float) -> None:
        self._worker, self.step = worker, step
        self._generation = -1
        self._held: set[tuple[str, str]] = set()
        self.deaths = 0
        if worker.pid is not None:  # what the ladder's other rungs have loaded
            worker.call(f"{REMOTE}:drop", timeout=_DROPPING)
        self.drop()

    def drop(self) -> None:
        """Let go of everything."""
        self._held.clear()
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
        """What the function gives, or Told of a child that died."""
        outcome = self._worker.call(f"{_CHILD}:{function}", timeout=self.step, **arguments)
        if outcome.ok:
            value = outcome.value
            starved = isinstance(value, Told) and value.starved
            return replace(value, error=self._worker.starved(value.error)) if starved else value
        if outcome.status == "error":  # what models do wrong comes back as a value
            raise Fault(outcome.message)
        self.deaths += 1
        return Told(outcome.message, died=True, cause=ENDED[outcome.status])

    def sketch(self, path: str) -> ModelProto | Told:
        """The model file without its weights, or why it cannot be read."""
        outcome = self._worker.call(f"{_CHILD}:sketch", timeout=self.step, path=path)
        if outcome.ok:
            return outcome.value if isinstance(outcome.value, Told) else ModelProto.FromString(outcome.value)
        return Told(one_line(outcome.message), died=outcome.status != "error", cause=ENDED[outcome.status])

    def load(self, backend: str, path: str, *, guarded: bool = False) -> Told:
        """Load a model file in place of the last; ``guarded``: the CPU must take what CUDA is given."""
        options = {"guarded": True} if guarded and backend == "ort-cuda" else _OPTIONS.get(backend, {})
        return self._loaded(backend=backend, path=path, options=options)

    def load_with(self, backend: str, path: str, names: Sequence[str], scratch: str) -> Told:
        """The same with these tensors for outputs. CUDA's place is taken by the CPU."""
        backend = "ort-cpu" if backend == "ort-cuda" else backend
        return self._loaded(backend=backend, path=path, extra=tuple(names), scratch=scratch)

    def _loaded(self, **arguments: Any) -> Told:
        if not self.alive:
            self._held.clear()
        told: Told = self._call("load", **arguments)
        self._generation = self._worker.generation
        return told

    def unload(self) -> None:
        """Let go of the model, and keep what it computed."""
        self._call("unload")

    def run(
        self,
        side: str,
        key: str,
        feed: Mapping[str, Any],
        wires: Mapping[str, tuple[str, int]] | None = None,
        *,
        moved: bool = False,
    ) -> Told:
        """Run the model that is loaded; see ``network_child.run``."""
        told: Told = self._call("run", side=side, key=key, feed=dict(feed), wires=wires, moved=moved)
        if not told.error:
            self._held.add((side, key))
        return told

    def holds(self, side: str, key: str) -> bool:
        """Whether what was computed is still there."""
        return self.alive and (side, key) in self._held

    def judge(
        self,
        key: str,
        pairs: Sequence[tuple[str, str]],
        coarse: str,
        noise: Mapping[str, float] | None = None,
    ) -> tuple[Metrics, ...] | Told:
        """See ``network_child.judge``; Told where what is to be compared was lost with the sandbox."""
        if not self.alive:
            return Told("the sandbox ended, and with it what was computed", died=True)
        found: tuple[Metrics, ...] | Told = self._call(
            "judge", key=key, pairs=tuple(pairs), coarse=coarse, noise=dict(noise or {})
        )
        return found

    def wobble(self, key: str, names: Sequence[str]) -> dict[str, float]:
        """See ``network_child.wobble``; nothing where the child died, of it or before."""
        if not self.alive:
            return {}
        found = self._call("wobble", key=key, names=tuple(names))
        return {} if isinstance(found, Told) else found

    def forget(self, key: str) -> None:
        """Let go of what was computed for a feed."""
        self._held = {one for one in self._held if one[1] != key}
        self._call("forget", key=key)


@dataclass
class Tried:
    """Puts inputs to the model. ``taken`` are the keys under which the sandbox keeps what it computed, in order;
    ``words`` what it said of those that it did not take."""

    bench: Bench
    load: Callable[[], Told]
    taken: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    kept: int = 0

    def expect(self, values: dict[str, Any]) -> Ran:
        """What ``Finder`` asks: whether the model takes these inputs."""
        if self.kept > _KEPT:
            return Ran(error="there is no room for the outputs of more inputs")
        if self.bench.spent:
            return Ran(error="too many runs ended the process")
        again = Told() if self.bench.alive else self.load()
        key = str(len(self.taken) + len(self.words))
        came = again if again.error else self.bench.run("onnx", key, values)
        if came.error:
            self.words.append(came.error)
            self.causes.append(came.cause)
            return Ran(error=came.error, cause=came.cause)
        self.kept += came.size
        self.taken.append(key)
        return Ran()
