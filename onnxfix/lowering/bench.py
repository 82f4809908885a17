"""The sandbox in which ``precision`` runs a model and its variants, and the functions that it calls there.

The child loads the model once. Values stay there; errors and measurements cross the pipe. Weights stay in the model's
file where ONNX Runtime can map them, so that a variant costs little more than its nodes.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxfix.errors import OnnxfixError
from onnxfix.lowering import guards, selfmeasure
from onnxfix.lowering.convert import between_casts
from onnxfix.lowering.lowered import Low, lowerable, with_casts
from onnxfix.lowering.records import OutputError
from onnxfix.lowering.selfmeasure import Own, Tensor
from onnxfix.proof.compare.tolerance import EXACT, distances, wide
from onnxfix.runtime import backends
from onnxfix.runtime.allowance import cores
from onnxfix.runtime.backends import ort, ort_weights
from onnxfix.runtime.causes import ENDED, NO_MEMORY, Cause
from onnxfix.runtime.sandbox import Worker, note, one_line

THREADS = max(1, cores() // 2)
_SMALL = 1 << 16  # minimum bytes of a weight that variants share
_WORDS = 1500


class Failed(OnnxfixError):
    """The model could not be run. ``cause`` says why if the model is not to blame."""

    def __init__(self, message: str, cause: Cause = "") -> None:
        super().__init__(message)
        self.cause = cause


class Bench(AbstractContextManager["Bench"]):
    """A model in a sandbox, with its float32 outputs on the accepted feeds (``samples``). A context manager.

    ``step`` limits each run of the model, in seconds. Each method raises Failed if the model does not run.
    """

    def __init__(self, step: float = 600.0) -> None:
        self.step = step
        self.samples = 0
        self._worker = Worker()
        self._folder = tempfile.TemporaryDirectory(prefix="onnxfix-")

    def __exit__(self, *_: object) -> None:
        self._worker.close()
        self._folder.cleanup()

    def open(self, path: Path, to: Low, feeds: Sequence[Mapping[str, Any]], most: int = 16) -> None:
        """Load the model and run it in float32, on at most ``most`` of the feeds that it accepts."""
        plain_feeds = [dict(feed) for feed in feeds]
        self.samples = self._call(
            "open", path=str(path.absolute()), to=to, scratch=self._folder.name, feeds=plain_feeds, most=most
        )

    def saturate(self, names: Collection[str]) -> None:
        """From now on, saturate exactly these constants in variants; see ``guards.masks``. The float32
        outputs stay the same."""
        self._call("saturate", names=sorted(names))

    def measure(self) -> tuple[dict[str, Tensor], dict[int, Own]]:
        """Ranges by tensor and own errors by node."""
        measurements: tuple[dict[str, Tensor], dict[int, Own]] = self._call("measure")
        return measurements

    def errors(self, low: Collection[int], *, quick: bool = False) -> tuple[OutputError, ...]:
        """The outputs' errors with these nodes in the low type; ``quick``: only on the sample that had the
        largest error in the last run on all samples."""
        errors: tuple[OutputError, ...] = self._call("errors", low=sorted(low), quick=quick)
        return errors

    def result_errors(self, path: Path, *, wide: bool) -> tuple[OutputError, ...]:
        """The errors of a result file as ONNX Runtime runs it; ``wide``: with a float32 kernel for each node, and the
        Casts that its types demand."""
        errors: tuple[OutputError, ...] = self._call("result_errors", path=str(path.absolute()), wide=wide)
        return errors

    def _call(self, method: str, **arguments: Any) -> Any:
        outcome = self._worker.call(
            f"{__name__}:perform", timeout=self.step, method=method, arguments=arguments
        )
        if not outcome.ok:
            raise Failed(outcome.message, ENDED[outcome.status])
        reply: Reply = outcome.value
        if reply.error:
            raise Failed(reply.error, reply.cause)
        return reply.value


# ------------------------------------------------------------------------------------------------ in the sandbox


@dataclass(frozen=True)
class Reply:
    """The result of a call: ``error`` is "" on success. ``cause`` is set if the model is not to blame."""

    error: str = ""
    cause: Cause = ""
    value: Any = None


_OPENED: list[_OpenModel] = []
"""The model that the process works on, at most one."""


def perform(method: str, arguments: Mapping[str, Any]) -> Reply:
    """Open a model, or call a method of the open model. An exception becomes a reply."""
    try:
        if method == "open":
            _OPENED[:] = [_OpenModel(**arguments)]
            return Reply(value=len(_OPENED[0].feeds))
        return Reply(value=getattr(_OPENED[0], method)(**arguments))
    except Exception as error:
        out_of_memory = isinstance(error, MemoryError) or bool(NO_MEMORY.search(str(error)))
        no_runtime = isinstance(error, (backends.Unsupported, backends.Broken))
        return Reply(
            one_line(error, _WORDS), "memory" if out_of_memory else "not-installed" if no_runtime else ""
        )


class _OpenModel:
    """A model with its ``feeds`` and its float32 outputs on them (``truth``). ``plain`` is the model as read,
    ``model`` has saturated constants. ``worst`` is the sample with the largest error in the last run on all
    samples."""

    def __init__(
        self, path: str, to: Low, scratch: str, feeds: Sequence[Mapping[str, Any]], most: int
    ) -> None:
        """Run the model on at most ``most`` of the feeds that it accepts. Raises if it accepts none."""
        self.plain, self.where = ort_weights.shared(path, Path(scratch) / "weights.bin", _SMALL)
        self.model, self.worst = self.plain, 0
        self.able = lowerable(self.plain, to, Path(path).parent, strict=True)
        self.feeds: list[dict[str, Any]] = []
        self.truth: list[dict[str, Any]] = []
        session, refused = self._session(self.plain), None
        for feed in feeds:
            if len(self.feeds) == most:
                break
            try:
                values = session.run(dict(feed))
            except Exception as error:
                refused = error
                continue
            self.feeds.append(dict(feed))
            self.truth.append(dict(zip(session.outputs, values, strict=True)))
        if refused is not None and not self.feeds:
            raise refused

    def _session(self, model: ModelProto) -> ort.OrtSession:
        return ort.load_mapped(model, self.where, ort.session_options(THREADS, lean=self.where.large))

    def saturate(self, names: Collection[str]) -> None:
        self.model = ModelProto()
        self.model.CopyFrom(self.plain)
        guards.saturate(self.model, names, self.able.to, Path(self.where.folder))

    def measure(self) -> tuple[dict[str, Tensor], dict[int, Own]]:
        """The measurements of the self-measuring variant on all feeds: by tensor, and by node."""
        tensors: dict[str, Tensor] = {}
        nodes: dict[int, Own] = {}
        variant = selfmeasure.SelfMeasuring(self.model, self.able)
        session = self._session(variant.model)
        for feed in self.feeds:
            note("measuring")
            values = dict(zip(session.outputs, session.run(feed), strict=True))
            by_tensor, by_node = variant.read(values)
            tensors = {
                name: stats.joined(tensors[name]) if name in tensors else stats
                for name, stats in by_tensor.items()
            }
            nodes = {
                index: error.joined(nodes[index]) if index in nodes else error
                for index, error in by_node.items()
            }
        return tensors, nodes

    def errors(self, low: Collection[int], quick: bool) -> tuple[OutputError, ...]:
        variant = with_casts(self.model, self.able, frozenset(low), apart=False)
        return self._compare(self._session(variant), [self.worst] if quick else None)

    def result_errors(self, path: str, wide: bool) -> tuple[OutputError, ...]:
        if not wide:
            return self._compare(ort.load(path, THREADS), None)
        where = ort_weights.stored(path)
        model = between_casts(where.skeleton or onnx.load(path, load_external_data=not where.outside))
        options = ort.session_options(THREADS, lean=where.large)
        return self._compare(ort.load_mapped(model, where, options), None)

    def _compare(self, session: ort.OrtSession, samples: Sequence[int] | None) -> tuple[OutputError, ...]:
        """The errors over these samples (None: all)."""
        pairs: dict[str, list[tuple[Any, Any]]] = {}
        for number in range(len(self.feeds)) if samples is None else samples:
            note("running")
            feed = {
                name: _as_element(value, session.element(name)) for name, value in self.feeds[number].items()
            }
            values = dict(zip(session.outputs, session.run(feed), strict=True))
            for name, value in self.truth[number].items():
                pairs.setdefault(name, []).append((value, values.get(name)))
        if samples is None and pairs:
            errors = [
                [_error_of(name, [pair]).error for pair in name_pairs] for name, name_pairs in pairs.items()
            ]
            self.worst = int(np.argmax(np.max(errors, axis=0)))
        return tuple(_error_of(name, name_pairs) for name, name_pairs in pairs.items())


def _as_element(value: Any, element: str | None) -> Any:
    """A value in the element type of a session's input: the low type with ``--io-types low``."""
    kinds = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or element not in kinds:
        return value
    with np.errstate(all="ignore"):
        return value.astype(onnx.helper.tensor_dtype_to_np_dtype(kinds[element]))


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
