"""The Cast rules against all combinations of types, judged by ``onnx.reference``."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, defs, helper
from onnx.reference import ReferenceEvaluator

from onnxfix.files import dtypes
from onnxfix.testing import findings, fixed, overlay
from onnxfix_rules.cst import _common as cst
from onnxfix_rules.cst.casts import no_op_cast, redundant_cast_chain
from onnxfix_rules.cst.round_trips import exact_cast_round_trip, loses, loss, lossy_cast_round_trip
from support import models

Array = np.ndarray[Any, Any]
RULES = [redundant_cast_chain, no_op_cast, exact_cast_round_trip, lossy_cast_round_trip]
OPSET = min(25, defs.onnx_opset_version())
# A Cast to these changes values that they hold: infinity, and 2**-127.
CHANGING = {TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E8M0}
_ALLOWED = defs.get_schema("Cast", OPSET).type_constraints[0].allowed_type_strs
TYPES = sorted(t for t in cst.NUMBERS if f"tensor({dtypes.name_of(t)})" in _ALLOWED)
# numpy warns of overflow, of NaN that becomes an integer, and of signalling NaNs: all of it made on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def numpy_type(elem_type: int) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))


@functools.cache
def values(elem_type: int) -> Array:
    """Every value of a type of up to 16 bits; of a wider one its edges and a sample of bit patterns."""
    dtype = numpy_type(elem_type)
    if elem_type == TensorProto.BOOL:
        return np.array([False, True])
    if dtype.itemsize <= 2:
        if elem_type in dtypes.INTEGERS and elem_type not in cst.ORDINARY:
            span = dtypes.INTEGERS[elem_type]
            return np.arange(span.low, span.high + 1).astype(dtype)
        bits = int((ml_dtypes.finfo if elem_type in dtypes.FLOATS else ml_dtypes.iinfo)(dtype).bits)
        return np.arange(1 << bits).astype(f"u{dtype.itemsize}").view(dtype)
    sample = np.random.default_rng(0).integers(0, 256, 8 * 4000, np.uint8).view(dtype)
    powers = [s * 2**e + d for e in range(65) for s in (-1, 1) for d in (-1, 0, 1)]
    if elem_type in dtypes.INTEGERS:
        span = dtypes.INTEGERS[elem_type]
        return np.concatenate([np.array([v for v in powers if span.low <= v <= span.high], dtype), sample])
    near = np.array([2.0**e for e in range(-1074, 1024)]).astype(dtype)
    others = [np.nextafter(near, dtype.type(math.inf)), np.nextafter(near, dtype.type(0))]
    halfway = [values(TensorProto.FLOAT16).astype(dtype) * dtype.type(1 + 2.0**-11), np.array(powers, dtype)]
    special = np.array([0, math.nan, math.inf, np.finfo(dtype).max], dtype)
    positive = np.concatenate([near, *others, *halfway, special])
    return np.concatenate([positive, -positive, sample])


def same(first: Array, second: Array) -> bool:
    """The same type, shape and values: NaN is NaN whatever its bits, -0.0 is not 0.0."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype.kind in "iub" or first.dtype in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)):
        return bool(np.array_equal(first, second))
    a, b = first.astype(np.float64), second.astype(np.float64)
    return bool(np.array_equal(a, b, equal_nan=True)) and bool(
        np.array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))
    )


def info(name: str, elem_type: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, ["N"])


def model_of(graph: onnx.GraphProto, **more: Any) -> ModelProto:
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **more)


def one_cast(source: int, target: int) -> ModelProto:
    node = helper.make_node("Cast", ["x"], ["y"], to=target)
    return model_of(helper.make_graph([node], "g", [info("x", source)], [info("y", target)]))


@functools.cache
def evaluator(source: int, target: int) -> ReferenceEvaluator:
    return ReferenceEvaluator(one_cast(source, target))


def by_reference(x: Array, source: int, target: int) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(evaluator(source, target).run(None, {"x": x})[0])


@functools.cache
def castable(source: int, target: int) -> bool:
    """The evaluator casts by numpy, which knows no way between some of the narrowest types (int4 to uint4)."""
    try:
        np.zeros(1, numpy_type(source)).astype(numpy_type(target))
    except TypeError:
        return False
    return True


def removed_as_a_whole(a: int, b: int) -> bool:
    """Whether CST003 takes a→b→a for nothing (with default attributes)."""
    return a != b and cst.same_values(a, b, a) and a not in CHANGING


def collapsed(a: int, b: int, c: int) -> bool:
    """Whether CST001 takes a→b→c for a→c."""
    return len({a, b, c}) == 3 and cst.ORDINARY.issuperset((a, c)) and cst.same_values(a, b, c)


NAMED = functools.partial(pytest.mark.parametrize, "a", TYPES, ids=dtypes.name_of)


@NAMED()
def test_every_collapse_is_exact(a: int) -> None:
    """All source x middle x target combinations, every value of the narrow types."""
    x = values(a)
    for b in (t for t in TYPES if castable(a, t)):
        middle = by_reference(x, a, b)
        for c in TYPES:
            if collapsed(a, b, c) and castable(b, c):
                name = [dtypes.name_of(t) for t in (a, b, c)]
                assert same(by_reference(middle, b, c), by_reference(x, a, c)), name


@NAMED()
def test_round_trips_are_exact_or_lossy_or_wrap(a: int) -> None:
    """What CST003 removes gives back every value, what CST004 reports does not, and the rest is named here."""
    x = values(a)
    for b in (t for t in TYPES if castable(a, t) and castable(t, a)):
        back = by_reference(by_reference(x, a, b), b, a)
        name = f"{dtypes.name_of(a)} -> {dtypes.name_of(b)}"
        if removed_as_a_whole(a, b):
            assert same(back, x), name
        elif loses(a, b):
            assert not same(back, x), name
            assert loss(a, b), name
        else:
            wraps = dtypes.is_integer(a) and dtypes.is_integer(b)
            assert a == b or wraps or a in CHANGING, name


@NAMED()
def test_no_op_casts_keep_every_value(a: int) -> None:
    x = values(a)
    assert same(by_reference(x, a, a), x) == (a not in CHANGING)


def test_number_of_combinations() -> None:
    """The tests above are not empty: 440 of the combinations were proven with ONNX Runtime before there were rules."""
    combinations = [t for t in itertools.product(TYPES, repeat=3) if collapsed(*t)]
    assert len(combinations) > 300
    assert len([p for p in itertools.product(TYPES, repeat=2) if removed_as_a_whole(*p)]) > 80


# ---- random chains


def test_the_judge_sees_a_wrong_collapse() -> None:
    """The comparison fails where it should: half to bfloat16, and the sign of zero."""
    x = values(TensorProto.FLOAT16)
    lossy = by_reference(
        by_reference(x, TensorProto.FLOAT16, TensorProto.BFLOAT16), TensorProto.BFLOAT16, TensorProto.FLOAT16
    )
    assert not same(lossy, x)
    assert not same(np.array([0.0], np.float32), np.array([-0.0], np.float32))
    assert not same(np.array([0.0], np.float32), np.array([0.0], np.float64))
    assert same(np.array([math.nan], np.float32), -np.array([math.nan], np.float32))


# ---- what examples cannot say


def test_long_chains_converge_quickly() -> None:
    """Collapsing halves a chain in a round, so 500 Casts do not take 500 rounds."""
    wide = [TensorProto.INT32, TensorProto.INT64]
    nodes = [helper.make_node("Cast", [f"v{i}"], [f"v{i + 1}"], to=wide[(i + 1) % 2]) for i in range(500)]
    end = wide[0]
    before = model_of(helper.make_graph(nodes, "g", [info("v0", TensorProto.INT32)], [info("v500", end)]))
    after, run = fixed(RULES, before)
    assert not run.problems
    assert run.rounds < 20
    assert [n.op_type for n in after.graph.node] == ["Identity"]


def test_old_opsets_say_the_type_as_a_string() -> None:
    text = """<ir_version: 3, opset_import: ["" : 5]> g (float[N] x) => (float[N] y)
        { a = Cast<to = "DOUBLE">(x)  b = Cast<to = "FLOAT">(a)  y = Neg(b) }"""
    assert not [f for rule in RULES for f in findings(rule, models.model(text))]


def test_broken_casts_are_no_concern_of_these_rules() -> None:
    for cast in (
        "Cast(x)",
        "Cast<to=0>(x)",
        "Cast<to=99>(x)",
        "CastLike(x)",
        'CastLike(x, "")',
        "Cast<to=1>()",
    ):
        text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[N] x) => (float[N] y)
            {{ a = {cast.replace('""', "")}  b = Cast<to=10>(a)  y = Neg(b) }}"""
        model = overlay(models.model(text))
        assert not [f for rule in RULES for f in findings(rule, model.proto)], cast


@pytest.mark.parametrize(
    ("types", "rule", "severity"),
    [
        ("bool 2 9", exact_cast_round_trip, "ERROR"),  # uint8 between two nodes
        ("bool 4 1", redundant_cast_chain, "ERROR"),  # a Cast to uint16
        ("int32 11 6", exact_cast_round_trip, "WARNING"),  # TensorRT computes double as float
        ("float 11 1", exact_cast_round_trip, "INFO"),  # and a float fits
        ("int32 7 1", redundant_cast_chain, "INFO"),
        ("int32 5 6", lossy_cast_round_trip, "ERROR"),
        ("int64 11 7", lossy_cast_round_trip, "WARNING"),
        ("float 10 1", lossy_cast_round_trip, "INFO"),
    ],
)
def test_severity(types: str, rule: Any, severity: str) -> None:
    source, middle, target = types.split()
    end = dtypes.name_of(int(target))
    graph = f"g ({source}[N] x) => ({end}[N] y) {{ a = Cast<to={middle}>(x)  y = Cast<to={target}>(a) }}"
    found = findings(rule, models.model(graph, 18, 9))
    assert [f.severity.name for f in found] == [severity]
    # Where the first Cast has to stay for another reader, a rewrite would not help.
    kept = graph.replace("y)", f"y, {dtypes.name_of(int(middle))}[N] a)", 1)
    assert [f.severity.name for f in findings(rule, models.model(kept, 18, 9))] == ["INFO"]


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ("float", "float16", "values are rounded to 11 significant bits, magnitudes above 65504 overflow"),
        ("float", "int64", "fractions are truncated; NaN, infinities and values outside"),
        ("int64", "int32", "integers outside -2147483648 to 2147483647 wrap"),
        ("int64", "float", "integers above 2**24 are rounded"),
        ("int64", "float16", "integers above 2**11 are rounded, magnitudes above 65504 overflow"),
        ("int8", "float8e8m0", "negative values are lost, zero is lost"),
        ("float16", "bool", "only zero or nonzero is left"),
        ("float8e5m2", "float8e4m3fn", "infinities are lost"),
        ("float8e4m3fn", "float8e4m3fnuz", "the sign of zero is lost"),
        ("float8e4m3fn", "float4e2m1", "NaN is lost"),
    ],
)
def test_what_is_lost(a: str, b: str, text: str) -> None:
    numbers = {dtypes.name_of(t): t for t in cst.NUMBERS}
    assert text in loss(numbers[a], numbers[b])
