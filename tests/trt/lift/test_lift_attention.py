"""Attention of ONNX, read back from TensorRT: what each form computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxfix.runtime.sandbox import Worker
from support import lifted
from support.attention_by_hand import (
    DTYPES,
    ONNX_DTYPES,
    TOLERANCE,
    Array,
    attention,
    causal,
    close,
    random,
    read,
)
from support.real_tensorrt import REAL, since

pytestmark = REAL


#: Name: attributes, opset, shapes of Q, K and V, and the mask's shape ("b" for bool, "f" for float).
FORMS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], str, tuple[int, ...]]] = {
    "plain": ("", (2, 3, 4, 8), (2, 3, 6, 8), "", ()),
    "scale": ("scale = 0.3", (2, 3, 4, 8), (2, 3, 6, 8), "", ()),
    "causal, more keys": ("is_causal = 1", (2, 3, 4, 8), (2, 3, 6, 8), "", ()),
    "causal, more queries": ("is_causal = 1", (2, 3, 6, 8), (2, 3, 4, 8), "", ()),
    "grouped heads": ("", (2, 6, 4, 8), (2, 3, 5, 8), "", ()),
    "grouped heads, causal": ("is_causal = 1", (2, 6, 4, 8), (2, 2, 5, 8), "", ()),
    "one key head": ("", (2, 4, 4, 8), (2, 1, 5, 8), "", ()),
    "one query": ("", (2, 4, 1, 8), (2, 4, 9, 8), "", ()),
    "three dimensions": ("q_num_heads = 3, kv_num_heads = 3", (2, 4, 24), (2, 6, 24), "", ()),
    "three dimensions, grouped": ("q_num_heads = 4, kv_num_heads = 2", (2, 4, 32), (2, 6, 16), "", ()),
    "bool mask of rank 2": ("", (2, 3, 4, 8), (2, 3, 6, 8), "b", (4, 6)),
    "bool mask of rank 3": ("", (2, 3, 4, 8), (2, 3, 6, 8), "b", (3, 4, 6)),
    "bool mask of rank 4": ("", (2, 3, 4, 8), (2, 3, 6, 8), "b", (2, 3, 4, 6)),
    "bool mask of keys alone": ("", (2, 3, 4, 8), (2, 3, 6, 8), "b", (2, 1, 1, 6)),
    "float mask of rank 2": ("", (2, 3, 4, 8), (2, 3, 6, 8), "f", (4, 6)),
    "float mask of rank 3": ("", (2, 3, 4, 8), (2, 3, 6, 8), "f", (1, 4, 6)),
    "float mask of rank 4": ("", (2, 3, 4, 8), (2, 3, 6, 8), "f", (2, 1, 4, 6)),
    "float mask, grouped heads": ("", (2, 6, 4, 8), (2, 3, 6, 8), "f", (1, 6, 4, 6)),
}


def _model(attributes: str, dtype: str, query: Any, key: Any, kind: str, mask: Any, opset: int = 23) -> Any:
    word = ONNX_DTYPES[dtype]

    def of(shape: Any) -> str:
        return ",".join(map(str, shape))

    masks = f", {'bool' if kind == 'b' else word}[{of(mask)}] m" if kind else ""
    return lifted.text(
        f"g ({word}[{of(query)}] q, {word}[{of(key)}] k, {word}[{of(key)}] v{masks}) => ({word}[{of(query)}] y) "
        f"{{ y = Attention{f'<{attributes}>' if attributes else ''}(q, k, v{', m' if kind else ''}) }}",
        opset,
    )


def _feed(dtype: str, query: Any, key: Any, kind: str, mask: Any) -> dict[str, Array]:
    data = DTYPES[dtype]
    feed = {"q": random(query, data, 1), "k": random(key, data, 2), "v": random(key, data, 3)}
    if kind == "b":
        feed["m"] = random(mask, seed=4) > -0.5
        feed["m"][..., 0] = True  # no query without a key
    elif kind:
        feed["m"] = random(mask, data, 4)
    return feed


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *((form, "FLOAT") for form in FORMS),
        *(("float mask, grouped heads", dtype) for dtype in ("HALF", "BF16")),
    ],
)
def test_forms_that_the_parser_imports_mean_what_onnx_means(
    worker: Worker, tmp_path: Path, form: str, dtype: str
) -> None:
    attributes, *rest = FORMS[form]
    model, feed = _model(attributes, dtype, *rest), _feed(dtype, *rest)
    [wanted] = ReferenceEvaluator(model).run(None, feed)
    got = read(worker, model, tmp_path, feed)
    assert got.dtype == DTYPES[dtype]
    close(got, wanted, TOLERANCE[dtype])


def test_dynamic_shapes(worker: Worker, tmp_path: Path) -> None:
    model = _model("is_causal = 1", "FLOAT", ("b", 4, "s", 8), ("b", 2, "t", 8), "", ())
    for batch, queries, keys in ((1, 1, 7), (3, 5, 2), (2, 4, 4)):
        feed = _feed("FLOAT", (batch, 4, queries, 8), (batch, 2, keys, 8), "", ())
        got = read(worker, model, tmp_path, feed)
        close(got, attention(feed["q"], feed["k"], feed["v"], allowed=causal(queries, keys)))


def test_a_query_without_keys_is_nan_and_noted(worker: Worker, tmp_path: Path) -> None:
    """TensorRT documents nothing of it. ONNX's reference says 0."""
    model = _model("", "FLOAT", (1, 1, 2, 8), (1, 1, 3, 8), "b", (2, 3))
    found = lifted.lifted(worker, model, tmp_path)
    feed = _feed("FLOAT", (1, 1, 2, 8), (1, 1, 3, 8), "", ()) | {"m": np.array([[0, 0, 0], [1, 0, 1]], bool)}
    [got] = lifted.run(Path(found.path), feed)
    assert np.isnan(got[0, 0, 0]).all()
    close(got[..., 1:, :], attention(feed["q"], feed["k"], feed["v"], allowed=feed["m"])[..., 1:, :])
    assert any("NaN" in note for note in found.notes)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("Attention<softcap = 2.0>(q, k, v)", "softcap"),
        ("Attention<softmax_precision = 1>(q, k, v)", "softmax precision"),
        ("Attention<is_causal = 1>(q, k, v, m)", "mask"),
        ("Attention(q, k, v, , k, v)", "past_key"),
    ],
)
def test_forms_that_the_parser_refuses(worker: Worker, tmp_path: Path, call: str, said: str) -> None:
    """They never reach the lift: should TensorRT take them one day, this says that nobody has looked."""
    model = lifted.text(
        "g (float[1,2,3,8] q, float[1,2,3,8] k, float[1,2,3,8] v, float[3,3] m) => (float[1,2,3,8] y) "
        f"{{ y = {call} }}",
        23,
    )
    found = lifted.lifted(worker, model, tmp_path)
    assert found.status == "refused"
    assert said in found.reason


@since("1.6", "importer of com.microsoft's MultiHeadAttention")
def test_multi_head_attention_of_com_microsoft(worker: Worker, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[2,3,8] q, float[2,5,8] k, float[2,5,8] v, float[1,2,3,5] b) => (float[2,3,8] y) {
            y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, , , b)
        }"""
    )
    feed = {
        "q": random((2, 3, 8)),
        "k": random((2, 5, 8)),
        "v": random((2, 5, 8), seed=1),
        "b": random((1, 2, 3, 5)),
    }
    got = read(worker, model, tmp_path, feed)
    [wanted] = lifted.run(tmp_path / "model.onnx", feed)
    close(got, wanted)
