"""Values of tensors on disk, so that walking through a model needs no more memory than running it."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxfix import replies

_SHAPE = 64  # elements
_INLINE = 1 << 14
"""Bytes up to which a value travels through the pipe and stays in memory: a file would cost more."""


@dataclass(frozen=True)
class Held:
    """A value that was stored: an array by ``dtype`` (its numpy name) and ``shape``, in a ``file`` or, if it is small
    or not an array (sequence, map, strings, None), as it is in ``value``. ``stored`` is the type in which it is stored,
    if that is another one."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    file: str = ""
    value: Any = None
    stored: str = ""
    is_strings: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether it is an array of numbers or truths."""
        return bool(self.dtype)

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The element type of an array."""
        return _dtype(self.dtype)

    @property
    def is_shape(self) -> bool:
        """Whether it is taken for a shape or an index, which TensorRT keeps on the host: a few integers or truths."""
        whole = self.dtype.startswith(("int", "uint", "bool"))
        return whole and math.prod(self.shape) <= _SHAPE

    @property
    def nbytes(self) -> int:
        """Its size in bytes; 0 for a value that is not an array."""
        return math.prod(self.shape) * _dtype(self.dtype).itemsize if self.dtype else 0

    def load(self) -> Any:
        """The value. An array may be read-only."""
        if not self.dtype:  # pickled by ``hold`` in this run
            return replies.loads(Path(self.file).read_bytes()) if self.file else self.value
        dtype = _dtype(self.stored or self.dtype)
        value = np.fromfile(self.file, np.uint8).view(dtype).reshape(self.shape) if self.file else self.value
        if not self.stored:
            return value
        with np.errstate(all="ignore"):
            return value.astype(_dtype(self.dtype))

    def as_type(self, dtype: str) -> Held:
        """The same array, converted to another type when it is loaded; any other value as it is."""
        if not self.dtype or self.dtype == dtype:
            return self
        stored = self.stored or self.dtype
        return replace(self, dtype=dtype, stored="" if stored == dtype else stored)

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
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        value = value.astype(object)  # as ONNX Runtime takes texts
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        if value.nbytes <= _INLINE:
            return Held(value.dtype.name, value.shape, value=value)
        np.ascontiguousarray(value).reshape(-1).view(np.uint8).tofile(file)
        return Held(value.dtype.name, value.shape, str(file))
    data = pickle.dumps(value, protocol=5)
    strings = isinstance(value, np.ndarray)
    shape = value.shape if strings else ()
    if len(data) <= _INLINE:
        return Held(shape=shape, value=value, is_strings=strings)
    file.write_bytes(data)
    return Held(shape=shape, file=str(file), is_strings=strings)
