"""The sandbox's side of ``precision``: loads a model once, and runs it in variants. Called by ``bench``.

Values stay here; errors and measurements cross the pipe. Weights stay in the model's file where ONNX Runtime can map
them, so that a variant costs little more than its nodes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxfix import backends
from onnxfix.allowance import cores
from onnxfix.backends import ort, ort_weights
from onnxfix.causes import NO_MEMORY, Cause
from onnxfix.diagnosis.lowered import Low, Lowerable, lowerable, with_casts
from onnxfix.lowering import masks, selfmeasure
from onnxfix.lowering.records import OutputError
from onnxfix.lowering.widened import widened
from onnxfix.record import record
from onnxfix.sandbox import note, one_line
from onnxfix.verification.compare.tolerance import EXACT, distances, wide

THREADS = max(1, cores() // 2)
_SMALL = 1 << 16  # bytes of a weight from which on variants share it


@record
class Reply:
    """The result of a call: ``error`` is "" on success, ``cause`` why it failed where the model is not to blame."""

    error: str = ""
    cause: Cause = ""
    value: Any = None


@dataclass
class _State:
    plain: ModelProto | None = None
    model: ModelProto | None = None
    where: ort_weights.Stored = field(default_factory=ort_weights.Stored)
    able: Lowerable | None = None
    feeds: list[dict[str, Any]] = field(default_factory=list)
    truth: list[dict[str, Any]] = field(default_factory=list)
    worst: int = 0  # the sample with the largest error in the last run on all of them


_STATE = _State()


def drop() -> None:
    """Release everything."""
    global _STATE
    _STATE = _State()


def _failed(error: Exception) -> Reply:
    starved = isinstance(error, MemoryError) or bool(NO_MEMORY.search(str(error)))
    lacking = isinstance(error, (backends.Unsupported, backends.Broken))
    return Reply(one_line(error, 1500), "memory" if starved else "not-installed" if lacking else "")


def open_model(path: str, to: Low, scratch: str, feeds: Sequence[Mapping[str, Any]], most: int) -> Reply:
    """Read the model, run it on the feeds in float32, and keep its outputs. The value is the number of feeds that it
    takes, ``most`` at most; those that it refuses are left out, and it is an error if these are all."""
    try:
        _STATE.model, _STATE.where = ort_weights.shared(path, Path(scratch) / "weights.bin", _SMALL)
        _STATE.plain = _STATE.model
        _STATE.able = lowerable(_STATE.model, to, Path(path).parent, strict=True)
        session = _session(_STATE.model)
    except Exception as error:
        return _failed(error)
    refused: Exception | None = None
    _STATE.feeds, _STATE.truth = [], []
    for feed in feeds:
        if len(_STATE.feeds) == most:
            break
        try:
            values = session.run(dict(feed))
        except Exception as error:
            refused = error
            continue
        _STATE.feeds.append(dict(feed))
        _STATE.truth.append(dict(zip(session.outputs, values, strict=True)))
    if refused is not None and not _STATE.feeds:
        return _failed(refused)
    return Reply(value=len(_STATE.feeds))


def _session(model: ModelProto) -> ort.OrtSession:
    return ort.load_mapped(model, _STATE.where, ort.session_options(THREADS, lean=_STATE.where.large))


def saturate(names: Collection[str]) -> Reply:
    """From here on, run variants with these constants saturated, and no others; see ``masks``. What they are compared
    with stays."""
    assert _STATE.plain is not None
    assert _STATE.able is not None
    _STATE.model = ModelProto()
    _STATE.model.CopyFrom(_STATE.plain)
    masks.saturate(_STATE.model, names, _STATE.able.to, Path(_STATE.where.folder))
    return Reply()


def measure() -> Reply:
    """What the self-measuring variant sees on all feeds: by tensor, and by node."""
    assert _STATE.model is not None
    assert _STATE.able is not None
    tensors: dict[str, selfmeasure.Tensor] = {}
    nodes: dict[int, selfmeasure.Own] = {}
    try:
        variant, probes = selfmeasure.measuring(_STATE.model, _STATE.able)
        session = _session(variant)
        for feed in _STATE.feeds:
            note("measuring")
            values = dict(zip(session.outputs, session.run(feed), strict=True))
            found, own = probes.read(values)
            tensors = {
                name: one.joined(tensors[name]) if name in tensors else one for name, one in found.items()
            }
            nodes = {index: one.joined(nodes[index]) if index in nodes else one for index, one in own.items()}
    except Exception as error:
        return _failed(error)
    return Reply(value=(tensors, nodes))


def errors(low: Collection[int], quick: bool) -> Reply:
    """How far the outputs are from float32 where the nodes ``low`` (by index) compute in the low type; ``quick``: on
    the sample alone that had the largest error in the last run on all."""
    assert _STATE.model is not None
    assert _STATE.able is not None
    try:
        session = _session(with_casts(_STATE.model, _STATE.able, frozenset(low), apart=False))
        return Reply(value=_compared(session, [_STATE.worst] if quick else None))
    except Exception as error:
        return _failed(error)


def result_errors(path: str, wide: bool) -> Reply:
    """The same of a file: the result as ONNX Runtime runs it, or with ``wide`` with a float32 kernel for each node and
    the Casts that its types demand."""
    try:
        if wide:
            where = ort_weights.stored(path)
            model = widened(where.skeleton or onnx.load(path, load_external_data=not where.outside))
            session = ort.load_mapped(model, where, ort.session_options(THREADS, lean=where.large))
        else:
            session = ort.load(path, THREADS)
        return Reply(value=_compared(session, None))
    except Exception as error:
        return _failed(error)


def _compared(session: ort.OrtSession, samples: Sequence[int] | None) -> tuple[OutputError, ...]:
    sums: dict[str, _Sum] = {}
    largest: list[float] = []
    for number in range(len(_STATE.feeds)) if samples is None else samples:
        note("running")
        values = dict(zip(session.outputs, session.run(_fitting(session, _STATE.feeds[number])), strict=True))
        alone: dict[str, _Sum] = {}
        for name, value in _STATE.truth[number].items():
            for into in (sums, alone):
                into.setdefault(name, _Sum()).add(value, values.get(name))
        largest.append(max((one.error(name).error for name, one in alone.items()), default=0.0))
    if samples is None and largest:
        _STATE.worst = int(np.argmax(largest))
    return tuple(one.error(name) for name, one in sums.items())


def _fitting(session: ort.OrtSession, feed: Mapping[str, Any]) -> dict[str, Any]:
    """The feed in the types of the session's inputs, which are low with ``--io-types low``."""
    return {name: _as(value, session.element(name)) for name, value in feed.items()}


def _as(value: Any, element: str | None) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or element in (None, "float"):
        return value
    kinds = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
    with np.errstate(all="ignore"):
        return (
            value.astype(onnx.helper.tensor_dtype_to_np_dtype(kinds[element])) if element in kinds else value
        )


@dataclass
class _Sum:
    """An output's error, summed over samples."""

    worst: float = 0.0
    scale: float = 0.0
    power: float = 0.0
    values: int = 0
    error_power: float = 0.0
    count: int = 0
    differing: int = 0
    broken: bool = False
    floats: bool = False

    def add(self, truth: Any, value: Any) -> None:
        if isinstance(truth, (list, tuple)) and isinstance(value, (list, tuple)) and len(truth) == len(value):
            for one, other in zip(truth, value, strict=True):
                self.add(one, other)
        elif not isinstance(truth, np.ndarray) or not isinstance(value, np.ndarray):
            self.broken |= truth is not None or value is not None
        elif value.shape != truth.shape:
            self.broken = True
        elif "float" in truth.dtype.name:
            self._add_floats(wide(truth), wide(value))
        else:
            self.count += truth.size
            self.differing += int((truth != value).sum())

    def _add_floats(self, truth: np.ndarray[Any, Any], value: np.ndarray[Any, Any]) -> None:
        gap, _, special = distances(truth, value, EXACT)
        self.floats, self.broken = True, self.broken or bool(special.any())
        truth, gap = (one[np.isfinite(truth)] for one in (truth, gap))
        self.values += truth.size
        self.worst = max(self.worst, float(gap.max(initial=0.0)))
        self.scale = max(self.scale, float(np.abs(truth).max(initial=0.0)))
        self.power += float((truth**2).sum())
        self.error_power += float((gap**2).sum())

    def error(self, name: str) -> OutputError:
        if self.broken:
            return OutputError(name, math.inf, math.inf, math.inf, self.scale, math.inf)
        if not self.floats:
            share = self.differing / self.count if self.count else 0.0
            return OutputError(name, share, math.sqrt(share), share, 1.0, share)
        scale = self.scale or 1.0
        rms = math.sqrt(self.error_power / self.power) if self.power else float(self.worst > 0)
        mean = math.sqrt(self.error_power / self.values) / scale if self.values else 0.0
        return OutputError(name, self.worst / scale, rms, self.worst, self.scale, mean)
