"""Preconditions of rules and the arithmetic behind them, at the values where a small change would do harm."""

# ruff: noqa: E501 - graphs in ONNX text are best read on one line

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfix.model import Model
from onnxfix.registry import registry
from onnxfix.rule import Node, Safety
from onnxfix.testing import findings
from onnxfix_rules.cst._common import keeps_values
from onnxfix_rules.gra import _evaluate
from onnxfix_rules.int_ import _fold
from onnxfix_rules.int_._common import native_dtype
from onnxfix_rules.qdq import _common as qdq
from onnxfix_rules.qdq._range import Bounds, bounds_of, integral, quotients
from onnxfix_rules.qdq._scalars import region_at
from support.models import model as model_of

DOMAINS = {"com.microsoft": 1}


def overlay(text: str, opset: int = 18) -> Model:
    return Model(model_of(text, opset, domains=DOMAINS))


def node_of(call: str, opset: int = 18) -> Node:
    """One node, whose inputs are a, b and c."""
    return overlay(
        f"g (float[N] a, float[N] b, float[N] c) => (float[] y) {{ y = {call} }}", opset
    ).main.nodes[0]


def fixes(code: str, text: str, opset: int = 18, target: str | None = None) -> list[Safety | None]:
    """The safety of the fix of each finding, None for one without a fix."""
    found = findings(registry().get(code), model_of(text, opset, domains=DOMAINS), target)
    return [None if one.match.fix is None else one.match.fix.safety for one in found]


# ---- evaluation of constants


def computed(call: str, *inputs: Any, opset: int = 18) -> list[Any] | None:
    """The result of GRA010's evaluation, None where it refuses."""
    try:
        return [
            found.tolist()
            for found in _evaluate.evaluate(node_of(call, opset), [np.asarray(i) for i in inputs])
        ]
    except _evaluate.NotFoldable:
        return None


@pytest.mark.parametrize(
    ("call", "inputs", "opset", "expected"),
    [
        ("Squeeze(a, b)", ([[[1, 2]]], [0]), 13, [[[1, 2]]]),
        ("Squeeze(a, b)", ([[[1, 2]]], np.zeros(0, np.int64)), 13, None),
        ("Squeeze(a, b)", ([[[1, 2]]], [0, 0]), 13, None),
        ("Squeeze<axes = [0]>(a)", ([[[1, 2]]],), 12, [[[1, 2]]]),
        ("Concat<axis = -1>(a, b)", ([1], [2]), 18, [[1, 2]]),
        ("Concat<axis = 1>(a, b)", ([1], [2]), 18, None),
        ("Flatten<axis = 2>(a)", ([[1], [2]],), 18, [[[1], [2]]]),
        ("Flatten<axis = 3>(a)", ([[1], [2]],), 18, None),
        ("Flatten<axis = -3>(a)", ([[1], [2]],), 18, None),
        ("Expand(a, b)", (1, [0]), 18, [[]]),
        ("Expand(a, b)", (1, np.zeros(0, np.int64)), 18, [1]),
        ("Expand(a, b)", ([1], [-1]), 18, None),
        ("Tile(a, b)", ([1, 2], [2]), 18, [[1, 2, 1, 2]]),
        ("Tile(a, b)", ([1, 2], [2**50]), 18, None),
        ("Reshape(a, b)", ([1, 2], [2, 1]), 18, [[[1], [2]]]),
        ("Where(a, b, c)", (True, [1], [2]), 18, [[1]]),
        ("Where(a, b, c)", (1, [1], [2]), 18, None),
        ("Where(a, b, c)", (True, np.float32([1]), np.float64([2])), 18, None),
        ("Where(a, b, c)", (True, np.float32([1]), np.float32([-0.0])), 18, None),
    ],
)  # fmt: skip
def test_what_gra010_evaluates(call: str, inputs: tuple[Any, ...], opset: int, expected: Any) -> None:
    assert computed(call, *inputs, opset=opset) == expected


def folded(call: str, *inputs: Any, opset: int = 18) -> list[Any]:
    """The result of the evaluation of shape arithmetic, None for what it refuses."""
    found = _fold.evaluate(node_of(call, opset), [np.asarray(one) for one in inputs])
    return [None if one is None else one.tolist() for one in found]


@pytest.mark.parametrize(
    ("call", "inputs", "expected"),
    [
        ("Exp(a)", (np.float32([0]),), None),
        ("Max(a, b)", ([1, 2], [3, 1]), [3, 2]),
        ("Max(a, b, c)", ([1], [3], [2]), [3]),
        ("Range(a, b, c)", (0, 6, 2), [0, 2, 4]),
        ("Mod(a, b)", ([7], [4]), [3]),
        ("Mod(a, b)", ([7], [0]), None),
        ("Mod(a, b)", ([7, 7], [4, 0]), None),
        ("Where(a, b, c)", (True, [1], [2]), [1]),
        ("Where(a, b, c)", (True, np.float32([1]), np.float32([-0.0])), None),
        ("Squeeze(a, b)", ([[1]], [0]), [1]),
        ("Squeeze(a, b)", ([[1]], np.zeros(0, np.int64)), None),
        ("Slice(a, b, c)", ([1, 2, 3], [1], [3]), [2, 3]),
        ("Gelu(a)", (np.float32([0]),), None),
    ],
)  # fmt: skip
def test_what_is_folded_in_shape_arithmetic(call: str, inputs: tuple[Any, ...], expected: Any) -> None:
    assert folded(call, *inputs) == [expected]


def test_a_folded_constant_may_grow_by_exactly_the_limit() -> None:
    given = [np.zeros(1, np.int64)]
    assert _fold.fits(_fold.GROWTH + 8, given)
    assert not _fold.fits(_fold.GROWTH + 9, given)


def test_types_that_numpy_does_not_compute_like_onnx_runtime() -> None:
    assert native_dtype(TensorProto.INT64) == np.int64
    assert [native_dtype(elem) for elem in (None, TensorProto.FLOAT16, TensorProto.STRING)] == [None] * 3


# ---- quantization: what is read of a node


def linear_of(text: str, opset: int = 21) -> qdq.Linear:
    model = overlay(text, opset)
    found = [one for one in (qdq.read(node, model) for node in model.nodes()) if one is not None]
    assert len(found) == 1
    return found[0]


def test_types_of_a_dequantization() -> None:
    def types(scale: str, opset: int, attribute: str = "") -> tuple[int, int]:
        linear = linear_of(
            f"g (int8[N] x, {scale} s) => (float[N] y) {{ y = DequantizeLinear{attribute}(x, s) }}", opset
        )
        return linear.precision, linear.result

    half, single, double = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE
    assert types("float16", 19) == (half, half)
    assert types("double", 21) == (0, 0)
    assert types("double", 23, f"<output_dtype = {single}>") == (0, 0)
    assert types("float", 23, f"<output_dtype = {double}>") == (0, 0)
    assert types("float16", 23, f"<output_dtype = {single}>") == (single, single)


def test_granularity_of_scales() -> None:
    def kind(scale: str, attribute: str = "") -> str:
        return linear_of(
            f"g (int8[4,6] x, {scale} s) => (float[4,6] y) {{ y = DequantizeLinear{attribute}(x, s) }}"
        ).kind

    assert [kind("float"), kind("float[1]"), kind("float[6]"), kind("float[4,6]")] == [
        "tensor",
        "tensor",
        "axis",
        "",
    ]
    assert kind("float[4,3]", "<axis = 1, block_size = 2>") == "block"


def test_sizes_of_values() -> None:
    model = overlay("g (float[N,3] x, float[] u) => (float[N,3] y) { y = Abs(x) }")
    assert [qdq.sizes(value, model) for value in model.main.inputs] == [[None, 3], None]


def test_constants_are_dequantized_where_all_is_known() -> None:
    text = "g (float[2] x{more}) => (float[2] y) <int8[2] w = {{3, 5}}, float s = {{0.5}}> {{ d = DequantizeLinear(w, s{zero})  y = Add(x, d) }}"
    weights = np.array([3, 5], np.int8)
    known = qdq.dequantized(linear_of(text.format(more="", zero="")), weights)
    assert known is not None
    assert known.tolist() == [1.5, 2.5]
    computed_zero = linear_of(text.format(more=", int8 z", zero=", z"))
    assert qdq.dequantized(computed_zero, weights) is None
    assert "non-constant" in qdq.described(computed_zero)


def test_zero_points_without_elements_are_described() -> None:
    text = "g (float[2] x) => (float[2] y) <int8[2] w = {3, 5}, float s = {0.5}, int8[0] z = {}> { d = DequantizeLinear(w, s, z)  y = Add(x, d) }"
    assert qdq.described(linear_of(text)) == "int8 with no zero points"


def test_constants_are_shared_in_graphs_and_not_in_functions() -> None:
    """A constant in a function is a node, which stands before the first of its readers only."""
    body = "a = Abs(x)  y = Neg(a)"
    graph = overlay(f"g (float[N] x) => (float[N] y) {{ {body} }}").main
    proto = f"""<ir_version: 10, opset_import: ["" : 18, "my" : 1]> g (float[N] x) => (float[N] y) {{ y = my.F(x) }}
        <domain: "my", opset_import: ["" : 18]> F (x) => (y) {{ {body} }}"""
    function = overlay(proto).functions[0]
    for scope, shared in ((graph, True), (function, False)):
        shop = qdq.Workshop()
        names = [shop.constant(node, np.ones(1, np.float32)) for node in scope.nodes]
        assert (names[0] == names[1]) == shared


# ---- quantization: bounds of floats


def bounds(call: str, rest: str = "") -> Bounds:
    """Bounds of v, from u in [0, 1], t in [-1, 1] and p, which is never NaN, in [0, 2.55], all widened a little."""
    model = overlay(
        f"g (float[N] x, bool[N] m, uint8[N] q) => (float[N] y) <float nil = {{0}}, float six = {{6}}, float s = {{0.01}}> {{ p = DequantizeLinear(q, s)  u = Sigmoid(x)  t = Tanh(x)  {rest}  v = {call}  y = Abs(v) }}"
    )
    return bounds_of(model.main.values["v"], model)


def near(found: Bounds, low: float, high: float) -> bool:
    return abs(found.low - low) < 0.05 and abs(found.high - high) < 0.05 and not math.isinf(found.high)


def test_bounds_of_floats() -> None:
    assert near(bounds("Concat<axis = 0>(u, t)"), -1, 1)
    assert near(bounds("Where(m, u, t)"), -1, 1)
    assert near(bounds("Sub(p, p)"), -2.59, 2.59)
    assert near(bounds("Mul(p, six)"), 0, 15.54)
    assert bounds("Add(p, t)") == Bounds()
    assert bounds("Div(six, p)") == Bounds()
    assert near(bounds("Clip(x, nil, six)"), 0, 6)
    assert near(bounds("MaxPool<kernel_shape = [2]>(u)"), 0, 1)
    assert bounds("MaxPool<kernel_shape = [2], ceil_mode = 1>(u)") == Bounds()
    assert bounds("Concat<axis = 0>(u, u, u, u, u, u, u, u, u)") == Bounds()
    assert bounds("Log(u)") == Bounds()


def test_the_work_for_bounds_is_bounded() -> None:
    """Each branch of a Where gets less of the budget; else the work would double with each of them."""
    chain = "w0 = Where(m, u, u)  " + "  ".join(f"w{i} = Where(m, w{i - 1}, w{i - 1})" for i in range(1, 60))
    assert bounds("Where(m, w59, w59)", chain) == Bounds()


@pytest.mark.parametrize(("scale", "known"), [(0.5, True), (1000.0, False), (math.inf, False)])
def test_bounds_of_dequantized_values_that_may_overflow_half_precision(scale: float, known: bool) -> None:
    proto = model_of(
        "g (uint8[N] q) => (float[N] y) { v = DequantizeLinear(q, s)  y = Abs(v) }", 18, s=np.float32(scale)
    )
    model = Model(proto)
    assert bounds_of(model.main.values["v"], model).finite == known


def test_integers_in_floats() -> None:
    def is_integral(rest: str) -> bool:
        model = overlay(
            f"g (float[N] x) => (float[N] y) <float a = {{0}}, float b = {{255}}, float h = {{254.5}}> {{ {rest}  y = Abs(v) }}"
        )
        return integral(model.main.values["v"], TensorProto.UINT8, model)

    assert is_integral("r = Round(x)  v = Clip(r, a, b)")
    assert not is_integral("r = Round(x)  v = Clip(r, a, h)")
    assert not is_integral("v = Clip(x, a, b)")
    assert not is_integral("v = Round(x)")


def test_bounds_of_quotients_are_rounded_outward() -> None:
    found = quotients(np.float32([1.0]), Bounds(-126.6, 126.6, False), TensorProto.BFLOAT16)
    assert (found.low, found.high) == (-128, 128)
    for scales in ([], [1.0, 0.0], [1.0, -1.0], [1.0, math.inf], [math.nan]):
        assert quotients(np.float32(scales), Bounds(-1, 1, False), TensorProto.FLOAT) == Bounds(nan=True)


def test_a_region_of_a_scalar_ends_at_what_reads_it_as_data() -> None:
    text = """g (float x, float[N] v) => (float y, float[N] w) <float s = {0.5}, uint8 z = {0}, uint8 k = {3}> {
        q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)  w = Abs(v) }"""
    model = overlay(text)
    region = region_at(model.main.nodes[0], model)
    assert region is not None
    assert [node.op_type for node in region.readers] == ["DequantizeLinear"]
    assert not region.open


# ---- what keeps a fix away


@pytest.mark.parametrize(
    ("code", "opset", "text", "expected"),
    [
        # integers and text have one zero: Min, Max and Where select the same value in every kernel
        ("BRC001", 18, "g (int32[N,1] x) => (int32[N,1] y) <int32 b = {3}> { y = Min(x, b) }", [Safety.EXACT]),
        ("BRC001", 18, "g (float[N,1] x) => (float[N,1] y) <float b = {3}> { y = Min(x, b) }", [Safety.NUMERIC]),
        # axes are an input from opset 13 on
        ("BRC002", 13, "g (float[N,3] x, float[3] z) => (float[N,3] y) { y = Add(x, z) }", [Safety.EXACT]),
        # before opset 13 a Softmax flattens, so that only the last axis is the same
        ("PRC007", 12, "g (float16[2,3,8] x) => (float16[2,3,8] y) { e = Exp(x)  s = ReduceSum<axes=[1]>(e)  y = Div(e, s) }", [None]),
        ("PRC007", 12, "g (float16[2,3,8] x) => (float16[2,3,8] y) { e = Exp(x)  s = ReduceSum<axes=[2]>(e)  y = Div(e, s) }", [Safety.NUMERIC]),
        ("PRC007", 13, "g (float16[2,3,8] x) => (float16[2,3,8] y) <int64[1] k = {1}> { e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }", [Safety.NUMERIC]),
        # a quotient by 1 is no scale
        ("PRC006", 17, "g (float16[N,8] a, float16[8,N] b) => (float16[N,N] y) <float16 k = {15360}> { s = MatMul(a, b)  y = Div(s, k) }", []),
        # opset 6 broadcasts by attribute
        ("INT003", 6, "g (int64[N,3] x) => (int64[N,3] y) <int64[3] z = {0,0,0}> { a = Abs(x)  b = Add<broadcast=1>(a, z)  y = Abs(b) }", []),
        ("INT003", 7, "g (int64[N,3] x) => (int64[N,3] y) <int64[3] z = {0,0,0}> { a = Abs(x)  b = Add(a, z)  y = Abs(b) }", [Safety.EXACT]),
        ("INT003", 18, "g (int64[N,3] x) => (int64[N,3] y) <int64[1,3] z = {0,0,0}> { a = Abs(x)  b = Add(a, z)  y = Abs(b) }", [Safety.EXACT]),
        ("INT003", 18, "g (int64[N,M] x) => (int64[N,3] y) <int64[1,3] z = {0,0,0}> { a = Abs(x)  b = Add(a, z)  y = Abs(b) }", []),
        # a fill of output_padding is what is wrong, whatever else extends
        ("OPS018", 18, "g (float[1,1,H,W] x, float[1,2,3,3] w, float[2] b) => (float[1,2,A,B] y) { y = ConvTranspose<strides = [2,2]>(x, w, b) }", []),
        ("OPS018", 13, "g (float[1,1,T] x, float[1,2,3] w, float[2] b) => (float[1,2,A] y) { y = ConvTranspose<strides = [2], output_padding = [1]>(x, w, b) }", [Safety.EXACT]),
        ("OPS018", 12, "g (float[1,1,T] x, float[1,2,3] w, float[2] b) => (float[1,2,A] y) { y = ConvTranspose<strides = [2], output_padding = [1]>(x, w, b) }", [Safety.EXACT]),
    ],
)  # fmt: skip
def test_fixes(code: str, opset: int, text: str, expected: list[Safety | None]) -> None:
    assert fixes(code, text, opset) == expected


def test_a_constant_that_is_moved_once_and_read_elsewhere() -> None:
    """The first reader, behind an Identity, takes it as a bound that never applies; the second one adds it."""
    text = """g (int64[N] x) => (int64[M] y) <int64[1] big = {4294967296}, int64[1] z = {0}> {
        i = Identity(big)  s = Slice(x, z, i)  a = Add(s, big)  y = Identity(a) }"""
    assert len(fixes("INT004", text, target="trt8.6")) == 1
    alone = text.replace("a = Add(s, big)", "a = Abs(s)")
    assert fixes("INT004", alone, target="trt8.6") == []


def test_a_cast_to_float8_that_saturates_loses_infinity() -> None:
    def keeps(attribute: str, elem: int) -> bool:
        return keeps_values(node_of(f"Cast<to = {elem}{attribute}>(a)", 19), elem)

    e5m2 = TensorProto.FLOAT8E5M2
    assert [keeps("", e5m2), keeps(", saturate = 1", e5m2), keeps(", saturate = 0", e5m2)] == [
        False,
        False,
        True,
    ]
    assert keeps("", TensorProto.FLOAT8E4M3FN)
