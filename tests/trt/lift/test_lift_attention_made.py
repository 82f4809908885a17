"""Attention in forms that only TensorRT's API makes, or the parser's own operators: what each computes, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfix.runtime.sandbox import Worker
from support.attention_by_hand import NHD, attention, causal, close, made, random, values
from support.handmade import computed
from support.real_tensorrt import REAL

pytestmark = REAL


QKV = {"q": ("HALF", (2, 4, 3, 8)), "k": ("HALF", (2, 2, 5, 8)), "v": ("HALF", (2, 2, 5, 8))}
PACKED = {
    **{"q": ("FLOAT", (7, 4, 8)), "k": ("FLOAT", (9, 2, 8)), "v": ("FLOAT", (9, 2, 8))},
    **{"ql": ("INT32", (4,)), "kl": ("INT32", (4,))},
}
PACKED_QUERY = {**PACKED, "k": ("FLOAT", (3, 2, 5, 8)), "v": ("FLOAT", (3, 2, 5, 8)), "kl": ("INT32", (3,))}


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


@pytest.mark.parametrize("kind", ["NONE", "UPPER_LEFT", "LOWER_RIGHT"])
@pytest.mark.parametrize("padded", [False, True])
def test_packed_sequences(worker: Worker, tmp_path: Path, kind: str, padded: bool) -> None:
    """Three sequences of 2, 0 and 5 queries, with 4, 2 and 3 keys (packed) or 5 each (padded)."""
    inputs = PACKED_QUERY if padded else PACKED
    inputs = {key: one for key, one in inputs.items() if key != "kl" or not padded}
    settings = {"query_form": NHD, "query_lengths": "ql", "causal_kind": f"trt.CausalMaskKind.{kind}"}
    if not padded:
        settings |= {"key_value_form": NHD, "key_value_lengths": "kl"}
    found = made(worker, tmp_path, inputs, "attention", SOFTMAX, **settings)
    feed, queries, keys = values(inputs), np.array([0, 2, 2, 7], np.int32), np.array([0, 4, 6, 9], np.int32)
    lengths = {"ql": queries} | ({} if padded else {"kl": keys})
    got = computed(found, feed | lengths)
    wanted = np.zeros_like(got)
    for number in range(3):
        mine = slice(queries[number], queries[number + 1])
        pair = [
            feed[one][number] if padded else feed[one][keys[number] : keys[number + 1]].swapaxes(0, 1)
            for one in "kv"
        ]
        many, few = int(mine.stop - mine.start), pair[0].shape[1]
        shift = {"NONE": 99, "UPPER_LEFT": 0, "LOWER_RIGHT": few - many}[kind]
        query = feed["q"][mine].swapaxes(0, 1)
        if many:
            result = attention(
                query[None], *(one[None] for one in pair), scale=1, allowed=causal(many, few, shift)
            )
            wanted[mine] = result[0].swapaxes(0, 1)
    close(got, wanted)


def test_packed_queries_over_padded_keys_with_lengths(worker: Worker, tmp_path: Path) -> None:
    settings = {"query_form": NHD, "query_lengths": "ql", "key_value_lengths": "kl"}
    found = made(worker, tmp_path, PACKED_QUERY, "attention", SOFTMAX, **settings)
    feed = values(PACKED_QUERY)
    got = computed(
        found, feed | {"ql": np.array([0, 2, 3, 7], np.int32), "kl": np.array([1, 5, 3], np.int32)}
    )
    for number, (mine, length) in enumerate([(slice(0, 2), 1), (slice(2, 3), 5), (slice(3, 7), 3)]):
        pair = (feed[one][number : number + 1, :, :length] for one in "kv")
        wanted = attention(feed["q"][None, mine].swapaxes(1, 2), *pair, scale=1)
        close(got[mine], wanted[0].swapaxes(0, 1))


@pytest.mark.parametrize(("dtype", "step"), [("int8", 1 / 50), ("fp8", 1 / 8)])
def test_quantized_weights(worker: Worker, tmp_path: Path, dtype: str, step: float) -> None:
    """Rounded to even in steps of the scale, with an end at 127 of them for int8."""
    inputs = {**{key: ("FLOAT", shape) for key, (_, shape) in QKV.items()}, "s": ("FLOAT", ())}
    settings = {"normalization_quantize_scale": "s", "normalization_quantize_to_type": f"trt.{dtype}"}
    found = made(worker, tmp_path, inputs, "attention", SOFTMAX, **settings)
    feed = values(inputs) | {"s": np.array(step, np.float32)}
    query, key, value = (feed[one].astype(np.float64) for one in "qkv")
    identity = np.broadcast_to(np.eye(5), (2, 2, 5, 5))
    weights = attention(query, key, identity, scale=1) / np.float32(step)
    if dtype == "int8":
        weights = np.clip(np.rint(weights), -128, 127)
    else:
        weights = weights.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    wanted = weights * np.float32(step) @ np.repeat(value, 2, axis=1)
    got = computed(found, feed)
    close(got, wanted)
    assert abs(got - attention(query, key, value, scale=1)).max() > 1e-3  # the rounding shows


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
            {**PACKED, "m": ("BOOL", (1, 1, 7, 9))},
            SOFTMAX,
            {
                "query_form": NHD,
                "key_value_form": NHD,
                "query_lengths": "ql",
                "key_value_lengths": "kl",
                "mask": "m",
            },
            "a mask over packed sequences",
        ),
        (
            PACKED,
            SOFTMAX,
            {"query_form": NHD, "key_value_form": NHD, "query_lengths": "ql"},
            "TensorRT finds no shape",
        ),
        ({**QKV, "v": ("HALF", (2, 2, 5, 10))}, SOFTMAX, {}, "TensorRT finds no shape"),
        (
            {**QKV, "s": ("FLOAT", (4,))},
            SOFTMAX,
            {"normalization_quantize_scale": "s", "normalization_quantize_to_type": "trt.int8"},
            "scales of shape (4,)",
        ),
        ({**QKV, "s": ("FLOAT", ())}, SOFTMAX, {"normalization_quantize_scale": "s"}, "quantized to FLOAT"),
    ],
)
def test_forms_whose_meaning_is_not_documented(
    worker: Worker, tmp_path: Path, inputs: Any, given: Any, settings: dict[str, Any], why: str
) -> None:
    found = made(worker, tmp_path, inputs, "attention", given, **settings)
    assert found.status == "unlifted"
    assert why in found.reason
    assert found.gaps[0].kind == "ATTENTION_INPUT"
