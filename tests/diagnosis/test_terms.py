"""The terms of an element add up to what ONNX Runtime computes there, whatever the form of the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfix.diagnosis.counterpart import change_of
from onnxfix.diagnosis.terms import terms_of
from support import ort
from support.evidence import normal
from support.models import model

IMAGE = {"x": normal(2, 4, 7, 6), "w": normal(6, 4, 3, 2, seed=1), "b": normal(6, seed=2)}
GROUPED = {"x": normal(2, 4, 7, 6), "w": normal(6, 2, 3, 2, seed=1), "b": normal(6, seed=2)}
MATRICES = {"x": normal(5, 7), "w": normal(7, 3, seed=1), "b": normal(3, seed=2)}
TURNED = {"x": normal(7, 5), "w": normal(3, 7, seed=1), "b": normal(5, 1, seed=2)}


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        ("Add(x, w)", {"x": normal(3, 4), "w": normal(4, seed=1)}),
        ("Sub(x, w)", {"x": normal(3, 1), "w": normal(4, seed=1)}),
        ("Mean(x, w, b)", {"x": normal(3, 4), "w": normal(4, seed=1), "b": normal(3, 4, seed=2)}),
        ("MatMul(x, w)", {"x": normal(5, 7), "w": normal(7, 3, seed=1)}),
        ("MatMul(x, w)", {"x": normal(2, 1, 5, 7), "w": normal(3, 7, 4, seed=1)}),
        ("MatMul(x, w)", {"x": normal(7), "w": normal(3, 7, 4, seed=1)}),
        ("MatMul(x, w)", {"x": normal(2, 5, 7), "w": normal(7, seed=1)}),
        ("Gemm(x, w, b)", MATRICES),
        ("Gemm<alpha = 0.5, beta = 2.0, transA = 1, transB = 1>(x, w, b)", TURNED),
        ("Conv(x, w, b)", IMAGE),
        ("Conv<pads = [1, 0, 2, 1], strides = [2, 1], dilations = [1, 2]>(x, w, b)", IMAGE),
        ('Conv<auto_pad = "SAME_UPPER", strides = [2, 1]>(x, w, b)', IMAGE),
        ('Conv<auto_pad = "SAME_LOWER", strides = [1, 2]>(x, w, b)', IMAGE),
        ("Conv<group = 2, pads = [1, 1, 1, 1]>(x, w, b)", GROUPED),
        ("GlobalAveragePool(x)", {"x": normal(2, 3, 5, 4)}),
        ("ReduceSum<keepdims = 0>(x, axes)", {"x": normal(2, 3, 5), "axes": np.array([-2])}),
        ("ReduceMean(x, axes)", {"x": normal(2, 3, 5), "axes": np.array([0, 2])}),
        ("ReduceSum<keepdims = 0>(x)", {"x": normal(2, 3, 5)}),
        ("ReduceSum<noop_with_empty_axes = 1>(x)", {"x": normal(2, 3, 5)}),
    ],
)
def test_terms_add_up_to_the_element(node: str, inputs: dict[str, Any]):
    kinds = {"f": "float", "i": "int64"}
    formals = ", ".join(
        f"{kinds[array.dtype.kind]}[{','.join(map(str, array.shape))}] {name}"
        for name, array in inputs.items()
    )
    made = model(f"g ({formals}) => (float[] y) {{ y = {node} }}", opset=18)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    (y,) = ort.run(made, inputs)
    random = np.random.default_rng(0)
    for _ in range(10):
        index = tuple(int(random.integers(size)) for size in y.shape)
        terms = terms_of(made.graph.node[0], inputs, index)
        assert terms.value() == pytest.approx(float(y[index]), rel=1e-4, abs=1e-5)
        assert terms.magnitude >= abs(terms.value()) * (1 - 1e-9)


def test_operators_without_terms_and_shapes_that_contradict_have_none():
    relu = model("g (float[4] x) => (float[4] y) { y = Relu(x) }").graph.node[0]
    assert terms_of(relu, {"x": normal(4)}, (0,)) is None
    product = model("g (float[5,7] x, float[7,3] w) => (float[5,3] y) { y = MatMul(x, w) }").graph.node[0]
    assert terms_of(product, {"x": normal(5, 7)}, (0, 0)) is None
    assert terms_of(product, {"x": normal(5, 7), "w": normal(7, 3)}, (9, 0)) is None


def test_constants_of_other_ranks_and_types_are_the_same():
    w = normal(64)
    assert change_of(w, w.reshape(1, 64)) is None
    assert change_of(w, w.astype(np.float64)) is None
    assert change_of(np.array(2, np.float32), np.array([[2]], np.int64)) is None
    turned = change_of(normal(4, 3), normal(3, 4))
    assert "has the shape [4, 3] in the first model and [3, 4]" in turned.text
    low = change_of(w, w.astype(np.float16))
    assert low.rounded == "float16"
    through = change_of(w, w.astype(np.float16).astype(np.float32))
    assert through.rounded == "float16"


def test_a_factor_that_is_rounding_is_no_factor():
    w = normal(64)
    near = change_of(w, w * np.float32(1.0003))
    assert not near.factor
    far = change_of(w, w * np.float32(1.003))
    assert far.factor
