"""Rotary embedding and updates of a key/value cache, read back from TensorRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxfix.runtime.sandbox import Worker
from support import lifted
from support.attention_by_hand import (
    DTYPES,
    ONNX_DTYPES,
    TOLERANCE,
    Array,
    close,
    made,
    needs_opset,
    random,
    read,
)
from support.real_tensorrt import REAL

pytestmark = REAL


def _rotary(data: Array, cosine: Array, sine: Array, interleaved: bool) -> Array:
    """Each pair turned by hand; data [batch, heads, tokens, size], cosine [batch, tokens, pairs]."""
    result = data.astype(np.float64)
    pairs = cosine.shape[-1]
    for pair in range(pairs):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        c, s = (one[:, None, :, pair].astype(np.float64) for one in (cosine, sine))
        one, other = data[..., a].astype(np.float64), data[..., b].astype(np.float64)
        result[..., a], result[..., b] = one * c - other * s, one * s + other * c
    return result


@pytest.mark.parametrize(("interleaved", "size"), [(0, 0), (0, 4), (1, 0), (1, 4)])
@pytest.mark.parametrize(
    ("positions", "dtype"), [(False, "FLOAT"), (True, "FLOAT"), (True, "HALF"), (False, "BF16")]
)
def test_rotary_embedding(
    worker: Worker, tmp_path: Path, interleaved: int, size: int, positions: bool, dtype: str
) -> None:
    """Of ONNX, with a dynamic number of tokens."""
    word, pairs = ONNX_DTYPES[dtype], (size or 8) // 2
    cache = f"{word}[n,{pairs}]" if positions else f"{word}[b,s,{pairs}]"
    model = lifted.text(
        f"g ({word}[b,4,s,8] x, {cache} c, {cache} d{', int64[b,s] p' if positions else ''}) => ({word}[b,4,s,8] y) "
        f"{{ y = RotaryEmbedding<interleaved = {interleaved}, rotary_embedding_dim = {size}>"
        f"(x, c, d{', p' if positions else ''}) }}",
        23,
    )
    feed = {"x": random((2, 4, 3, 8), DTYPES[dtype])}
    for seed, name in enumerate("cd"):
        feed[name] = random(
            (10 if positions else 2, pairs) if positions else (2, 3, pairs), DTYPES[dtype], seed
        )
    places = np.array([[7, 0, 9], [2, 2, 1]])
    caches = [feed[name][places] if positions else feed[name] for name in "cd"]
    got = read(worker, model, tmp_path, feed | ({"p": places} if positions else {}))
    assert got.dtype == DTYPES[dtype]
    close(got, _rotary(feed["x"], *caches, bool(interleaved)), TOLERANCE[dtype])


def test_rotary_embedding_of_three_dimensions(worker: Worker, tmp_path: Path) -> None:
    model = lifted.text(
        """g (float[b,s,32] x, float[b,s,4] c, float[b,s,4] d) => (float[b,s,32] y) {
            y = RotaryEmbedding<num_heads = 4>(x, c, d)
        }""",
        23,
    )
    feed = {"x": random((2, 3, 32)), "c": random((2, 3, 4)), "d": random((2, 3, 4), seed=1)}
    got = read(worker, model, tmp_path, feed)
    heads = feed["x"].reshape(2, 3, 4, 8).swapaxes(1, 2)
    close(got, _rotary(heads, feed["c"], feed["d"], False).swapaxes(1, 2).reshape(2, 3, 32))


def test_rotary_embedding_of_caches_that_do_not_fit(worker: Worker, tmp_path: Path) -> None:
    inputs = {"x": ("FLOAT", (2, 4, 3, 8)), "c": ("FLOAT", (1, 3, 4)), "s": ("FLOAT", (1, 3, 4))}
    found = made(worker, tmp_path, inputs, "rotary_embedding", ("x", "c", "s", False, 0))
    assert found.status == "unlifted"
    assert "TensorRT finds no shape" in found.reason


def test_tensor_scatter(worker: Worker, tmp_path: Path) -> None:
    needs_opset(24)
    model = lifted.text(
        """g (float16[2,2,6,3] c, float16[2,2,t,3] u, int64[2] w) => (float16[2,2,6,3] y) {
            y = TensorScatter(c, u, w)
        }""",
        24,
    )
    feed = {
        "c": random((2, 2, 6, 3), np.float16),
        "u": random((2, 2, 2, 3), np.float16),
        "w": np.array([3, 0]),
    }
    wanted = feed["c"].copy()
    wanted[0, :, 3:5], wanted[1, :, :2] = feed["u"]
    np.testing.assert_array_equal(read(worker, model, tmp_path, feed), wanted)
