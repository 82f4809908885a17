"""Runs a model and its variants in the sandbox, and measures how far they are from float32."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxfix.diagnosis import bench
from onnxfix.diagnosis.child import Reply, in_type
from onnxfix.diagnosis.graph import Graph, declared_types, open_graph
from onnxfix.diagnosis.opening import inlined, opened
from onnxfix.errors import ModelError, OnnxfixError
from onnxfix.lowering import guards
from onnxfix.lowering.lowered import Low, Slots, in_order, lowerable, with_casts
from onnxfix.lowering.measure import Own, Tensor, measure
from onnxfix.lowering.records import OutputError
from onnxfix.proof.compare.tolerance import EXACT, distances, wide
from onnxfix.runtime.causes import Cause
from onnxfix.runtime.sandbox import Worker


class Failed(OnnxfixError):
    """The model could not be run. ``cause`` says why if the model is not to blame. ``mistyped``: ONNX Runtime refuses
    the types of its nodes."""

    def __init__(self, message: str, cause: Cause = "") -> None:
        super().__init__(message)
        self.cause: Cause = "" if cause == "refused" else cause
        self.mistyped = (
            "Type Error:" in message
        )  # how ONNX Runtime begins; it has another text for missing kernels


class Bench(AbstractContextManager["Bench"]):
    """A model with the ``feeds`` that it accepts, and its float32 outputs on them (``truth``). A context manager.

    ``step`` limits each run of the model, in seconds. Each method raises Failed if the model does not run.
    """

    def __init__(self, step: float = 600.0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="onnxfix-")
        self._worker = Worker()
        # Variants have their Casts already.
        self._bench = bench.Bench(self._worker, Path(self._folder.name), step, rounding=False)
        self.feeds: list[dict[str, Any]] = []
        self.truth: list[dict[str, Any]] = []
        self.worst = 0  # the sample with the largest error in the last run on all samples

    def __exit__(self, *_: object) -> None:
        self._worker.close()
        self._folder.cleanup()

    def open(self, path: Path, to: Low, feeds: Iterable[Mapping[str, Any]], most: int = 16) -> None:
        """Read the model and run it in float32, on at most ``most`` of the feeds that it accepts."""
        try:
            self.graph = opened(path, self._bench)
        except ModelError:  # its local functions cannot be inlined
            self.graph = open_graph(path)
        self.model = self._original = in_order(self.graph.proto)
        self.able = lowerable(self.model, to, path.parent, strict=True, inner=True)
        refused = Reply()
        for feed in feeds:
            if len(self.feeds) == most:
                break
            reply = self._bench.run(self.model, feed, of=self.graph)
            if reply.error:
                refused = reply
                continue
            self.feeds.append(dict(feed))
            self.truth.append(reply.values)
        if refused.error and not self.feeds:
            raise Failed(refused.error, refused.cause)

    def inlined(self, model: ModelProto) -> ModelProto:
        """The model with local functions in place of their calls, as the one that was read."""
        done = bool(model.functions) and not self.graph.proto.functions
        return inlined(model, self._bench)[0] if done else model

    def saturate(self, names: Collection[str]) -> None:
        """From now on, saturate exactly these constants in variants; see ``guards.masks``. The float32
        outputs stay the same."""
        self.model = ModelProto()
        self.model.CopyFrom(self._original)
        guards.saturate(self.model, names, self.able.to, Path(self.graph.folder))

    def measure(self) -> tuple[dict[str, Tensor], dict[int, Own], set[int]]:
        """Ranges by tensor, own errors by node, and the nodes that do not run, over all feeds."""
        graph = Graph(self.model, self.graph.folder, self.graph.mapped, untensored=self.graph.untensored)
        tensors, nodes, unseen, error = measure(self._bench, graph, self.able, self.feeds)
        if error:
            raise Failed(error)
        return tensors, nodes, unseen

    def errors(
        self, low: Collection[int] | Mapping[int, Slots], quick: bool = False
    ) -> tuple[OutputError, ...]:
        """The outputs' errors with these nodes in the low type, or what is rounded of them; ``quick``: only on the
        sample that had the largest error in the last run on all samples."""
        variant = with_casts(self.model, self.able, low, apart=False)
        samples = [self.worst] if quick else range(len(self.feeds))
        replies = [self._bench.run(variant, self.feeds[number], of=self.graph) for number in samples]
        return self._compare(replies, samples)

    def result_errors(self, path: Path, *, wide: bool) -> tuple[OutputError, ...]:
        """The errors of a result file as ONNX Runtime runs it; ``wide``: with a float32 kernel for each node, and the
        Casts that its types demand."""
        graph = open_graph(path)
        types = declared_types(graph)  # of inputs the low type with ``--io-types low``
        run = replace(self._bench, rounding=True)
        replies = []
        for feed in self.feeds:
            taken = {name: in_type(value, types.get(name, "")) for name, value in feed.items()}
            replies.append(run.run(graph.proto, taken, of=graph) if wide else run.run_file(path, taken))
        return self._compare(replies, range(len(replies)))

    def _compare(self, replies: Sequence[Reply], samples: Sequence[int]) -> tuple[OutputError, ...]:
        """The errors over these samples."""
        pairs: dict[str, list[tuple[Any, Any]]] = {}
        for number, values in zip(samples, map(_outputs, replies), strict=True):
            for name, value in self.truth[number].items():
                pairs.setdefault(name, []).append((value, values.get(name)))
        if len(samples) == len(self.feeds) and pairs:
            errors = [[_error_of(name, [pair]).error for pair in some] for name, some in pairs.items()]
            self.worst = int(np.argmax(np.max(errors, axis=0)))
        return tuple(_error_of(name, some) for name, some in pairs.items())


def _outputs(reply: Reply) -> dict[str, Any]:
    if reply.error:
        raise Failed(reply.error, reply.cause)
    return reply.values


def _error_of(name: str, pairs: Sequence[tuple[Any, Any]]) -> OutputError:
    """The error of an output over samples. ``pairs`` are each sample's true value and variant's value."""
    worst = scale = power = error_power = 0.0
    values = count = differing = 0
    broken = floats = False
    for truth, value in itertools.chain.from_iterable(itertools.starmap(_tensors, pairs)):
        if not isinstance(truth, np.ndarray) or not isinstance(value, np.ndarray):
            broken |= truth is not None or value is not None
            continue
        if truth.shape != value.shape:
            broken = True
            continue
        if "float" not in truth.dtype.name:
            count, differing = count + truth.size, differing + int((truth != value).sum())
            continue
        floats = True
        truth, value = wide(truth), wide(value)
        gap, _, special = distances(truth, value, EXACT)
        broken |= bool(special.any())
        truth, gap = (array[np.isfinite(truth)] for array in (truth, gap))
        values += truth.size
        worst, scale = (
            max(worst, float(gap.max(initial=0.0))),
            max(scale, float(np.abs(truth).max(initial=0.0))),
        )
        power, error_power = power + float((truth**2).sum()), error_power + float((gap**2).sum())
    if broken:
        return OutputError(name, math.inf, math.inf, math.inf, scale, math.inf)
    if not floats:
        share = differing / count if count else 0.0
        return OutputError(name, share, math.sqrt(share), share, 1.0, share)
    rms = math.sqrt(error_power / power) if power else float(worst > 0)
    mean = math.sqrt(error_power / values) / (scale or 1.0) if values else 0.0
    return OutputError(name, worst / (scale or 1.0), rms, worst, scale, mean)


def _tensors(truth: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of tensors: the two values, or for sequences of equal length their items."""
    if isinstance(truth, (list, tuple)) and isinstance(value, (list, tuple)) and len(truth) == len(value):
        for first, second in zip(truth, value, strict=True):
            yield from _tensors(first, second)
    else:
        yield truth, value
