"""Values of tensors on disk, so that walking through a model needs no more memory than running it."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_INLINE = 1 << 14
"""Bytes up to which a value travels through the pipe and stays in memory: a file would cost more."""


@dataclass(frozen=True)
class Held:
    """A value that was stored: an array by ``dtype`` (its numpy name) and ``shape``, in a ``file`` or, if it is small
    or not an array (sequence, map, strings, None), as it is in ``value``."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    file: str = ""
    value: Any = None

    @property
    def is_tensor(self) -> bool:
        """Whether it is an array of numbers or truths."""
        return bool(self.dtype)

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The element type of an array."""
        return np.dtype(_dtype(self.dtype))

    @property
    def nbytes(self) -> int:
        """Its size in bytes; 0 for a value that is not an array."""
        return math.prod(self.shape) * np.dtype(_dtype(self.dtype)).itemsize if self.dtype else 0

    def load(self) -> Any:
        """The value. An array may be read-only."""
        if not self.file:
            return self.value
        dtype = np.dtype(_dtype(self.dtype))
        if not self.dtype:
            return pickle.loads(Path(self.file).read_bytes())  # written by ``hold`` in this run
        return np.fromfile(self.file, np.uint8).view(dtype).reshape(self.shape)

    def drop(self) -> None:
        """Remove its file."""
        if self.file:
            Path(self.file).unlink(missing_ok=True)


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # lazy: seldom used

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def hold(value: Any, file: Path) -> Held:
    """Store a value, a large one in ``file``.

    Raises:
        OSError: the disk is full.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
        if value.nbytes <= _INLINE:
            return Held(value.dtype.name, value.shape, value=value)
        np.ascontiguousarray(value).reshape(-1).view(np.uint8).tofile(file)
        return Held(value.dtype.name, value.shape, str(file))
    data = pickle.dumps(value, protocol=5)
    if len(data) <= _INLINE:
        return Held(value=value)
    file.write_bytes(data)
    return Held(file=str(file))
