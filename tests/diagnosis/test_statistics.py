"""The figures of an output's comparison, held against the formulas as they are written in a textbook."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxfix.diagnosis.records import NonFinite, OutputComparison
from onnxfix.diagnosis.statistics import compare_output

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
SMALL = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float4_e2m1fn]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
TINY_INTEGERS = [ml_dtypes.int4, ml_dtypes.uint4]
OTHERS = [np.bool_, np.complex64, np.complex128]

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


def wide(array: Any) -> Any:
    return np.asarray(array).astype(np.complex128 if np.asarray(array).dtype.kind == "c" else np.float64)


@st.composite
def values(draw: Any, dtype: Any, shape: Any) -> Any:
    """An array of any type, by way of float64 or of its bits."""
    if np.dtype(dtype).isbuiltin == 1:
        return draw(hnp.arrays(dtype, shape))
    source = draw(hnp.arrays(np.float32, shape))
    with np.errstate(all="ignore"):
        if np.dtype(dtype).name.startswith(("int", "uint")):
            source = np.clip(np.nan_to_num(source), 0, 7)
        return source.astype(dtype)


@st.composite
def pairs_of(draw: Any, dtypes: list[Any]) -> Any:
    dtype, shape = draw(st.sampled_from(dtypes)), draw(shapes)
    truth = draw(values(dtype, shape))
    if draw(st.booleans()):
        return truth, draw(values(dtype, shape))
    other = truth.copy()  # differs in few elements
    if other.size:
        other.reshape(-1)[draw(st.integers(0, other.size - 1))] = draw(values(dtype, (1,)))[0]
    return truth, other


def within(truth: Any, other: Any, rtol: float, atol: float) -> bool:
    """Like ``np.isclose``, in float64: NaN and infinities agree with themselves only."""
    one, two = wide(truth), wide(other)
    with np.errstate(all="ignore"):
        near = np.isfinite(one) & np.isfinite(two) & (np.abs(two - one) <= atol + rtol * np.abs(one))
        same = np.ones(one.shape, bool)
        for a, b in ((one.real, two.real), (one.imag, two.imag)):
            same &= (a == b) | (np.isnan(a) & np.isnan(b))
    return bool((near | same).all())


@given(st.sampled_from([*FLOATS, *SMALL, *INTEGERS, *TINY_INTEGERS, *OTHERS]), shapes, st.data())
def test_identical_values_have_no_error(dtype: Any, shape: Any, data: Any) -> None:
    truth = data.draw(values(dtype, shape))
    found = compare_output("y", [(truth, truth.copy()), (truth, truth.copy())])
    assert found.same
    assert found.differing == 0
    assert found.elements == 2 * truth.size
    errors = (
        found.max_abs,
        found.mean_abs,
        found.p99_abs,
        found.max_rel,
        found.mean_rel,
        found.p99_rel,
        found.rtol,
        found.atol,
    )
    assert errors == (0.0,) * 8
    assert found.worst is None
    assert found.snr is None
    assert found.cosine in (None, 1.0)
    assert found.argmax in (None, 1.0)
    assert (found.dtype, found.shape) == (np.dtype(dtype).name, shape)
    assert found.truth_nonfinite == found.other_nonfinite


@given(pairs_of([*FLOATS, *SMALL, *INTEGERS[:6], np.complex64]))
def test_tolerances_are_the_least_ones(pair: Any) -> None:
    truth, other = pair
    found = compare_output("y", [pair])
    if found.atol is None:
        assert not np.array_equal(np.isfinite(wide(truth)), np.isfinite(wide(other))) or (
            not math.isfinite(found.max_abs) or not within(truth, other, 0.0, np.finfo(float).max)
        )
    else:
        assert within(truth, other, 0.0, found.atol)
        assert found.atol == 0.0 or not within(truth, other, 0.0, float(np.nextafter(found.atol, 0.0)))
    if found.rtol is None:
        assert not within(truth, other, np.finfo(float).max, 0.0) or found.atol is None
    else:
        assert within(truth, other, found.rtol, 0.0)
        if found.rtol and np.asarray(truth).dtype != np.float64:
            assert not within(truth, other, float(np.nextafter(found.rtol, 0.0)), 0.0)


@given(hnp.arrays(np.int64, 4), hnp.arrays(np.int64, 4))
def test_integers_of_64_bits_are_compared_exactly(truth: Any, other: Any) -> None:
    found = compare_output("y", [(truth, other)])
    exact = max(abs(int(a) - int(b)) for a, b in zip(truth, other, strict=True))
    assert found.differing == np.count_nonzero(truth != other)
    assert found.atol is not None
    assert found.atol >= exact
    assert float(np.nextafter(found.atol, 0.0)) < exact or exact == 0
    big = np.array([2**63 - 1], np.int64)
    assert compare_output("y", [(big, big - 1)]).max_abs == 1.0  # the same number in float64


@settings(max_examples=60)
@given(st.lists(pairs_of([np.float32, np.float16, np.int32, ml_dtypes.bfloat16]), min_size=1, max_size=3))
def test_figures_are_those_of_the_formulas(pairs: Any) -> None:
    found = compare_output("y", pairs)
    one = np.concatenate([wide(a).reshape(-1) for a, _ in pairs])
    two = np.concatenate([wide(b).reshape(-1) for _, b in pairs])
    both = np.isfinite(one) & np.isfinite(two)
    a, b = one[both], two[both]
    distance = np.abs(a - b)
    relative = distance[a != 0] / np.abs(a[a != 0])
    for errors, figures_of in ((distance, "abs"), (relative, "rel")):
        most, mean, p99 = (getattr(found, f"{figure}_{figures_of}") for figure in ("max", "mean", "p99"))
        assert most == errors.max(initial=0.0)
        assert mean == pytest.approx(errors.mean() if errors.size else 0.0, rel=1e-12)
        wanted = np.quantile(errors, 0.99, method="inverted_cdf") if errors.size else 0.0
        assert p99 == wanted
    assert found.scale == np.abs(one[np.isfinite(one)]).max(initial=0.0)
    signal, noise = float(np.sum(a * a)), float(np.sum((a - b) ** 2))
    if signal and noise:
        assert found.snr == pytest.approx(10 * math.log10(signal / noise), rel=1e-9, abs=1e-9)
    else:
        assert found.snr is None
    if np.any(a) and np.any(b):
        cosine = float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))
        assert found.cosine == pytest.approx(cosine, rel=1e-9, abs=1e-12)
    else:
        assert found.cosine is None
    assert found.truth_nonfinite.nan == np.isnan(one).sum()
    assert found.other_nonfinite.inf == np.isinf(two).sum()
    assert_worst(found, pairs)
    assert_histograms(found, one, two, distance)


def assert_worst(found: OutputComparison, pairs: Any) -> None:
    if found.worst is None:
        assert found.same
        return
    assert found.values is not None
    truth, other = (wide(side)[found.worst] for side in pairs[found.sample])
    if np.isfinite(truth) and np.isfinite(other):
        assert abs(truth - other) == found.max_abs
        assert found.atol == found.max_abs
    else:
        assert found.atol is None
    types = [side.dtype for side in pairs[found.sample]]
    shown = [wide(np.array(float(text)).astype(kind)) for text, kind in zip(found.values, types, strict=True)]
    assert [*map(float, shown)] == pytest.approx([truth, other], nan_ok=True, rel=0.0, abs=0.0)


def assert_histograms(found: OutputComparison, one: Any, two: Any, distance: Any) -> None:
    if found.histogram is not None:
        edges = np.array(found.histogram.edges)
        assert (np.diff(edges) > 0).all()
        for side, counts in ((one, found.histogram.truth), (two, found.histogram.other)):
            assert sum(counts) == np.isfinite(side).sum()
            some = side[np.isfinite(side)]
            assert list(counts) == np.histogram(some, edges)[0].tolist()
    if distance.size:
        edges, counts = np.array(found.errors.edges), found.errors.counts
        assert found.errors.zeros == np.count_nonzero(distance == 0)
        assert sum(counts) + found.errors.zeros == distance.size
        if counts:
            assert list(counts) == np.histogram(distance[distance > 0], edges)[0].tolist()
            assert np.log10(edges) == pytest.approx(np.round(np.log10(edges)))


def test_nan_and_infinities_at_the_same_place_agree() -> None:
    truth = np.array([np.nan, np.inf, -np.inf, 2.0], np.float32)
    found = compare_output("y", [(truth, np.array([np.nan, np.inf, -np.inf, 2.5], np.float32))])
    assert (found.atol, found.rtol, found.differing, found.max_abs) == (0.5, 0.25, 1, 0.5)
    assert found.truth_nonfinite == NonFinite(1, 2, (0,))
    assert found.scale == 2.0


@pytest.mark.parametrize("other", [np.nan, -np.inf, 1.0])
def test_infinity_on_one_side_alone_has_no_tolerance(other: float) -> None:
    truth = np.array([[9.0, 1.0], [np.inf, 1.0]], np.float16)
    wrong = truth.copy()
    wrong[1, 0], wrong[0, 0] = other, 8.0
    found = compare_output("y", [(truth, truth), (truth, wrong)])
    assert (found.atol, found.rtol, found.differing) == (None, None, 2)
    assert (found.worst, found.sample) == ((1, 0), 1)
    assert found.max_abs == 1.0  # of finite elements
    assert found.truth_nonfinite.first == (1, 0)


def test_a_true_zero_has_no_relative_tolerance() -> None:
    found = compare_output("y", [(np.zeros(2, np.float32), np.array([0.0, 1e-9], np.float32))])
    assert found.rtol is None
    assert found.atol == float(np.float32(1e-9))
    assert (found.max_rel, found.p99_rel, found.cosine, found.snr) == (0.0, 0.0, None, None)


def test_signs_of_zero_differ_without_an_error() -> None:
    found = compare_output("y", [(np.array([0.0, 1.0]), np.array([-0.0, 1.0]))])
    assert (found.differing, found.same, found.max_abs, found.atol) == (1, False, 0.0, 0.0)
    assert (found.worst, found.values) == ((0,), ("0.0", "-0.0"))


def test_argmax_counts_rows_and_forgives_ties() -> None:
    truth = np.array([[1.0, 1.0, 0.0], [5.0, 4.0, 3.0], [0.0, 0.0, 1.0], [1.0, np.nan, 0.0]], np.float32)
    other = np.array([[1.0, 1.1, 0.0], [4.0, 5.0, 3.0], [0.0, 0.0, 1.0], [9.0, np.nan, 0.0]], np.float32)
    assert compare_output("y", [(truth, other)]).argmax == 0.75
    half = [truth.astype(ml_dtypes.bfloat16), other.astype(ml_dtypes.bfloat16)]
    assert compare_output("y", [(half[0], half[1])]).argmax == 0.75
    integers = np.array([2**53, 2**53 + 1], np.int64)
    assert compare_output("y", [(integers, integers[::-1])]).argmax == 0.0  # equal in float64
    assert compare_output("y", [(truth[:, :1], other[:, :1])]).argmax is None
    assert compare_output("y", [(truth > 0, other > 0)]).argmax is None


def test_strings_are_equal_or_not() -> None:
    truth = np.array([["a", "b"], ["c", "d"]], object)
    other = np.array([["a", "b"], ["x", "d"]])
    found = compare_output("y", [(truth, other)])
    assert (found.dtype, found.differing, found.elements, found.differs) == ("string", 1, 4, "")
    assert (found.worst, found.values, found.atol) == ((1, 0), ("c", "x"), None)
    assert compare_output("y", [(truth, truth.astype(str))]).same


def test_structure_shape_and_type() -> None:
    a, b = np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
    found = compare_output("y", [(a, b)])
    assert (found.differing, found.atol, found.elements) == (6, None, 6)
    assert found.differs == "shape [2, 3] is shape [3, 2] on the other side"
    found = compare_output("y", [(a, a.astype(np.float16) + 1)])
    assert (found.differs, found.max_abs, found.atol) == (
        "type float32 is type float16 on the other side",
        1.0,
        1.0,
    )
    found = compare_output("y", [([a, a], [a])])
    assert (found.differs, found.elements) == ("a sequence of 2 is a sequence of 1 on the other side", 12)
    found = compare_output("y", [(None, a)])
    assert (found.differs, found.differing) == ("an empty optional is a tensor on the other side", 1)
    assert not found.same
    assert compare_output("y", [(None, None)]).same
    assert compare_output("y", [(None, None)]).dtype == "optional"
    assert compare_output("y", []).same


def test_sequences_and_maps_lead_to_the_element() -> None:
    truth = [np.zeros(2, np.float32), {"a": 1.0, "b": np.array([1.0, 2.0])}]
    other = [np.zeros(2, np.float32), {"b": np.array([1.0, 4.0]), "a": 1.5}]
    found = compare_output("y", [(truth, other)])
    assert (found.worst, found.max_abs, found.elements, found.differing) == ((1, 1, 1), 2.0, 5, 2)
    assert (found.dtype, found.shape) == ("sequence", None)


def test_values_at_the_end_of_float64() -> None:
    most = np.finfo(np.float64).max
    found = compare_output("y", [(np.array([most, 1.0]), np.array([-most, 1.0]))])
    assert (found.max_abs, found.atol, found.histogram) == (math.inf, None, None)
    assert found.cosine == pytest.approx(-1.0)
    found = compare_output("y", [(np.array([most / 2, most / 2]), np.array([most / 2, most / 4]))])
    assert found.snr == pytest.approx(10 * math.log10(8))
    found = compare_output("y", [(np.array([3e-200, 0.0]), np.array([3e-200, 4e-200]))])
    assert found.cosine == pytest.approx(0.6)
    found = compare_output("y", [(np.array(1e-139), np.array(1e139))])
    assert found.snr == pytest.approx(-5560.0)
    found = compare_output("y", [(np.array(1e-139), np.array(1e139) * 1e100)])
    assert found.snr is None  # the square of the truth is no float64 then


@pytest.mark.slow
def test_large_arrays_are_read_from_disk_in_blocks(tmp_path: Path) -> None:
    size = 3 * 2**20
    sides = [np.memmap(tmp_path / name, np.float32, "w+", shape=(3, 2**20)) for name in "ab"]
    rng = np.random.default_rng(0)
    for side in sides:
        side[:] = np.arange(size, dtype=np.float32).reshape(3, -1) / size
    sides[1] += rng.uniform(0.0, 1e-3, sides[1].shape).astype(np.float32)
    tracemalloc.start()
    found = compare_output("y", [(sides[0], sides[1])])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * size * 4  # less than the arrays themselves
    distance = np.abs(sides[1].astype(np.float64) - sides[0].astype(np.float64))
    exact = float(np.quantile(distance, 0.99, method="inverted_cdf"))
    assert found.p99_abs == pytest.approx(exact, rel=1e-3)
    assert found.mean_abs == pytest.approx(float(distance.mean()), rel=1e-9)
