"""Attention, rotary embedding and caches, read back from TensorRT: what each form computes, by hand."""

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
    made,
    needs_opset,
    random,
    read,
    values,
)
from support.handmade import computed
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


QKV = {"q": ("HALF", (2, 4, 3, 8)), "k": ("HALF", (2, 2, 5, 8)), "v": ("HALF", (2, 2, 5, 8))}
PACKED = {
    **{"q": ("FLOAT", (7, 4, 8)), "k": ("FLOAT", (9, 2, 8)), "v": ("FLOAT", (9, 2, 8))},
    **{"ql": ("INT32", (4,)), "kl": ("INT32", (4,))},
}


NHD = "trt.AttentionIOForm.PACKED_NHD"
SOFTMAX = ("q", "k", "v", "trt.AttentionNormalizationOp.SOFTMAX", False)


@pytest.mark.parametrize(("kind", "shift"), [("UPPER_LEFT", 0), ("LOWER_RIGHT", 2)])
def test_causal_masks(worker: Worker, tmp_path: Path, kind: str, shift: int) -> None:
    found = made(worker, tmp_path, QKV, "attention", SOFTMAX, causal_kind=f"trt.CausalMaskKind.{kind}")
    feed = values(QKV)
    close(computed(found, feed), attention(*feed.values(), scale=1, allowed=causal(3, 5, shift)), 2e-3)


def test_numbers_of_heads_that_only_the_run_knows(worker: Worker, tmp_path: Path) -> None:
    inputs = {"q": ("FLOAT", (2, -1, 3, 8)), "k": ("FLOAT", (2, -1, 5, 8)), "v": ("FLOAT", (2, -1, 5, 8))}
    found = made(worker, tmp_path, inputs, "attention", SOFTMAX)
    for many, few in ((6, 2), (3, 3), (4, 1)):
        feed = {name: random((2, many if name == "q" else few, *inputs[name][1][2:])) for name in "qkv"}
        close(computed(found, feed), attention(*feed.values(), scale=1))


@pytest.mark.parametrize("kind", ["NONE", "UPPER_LEFT"])
def test_lengths_of_padded_keys(worker: Worker, tmp_path: Path, kind: str) -> None:
    inputs = {**QKV, "n": ("INT32", (2,)), "m": ("BOOL", (1, 1, 3, 5))}
    mask = {"mask": "m"} if kind == "NONE" else {"causal_kind": f"trt.CausalMaskKind.{kind}"}
    found = made(worker, tmp_path, inputs, "attention", SOFTMAX, key_value_lengths="n", **mask)
    feed = values(QKV)
    masked = np.array([[[[1, 0, 1, 1, 1], [1, 1, 0, 1, 1], [1, 1, 1, 1, 0]]]], bool)
    lengths = np.array([5, 3], np.int32)
    allowed = (masked if kind == "NONE" else causal(3, 5)) & (np.arange(5) < lengths[:, None, None, None])
    got = computed(found, feed | {"n": lengths, "m": masked})
    close(got, attention(*feed.values(), scale=1, allowed=allowed), 2e-3)


def test_one_query_at_the_lower_right_of_padded_keys_with_lengths(worker: Worker, tmp_path: Path) -> None:
    """The decoding of one token: both readings of the lower right corner allow all keys that are there."""
    inputs = {**QKV, "q": ("HALF", (2, 4, 1, 8)), "n": ("INT32", (2,))}
    right = {"causal_kind": "trt.CausalMaskKind.LOWER_RIGHT", "key_value_lengths": "n"}
    found = made(worker, tmp_path, inputs, "attention", SOFTMAX, **right)
    feed, lengths = values(inputs), np.array([4, 2], np.int32)
    allowed = np.arange(5) < lengths[:, None, None, None]
    close(computed(found, feed | {"n": lengths}), attention(*feed.values(), scale=1, allowed=allowed), 2e-3)


def test_attention_without_a_softmax(worker: Worker, tmp_path: Path) -> None:
    inputs = {**{key: ("FLOAT", shape) for key, (_, shape) in QKV.items()}, "m": ("FLOAT", (1, 1, 3, 5))}
    none = (*SOFTMAX[:3], "trt.AttentionNormalizationOp.NONE", False)
    found = made(worker, tmp_path, inputs, "attention", none, mask="m")
    feed = values(inputs)
    key, value = (np.repeat(feed[one], 2, axis=1) for one in "kv")
    close(computed(found, feed), (feed["q"] @ key.swapaxes(-1, -2) + feed["m"]) @ value, 1e-4)


NONE = (*SOFTMAX[:3], "trt.AttentionNormalizationOp.NONE", False)


@pytest.mark.parametrize(
    ("inputs", "given", "settings", "why"),
    [
        (QKV, NONE, {"causal_kind": "trt.CausalMaskKind.UPPER_LEFT"}, "without softmax"),
        ({**QKV, "m": ("BOOL", (1, 1, 3, 5))}, NONE, {"mask": "m"}, "without softmax"),
        (
            {**QKV, "m": ("FLOAT", (1, 1, 3, 5))},
            SOFTMAX,
            {"mask": "m"},
            "a mask of type FLOAT on scores of HALF",
        ),
        (
            {**QKV, "n": ("INT32", (2,))},
            SOFTMAX,
            {"key_value_lengths": "n", "causal_kind": "trt.CausalMaskKind.LOWER_RIGHT"},
            "at the lower right",
        ),
        (
            PACKED,
            SOFTMAX,
            {
                "query_form": NHD,
                "key_value_form": NHD,
                "query_lengths": "ql",
                "key_value_lengths": "kl",
            },
            "queries of form PACKED_NHD",
        ),
        ({**QKV, "v": ("HALF", (2, 2, 5, 10))}, SOFTMAX, {}, "TensorRT finds no shape"),
        (
            {**QKV, "s": ("FLOAT", ())},
            SOFTMAX,
            {"normalization_quantize_scale": "s"},
            "weights are quantized",
        ),
    ],
)
def test_forms_whose_meaning_is_not_documented(
    worker: Worker, tmp_path: Path, inputs: Any, given: Any, settings: dict[str, Any], why: str
) -> None:
    found = made(worker, tmp_path, inputs, "attention", given, **settings)
    assert found.status == "unlifted"
    assert why in found.reason
    assert found.gaps[0].kind == "ATTENTION_INPUT"


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
