"""Arrays as JSON, for outputs that somebody looks at again on another machine."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  # tells numpy the names of its types
import numpy as np

#: Bytes of all outputs of a model together: what is larger is not kept.
MOST = 1 << 18

Packed = list[list[dict[str, Any]]]


def pack(outputs: Sequence[Sequence[Any]], most: int = MOST) -> Packed:
    """The outputs of each data set. Empty where they have more than ``most`` bytes, or are something else than arrays
    of numbers."""
    flat = [value for one in outputs for value in one]
    if not all(isinstance(value, np.ndarray) and value.dtype.kind not in "OUS" for value in flat):
        return []
    if sum(value.nbytes for value in flat) > most:
        return []
    return [[_packed(value) for value in one] for one in outputs]


def _packed(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes())).decode("ascii")
    return {"dtype": value.dtype.name, "shape": list(value.shape), "data": data}


def unpack(stored: Sequence[Sequence[dict[str, Any]]]) -> list[list[Any]]:
    """What was packed."""
    return [[_array(value) for value in one] for one in stored]


def _array(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    raw = zlib.decompress(base64.b64decode(value["data"]))
    return np.frombuffer(raw, np.dtype(value["dtype"])).reshape(value["shape"])
