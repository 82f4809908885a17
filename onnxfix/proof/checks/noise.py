"""How far the original's own rounding moves its outputs: the tolerance for engines, which sum in another order.

A tolerance by type alone is too narrow for a deep model and too wide for a shallow one. So where an engine is out of
tolerance, the original runs again on the same inputs in ways that are equally right: with its inputs moved by one part
in ten million; with its weights moved by as much where it has no float inputs; with ONNX Runtime's fusions, which sum
in another order; and in float64 where there are kernels (half precision: in float32). Their distance from the original
is its noise.

``measure`` runs in the sandbox's child.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from onnxfix.files import walk
from onnxfix.graph.order import unfolded
from onnxfix.proof import copies
from onnxfix.proof.checks.judge import Judgment, Terms, judge
from onnxfix.proof.compare import twin
from onnxfix.proof.compare.tolerance import shaken, wide
from onnxfix.proof.request import Trial
from onnxfix.runtime import backends
from onnxfix.runtime.backends import Session
from onnxfix.runtime.sandbox import Worker, note
from onnxfix.tensorrt.engine import Ran

SHARE = 32.0
"""How many times its noise an output of an engine may be off. With TensorRT-RTX 1.6.1 on an H100, engines of
bert-base in float32 are off by 16 to 31 times the noise that ONNX Runtime shows on a CPU (8e-5 of the output)."""
MOVES = 4
"""Times that inputs, or weights, are moved."""
_FEW = 4096
"""Elements up to which each has its own noise. Beyond, the largest applies to all: a few runs prove little of one."""
_CHAOS = 0.03
"""Share of an output's scale above which noise leaves nothing to compare."""
_MOST_BYTES = 1 << 30  # of weights
_SINGLE, _DOUBLE = int(TensorProto.FLOAT), int(TensorProto.DOUBLE)


class Noise:
    """Measures the model ``path`` in the sandbox ``worker`` on first use, for all ``trials`` at once: each variant of
    it is loaded once. ``step`` is in seconds, ``half`` says that it computes in half precision. ``shares`` is the
    largest noise of each output as a share of its scale."""

    def __init__(
        self, worker: Worker, path: Path, trials: Sequence[Trial], oracle: str, *, step: float, half: bool
    ) -> None:
        self._worker, self._path, self._oracle, self._step, self._half = worker, path, oracle, step, half
        self._trials = [one for one in trials if one.expected is not None and not one.expected.error]
        self._found: dict[str, dict[str, Any]] | None = None
        self._failed = ""
        self._chaotic: set[str] = set()
        self.shares: dict[str, float] = {}

    def judge(self, terms: Terms, trial: Trial, before: Ran | None, after: Ran) -> Judgment:
        """See ``judge.judge``; what differs beyond the tolerance of the types is held against the noise."""
        found = judge(terms, trial.label, trial.feed, trial.expected, before, after)
        if found.finding in ("agree", "nothing"):
            return found
        return judge(self.widened(terms, trial), trial.label, trial.feed, trial.expected, before, after)

    def widened(self, terms: Terms, trial: Trial) -> Terms:
        """The terms with the noise on this trial; an output that is only noise is not compared."""
        if self._found is None:
            self._found = self._measured()
        slack, chaotic = {}, set()
        for name, value in self._found.get(trial.label, {}).items():
            assert trial.expected is not None
            size = np.abs(wide(trial.expected.outputs[name]))
            scale = float(np.max(size[np.isfinite(size)], initial=0.0))
            share = float(np.max(value, initial=0.0)) / scale if scale else 0.0
            self.shares[name] = max(share, self.shares.get(name, 0.0))
            if share > _CHAOS:
                chaotic.add(name)
            else:
                slack[name] = SHARE * value
        self._chaotic |= chaotic
        return replace(terms, slack=slack, excluded=frozenset({*terms.excluded, *chaotic}))

    def notes(self) -> Iterator[str]:
        """Notes for a reader."""
        if self._failed:
            yield f"the rounding of the original could not be measured: {self._failed}"
        elif self._found:
            yield "the tolerance includes the original's own rounding, as measured on the same inputs"
        if self._chaotic:
            names = ", ".join(sorted(self._chaotic))
            yield f"not compared on some inputs, since rounding alone moves them by over {_CHAOS:.0%}: {names}"

    def _measured(self) -> dict[str, dict[str, Any]]:
        if not self._trials:
            return {}
        outcome = self._worker.call(
            f"{__name__}:measure",
            timeout=self._step,
            path=str(self._path),
            feeds=[one.values for one in self._trials],
            expected=[one.expected.outputs for one in self._trials if one.expected is not None],
            backend="reference" if self._oracle == "reference" else "ort-cpu",
            half=self._half,
        )
        if not outcome.ok:
            self._failed = outcome.message
            return {}
        return {one.label: found for one, found in zip(self._trials, outcome.value, strict=True)}


# ------------------------------------------------------------------------------------------- in the sandbox's child


@dataclass(frozen=True)
class _Way:
    """Another way to compute the model: what loads it, the type that floats of the feed are raised to (0: none), and
    whether they are moved."""

    load: Callable[[Path], Session]
    elem: int = 0
    moves: int = 0


def measure(
    path: str,
    feeds: Sequence[dict[str, Any]],
    expected: Sequence[Mapping[str, Any]],
    backend: str,
    *,
    half: bool = False,
) -> list[dict[str, Any]]:
    """For each feed, by output of floats: how far the model in the file moves from ``expected``, element by element
    (one number for an output of many elements). ``half``: it computes in half precision.

    Raises:
        Exception: whatever the backend raises for the model as it is.
    """
    others: list[dict[str, list[Any]]] = [{} for _ in feeds]
    for number, way in enumerate(_ways(path, feeds, backend, half)):
        note(f"way {number}")  # each may take its time
        with tempfile.TemporaryDirectory(prefix="onnxfix-") as folder:
            try:
                session = way.load(Path(folder))
                _run(session, way, feeds, others)
            except Exception:  # a kernel that is missing in float64, say: the other ways tell enough
                if not number:
                    raise
    noise: list[dict[str, Any]] = [{} for _ in feeds]
    for number, outputs in enumerate(expected):
        for name, value in outputs.items():
            if "float" in getattr(getattr(value, "dtype", None), "name", ""):
                alike = [one for one in others[number].get(name, ()) if np.shape(one) == value.shape]
                noise[number][name] = _distance(value, alike)
    return noise


def _run(
    session: Session, way: _Way, feeds: Sequence[dict[str, Any]], others: list[dict[str, list[Any]]]
) -> None:
    for feed, found in zip(feeds, others, strict=True):
        kinds = ("float32",) if way.elem == TensorProto.DOUBLE else ("float16", "bfloat16")
        given = [shaken(feed, seed) for seed in range(way.moves)] or [
            {name: twin.raised(value, way.elem, kinds) for name, value in feed.items()} if way.elem else feed
        ]
        for one in given:
            for name, value in zip(session.outputs, session.run(one), strict=True):
                found.setdefault(name, []).append(value)


def _ways(path: str, feeds: Sequence[dict[str, Any]], backend: str, half: bool) -> Iterator[_Way]:
    floats = any(copies.is_float(value) for feed in feeds for value in feed.values())
    yield _Way(lambda folder: backends.load(backend, path), moves=MOVES if floats else 0)
    if backend == "ort-cpu":
        yield _Way(lambda folder: backends.load(backend, path, fused=True))
    model = onnx.load(path)
    if model.ByteSize() > _MOST_BYTES:
        return
    for seed in range(0 if floats else MOVES // 2):
        yield _Way(partial(_load, backend, partial(_moved, path, seed)))
    if half:
        yield _Way(partial(_load, backend, lambda: twin.widened(onnx.load(path), _SINGLE)), _SINGLE)
    else:
        yield _Way(partial(_load, backend, lambda: copies.doubled(unfolded(onnx.load(path)))), _DOUBLE)


def _load(backend: str, make: Callable[[], ModelProto], folder: Path) -> Session:
    place = folder / "model.onnx"
    onnx.save(make(), place)
    return backends.load(backend, str(place))


def _moved(path: str, seed: int) -> ModelProto:
    """The model with its weights moved as inputs are."""
    model = onnx.load(path)
    for tensor in walk.model_tensors(model):
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16) and math.prod(tensor.dims) > 1:
            value = shaken({"": numpy_helper.to_array(tensor)}, seed)[""]
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def _distance(value: Any, others: list[Any]) -> Any:
    a = wide(value)
    noise = np.zeros(a.shape)
    for one in others:
        with np.errstate(all="ignore"):
            off = np.abs(wide(one) - a)
        noise = np.maximum(noise, np.where(np.isfinite(off), off, 0.0))
    if a.size > _FEW:
        return float(np.max(noise))
    # A few runs may leave one element in its place by chance.
    return np.maximum(noise, np.sqrt(np.mean(noise**2))) if a.size else 0.0
