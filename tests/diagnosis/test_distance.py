"""How far two values are from each other: exact on whole numbers, honest about what is not finite. The terms of an
element add up to what ONNX Runtime computes there, whatever the form of the operator."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfix.diagnosis.counterpart import change_of
from onnxfix.diagnosis.distance import distance
from onnxfix.diagnosis.terms import terms_of
from support import ort
from support.evidence import normal
from support.models import model

NAN, INF = math.nan, math.inf


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def test_the_figures_of_a_plain_difference() -> None:
    far = distance(floats(1, -4, 2), floats(1, -3.5, 2))
    assert (far.largest, far.scale, far.low, far.high) == (0.5, 4.0, -4.0, 2.0)
    assert (far.special, far.differing, far.shape, far.relative) == (0, 1, False, 0.125)


@pytest.mark.parametrize(
    ("truth", "other", "special", "differing"),
    [
        ((NAN, INF, -INF, 1), (NAN, INF, -INF, 1), 0, 0),
        ((NAN, 1), (1, 1), 1, 1),
        ((1, 1), (1, NAN), 1, 1),
        ((INF, 1), (-INF, 1), 1, 1),
        ((INF, 1), (3e38, 1), 1, 1),
        ((1, 2), (INF, 3), 1, 2),
        ((0.0,), (-0.0,), 0, 0),
    ],
)
def test_what_is_not_finite_agrees_with_itself_only(
    truth: tuple[float, ...], other: tuple[float, ...], special: int, differing: int
) -> None:
    far = distance(floats(*truth), floats(*other))
    assert (far.special, far.differing) == (special, differing)
    assert math.isinf(far.relative) == bool(special)


def test_all_nan_has_neither_range_nor_scale() -> None:
    far = distance(floats(NAN, NAN), floats(NAN, 1))
    assert (far.low, far.high, far.scale, far.special) == (0.0, 0.0, 0.0, 1)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_whole_numbers_that_float64_does_not_hold(dtype: Any) -> None:
    big = np.array([2**60, 2**60 + 1, 7], dtype)
    far = distance(big, np.array([2**60 + 1, 2**60 + 1, 7], dtype))
    assert (far.largest, far.differing) == (1.0, 1)


def test_the_ends_of_whole_numbers_do_not_wrap_around() -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert distance(np.array([low]), np.array([high])).largest == 2.0**64
    assert distance(np.array([0, 5], np.uint8), np.array([1, 5], np.uint8)).largest == 1.0
    assert distance(np.array([low]), np.array([low])).scale == 2.0**63


def test_complex_numbers_by_magnitude() -> None:
    far = distance(np.array([3 + 4j, 1j]), np.array([3 + 4j, 1 + 1j]))
    assert (far.largest, far.scale, far.low, far.high) == (1.0, 5.0, 0.0, 3.0)
    assert distance(np.array([complex(NAN, 1)]), np.array([1j])).special == 1


ML_DTYPES = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4)
STRINGS = np.array(["a", "b"], object)


@pytest.mark.parametrize(
    ("truth", "other", "relative"),
    [
        (floats(INF, 8, NAN), floats(INF, 4, NAN), 0.5),  # the scale is that of finite numbers
        (floats(0, 0), floats(0, 0.25), 0.25),  # absolute where the truth is 0
        (np.ones((2, 3)), np.ones((3, 2)), INF),
        (np.ones(()), np.ones((1,)), INF),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), 0.0),
        (np.array([1, 2], np.int64), np.array([1, 3], np.int32), 0.5),
        (np.array([True, False, True]), np.array([True, True, True]), 1.0),
        *((np.array([1, 2, 4], kind), np.array([1, 2, 3], kind), 0.25) for kind in ML_DTYPES),
        (STRINGS, STRINGS.copy(), 0.0),
        (STRINGS, np.array(["a", "c"], object), 1.0),
        (STRINGS, np.array(["a"], object), 1.0),
        (None, None, 0.0),
        (None, np.ones(1), 1.0),
        (np.ones(1), None, 1.0),
        ([], [], 0.0),
        ([floats(2, 4)], [floats(2, 3)], 0.25),
        ([floats(2), floats(NAN)], [floats(2), floats(1)], INF),
        ([floats(2)], [floats(2), floats(2)], INF),
        ([floats(2)], [floats(2, 3)], INF),
        ({1: 0.5, 2: 1.0}, {1: 0.5, 2: 0.5}, 0.5),
        ({1: 0.5}, {2: 0.5}, INF),
        ({"a": 0.5}, {"a": 0.5}, 0.0),
    ],
)
def test_the_distance_as_a_share_of_the_scale(truth: Any, other: Any, relative: float) -> None:
    assert distance(truth, other).relative == relative


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
