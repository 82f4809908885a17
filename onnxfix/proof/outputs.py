"""What models computed in ONNX Runtime, kept in the sandbox's child for the check that compares TensorRT's networks.

A model computes the same on the same inputs again: who needs its outputs once more need neither load nor run it.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from typing import Any

MOST_BYTES = 128 << 20
"""Bytes of outputs that are kept at most."""

_KEPT: dict[tuple[str, bytes], tuple[dict[str, Any], float]] = {}


def keep(path: str, feed: Mapping[str, Any], outputs: dict[str, Any], seconds: float) -> None:
    """Keep the outputs of a model file, and the seconds of the processor that they took, where there is room."""
    if sum(_size(kept) for kept, _ in _KEPT.values()) + _size(outputs) <= MOST_BYTES:
        _KEPT[path, _digest(feed)] = outputs, seconds


def find(path: str, feed: Mapping[str, Any]) -> tuple[dict[str, Any], float] | None:
    """The same again; None where it was not kept."""
    return _KEPT.get((path, _digest(feed))) if _KEPT else None


def knows(path: str) -> bool:
    """Whether anything is kept of a model file."""
    return any(path == kept for kept, _ in _KEPT)


def drop() -> None:
    """Release everything."""
    _KEPT.clear()


def _size(outputs: Mapping[str, Any]) -> int:
    return sum(getattr(value, "nbytes", 0) for value in outputs.values())


def _digest(feed: Mapping[str, Any]) -> bytes:
    return hashlib.blake2b(pickle.dumps(sorted(feed.items()))).digest()
