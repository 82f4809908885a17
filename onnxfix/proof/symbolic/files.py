"""The proof of two models in files, as the sandbox's child runs it."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.errors import ModelError
from onnxfix.files import lazy, tensors, walk
from onnxfix.files.loading import Loaded, load
from onnxfix.proof.symbolic.prove import prove
from onnxfix.proof.symbolic.tensor import Weights
from onnxfix.runtime.sandbox import note

_STORED = 512
"""Bytes from which on weights stay in the file, however small that is."""
_SAMPLES, _SAMPLE = 8, 32
"""Of two weights, so many samples of so many bytes are compared first, then all bytes."""
_MOST = 8
"""Weights with the same samples that another is compared with."""

_NOTED = 1 << 20
"""Bytes of a weight from which on comparing it takes its time."""


class Proof(NamedTuple):
    """How many of the trials were proven one after another, and why the next was not ("" if all were). ``given`` are
    the inputs whose values decide shapes."""

    trials: int
    reason: str
    given: tuple[str, ...]


class _Bytes:
    """Tells the bytes of weights apart, in the files of both models. Two are the same if they are one place of one file
    (device and inode), which is not read, or if all bytes were compared. Files that change meanwhile raise an error
    where they are read; the rest relies on nobody changing them before the proof is used, as all checks do."""

    def __init__(self) -> None:
        self._sources: dict[Path, lazy.Source] = {}
        self._known: dict[tuple[object, ...], bytes] = {}
        self._like: dict[tuple[object, ...], list[lazy.Range]] = {}

    def open(self, path: Path, offset: int, length: int) -> lazy.Range:
        """Bytes of a file that keeps external data."""
        if path not in self._sources:
            self._sources[path] = lazy.Source(path)
        return lazy.Range(self._sources[path], lazy.RAW, offset, length)

    def identify(self, where: lazy.Range) -> bytes:
        """What equal bytes have in common, if they are stored in the same form.

        Raises:
            ModelError: a file has changed.
        """
        key = _key(where)
        if key not in self._known:
            step = max(where.length // _SAMPLES, 1)
            places = range(where.offset, where.offset + where.length - _SAMPLE, step)
            samples = b"".join(where.source.read(place, _SAMPLE) for place in places)
            like = self._like.setdefault((where.field, where.length, samples), [])
            if where.length >= _NOTED:
                note("compare weights")
            same = next((one for one in like if lazy.equal(one, where)), where)
            if same is where and len(like) < _MOST:
                like.append(where)
            # A tensor in memory cannot have these bytes: no file has the nonce.
            self._known[key] = self._known.get(_key(same)) or lazy.NONCE + len(self._known).to_bytes(8, "big")
        return self._known[key]


def _key(where: lazy.Range) -> tuple[object, ...]:
    """Where it is: device and inode of the file, since a file may have two paths."""
    return *where.source.stamp[:2], where.field, where.offset, where.length


class _StoredWeights(Weights):
    """The weights of a model, which stay in its files until they are needed. ``shared`` are those of both models."""

    def __init__(self, loaded: Loaded, shared: _Bytes) -> None:
        self._loaded, self._shared = loaded, shared
        self._paths: dict[str, Path] = {}

    def read(self, proto: TensorProto) -> np.ndarray[Any, Any]:
        array = tensors.to_array(proto, self._loaded.base_dir, 1 << 62)
        if array is None:
            raise ModelError(f"{proto.name} cannot be read")
        return array

    def content(self, proto: TensorProto) -> bytes:
        where = lazy.range_of(proto)
        if tensors.is_external(proto) and self._loaded.base_dir is not None:
            where = self._shared.open(*tensors.external_range(proto, self._loaded.base_dir, self._paths))
        return super().content(proto) if where is None else self._shared.identify(where)


def prove_files(
    original: str,
    fixed: str,
    trials: Sequence[tuple[Mapping[str, tuple[int, ...]], Mapping[str, np.ndarray[Any, Any]]]],
    limit: float,
) -> Proof:
    """Prove that two models, given by path, are the same at each of some shapes of their inputs, for all values.

    A trial has the shapes, and elements of inputs that may decide shapes. ``limit`` is in seconds of the processor,
    without those that compare weights. The reason says where the models are at least the same as real numbers.

    Raises:
        ModelError: a model cannot be read.
    """
    models, shared = [load(Path(path), large=_STORED) for path in (original, fixed)], _Bytes()
    weights = _StoredWeights(models[0], shared), _StoredWeights(models[1], shared)
    for side, loaded in zip(weights, models, strict=True):  # which takes as long as the files are large
        for tensor in walk.model_tensors(loaded.proto):
            with suppress(ModelError, OSError):  # of a weight that is needed, it shows below
                side.content(tensor)
    until = time.process_time() + limit

    def prove_all(as_real: bool) -> Proof:
        given: dict[str, None] = {}
        for count, (shapes, values) in enumerate(trials):
            rest = until - time.process_time()
            first, second = (one.proto for one in models)
            outcome = prove(first, second, shapes, values, weights=weights, limit=rest, as_real=as_real)
            given |= dict.fromkeys(outcome.given)
            if not outcome.proven:
                return Proof(count, outcome.reason, tuple(given))
        return Proof(len(trials), "", tuple(given))

    found = prove_all(as_real=False)
    if not found.reason or time.process_time() > until:
        return found
    gc.collect()  # what was computed refers to itself, and may be large
    same = not prove_all(as_real=True).reason
    gc.collect()
    if not same:
        return found
    return found._replace(reason=f"{found.reason}; the same as real numbers, that is without rounding")
