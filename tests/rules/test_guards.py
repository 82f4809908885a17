"""Preconditions of rules and the arithmetic behind them, at the values where a small change would do harm."""

# ruff: noqa: E501 - graphs in ONNX text are best read on one line

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxfix.model import Model
from onnxfix.rewrite.registry import registry
from onnxfix.rule import Safety, Severity
from onnxfix.testing import findings, fixed
from onnxfix_rules.cst._common import keeps_values
from onnxfix_rules.gra.constants import dense
from onnxfix_rules.qdq._read import Bounds, Linear, bounds_of, described, integral, quotients, read
from support.models import model as model_of

DOMAINS = {"com.microsoft": 1}


def overlay(text: str, opset: int = 18) -> Model:
    return Model(model_of(text, opset, domains=DOMAINS))


def fixes(code: str, text: str, opset: int = 18, target: str | None = None) -> list[Safety | None]:
    """The safety of the fix of each finding, None for one without a fix."""
    found = findings(registry().get(code), model_of(text, opset, domains=DOMAINS), target)
    return [None if one.match.fix is None else one.match.fix.safety for one in found]


# ---- quantization: what is read of a node


def linear_of(text: str, opset: int = 21) -> Linear:
    model = overlay(text, opset)
    found = [one for one in (read(node, model) for node in model.nodes()) if one is not None]
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


def test_zero_points_without_elements_are_described() -> None:
    text = "g (float[2] x) => (float[2] y) <int8[2] w = {3, 5}, float s = {0.5}, int8[0] z = {}> { d = DequantizeLinear(w, s, z)  y = Add(x, d) }"
    assert described(linear_of(text)) == "int8 with no zero points"


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


# ---- what keeps a fix away


BLOCKS = """g (float[8] x, int64[R] k, float[{scales}] s) => (float[] y) <int64[2] fixed = {{4,2}}> {{
    r = Reshape(x, {shape})  q = QuantizeLinear<axis = {axis}, block_size = 2>(r, s)
    y = DequantizeLinear<axis = {axis}, block_size = 2>(q, s) }}"""


def is_valid(proto: ModelProto) -> bool:
    """Whether onnx's checker takes a model, the types of operands included."""
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


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
        ("OPS043", 13, "g (float[N,2,3] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2,3] y) { y, n = BatchNormalization(x, s, b, m, v) }", [Safety.NUMERIC]),
        ("OPS043", 14, "g (float[N,2,3] x, float[2] s, float[2] b, float[2] m, float[2] v) => (float[N,2,3] y) { y, n, o = BatchNormalization<training_mode = 1>(x, s, b, m, v) }", [Safety.NUMERIC]),
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
        # a Slice with no starts is a copy, of one axis too
        ("OPS020", 18, "g (float[N] x) => (float[N] y) <int64[0] s = {}, int64[0] e = {}> { y = Slice(x, s, e) }", [Safety.EXACT]),
        ("OPS020", 18, "g (float[N] x) => (float[M] y) <int64[1] s = {0}, int64[1] e = {2}> { y = Slice(x, s, e) }", []),
        # no update at all
        ("OPS039", 18, 'g (int32[4,3] x, int64[0,1] i, int32[0,3] u) => (int32[4,3] y) { y = ScatterND<reduction = "max">(x, i, u) }', [None]),
        # the node that makes the rank is reported, not those behind it
        ("OPS045", 18, "g (float[N] x) => (float[A,B,C,D,E,F,G,H,I] y) <int64[9] k = {1,1,1,1,1,1,1,1,-1}> { r = Reshape(x, k)  a = Abs(r)  y = Neg(a) }", [None]),
        # weights that are not constant, with a scale for each column, before DequantizeLinear had an axis
        ("QDQ008", 10, "g (uint8[2,2] a, uint8[2,2] b, uint8[2] p) => (uint8[2,2] y) <float s = {0.5}, uint8 z = {128}, float[2] t = {1,2}> { y = QLinearMatMul(a, s, z, b, t, p, s, z) }", [Safety.NUMERIC]),
        # a zero point that is not constant
        ("QDQ010", 18, "g (float[2] x, int8[2] z) => (float[2] y) <int8[2] w = {3,5}, float[2] s = {0,1}> { d = DequantizeLinear<axis = 0>(w, s, z)  y = Add(x, d) }", [None]),
        # a pair is reported once
        ("QDQ011", 18, "g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {0.1}> { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }", [Safety.NUMERIC]),
        # DequantizeLinear came with opset 10
        ("QDQ012", 9, "g (float[2] x) => (float[2] y) <int8[2] w = {3,5}> { c = Cast<to = 1>(w)  y = Add(x, c) }", [None]),
        ("QDQ012", 10, "g (float[2] x) => (float[2] y) <int8[2] w = {3,5}> { c = Cast<to = 1>(w)  y = Add(x, c) }", [Safety.EXACT]),
        # one scale, as a vector of one element
        ("QDQ012", 18, "g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1,2,3,4,5,6}, float[1] s = {0.5}> { t = Gather(w, i)  y = DequantizeLinear(t, s) }", [Safety.EXACT]),
        # backends disagree about a slice backwards from the largest integer
        ("INT001", 18, "g (float[N] x, int64[2] z) => (int64[2] y) <int64[3] k = {1,2,3}, int64[1] s = {2}, int64[1] e = {9223372036854775807}, int64[1] a = {0}, int64[1] d = {-1}> { r = Slice(k, s, e, a, d)  y = Add(z, r) }", []),
        ("INT001", 18, "g (float[N] x, int64[2] z) => (int64[2] y) <int64[3] k = {1,2,3}, int64[1] s = {2}, int64[1] e = {0}, int64[1] a = {0}, int64[1] d = {-1}> { r = Slice(k, s, e, a, d)  y = Add(z, r) }", [Safety.EXACT]),
        # half precision is rounded differently by backends
        ("INT001", 18, "g (int64[1] x) => (int64[1] y) <float16[1] h = {15360}> { r = Cast<to = 7>(h)  y = Add(x, r) }", []),
        # zeros for each dimension copy it, and an end beyond the last element cuts nothing
        ("INT003", 18, "g (float[N,M] x) => (float[N,M] y) <int64[2] k = {0,0}> { a = Abs(x)  b = Reshape(a, k)  y = Abs(b) }", [Safety.EXACT]),
        ("INT003", 18, "g (float[N,M] x) => (float[N,M] y) <int64[1] o = {0}, int64[1] m = {9223372036854775807}> { a = Abs(x)  b = Slice(a, o, m)  y = Abs(b) }", [Safety.EXACT]),
        ("QDQ015", 21, "g (float[N] x, float s) => (float8e5m2[N] y) { y = QuantizeLinear<output_dtype = 19>(x, s) }", [None]),
        # a mask needs a Range, which came with opset 11
        ("OPS093", 10, "g (float[3,5,8] x, float[8,24] w, float[24] c) => (float[3,5,8] y) { y = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, c) }", [None]),
        ("OPS093", 11, "g (float[3,5,8] x, float[8,24] w, float[24] c) => (float[3,5,8] y) { y = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, c) }", [Safety.NUMERIC]),
        # integers times a double scale are not written as floats
        ("QDQ014", 21, "g (uint8[N] q) => (float[N] y) <float s = {0.5}> { t = Identity(q)  d = DequantizeLinear(t, s)  y = Neg(d) }", [Safety.EXACT]),
        ("QDQ014", 21, "g (uint8[N] q) => (double[N] y) <double s = {0.5}> { t = Identity(q)  d = DequantizeLinear(t, s)  y = Neg(d) }", [None]),
        # computed scales of blocks need the rank of the data
        ("QDQ004", 21, BLOCKS.format(shape="fixed", scales="2,2", axis=0), [Safety.NUMERIC]),
        ("QDQ004", 21, BLOCKS.format(shape="k", scales="2,2", axis=0), [None]),
        ("QDQ004", 21, BLOCKS.format(shape="fixed", scales="2,2,2", axis=0), [None]),
        ("QDQ004", 21, BLOCKS.format(shape="fixed", scales="2,2", axis=2), [None]),
        # a sequence along an axis that does not exist
        ("CTL020", 18, "g (float[2,3] a) => (float[A,B] y) <int64 i = {0}> { s = SplitToSequence<axis = -3>(a)  y = SequenceAt(s, i) }", []),
        ("CTL020", 18, "g (float[2,3] a) => (float[A,B] y) <int64 i = {0}> { s = SplitToSequence<axis = -2>(a)  y = SequenceAt(s, i) }", [Safety.EXACT]),
        ("CTL020", 18, "g (float[2,3] a) => (float[A,B] y) <int64 i = {0}> { s = SplitToSequence<axis = 2>(a)  y = SequenceAt(s, i) }", []),
        # no type, and training mode
        ("GRA020", 5, 'g (float[2,3] a, float[3] b) => (float[2,3] y) { c = Cast<to = "FOO">(a)  y = Add<broadcast = 1>(c, b) }', [None]),
        ("GRA020", 5, 'g (float[2,3] a, float[3] b) => (float[2,3] y) { c = Cast<to = "FLOAT">(a)  y = Add<broadcast = 1>(c, b) }', [Safety.EXACT]),
        ("GRA020", 6, "g (float[2,3] a, float[3] b) => (float[2,3] y) { c = Dropout(a)  y = Add<broadcast = 1>(c, b) }", [None]),
        ("GRA020", 6, "g (float[2,3] a, float[3] b) => (float[2,3] y) { c = Dropout<is_test = 1>(a)  y = Add<broadcast = 1>(c, b) }", [Safety.EXACT]),
        # what is written is valid in the operator set, which has attributes for inputs, or no such operator
        ("BRC002", 12, "g (float[N,3] x, float[3] z) => (float[N,3] y) { y = Add(x, z) }", [Safety.EXACT]),
        ("OPS091", 16, "g (float[N,S,4] x, float[N,S,4] z) => (float[N,S,4] y) <float[4] w = {1,2,3,4}> { y = com.microsoft.SkipLayerNormalization(x, z, w) }", [Safety.NUMERIC]),
        ("OPS091", 17, "g (float[N,S,4] x, float[N,S,4] z) => (float[N,S,4] y) <float[4] w = {1,2,3,4}> { y = com.microsoft.SkipLayerNormalization(x, z, w) }", [Safety.NUMERIC]),
        ("OPS039", 17, 'g (int64[4,3] x, int64[2,1] i, int64[2,3] u) => (int64[4,3] y) { y = ScatterND<reduction = "add">(x, i, u) }', [Safety.NUMERIC]),
        ("OPS041", 17, "g (float[N,3] x, int64[1] a) => (float[A,B] y) { y = ReduceSum(x, a) }", [Safety.EXACT]),
        ("CTL020", 12, "g (float[2,3] x, float[2,3] z) => (float[2,2,3] y) { a = Abs(x)  b = Abs(z)  s = SequenceConstruct(a, b)  c = ConcatFromSequence<axis = 0, new_axis = 1>(s)  y = Neg(c) }", [Safety.EXACT]),
        ("OPS095", 11, "g (float[2,3,8] x, int64[1] p, float[9,2] c, float[9,2] s) => (float[2,3,8] y) { y = com.microsoft.RotaryEmbedding<num_heads = 2>(x, p, c, s) }", [Safety.NUMERIC]),
    ],
)  # fmt: skip
def test_fixes(code: str, opset: int, text: str, expected: list[Safety | None]) -> None:
    """And what they write is valid, in the operator set of the model."""
    assert fixes(code, text, opset) == expected
    proto = model_of(text, opset, ir_version=8 if opset < 19 else 10, domains=DOMAINS)
    if is_valid(proto):
        assert is_valid(fixed([registry().get(code)], proto, safety=Safety.UNSAFE)[0])


def test_a_constant_that_is_moved_once_and_read_elsewhere() -> None:
    """The first reader, behind an Identity, takes it as a bound that never applies; the second one adds it."""
    text = """g (int64[N] x) => (int64[M] y) <int64[1] big = {4294967296}, int64[1] z = {0}> {
        i = Identity(big)  s = Slice(x, z, i)  a = Add(s, big)  y = Identity(a) }"""
    assert len(fixes("INT004", text, target="trt8.6")) == 1
    alone = text.replace("a = Add(s, big)", "a = Abs(s)")
    assert fixes("INT004", alone, target="trt8.6") == []


def test_a_cast_to_float8_that_saturates_loses_infinity() -> None:
    def keeps(attribute: str, elem: int) -> bool:
        model = overlay(f"g (float[N] a) => (float[] y) {{ y = Cast<to = {elem}{attribute}>(a) }}", 19)
        return keeps_values(model.main.nodes[0], elem)

    e5m2 = TensorProto.FLOAT8E5M2
    assert [keeps("", e5m2), keeps(", saturate = 1", e5m2), keeps(", saturate = 0", e5m2)] == [
        False,
        False,
        True,
    ]
    assert keeps("", TensorProto.FLOAT8E4M3FN)


# ---- what a fix writes


def test_what_a_nested_body_declares_and_annotates_gets_the_new_names() -> None:
    """``r`` is a value of the body; the declaration of a name that the body does not have is dropped."""
    proto = model_of(
        """g (float[2] x, int64 n) => (float[2] y) <bool t = {1}> { y = If(t)
        <then_branch = p () => (float[2] u) { u = Loop(n, , x) <body = b (int64 i, bool on, float[2] v) => (bool more, float[2] w) {
            more = Identity(on)  r = Neg(v)  w = Abs(r) }> }, else_branch = q () => (float[2] o) { o = Abs(x) }> }""",
        18,
    )
    body = proto.graph.node[0].attribute[0].g.node[0].attribute[0].g
    del body.value_info[:]
    body.value_info.extend([helper.make_tensor_value_info(name, 1, [2]) for name in ("r", "ghost")])
    for name in ("r", "elsewhere"):
        body.quantization_annotation.add(tensor_name=name).quant_parameter_tensor_names.add(
            key="SCALE_TENSOR", value="x"
        )
    result, run = fixed([registry().get("CTL010")], proto)
    assert len(run.applied) == 1
    (loop,) = (node for node in result.graph.node if node.op_type == "Loop")
    inner = loop.attribute[0].g
    renamed = next(node.output[0] for node in inner.node if node.op_type == "Neg")
    assert [info.name for info in inner.value_info] == [renamed]
    notes = [
        (note.tensor_name, note.quant_parameter_tensor_names[0].value)
        for note in inner.quantization_annotation
    ]
    assert notes == [(renamed, "x"), ("elsewhere", "x")]


def test_a_concat_without_an_axis_gets_the_old_default() -> None:
    proto = model_of(
        "g (float[2,3,4] x, float[2,3,4] z) => (float[2,6,4] y) { c = Concat(x, z)  y = Add(c, c) }", 3
    )
    result, run = fixed([registry().get("GRA020")], proto, safety=Safety.EXACT)
    assert run.applied
    (concat,) = (node for node in result.graph.node if node.op_type == "Concat")
    assert [(one.name, one.i) for one in concat.attribute] == [("axis", 1)]


def test_an_input_without_an_element_type_does_not_contradict_its_default() -> None:
    proto = model_of("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1,2}> { y = Add(x, w) }", 18)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.UNDEFINED
    assert findings(registry().get("IFC004"), proto) == []
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT32
    assert len(findings(registry().get("IFC004"), proto)) == 1


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
