"""How far two values are from each other: exact on whole numbers, honest about what is not finite."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfix.diagnosis.distance import distance

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
