"""Values in half precision are rounded between nodes too, which ONNX Runtime does not do by itself."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfix.lowering.convert import between_casts
from support import ort
from support.models import model

SQUARE = "g (float16[2] x) => (float16[2] y) { a = Mul(x, x)  y = Div(a, x) }"


@pytest.mark.parametrize("opset", [11, 13, 20])
def test_a_square_overflows_before_it_is_divided(opset):
    made = model(SQUARE, opset=opset)
    x = np.array([300, 2], np.float16)
    assert ort.run(made, {"x": x})[0].tolist() == [
        300,
        2,
    ]  # if this fails, ``between_casts`` is needed no longer
    before = made.SerializeToString()
    assert ort.run(between_casts(made), {"x": x})[0].tolist() == [np.inf, 2]
    assert made.SerializeToString() == before


def test_casts_of_the_model_itself_round():
    made = model(
        "g (float[1] x) => (float[1] y) { h = Cast<to = 10>(x)  q = Mul(h, h)  y = Cast<to = 1>(q) }"
    )
    x = np.array([1.0009765], np.float32)
    rounded = np.float32(np.float16(x) * np.float16(x))
    assert ort.run(between_casts(made), {"x": x})[0] == rounded


def test_every_value_is_that_of_numpy():
    nodes = "a = Mul(x, x)  b = Sub(a, x)  c = Tanh(b)  d = Mul(c, x)  y = Add(d, b)"
    text = f"g (float16[4,8] x) => (float16[4,8] y) {{ {nodes} }}"
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float16)
    b = x * x - x
    c = np.tanh(b.astype(np.float32)).astype(np.float16)
    assert np.array_equal(ort.run(between_casts(model(text)), {"x": x})[0], c * x + b)


def test_a_model_without_half_precision_is_left_alone():
    made = model("g (float[2] x) => (float[2] y) { a = Mul(x, x)  y = Div(a, x) }")
    assert between_casts(made) is made
