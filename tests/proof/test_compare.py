"""Comparison: shape and type first, then NaN and Inf, then bits or tolerance."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxfix.proof.compare.compare import Metrics, compare, identical
from onnxfix.proof.compare.tolerance import ENOUGH, error_histogram


def one(original: Any, fixed: Any, *, exact: bool = True, slack: float = 0.0) -> Metrics:
    (metrics,) = compare("y", original, fixed, exact=exact, slack=slack)
    return metrics


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("original", "fixed", "reason"),
    [
        (np.float32(1.0).reshape(()), f32(1.0), "has shape () in the original, (1,)"),
        (np.ones((2, 1), np.float32), np.ones((1, 2), np.float32), "has shape (2, 1)"),
        (np.ones((0, 3), np.float32), np.ones((3, 0), np.float32), "has shape (0, 3)"),
        (np.ones(2, np.float32), np.ones(2, np.float64), "has type float32 in the original, float64"),
        (np.ones(2, np.int32), np.ones(2, np.int64), "has type int32"),
        (np.ones(2, bool), np.ones(2, np.uint8), "has type bool"),
        (np.array(["a"], object), f32(1.0), "has type string"),
        (None, f32(1.0), "an empty optional in the original, a tensor"),
        ([f32(1.0)], f32(1.0), "a sequence of 1 in the original, a tensor"),
        ([f32(1.0)], [], "a sequence of 1 in the original, a sequence of 0"),
        ({1: f32(1.0)}, {2: f32(1.0)}, "different keys"),
        (f32(1.0), {1: f32(1.0)}, "is a tensor in the original"),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_kind_type_and_shape_come_first(original: Any, fixed: Any, reason: str, exact: bool) -> None:
    found = one(original, fixed, exact=exact)
    assert found.agreement == "different"
    assert reason in found.reason


@pytest.mark.parametrize(
    ("original", "fixed", "kind", "sides", "counts"),
    [
        (f32(1.0), f32(1.0), "", None, (0, 0)),
        (f32(1.0), np.nextafter(f32(1.0), f32(2.0)), "", None, (0, 0)),
        (f32(1.0, 2.0, 3.0), f32(2.0, 3.0, 3.0), "values", None, (0, 2)),
        (np.arange(3), np.arange(1, 4), "values", None, (0, 3)),
        (f32(1.0, 2.0), f32(math.nan, 2.0), "special", None, (1, 0)),
        (f32(1.0, math.inf, 3.0), f32(math.nan, 2.0, 4.0), "special", None, (2, 1)),
        (f32(1.0), np.ones((1, 1), np.float32), "shape", ("(1,)", "(1, 1)"), (0, 0)),
        (f32(1.0), np.ones(1), "dtype", ("float32", "float64"), (0, 0)),
        (None, f32(1.0), "absent", ("an empty optional", "a tensor"), (0, 0)),
        ([f32(1.0)], [], "structure", ("a sequence of 1", "a sequence of 0"), (0, 0)),
        ({1: f32(1.0)}, {2: f32(1.0)}, "structure", ("a map of 1", "a map of 1"), (0, 0)),
    ],
)
def test_what_differs_is_data(
    original: Any, fixed: Any, kind: str, sides: tuple[str, str] | None, counts: tuple[int, int]
) -> None:
    found = one(original, fixed, exact=False)
    assert (found.agreement == "different") == bool(kind) == bool(found.reason)
    assert (found.kind, found.sides, (found.special, found.beyond)) == (kind, sides, counts)


FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_nan_equals_every_nan(dtype: Any) -> None:
    quiet = np.array([math.nan, 1.0]).astype(dtype)
    other = quiet.copy()
    bits = other.view(f"u{other.itemsize}")
    bits[0] ^= 1 << (other.itemsize * 8 - 1)  # the sign
    if other.itemsize > 1:
        bits[0] |= 5  # the payload
    assert other.tobytes() != quiet.tobytes()
    assert one(quiet, other).agreement == "identical"


@pytest.mark.parametrize("dtype", FLOATS)
def test_minus_zero_is_not_zero(dtype: Any) -> None:
    zero, minus = np.zeros(3).astype(dtype), np.array([0.0, -0.0, 0.0]).astype(dtype)
    found = one(zero, minus)
    assert (found.agreement, found.mismatches, found.at) == ("different", 1, (1,))
    assert found.values[1].startswith("-0")
    assert one(zero, minus, exact=False).agreement == "within"
    assert one(zero[1:2].reshape(()), minus[1:2].reshape(())).at == ()


@pytest.mark.parametrize(
    ("original", "fixed"),
    [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1e38), (math.inf, -math.inf), (math.nan, math.inf)],
)
def test_nan_and_inf_must_be_at_the_same_places(original: float, fixed: float) -> None:
    for slack in (0.0, 1e30):
        found = one(f32(1.0, original), f32(1.0, fixed), exact=False, slack=slack)
        assert found.agreement == "different"
        assert "NaN or Inf at different positions (1 of 2" in found.reason
        assert found.at == (1,)
    assert one(f32(original), f32(original), exact=False).agreement == "identical"


def test_one_bit_is_a_difference_and_within_tolerance() -> None:
    original = f32(1.0, 100.0, -3.0)
    fixed = original.copy()
    fixed[1] = np.nextafter(np.float32(100.0), np.float32(200.0))
    found = one(original, fixed)
    assert found.agreement == "different"
    assert (found.mismatches, found.elements, found.at, found.dtype, found.shape) == (
        1,
        3,
        (1,),
        "float32",
        (3,),
    )
    assert found.max_abs == pytest.approx(2**-17)
    assert found.max_rel == pytest.approx(2**-17 / 100)
    assert one(original, fixed, exact=False).agreement == "within"
    assert one(original, original + np.float32(1.0), exact=False).agreement == "different"


def test_tolerance_goes_with_the_size_of_the_output() -> None:
    tiny = f32(1e-20, 2e-20)
    assert one(tiny, tiny * np.float32(1.5), exact=False).agreement == "different"
    large = f32(1e20, 1.0)
    assert one(large, large + f32(0.0, 10.0), exact=False).agreement == "within"


def test_measured_noise_widens_the_tolerance() -> None:
    original, fixed = f32(1.0), f32(1.01)
    assert one(original, fixed, exact=False).agreement == "different"
    assert one(original, fixed, exact=False, slack=0.04).agreement == "within"
    assert one(original, fixed, exact=True, slack=0.04).agreement == "different"


@pytest.mark.parametrize("exact", [True, False])
def test_large_integers_are_told_apart(exact: bool) -> None:
    original, fixed = np.array([2**62, 7]), np.array([2**62 + 1, 7])
    found = one(original, fixed, exact=exact)
    assert (found.agreement, found.mismatches, found.at) == ("different", 1, (0,))
    assert found.values == (str(2**62), str(2**62 + 1))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, np.int8, np.uint64, bool])
def test_integers_are_exact(dtype: Any, exact: bool) -> None:
    original, fixed = np.array([1, 1, 0]).astype(dtype), np.array([1, 0, 0]).astype(dtype)
    assert one(original, original, exact=exact).agreement == "identical"
    assert one(original, fixed, exact=exact).at == (1,)


def test_complex_numbers_part_by_part() -> None:
    original = np.array([1 + 2j, 3 - 0j], np.complex64)
    assert one(original, original.copy()).agreement == "identical"
    fixed = np.array([1 + 2j, complex(3, 0.0)], np.complex64)
    original = np.array([1 + 2j, complex(3, -0.0)], np.complex64)
    assert (one(original, fixed).agreement, one(original, fixed).at) == ("different", (1,))
    assert one(original, fixed, exact=False).agreement == "within"
    assert one(original, fixed + 1, exact=False).agreement == "different"
    scalar = np.array(1 + 2j, np.complex64)
    assert one(scalar, scalar + 1).at == ()


def test_strings() -> None:
    original = np.array([["a", "b"]], object)
    assert one(original, np.array([["a", "b"]])).agreement == "identical"
    assert one(original, np.array([[b"a", b"b"]], object)).agreement == "identical"
    found = one(original, np.array([["a", "c"]], object), exact=False)
    assert (found.agreement, found.at, found.values) == ("different", (0, 1), ("b", "c"))


def test_sequences_maps_and_optionals() -> None:
    assert identical([f32(1.0), None], [f32(1.0), None])
    assert identical([], [])
    assert identical({"a": f32(1.0)}, {"a": f32(1.0)})
    parts = compare("y", [f32(1.0), f32(2.0)], [f32(1.0), f32(3.0)], exact=True)
    assert [(part.name, part.agreement) for part in parts] == [("y[0]", "identical"), ("y[1]", "different")]
    assert not identical([{3: f32(1.0)}], [{3: f32(2.0)}])


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=5),
    st.lists(st.floats(width=32), min_size=1, max_size=5),
)
def test_exact_is_equality_of_bits_but_for_nan(first: list[float], second: list[float]) -> None:
    def canonical(values: list[float]) -> list[bytes]:
        return [b"nan" if math.isnan(value) else np.float32(value).tobytes() for value in values]

    found = one(f32(*first), f32(*second))
    assert (found.agreement == "identical") == (canonical(first) == canonical(second))


def test_errors_are_counted_by_powers_of_10() -> None:
    original = np.ones(6, np.float64)
    fixed = original + np.array([0.0, 2e-3, 3e-3, 5e-5, np.nan, 0.0])
    found = one(original, fixed, exact=False).errors
    counts = {round(low, 9): count for low, count in zip(found.edges, found.counts, strict=False)}
    assert (found.zeros, found.step, counts) == (2, 1, {1e-5: 1, 1e-4: 0, 1e-3: 2})
    assert one(f32(1.0), f32(1.0)).errors is None
    large = error_histogram(np.zeros(3 * ENOUGH), np.full(3 * ENOUGH, 0.5))
    assert (large.step, large.counts) == (3, (ENOUGH,))
