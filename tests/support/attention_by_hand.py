"""What attention computes, by hand, and how the tests of its lift make and run layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxfix.runtime.sandbox import Worker
from onnxfix.tensorrt.lift import Lifted
from support import handmade, lifted
from support.handmade import computed
from support.real_tensorrt import RELEASE, older_than

Array = Any
DTYPES: dict[str, Any] = {"FLOAT": np.float32, "HALF": np.float16, "BF16": ml_dtypes.bfloat16}
ONNX_DTYPES = {"FLOAT": "float", "HALF": "float16", "BF16": "bfloat16"}
TOLERANCE = {"FLOAT": 1e-5, "HALF": 2e-3, "BF16": 2e-2}


def random(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def attention(
    query: Array, key: Array, value: Array, *, scale: float | None = None, allowed: Any = True, add: Any = 0.0
) -> Array:
    """[batch, heads, queries, size] by [batch, key heads, keys, size], in double precision. A query that may attend
    to nothing gives NaN."""
    query, key, value = (one.astype(np.float64) for one in (query, key, value))
    times = query.shape[1] // key.shape[1]
    key, value = (np.repeat(one, times, axis=1) for one in (key, value))
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = np.where(allowed, scores + np.asarray(add, np.float64), -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(weights / weights.sum(-1, keepdims=True) @ value)


def causal(queries: int, keys: int, shift: int = 0) -> Array:
    return np.arange(keys) <= np.arange(queries)[:, None] + shift


def close(got: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(
        got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance
    )


def read(worker: Worker, model: Any, folder: Path, feed: dict[str, Array]) -> Array:
    return computed(lifted.lifted(worker, model, folder), feed)


def needs_opset(opset: int) -> None:
    if onnx.defs.onnx_opset_version() < opset:
        pytest.skip(f"the installed onnx does not know opset {opset}")


#: Properties of layers that came with a release of TensorRT-RTX.
SINCE = dict.fromkeys(
    ("causal_kind", "query_form", "query_lengths", "key_value_form", "key_value_lengths"), "1.5"
)


def made(worker: Worker, folder: Path, inputs: Any, method: str, given: Any, **settings: Any) -> Lifted:
    for name in settings:
        if name in SINCE and older_than(SINCE[name]):
            pytest.skip(f"TensorRT-RTX {RELEASE} has no {name}: that came with {SINCE[name]}")
    return handmade.made(worker, folder, inputs, method, given, settings)


def values(inputs: Any) -> dict[str, Array]:
    """Random values for the float inputs."""
    return {
        name: random(shape, DTYPES[dtype], number)
        for number, (name, (dtype, shape)) in enumerate(inputs.items())
        if dtype in DTYPES
    }
