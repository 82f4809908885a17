"""What models computed in ONNX Runtime, kept in the sandbox's child for a later check of the same proof.

A model computes the same on the same inputs again: whoever needs its outputs once more need neither load nor run it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MOST_BYTES = 64 << 20
"""Bytes of outputs that are kept at most."""


@dataclass(frozen=True)
class Computed:
    """A model's outputs by name, and the seconds of the processor that they took."""

    values: Mapping[str, Any]
    seconds: float


@dataclass
class Outputs:
    """Outputs of model files, by the state of the file and the inputs."""

    _found: dict[object, dict[bytes, Computed]] = field(default_factory=dict)
    _bytes: int = 0

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()
        self._bytes = 0

    def put(self, path: str, feed: Mapping[str, Any], found: Computed, shared: bool = False) -> bool:
        """Keep what a model computed, where there is room; returns whether it is kept. ``shared``: the arrays are kept
        already, and take no more."""
        size = 0 if shared else sum(map(nbytes, found.values.values()))
        if self._bytes + size > MOST_BYTES:
            return False
        self._bytes += size
        self._found.setdefault(_state(path), {})[digest(feed)] = found
        return True

    def find(self, path: str, feed: Mapping[str, Any]) -> Computed | None:
        """What a model computed on these inputs; None where that is not kept."""
        kept = self._found.get(_state(path)) if self._found else None
        return kept.get(digest(feed)) if kept else None

    def knows(self, path: str) -> bool:
        """Whether anything is kept of a model."""
        return _state(path) in self._found


def _state(path: str) -> object:
    """What tells a file, as it is now, from others; nothing is kept by what it gives for one that is gone."""
    try:
        about = os.stat(path)
    except OSError:
        return object()
    return path, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def digest(feed: Mapping[str, Any]) -> bytes:
    """What tells inputs from others."""
    found = hashlib.blake2b(digest_size=32)
    for name in sorted(feed):
        value = feed[name]
        plain = isinstance(value, np.ndarray) and value.dtype.kind != "O"
        found.update(repr((name, value.dtype, value.shape) if plain else name).encode())
        found.update(value.tobytes() if plain else pickle.dumps(value))
    return found.digest()


def nbytes(value: Any) -> int:
    """Bytes of a value of an input or output."""
    if isinstance(value, (list, tuple)):
        return sum(map(nbytes, value))
    array = np.asarray(value)
    return array.size * 64 if array.dtype.kind == "O" else array.nbytes
