"""What an original computed, kept in the sandbox's child for the candidates that follow.

A run that withdraws fixes compares several candidates with one original on the same inputs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxfix.verification.outputs import digest, nbytes

MOST_BYTES = 64 << 20
"""Bytes of outputs that are kept at most; what comes later is computed each time."""


@dataclass
class Kept:
    """The outputs of one original in one backend, by the inputs that it got. ``of`` says which original that is, in
    which run (None: nothing is kept); ``names`` are its outputs, ``places`` and ``mapped`` those of its session."""

    of: object = None
    names: list[str] = field(default_factory=list)
    places: Mapping[str, int] | None = None
    mapped: bool = False
    _values: dict[bytes, list[Any]] = field(default_factory=dict)
    _bytes: int = 0

    def find(self, feed: Mapping[str, Any]) -> list[Any] | None:
        """The outputs on a feed; None where they are not kept."""
        return self._values.get(digest(feed)) if self._values else None

    def put(self, feed: Mapping[str, Any], outputs: list[Any]) -> None:
        """Keep the outputs on a feed, where there is room."""
        size = sum(map(nbytes, outputs))
        if self.of is not None and self._bytes + size <= MOST_BYTES:
            self._values[digest(feed)] = outputs
            self._bytes += size


def identity(scope: str, backend: str, path: str, options: Mapping[str, Any]) -> object:
    """What tells the original of a run, and how it is loaded, from others; None where nothing is to be kept."""
    try:
        file = os.stat(path)
    except OSError:
        return None
    state = (file.st_ino, file.st_size, file.st_mtime_ns)
    return (scope, backend, path, state, sorted(options.items())) if scope else None
