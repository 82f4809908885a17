"""Preconditions of rules and the arithmetic behind them, at the values where a small change would do harm."""

# Long because: one file asks for the preconditions of all families, which share two helpers and two tables.
# ruff: noqa: E501 - graphs in ONNX text are best read on one line

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfix.model import Model
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Node, Safety, Severity
from onnxfix.shapes.symbols import constant, symbol
from onnxfix.testing import findings, fixed
from onnxfix_rules.cst._common import keeps_values
from onnxfix_rules.cst.round_trips import loses
from onnxfix_rules.ctl import _sequences
from onnxfix_rules.gra import _evaluate, _legacy
from onnxfix_rules.gra.constants import dense
from onnxfix_rules.int_ import _fold
from onnxfix_rules.int_._common import native_dtype
from onnxfix_rules.ops import _integers
from onnxfix_rules.ops._runtimes import is_foreign
from onnxfix_rules.ops.expansions import _bodies
from onnxfix_rules.ops.limits import _dilated_windows
from onnxfix_rules.ops.limits.outputs import _has_past
from onnxfix_rules.ops.misimports import _ratios, _windows
from onnxfix_rules.ops.misimports.nms import _are_probabilities
from onnxfix_rules.ops.misimports.ops081_resize_by_computed_scales import _half_pixel
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
        # a scalar is compared with the last axis alone
        ("BRC001", 18, "g (float[N,2,1] x) => (float[N,2,1] y) <float b = {3}> { y = Min(x, b) }", [Safety.NUMERIC]),
        ("BRC001", 18, "g (float[N,1,2] x) => (float[N,1,2] y) <float b = {3}> { y = Min(x, b) }", [Safety.EXACT]),
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
            ("OPS018", 18, "g (float[1,1,3,3] x, float[1,2,7,7] w, float[2] b) => (float[1,2,12,12] y) { y = ConvTranspose<strides = [3,3], output_padding = [1,1], output_shape = [12,12]>(x, w, b) }", []),
        ("OPS018", 18, "g (float[1,1,3,3] x, float[1,2,7,7] w, float[2] b) => (float[1,2,14,14] y) { y = ConvTranspose<strides = [3,3], output_padding = [1,1], output_shape = [14,14]>(x, w, b) }", [Safety.EXACT]),
        ("OPS018", 18, "g (float[1,1,H,W] x, float[1,2,3,3] w, float[2] b) => (float[1,2,A,B] y) { y = ConvTranspose<strides = [2,2]>(x, w, b) }", []),
        ("OPS018", 13, "g (float[1,1,T] x, float[1,2,3] w, float[2] b) => (float[1,2,A] y) { y = ConvTranspose<strides = [2], output_padding = [1]>(x, w, b) }", [Safety.EXACT]),
        ("OPS018", 12, "g (float[1,1,T] x, float[1,2,3] w, float[2] b) => (float[1,2,A] y) { y = ConvTranspose<strides = [2], output_padding = [1]>(x, w, b) }", [Safety.EXACT]),
        # a body that returns a carried value as its condition may end
        ("CTL013", 18, "g (bool[1] x, int64 n) => (bool[1] y) <bool t = {1}> { y = Loop(n, t, x) <body = b (int64 i, bool on, bool[1] v) => (bool[1] more, bool[1] w) { more = Identity(v)  w = Not(v) }> }", []),
        # conditions of one element may be vectors inside the body, where nothing is known of them
        ("CTL013", 18, "g (float[1] x, int64 n) => (float[1] y) <bool[1] t = {1}> { y = Loop(n, t, x) <body = b (int64 i, bool[1] on, float[1] v) => (bool[1] more, float[1] w) { more = And(on, on)  w = Neg(v) }> }", [None]),
        ("CTL013", 18, "g (float[1] x, int64 n) => (float[1] y) <bool[1] t = {1}> { y = Loop(n, t, x) <body = b (int64 i, bool on, float[1] v) => (bool more, float[1] w) <bool k = {1}> { more = Identity(k)  w = Neg(v) }> }", [Safety.EXACT]),
        ("CTL014", 18, "g (float[1] x) => (float[1] y) <int64 n = {2}> { y = Loop(n, , x) <body = b (int64[1] i, bool on, float[1] v) => (bool more, float[1] w) { more = Identity(on)  f = Cast<to = 1>(i)  w = Add(v, f) }> }", []),
        # a condition with a default is a weight for TensorRT
        ("CTL011", 18, "g (float[2,1] x, bool c) => (float[] y) <bool c = {1}, int64[1] a = {1}> { y = If(c) <then_branch = p () => (float[] u) { u = Squeeze(x, a) }, else_branch = q () => (float[] v) { v = Identity(x) }> }", []),
        ("CTL011", 18, "g (float[2,1] x, bool c) => (float[] y) <int64[1] a = {1}> { y = If(c) <then_branch = p () => (float[] u) { u = Squeeze(x, a) }, else_branch = q () => (float[] v) { v = Identity(x) }> }", [None]),
        ("CTL010", 18, "g (float[2] x) => (float[2] y) <bool[2] c = {1,0}> { y = If(c) <then_branch = p () => (float[2] u) { u = Neg(x) }, else_branch = q () => (float[2] v) { v = Abs(x) }> }", []),
        # before opset 9 a BatchNormalization that is not spatial has parameters for each element
        ("GRA014", 8, "g (float[N,2,1,1] x) => (float[N,2,1,1] y) <float[2,2,1,1] w = {1,2,3,4}, float[2] s = {4,1}, float[2] b = {1,-1}, float[2] m = {1,2}, float[2] v = {3.75,0.75}> { c = Conv(x, w)  y = BatchNormalization<spatial = 0>(c, s, b, m, v) }", []),
        ("GRA014", 8, "g (float[N,2,1,1] x) => (float[N,2,1,1] y) <float[2,2,1,1] w = {1,2,3,4}, float[2] s = {4,1}, float[2] b = {1,-1}, float[2] m = {1,2}, float[2] v = {3.75,0.75}> { c = Conv(x, w)  y = BatchNormalization<spatial = 1>(c, s, b, m, v) }", [Safety.NUMERIC]),
        # half precision is rounded between the two nodes
        ("OPS090", 18, 'g (float16[1,1,3,3] x, float16[1,1,3,3] w) => (float16[1,1,1,1] y) { y = com.microsoft.FusedConv<activation = "Relu">(x, w) }', [Safety.NUMERIC]),
        ("OPS090", 18, 'g (float[1,1,3,3] x, float[1,1,3,3] w) => (float[1,1,1,1] y) { y = com.microsoft.FusedConv<activation = "Relu">(x, w) }', [Safety.EXACT]),
        ("OPS090", 18, 'g (float[2,3] x, float[3,2] w, float[2] c) => (float[2,2] y) { y = com.microsoft.FusedGemm<activation = "Relu">(x, w, c) }', [Safety.NUMERIC]),
        # the largest of integers does not depend on their order
        ("OPS039", 18, 'g (int32[4,3] x, int64[2,1] i, int32[2,3] u) => (int32[4,3] y) { y = ScatterND<reduction = "max">(x, i, u) }', [Safety.EXACT]),
        ("OPS039", 18, 'g (float[4,3] x, int64[2,1] i, float[2,3] u) => (float[4,3] y) { y = ScatterND<reduction = "max">(x, i, u) }', [Safety.NUMERIC]),
        # training is told by the outputs up to opset 13
        ("OPS043", 13, "g (float[N,2,3] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2,3] y) { y, n = BatchNormalization(x, s, b, m, v) }", [Safety.UNSAFE]),
        ("OPS043", 14, "g (float[N,2,3] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2,3] y) { y, n, o = BatchNormalization<training_mode = 1>(x, s, b, m, v) }", [Safety.UNSAFE]),
        # one axis, which TensorRT refuses before its padding matters
        ("OPS076", 18, "g (float[1,1,5] x) => (float[1,1,K] y) { y = LpPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(x) }", []),
        ("OPS076", 18, "g (float[1,1,5,5] x) => (float[1,1,K,K] y) { y = LpPool<kernel_shape = [2,2], strides = [2,2], ceil_mode = 1>(x) }", [Safety.UNSAFE]),
        ("OPS081", 11, 'g (float[1,1,4,5] x, float[8] r) => (float[1,1,6,8] y) <float[2] o = {1,1}, float[2] k = {1.7,1.7}> { s = Concat<axis = 0>(o, k)  y = Resize<mode = "linear">(x, r, s) }', [Safety.EXACT]),
        ("OPS081", 10, 'g (float[1,1,4,5] x) => (float[1,1,6,8] y) <float[2] o = {1,1}, float[2] k = {1.7,1.7}> { s = Concat<axis = 0>(o, k)  y = Resize<mode = "linear">(x, s) }', [Safety.EXACT]),
        # a declared size of 0 is a claim like any other
        ("GRA003", 18, "g (float[N,3] x) => (float[N,3] y) <float[N,0] a> { a = Abs(x)  y = Neg(a) }", [Safety.EXACT]),
        # DequantizeLinear came with opset 10
        ("QDQ020", 10, "g (uint8[N] x, uint8[N] z) => (uint8[N] y) <float s = {0.5}, uint8 o = {0}> { y = com.microsoft.QLinearMul(x, s, o, z, s, o, s, o) }", [Safety.NUMERIC]),
        ("QDQ020", 9, "g (uint8[N] x, uint8[N] z) => (uint8[N] y) <float s = {0.5}, uint8 o = {0}> { y = com.microsoft.QLinearMul(x, s, o, z, s, o, s, o) }", [None]),
        ("QDQ020", 18, "g (uint8[N,2] x, uint8[N,2] w, float[K] t, uint8[K] p) => (uint8[N,2] y) <float s = {0.5}, uint8 o = {0}> { y = com.microsoft.QLinearMul(x, s, o, w, t, p, s, o) }", [None]),
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


# ---- what a fix writes is valid in the operator set of the model


LAYER_NORM = """g (float[N,S,4] x, float[N,S,4] z) => (float[N,S,4] y) <float[4] w = {1,2,3,4}> {
    y = com.microsoft.SkipLayerNormalization(x, z, w) }"""
SEQUENCE = """g (float[2,3] x, float[2,3] z) => (float[2,2,3] y) { a = Abs(x)  b = Abs(z)
    s = SequenceConstruct(a, b)  c = ConcatFromSequence<axis = 0, new_axis = 1>(s)  y = Neg(c) }"""
SCATTER = """g (int64[4,3] x, int64[2,1] i, int64[2,3] u) => (int64[4,3] y) { y = ScatterND<reduction = "max">(x, i, u) }"""
REDUCTION = "g (float[N,3] x, int64[1] a) => (float[A,B] y) { y = ReduceSum(x, a) }"
RANK = "g (float[N,3] x, float[3] z) => (float[N,3] y) { y = Add(x, z) }"
BIAS = """g (float[1,1,T] x, float[1,2,3] w, float[2] b) => (float[1,2,A] y) {
    y = ConvTranspose<strides = [2], output_padding = [1]>(x, w, b) }"""
ROTARY = """g (float[2,3,8] x, int64[1] p, float[9,2] c, float[9,2] s) => (float[2,3,8] y) {
    y = com.microsoft.RotaryEmbedding<num_heads = 2>(x, p, c, s) }"""


@pytest.mark.parametrize(
    ("code", "opset", "text"),
    [
        ("BRC002", 12, RANK),
        ("BRC002", 13, RANK),
        ("OPS018", 12, BIAS),
        ("OPS018", 13, BIAS),
        ("OPS091", 16, LAYER_NORM),
        ("OPS091", 17, LAYER_NORM),
        ("OPS039", 17, SCATTER),
        ("OPS039", 18, SCATTER),
        ("OPS041", 17, REDUCTION),
        ("OPS041", 18, REDUCTION),
        ("CTL020", 12, SEQUENCE),
        ("CTL020", 13, SEQUENCE),
        ("OPS095", 11, ROTARY),
        ("OPS095", 12, ROTARY),
    ],
)
def test_fixed_models_are_valid(code: str, opset: int, text: str) -> None:
    proto = model_of(text, opset, ir_version=8, domains=DOMAINS)
    result, run = fixed([registry().get(code)], proto, safety=Safety.NUMERIC)
    assert len(run.applied) == 1
    onnx.checker.check_model(result, full_check=True)
    for node in result.graph.node:
        if not node.domain:
            onnx.defs.get_schema(node.op_type, opset)


# ---- arithmetic of windows, ranges and signs


def test_windows_that_reach_over_the_edge() -> None:
    def axis(size: int, kernel: int, step: int, begin: int, end: int) -> _windows.Axis:
        return _windows.Axis(constant(size), kernel, step, begin, end)

    assert axis(5, 3, 2, 1, 0).beyond.no == (axis(5, 3, 2, 1, 0).padding == 0)
    for size, kernel, step, begin in itertools.product(range(3, 9), (2, 3), (1, 2, 3), (0, 1)):
        last = -(-(size + begin - kernel) // step) * step  # where the last window starts, in the padded input
        one = axis(size, kernel, step, begin, 0)
        assert one.in_padding.yes == (last >= size + begin)
        assert one.beyond.yes == (last < size + begin < last + kernel)
    assert not _windows._is_valid(axis(5, 2, 1, 2, 0))
    assert not _windows._is_valid(axis(5, 2, 1, -1, 0))
    assert not _windows._is_valid(axis(1, 3, 1, 0, 1))
    assert _windows._is_valid(axis(5, 3, 1, 2, 2))


def test_an_average_over_padding_on_one_side_has_no_constant_divisor() -> None:
    def divisors(begin: int, end: int, padding: bool) -> list[int]:
        window = _dilated_windows.Window(4, 2, 1, 1, begin, end, False)
        found = _dilated_windows.counts_of([window], padding)
        assert found is not None
        return sorted(set(found.reshape(-1).tolist()))

    assert [divisors(0, 0, False), divisors(1, 0, False), divisors(0, 1, False), divisors(0, 1, True)] == [
        [2],
        [1, 2],
        [1, 2],
        [2],
    ]
    open_end = _dilated_windows.Window(None, 2, 1, 1, 0, 1, False)
    assert open_end.padding == 1


def test_ranges_of_integers() -> None:
    assert _integers._mod((0, 3), (8, 8), 0) == (0, 3)
    assert _integers._mod((0, 30), (8, 8), 0) == (0, 7)
    assert _integers._mod((-9, 3), (8, 8), 1) == (-7, 7)
    assert _integers._mod((0, 3), (0, 8), 0) is None
    model = overlay("g (float[N] x) => (int32[N] y) { c = Cast<to = 6>(x)  y = Abs(c) }")
    assert _integers.range_after(model.main.nodes[0], lambda index: (0, 1)) is None


def test_a_body_of_a_newer_operator_set_is_not_used() -> None:
    function = helper.make_function(
        "f", "F", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], [helper.make_opsetid("", 13)]
    )
    assert _bodies._has_same_meaning(function, 13, 14)
    assert not _bodies._has_same_meaning(function, 14, 13)
    mean = helper.make_function(
        "f",
        "F",
        ["x"],
        ["y"],
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0])],
        [helper.make_opsetid("", 13)],
    )
    assert not _bodies._has_same_meaning(mean, 13, 18)


def test_what_belongs_to_onnx_runtime() -> None:
    assert is_foreign(("", "SimplifiedLayerNormalization"))
    assert is_foreign(("com.microsoft", "Gelu"))
    assert not is_foreign(("", "Relu"))
    assert not is_foreign(("my", "SimplifiedLayerNormalization"))


def test_sequences_of_an_axis_that_does_not_exist() -> None:
    def split(axis: int) -> int | None:
        model = overlay(f"g (float[2,3] a) => (seq(float[]) y) {{ y = SplitToSequence<axis = {axis}>(a) }}")
        found = _sequences._split(model.main.nodes[0], model)
        return None if found is None else len(found)

    assert [split(-3), split(-2), split(-1), split(0), split(1), split(2)] == [None, 2, 3, 2, 3, None]


def test_conversions_of_old_operators() -> None:
    def blocked(call: str, opset: int) -> str:
        return _legacy.blocked(node_of(call, opset))

    assert "no valid type" in blocked('Cast<to = "FOO">(a)', 5)
    assert blocked('Cast<to = "FLOAT">(a)', 5) == ""
    assert "training mode" in blocked("Dropout(a)", 6)
    assert blocked("Dropout<is_test = 1>(a)", 6) == ""


def test_a_sparse_tensor_of_negative_size_is_not_made_dense() -> None:
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0]),
        helper.make_tensor("i", TensorProto.INT64, [1], [1]),
        [3],
    )
    found = dense(sparse, "d", None)
    assert found is not None
    assert numpy_helper.to_array(found).tolist() == [0, 2, 0]
    sparse.dims[0] = -1
    assert dense(sparse, "d", None) is None


def test_a_loop_that_leaves_a_branch_keeps_its_inputs() -> None:
    """The first input of the inner Loop is omitted, and those behind it are not."""
    text = """g (float[2] x, bool c) => (float[2] y) <bool t = {1}> { y = If(t)
        <then_branch = p () => (float[2] u) { u = Loop( , c, x) <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
            more = Identity(on)  w = Neg(v) }> }, else_branch = q () => (float[2] r) { r = Abs(x) }> }"""
    result, run = fixed([registry().get("CTL010")], model_of(text, 18))
    assert len(run.applied) == 1
    assert [list(node.input) for node in result.graph.node if node.op_type == "Loop"] == [["", "c", "x"]]


def test_probabilities_are_followed_through_the_data_alone() -> None:
    text = "g (float[1,4,4] b, float[1,4] x) => (int64[K,3] y) <int64 m = {3}, int64[3] k = {1,1,4}> { p = Sigmoid(x)  s = Reshape(p, k)  y = NonMaxSuppression(b, s, m) }"
    model = overlay(text)
    assert _are_probabilities(model.main.values["s"])
    assert not _are_probabilities(model.main.values["x"])


def test_positions_of_resize() -> None:
    assert _half_pixel(np.array([0.0, 1.0, 2.0]), 2.0).tolist() == [-0.25, 0.25, 0.75]


def test_a_ratio_of_different_sizes_is_its_value() -> None:
    assert _ratios.Ratio(constant(1), symbol("N"), Fraction(1), np.float32(0.5)).constant == Fraction(1, 2)
    assert _ratios.Ratio(constant(1), symbol("N"), Fraction(1), None).constant is None
    assert _ratios.Ratio(symbol("N"), symbol("N"), Fraction(3), None).constant == 3


# ---- what is reported


def test_each_pair_of_dimensions_is_reported_once() -> None:
    text = """g (float[N,1] x, float[N] w, float[M,2] u, float[2,M] v, float[K,3] s, float[3,K] t)
        => (float[A,B] y, float[A,B] z, float[A,B] q, float[A,B] r) { y = Add(u, v)  z = Sub(u, v)  q = Add(s, t)  r = Mul(x, w) }"""
    found = findings(registry().get("BRC004"), model_of(text, 18))
    assert sorted(one.match.node.op_type for one in found if one.match.node is not None) == ["Add", "Add"]


def test_severity_of_sums_in_half_precision() -> None:
    def severity(call: str) -> list[Severity | None]:
        text = f"g (float16[N,8] x) => (float16[A,B] y) <int64[1] k = {{1}}, float16 h = {{18432}}> {{ s = ReduceSum(x, k)  {call} }}"
        return [one.severity for one in findings(registry().get("PRC005"), model_of(text, 18))]

    assert severity("y = Div(s, h)") == [Severity.WARNING]
    assert severity("y = Neg(s)") == [Severity.INFO]


def test_the_length_of_products_is_that_of_the_turned_axis() -> None:
    def found(second: str, attribute: str = "") -> int:
        call = f"Gemm{attribute}(x, w)" if attribute else "MatMul(x, w)"
        return len(
            findings(
                registry().get("PRC010"),
                model_of(f"g (float16[N,M] x, float16[{second}] w) => (float16[A,B] y) {{ y = {call} }}", 17),
            )
        )

    assert [found("16384,2"), found("2,16384"), found("16384")] == [1, 0, 1]
    assert [found("2,16384", "<transB = 1>"), found("16384,2", "<transB = 1>")] == [1, 0]


def test_integers_of_the_same_width_lose_nothing() -> None:
    assert not loses(TensorProto.UINT8, TensorProto.INT8)
    assert not loses(TensorProto.INT8, TensorProto.UINT8)
    assert loses(TensorProto.INT16, TensorProto.UINT8)


def test_more_readings() -> None:
    assert _has_past(node_of("Attention(a, b, c, , a)", 23))
    assert not _has_past(node_of("Attention(a, b, c)", 23))
    axis = _windows.Axis(symbol("N"), 3, 2, 0, 1)
    assert _windows.Pool((axis,), False).has_windows
    node = helper.make_node("Add", ["a", "b"], ["y"])
    one, two = (helper.make_tensor_type_proto(elem, None).SerializeToString() for elem in (1, 10))
    assert _bodies._well_typed([node], {"a": one}, 18)
    assert not _bodies._well_typed([node], {"a": one, "b": two}, 18)
    zeros = "<int64[2] k = {0,0}, int64[1] o = {0}, int64[1] m = {9223372036854775807}>"
    for call in ("Reshape(a, k)", "Slice(a, o, m)"):
        text = f"g (float[N,M] x) => (float[N,M] y) {zeros} {{ a = Abs(x)  b = {call}  y = Abs(b) }}"
        assert fixes("INT003", text) == [Safety.EXACT]
    text = "g (float[N] x, float s) => (float8e5m2[N] y) { y = QuantizeLinear<output_dtype = 19>(x, s) }"
    assert fixes("QDQ015", text, 21) == [None]
