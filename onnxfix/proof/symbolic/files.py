"""The proof of two models in files, as the sandbox's child runs it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.errors import ModelError
from onnxfix.files import lazy, tensors
from onnxfix.files.loading import Loaded, load
from onnxfix.proof.symbolic.prove import prove
from onnxfix.proof.symbolic.weights import Weights


class Proof(NamedTuple):
    """How many of the trials were proven one after another, and why the next was not ("" if all were). ``given`` are
    the inputs whose values decide shapes."""

    trials: int
    reason: str
    given: tuple[str, ...]


class _StoredWeights(Weights):
    """The weights of a model, which stay in its files until they are needed."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def read(self, proto: TensorProto) -> np.ndarray[Any, Any]:
        array = tensors.to_array(proto, self._loaded.base_dir, 1 << 62)
        if array is None:
            raise ModelError(f"{proto.name} cannot be read")
        return array

    def content(self, proto: TensorProto) -> bytes:
        if tensors.is_external(proto) and self._loaded.base_dir is not None:
            path, offset, length = tensors.external_range(proto, self._loaded.base_dir)
            status = os.stat(path)  # a hard link is the same file
            return f"{status.st_dev} {status.st_ino} {offset} {length}".encode()
        return lazy.keyed(super().content(proto))


def prove_files(
    original: str,
    fixed: str,
    trials: Sequence[tuple[Mapping[str, tuple[int, ...]], Mapping[str, np.ndarray[Any, Any]]]],
    limit: float,
) -> Proof:
    """Prove that two models, given by path, are the same at each of some shapes of their inputs, for all values.

    A trial has the shapes, and elements of inputs that may decide shapes. ``limit`` is in seconds.

    Raises:
        ModelError: a model cannot be read.
    """
    until = time.monotonic() + limit
    models = [load(Path(path)) for path in (original, fixed)]
    weights = _StoredWeights(models[0]), _StoredWeights(models[1])
    given: dict[str, None] = {}
    for count, (shapes, values) in enumerate(trials):
        rest = until - time.monotonic()
        outcome = prove(models[0].proto, models[1].proto, shapes, values, weights=weights, limit=rest)
        given |= dict.fromkeys(outcome.given)
        if not outcome.proven:
            return Proof(count, outcome.reason, tuple(given))
    return Proof(len(trials), "", tuple(given))
