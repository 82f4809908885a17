"""Attention in forms that only TensorRT's API makes, or the parser's own operators: what each computes, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfix.runtime.sandbox import Worker
from support.attention_by_hand import attention, causal, close, made, random, values
from support.handmade import computed
from support.real_tensorrt import REAL

pytestmark = REAL


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
