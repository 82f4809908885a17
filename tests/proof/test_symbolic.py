"""Models that compute the same for all values are proven, and those that do not are not."""
# Long because: each pair of models is an example of its own, most of them once proven or not by mistake.

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxfix.proof.symbolic.prove import Outcome, prove
from support.models import of_opset
from support.paths import FIXTURES

model = of_opset(24, domains={"custom": 1})


def compare(first: ModelProto, second: ModelProto, size: int = 3, **options: object) -> Outcome:
    """The proof at a size for each free dimension."""
    shapes = {
        one.name: tuple(dim.dim_value or size for dim in one.type.tensor_type.shape.dim)
        for one in first.graph.input
    }
    return prove(first, second, shapes, **options)  # type: ignore[arg-type]


Texts = tuple[str, str]
SHIFT = (
    'g (int8[N] x, int8[N] n) => (int8[N] y) {y = BitShift<direction="LEFT">(x, n)}',
    "g (int8[N] x, int8[N] n) => (int8[N] y) <int32[9] powers = {1,2,4,8,16,32,64,128,KEY}, int32 none = {0}, int32"
    " most = {8}, int32 half = {128}, int32 all = {256}> {i = Cast<to=6>(n) a = Greater(i, most) b = Less(i, none)"
    " c = Or(a, b) p = Where(c, most, i) f = Gather(powers, p) w = Cast<to=6>(x) m = Mul(w, f) s = Add(m, half) "
    " r = Mod(s, all) d = Sub(r, half) y = Cast<to=3>(d)}",
)
BITS = (
    "g (uint8[N] x, uint8[N] z) => (uint8[N] y) {y = BitwiseAnd(x, z)}",
    "g (uint8[N] x, uint8[N] z) => (uint8[N] y) <int32[8] p = {1,2,4,8,16,32,64,KEY}, int32[1] two = {2}, int64[1]"
    " last = {-1}> {a = Cast<to=6>(x) b = Cast<to=6>(z) c = Unsqueeze(a, last) d = Unsqueeze(b, last) e = Div(c, p)"
    " f = Div(d, p) h = Mod(e, two) i = Mod(f, two) j = Mul(h, i) k = Mul(j, p)"
    " s = ReduceSum<keepdims=0>(k, last) y = Cast<to=2>(s)}",
)
CLAMPED = (
    "g (int32[N] x) => (int32[N] y) <int32 low = {0}, int32 high = {9}> {a = Less(x, low) b = Where(a, low, x)"
    " c = Greater(b, high) y = Where(c, high, b)}"
)
LAYERS = (
    "g (float[3,2,2] x, float[1,12,2] w, float[1,12,4] r) => (float[3,2,1,4] y)"
    " {y = GRU<hidden_size=4, layout=1>(x, w, r)}",
    "g (float[3,2,2] x, float[1,12,2] w, float[1,12,4] r) => (float[3,2,1,4] y) {a = Transpose<perm=[1,0,2]>(x)"
    " b = GRU<hidden_size=4>(a, w, r) y = Transpose<perm=KEY>(b)}",
)
SCATTERED = (
    "g (float[2,4,5] x, float[2,2,5] u, int64[2] i) => (float[2,4,5] y) {y = TensorScatter<axis=1>(x, u, i)}",
    "g (float[2,4,5] x, float[2,2,5] u, int64[2] i) => (float[2,4,5] y) <int64[3] s = {2,1,1}, int64[3] e = {2,2,5},"
    " int64[1,2,1] n = {0,KEY}> {a = Reshape(i, s) b = Add(a, n) c = Expand(b, e)"
    " y = ScatterElements<axis=1>(x, c, u)}",
)
PRODUCTS = (
    "g (int32[2,2] x, int32 k) => (int32[2,2] y) {y = CumProd(x, k)}",
    "g (int32[2,2] x, int32 k) => (int32[2,2] y) <int32 two = {2}, int32 first = {0}, int64[2] at = {0,0},"
    " bool[2,1] top = {1,0}, bool[1,2] left = {1,0}, int32 one = {1}> {m = Mod(k, two) e = Equal(m, first)"
    " a = Gather<axis=0>(x, at) b = Where(top, one, a) c = Mul(x, b) d = Gather<axis=1>(x, at) f = Where(left, one, d)"
    " h = Mul(x, f) y = Where(e, KEY)}",
)


def filled(texts: Texts, key: str) -> Texts:
    """A model, and another one with this in the place of KEY."""
    return texts[0], texts[1].replace("KEY", key)


EQUAL = {
    "a layer with the batch first": filled(LAYERS, "[2,0,1,3]"),
    "a scatter of rows": filled(SCATTERED, "1"),
    "sums along the only axis, whatever its number": (
        "g (float[4] x, int32 k) => (float[4] y) {y = CumSum(x, k)}",
        "g (float[4] x, int32 k) => (float[4] y) <int64 first = {0}> {y = CumSum(x, first)}",
    ),
    "products along an axis that is not known": filled(PRODUCTS, "c, h"),
    "a shift by a table": filled(SHIFT, "256"),
    "bits by quotients and remainders": filled(BITS, "128"),
    "choices by the same number in another order": (
        CLAMPED,
        "g (int32[N] x) => (int32[N] y) <int32 low = {0}, int32 high = {9}> {a = Greater(x, high) b = Where(a, high, x)"
        " c = LessOrEqual(x, low) y = Where(c, low, b)}",
    ),
    "transposes that cancel": (
        "g (float[N,2,4] x) => (float[N,2,4] y) {a = Transpose<perm=[0,2,1]>(x) y = Transpose<perm=[0,2,1]>(a)}",
        "g (float[N,2,4] x) => (float[N,2,4] y) {y = Identity(x)}",
    ),
    "a cast that loses nothing": (
        "g (float16[N] x) => (float16[N] y) {a = Cast<to=1>(x) b = Relu(a) y = Cast<to=10>(b)}",
        "g (float16[N] x) => (float16[N] y) {y = Relu(x)}",
    ),
    "sums and products of integers": (
        "g (int32[N] x, int32[N] z) => (int32[N] y) {a = Add(x, z) y = Mul(a, a)}",
        "g (int32[N] x, int32[N] z) => (int32[N] y) {a = Mul(x, x) b = Mul(x, z) c = Mul(z, z) d = Add(b, b)"
        " e = Add(a, d) y = Add(e, c)}",
    ),
    "bytes that wrap": (
        "g (uint8[N] x, uint8[N] z) => (uint8[N] y) {y = Add(x, z)}",
        "g (uint8[N] x, uint8[N] z) => (uint8[N] y) <int32 m = {256}> {a = Cast<to=6>(x) b = Cast<to=6>(z)"
        " c = Add(a, b) d = Mod(c, m) y = Cast<to=2>(d)}",
    ),
    "the law of De Morgan": (
        "g (bool[N] x, bool[N] z) => (bool[N] y) {a = And(x, z) y = Not(a)}",
        "g (bool[N] x, bool[N] z) => (bool[N] y) {a = Not(x) b = Not(z) y = Or(a, b)}",
    ),
    "a convolution of one axis": (
        "g (float[1,2,7] x, float[3,2,3] w) => (float[1,3,7] y) {y = Conv<pads=[1,1]>(x, w)}",
        "g (float[1,2,7] x, float[3,2,3] w) => (float[1,3,7] y) <int64[1] two = {2}> {a = Unsqueeze(x, two)"
        " b = Unsqueeze(w, two) c = Conv<pads=[0,1,0,1]>(a, b) y = Squeeze(c, two)}",
    ),
    "a transposed convolution of one axis": (
        "g (float[1,4,5] x, float[4,3,3] w) => (float[1,6,9] y)"
        " {y = ConvTranspose<group=2, strides=[2], pads=[1,1]>(x, w)}",
        "g (float[1,4,5] x, float[4,3,3] w) => (float[1,6,9] y) <int64[1] two = {2}> {a = Unsqueeze(x, two)"
        " b = Unsqueeze(w, two) c = ConvTranspose<group=2, strides=[1,2], pads=[0,1,0,1]>(a, b) y = Squeeze(c, two)}",
    ),
    "a product of matrices as a convolution": (
        "g (float[2,4,3] x, float[4,5] w) => (float[2,5,3] y) {a = Transpose<perm=[0,2,1]>(x) b = MatMul(a, w)"
        " y = Transpose<perm=[0,2,1]>(b)}",
        "g (float[2,4,3] x, float[4,5] w) => (float[2,5,3] y) <int64[1] two = {2}> {a = Transpose<perm=[1,0]>(w)"
        " b = Unsqueeze(a, two) y = Conv(x, b)}",
    ),
    "integers multiplied as floats": (
        "g (uint8[2,3] x, uint8[3,2] z) => (int32[2,2] y) {y = MatMulInteger(x, z)}",
        "g (uint8[2,3] x, uint8[3,2] z) => (int32[2,2] y) {a = Cast<to=1>(x) b = Cast<to=1>(z) c = MatMul(a, b)"
        " y = Cast<to=6>(c)}",
    ),
    "dequantization by hand": (
        "g (uint8[N] x) => (float[N] y) <float s = {0.1}, uint8 z = {7}> {y = DequantizeLinear(x, s, z)}",
        "g (uint8[N] x) => (float[N] y) <float s = {0.1}, float z = {7}>"
        " {a = Cast<to=1>(x) b = Sub(a, z) y = Mul(b, s)}",
    ),
    "a branch that is always taken": (
        "g (float[N] x) => (float[N] y) <bool c = {1}> {y = If(c)<then_branch = t () => (float[N] a) {a = Relu(x)},"
        " else_branch = e () => (float[N] b) {b = Neg(x)}>}",
        "g (float[N] x) => (float[N] y) {y = Relu(x)}",
    ),
    "a branch that may be taken": (
        "g (float[N] x, bool c) => (float[N] y) {y = If(c)<then_branch = t () => (float[N] a) {a = Relu(x)},"
        " else_branch = e () => (float[N] b) {b = Neg(x)}>}",
        "g (float[N] x, bool c) => (float[N] y) {a = Relu(x) b = Neg(x) y = Where(c, a, b)}",
    ),
    "a loop without an end, written otherwise": (
        "g (float[N] x, bool c) => (float[N] y) {y = Loop(, c, x)<body = b (int64 i, bool go, float[N] s) =>"
        " (bool on, float[N] t) {t = Add(s, s) q = ReduceMax<keepdims=0>(t) h = Cast<to=9>(q) on = And(go, h)}>}",
        "g (float[N] x, bool c) => (float[N] y) {y = Loop(, c, x)<body = b (int64 i, bool go, float[N] s) =>"
        " (bool on, float[N] t) {u = Identity(s) t = Add(u, s) q = ReduceMax<keepdims=0>(t) h = Cast<to=9>(q)"
        " on = And(h, go)}>}",
    ),
    "an operator that nobody knows": (
        "g (float[2,3] x) => (float[2,3] y) {a = Transpose(x) b = Transpose(a) c = custom.Magic(b) y = Relu(c)}",
        "g (float[2,3] x) => (float[2,3] y) {b = Identity(x) c = custom.Magic(b) y = Relu(c)}",
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_what_is_the_same_for_all_values_is_proven(name: str) -> None:
    first, second = (model(text) for text in EQUAL[name])
    for size in (1, 3):
        outcome = compare(first, second, size)
        assert outcome.proven, outcome.reason


DRAWING = (
    "Loop(n, t, x)<body = b (int64 i, bool go, float[2] s) => (bool on, float[2] r)"
    " {on = Identity(go) d = RandomUniformLike(s) r = Add(s, d)}>"
)
DIFFERENT = {
    "a layer with the batch first, transposed otherwise": filled(LAYERS, "[0,2,1,3]"),
    "a scatter of other rows": filled(SCATTERED, "2"),
    "sums along one of two axes": (
        "g (float[2,2] x, int32 k) => (float[2,2] y) {y = CumSum(x, k)}",
        "g (float[2,2] x, int32 k) => (float[2,2] y) <int64 first = {0}> {y = CumSum(x, first)}",
    ),
    "products along another axis": filled(PRODUCTS, "h, c"),
    "integers that wrap before they are moved and grow": (
        "g (int8[2,2] x) => (int32[2,2] y) <int64[2] i = {1,0}> {a = Add(x, x) b = Gather(a, i) y = Cast<to=6>(b)}",
        "g (int8[2,2] x) => (int32[2,2] y) <int64[2] i = {1,0}> {c = Cast<to=6>(x) a = Add(c, c) y = Gather(a, i)}",
    ),
    "a shift by a table that is wrong for shifts by the width": filled(SHIFT, "128"),
    "a shift by a table that is wrong for shifts by more": (
        'g (uint8[N] x, uint8[N] n) => (uint8[N] y) {y = BitShift<direction="RIGHT">(x, n)}',
        "g (uint8[N] x, uint8[N] n) => (uint8[N] y) <uint8[8] powers = {1,2,4,8,16,32,64,128}, uint8 most = {7}>"
        " {p = Min(n, most) i = Cast<to=7>(p) f = Gather(powers, i) y = Div(x, f)}",
    ),
    "a shift of negative numbers that rounds to zero": (
        'g (int8[N] x) => (int8[N] y) <int8 one = {1}> {y = BitShift<direction="RIGHT">(x, one)}',
        "g (int8[N] x) => (int8[N] y) <int8 two = {2}> {y = Div(x, two)}",
    ),
    "the wrong weight of a bit": filled(BITS, "64"),
    "a number that is far away": (
        CLAMPED,
        "g (int32[N] x) => (int32[N] y) <int32 low = {0}, int32 high = {9}, int32 far = {1000}> {a = Greater(x, high)"
        " b = Where(a, high, x) e = Equal(x, far) f = Where(e, low, b) c = LessOrEqual(x, low) y = Where(c, low, f)}",
    ),
    "a number at the end of its type": (
        "g (int64[N] x) => (bool[N] y) <int64 least = {-9223372036854775808}> {y = Equal(x, least)}",
        "g (int64[N] x) => (bool[N] y) <int64 none = {0}> {a = Less(x, none) b = Greater(x, none) y = And(a, b)}",
    ),
    "a sum of booleans that is no exclusive one": (
        "g (bool[N] x, bool[N] z) => (bool[N] y) {y = Xor(x, z)}",
        "g (bool[N] x, bool[N] z) => (bool[N] y) <int32 none = {0}> {a = Cast<to=6>(x) b = Cast<to=6>(z) c = Add(a, b)"
        " y = Greater(c, none)}",
    ),
    "an operator without a known meaning that rounds to another type": (
        "g (float16[2,4] x) => (float[2,4] y) {a = LpNormalization(x) y = Cast<to=1>(a)}",
        "g (float16[2,4] x) => (float[2,4] y) {a = Cast<to=1>(x) y = LpNormalization(a)}",
    ),
    "an operator that nobody knows, of another type": (
        "g (float16[2,4] x) => (float[2,4] y) {y = custom.Magic(x)}",
        "g (float16[2,4] x) => (float[2,4] y) {a = Cast<to=1>(x) y = custom.Magic(a)}",
    ),
    "a half that rounds": (
        "g (float[N] x) => (float[N] y) {a = Cast<to=10>(x) y = Cast<to=1>(a)}",
        "g (float[N] x) => (float[N] y) {y = Identity(x)}",
    ),
    "zero, added to -0.0": (
        "g (float[N] x) => (float[N] y) <float z = {0.0}> {y = Add(x, z)}",
        "g (float[N] x) => (float[N] y) {y = Identity(x)}",
    ),
    "a float sum in another order of brackets": (
        "g (float[N] x, float[N] z) => (float[N] y) {a = Add(x, z) y = Add(a, z)}",
        "g (float[N] x, float[N] z) => (float[N] y) {a = Add(z, z) y = Add(a, x)}",
    ),
    "a float that is not the contrary of less": (
        "g (float[N] x, float[N] z) => (bool[N] y) {y = GreaterOrEqual(x, z)}",
        "g (float[N] x, float[N] z) => (bool[N] y) {a = Less(x, z) y = Not(a)}",
    ),
    "a transposition too many": (
        "g (float[2,2] x) => (float[2,2] y) {y = Identity(x)}",
        "g (float[2,2] x) => (float[2,2] y) {y = Transpose(x)}",
    ),
    "one element of a weight": (
        "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> {y = MatMul(x, w)}",
        "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 5}> {y = MatMul(x, w)}",
    ),
    "another type of the same numbers": (
        "g (float16[N] x) => (float[N] y) {y = Cast<to=1>(x)}",
        "g (float16[N] x) => (float16[N] y) {y = Identity(x)}",
    ),
    "integers that wrap before they grow": (
        "g (int8[N] x) => (int32[N] y) {a = Add(x, x) y = Cast<to=6>(a)}",
        "g (int8[N] x) => (int32[N] y) {a = Cast<to=6>(x) y = Add(a, a)}",
    ),
    "the negative of a choice with a zero": (
        "g (float[N] x, bool[N] c) => (float[N] y) <float z = {0.0}> {a = Where(c, z, x) y = Neg(a)}",
        "g (float[N] x, bool[N] c) => (float[N] y) <float z = {0.0}> {a = Neg(x) y = Where(c, z, a)}",
    ),
    "an input of another type": (
        "g (int32[N] x) => (int32[N] y) {y = Identity(x)}",
        "g (int64[N] x) => (int64[N] y) {y = Identity(x)}",
    ),
    "an index that does not exist": (
        "g (float[1,4] x) => (float[1,3] y) <int64[1,3] i = {0,1,2}> {y = GatherElements<axis=1>(x, i)}",
        "g (float[1,4] x) => (float[1,3] y) <int64[1,3] i = {0,1,2}> {y = GatherElements<axis=0>(x, i)}",
    ),
    "a split into fewer parts": (
        "g (float[6] x) => (float[N] y) {y, b, c = Split<num_outputs=3>(x)}",
        "g (float[6] x) => (float[N] y) {y, b = Split<num_outputs=2>(x)}",
    ),
    "a loop inside of a loop that adds its own number": (
        "g (int64 n, int64 x) => (int64 y) <bool t = {1}> {y = Loop(n, t, x)<body = b (int64 i, bool go, int64 s) =>"
        " (bool on, int64 r) {on = Identity(go) r = Loop(n, go, s)<body = c (int64 j, bool go2, int64 u) =>"
        " (bool on2, int64 v) {on2 = Identity(go2) v = Add(u, j)}>}>}",
        "g (int64 n, int64 x) => (int64 y) <bool t = {1}> {y = Loop(n, t, x)<body = b (int64 i, bool go, int64 s) =>"
        " (bool on, int64 r) {on = Identity(go) r = Loop(n, go, s)<body = c (int64 j, bool go2, int64 u) =>"
        " (bool on2, int64 v) {on2 = Identity(go2) v = Add(u, i)}>}>}",
    ),
    "a random number drawn twice": (
        "g (float[2] x) => (float[2] y) {a = RandomUniformLike(x) b = RandomUniformLike(x) y = Sub(a, b)}",
        "g (float[2] x) => (float[2] y) {a = RandomUniformLike(x) y = Sub(a, a)}",
    ),
    "loops that draw, made one": (
        f"g (float[2] x, int64 n) => (float[2] y) <bool t = {{1}}> {{a = {DRAWING} b = {DRAWING} y = Sub(a, b)}}",
        f"g (float[2] x, int64 n) => (float[2] y) <bool t = {{1}}> {{a = {DRAWING} y = Sub(a, a)}}",
    ),
    "numbers drawn before a loop instead of in it": (
        f"g (float[2] x) => (float[2] y) <int64 n = {{3}}, bool t = {{1}}> {{y = {DRAWING}}}",
        "g (float[2] x) => (float[2] y) <int64 n = {3}, bool t = {1}> {d = RandomUniformLike(x) y = "
        + DRAWING.replace("d = RandomUniformLike(s)", "")
        + "}",
    ),
    "an unknown operator with another attribute": (
        'g (float[2] x) => (float[2] y) {a = Identity(x) y = Gelu<approximate="tanh">(a)}',
        "g (float[2] x) => (float[2] y) {y = Gelu(x)}",
    ),
    "infinity, saturated": (
        "g (float8e5m2[N] x) => (float8e5m2[N] y) {a = Cast<to=1>(x) y = Cast<to=19>(a)}",
        "g (float8e5m2[N] x) => (float8e5m2[N] y) {y = Identity(x)}",
    ),
    "a divisor whose inverse is infinite": (
        "g (double[N] x) => (double[N] y) <double z = {5e-324}> {y = Div(x, z)}",
        "g (double[N] x) => (double[N] y) <double z = {0}> {a = Reciprocal(z) y = Mul(x, a)}",
    ),
    "one element compared with three": (
        "g (bool[1] x) => (bool[M] y) <int32[3] z = {0,0,0}> {a = Cast<to=6>(x) y = Greater(a, z)}",
        "g (bool[1] x) => (bool[M] y) {a = Cast<to=6>(x) y = Cast<to=9>(a)}",
    ),
    "the first of equal elements and the last": (
        "g (float[1] x) => (float[3] y) <int64[1] s = {3}> {a = Expand(x, s) y = Hardmax(a)}",
        "g (float[1] x) => (float[3] y) <int64[1] s = {3}, int64[1] b = {-1}, int64[1] e = {-9}, int64[1] ax = {0}>"
        " {a = Expand(x, s) h = Hardmax(a) y = Slice(h, b, e, ax, b)}",
    ),
    "half of a product of integers": (
        "g (int32[2,3] x, int32[3,2] z) => (int32[2,2] y) {y = Gemm<alpha=0.5>(x, z)}",
        "g (int32[2,3] x, int32[3,2] z) => (int32[2,2] y) <int32 o = {0}> {a = MatMul(x, z) y = Mul(a, o)}",
    ),
    "no axes, which some runtimes take for all": (
        "g (float[1,3] x) => (float[M] y) <int64[0] s = {}> {y = Squeeze(x, s)}",
        "g (float[1,3] x) => (float[M] y) {y = Identity(x)}",
    ),
    "a norm of constants, with their signs": (
        "g (float[2] x) => (float[2] y) <float[2] c = {-1, 3}> {a = LpNormalization<p=1>(c) y = Add(x, a)}",
        "g (float[2] x) => (float[2] y) <float[2] c = {-0.5, 1.5}> {y = Add(x, c)}",
    ),
    "an axis added twice": (
        "g (float[3] x) => (float[1,1,3] y) <int64[2] s = {0,0}> {a = Neg(x) y = Unsqueeze(a, s)}",
        "g (float[3] x) => (float[1,1,3] y) <int64[2] s = {0,0}> {a = Unsqueeze(x, s) y = Neg(a)}",
    ),
    "an input that is cast outside": (
        "g (float16[N] x) => (float[N] y) {y = Cast<to=1>(x)}",
        "g (float[N] x) => (float[N] y) {y = Identity(x)}",
    ),
    "an input with another default": (
        "g (float[N] x, float[1] w = {1}) => (float[N] y) {y = Add(x, w)}",
        "g (float[N] x, float[1] w = {2}) => (float[N] y) {y = Add(x, w)}",
    ),
    "a name in a branch that hides another": (
        "g (float[N] x, bool c) => (float[N] y, float[N] a) {a = Relu(x) y = If(c)<then_branch = t () => (float[N] p)"
        " <float[1] a = {1}> {p = Mul(x, a)}, else_branch = e () => (float[N] q) {q = Neg(x)}>}",
        "g (float[N] x, bool c) => (float[N] y, float[N] a) {a = Relu(x) y = If(c)<then_branch = t () => (float[N] p)"
        " <float[1] b = {1}> {p = Mul(x, b)}, else_branch = e () => (float[N] q) {q = Neg(x)}>}",
    ),
    "a name that is made twice": (
        "g (float[N] x) => (float[N] y) {y = Relu(x) y = Abs(x)}",
        "g (float[N] x) => (float[N] y) {y = Abs(x)}",
    ),
    "a constant of another domain": (
        "g (float[1] x) => (float[1] y) {a = custom.Constant<value = float[1] {1}>() y = Add(x, a)}",
        "g (float[1] x) => (float[1] y) {a = Constant<value = float[1] {1}>() y = Add(x, a)}",
    ),
    "a local function of another operator set": tuple(
        'g (float[N] x) => (float[N] y) {y = custom.F(x)} <domain: "custom", opset_import: ["" : 17]> F (a) => (b)'
        f" {{b = {name}(a)}}"
        for name in ("Relu", "Abs")
    ),
    "a local function with another default": tuple(
        'g (float[N] x) => (float[N] y) {y = custom.F(x)} <domain: "custom", opset_import: ["" : 21]>'
        f" F <k: float = {slope}> (a) => (b) {{b = LeakyRelu<alpha: float = @k>(a)}}"
        for slope in (0.5, 0.7)
    ),
}
_PRELU = "g (float[1,3,3,3] x, float[3] s) => (float[1,3,3,3] y) {y = PRelu(x, s)}"
_BRANCH = (
    "g (float[1,3,3,3] x, float[3] s, bool c) => (float[1,3,3,3] y) {y = If(c)<then_branch = t () =>"
    " (float[1,3,3,3] p) {p = PRelu(x, s)}, else_branch = e () => (float[1,3,3,3] q) {q = Neg(x)}>}"
)
_ROWS = "g (uint8[2,2] x, float[2] s) => (float[2,2] y)"
DIFFERENT_IN_OLD_VERSIONS = {
    "the axis of a slope": (6, _PRELU, 7, _PRELU),
    "the axis of a slope in a branch": (6, _BRANCH, 7, _BRANCH),
    "an axis of quantization that is none": (
        *(12, f"{_ROWS} {{y = DequantizeLinear<axis=0>(x, s)}}"),
        *(12, f"{_ROWS} <int64[2] n = {{2,1}}> {{a = Cast<to=1>(x) b = Reshape(s, n) y = Mul(a, b)}}"),
    ),
    "infinity, clipped": (
        *(6, "g (float[N] x) => (float[N] y) {y = Clip(x)}"),
        *(6, "g (float[N] x) => (float[N] y) {y = Identity(x)}"),
    ),
    "padding with -0.0": (
        *(9, "g (float[N] x) => (float[M] y) {y = Pad<pads=[1,1], value=-0.0>(x)}"),
        *(9, "g (float[N] x) => (float[M] y) {y = Pad<pads=[1,1], value=0.0>(x)}"),
    ),
}


def are_not_proven(first: ModelProto, second: ModelProto) -> None:
    assert not compare(first, second).proven
    assert not compare(second, first).proven


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_for_some_values_is_not_proven(name: str) -> None:
    are_not_proven(*(model(text) for text in DIFFERENT[name]))


@pytest.mark.parametrize("name", DIFFERENT_IN_OLD_VERSIONS)
def test_what_older_operator_sets_say_counts(name: str) -> None:
    version, text, other, changed = DIFFERENT_IN_OLD_VERSIONS[name]
    are_not_proven(model(text, version), model(changed, other))


def test_an_initializer_that_hides_a_name_stands_in_the_way() -> None:
    text = (
        "g (float[N] x, bool c) => (float[N] y) {a = Relu(x) y = If(c)<then_branch = t () => (float[N] p)"
        " <float[1] a = {1}> {p = Mul(x, a)}, else_branch = e () => (float[N] q) {q = Mul(x, KEY)}>}"
    )
    outcome = compare(model(text.replace("KEY", "x")), model(text.replace("KEY", "a")))
    assert not outcome.proven
    assert "hides a name" in outcome.reason


def test_an_outer_initializer_that_is_dropped_stands_in_the_way() -> None:
    text = (
        "g (float[N] x, bool k) => (float[N] y) OUTER {y = If(k)<then_branch = t () => (float[N] p)"
        " <float[1] c = {2}> {p = Mul(x, c)}, else_branch = e () => (float[N] q) {q = Neg(x)}>}"
    )
    hidden, alone = (model(text.replace("OUTER", outer)) for outer in ("<float[1] c = {1}>", ""))
    assert compare(alone, alone).proven
    for first, second in ((hidden, alone), (alone, hidden), (hidden, hidden)):
        outcome = compare(first, second)
        assert not outcome.proven
        assert "hides a name" in outcome.reason


def test_parts_of_a_split_without_a_name_are_left_out() -> None:
    one, other, last, both = (
        model("g (float[6] x) => (float[3] y) {" + outputs + " = Split<num_outputs=2>(x)}")
        for outputs in ("y, ", "y, b", ", y", "b, y")
    )
    assert compare(one, other).proven
    assert compare(last, both).proven
    assert not compare(one, last).proven


def test_a_busy_machine_takes_no_time_from_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (model(text) for text in EQUAL["transposes that cancel"])
    monkeypatch.setattr("time.monotonic", iter(range(0, 10**9, 1000)).__next__)
    assert compare(first, second).proven
    outcome = compare(first, second, limit=-1.0)
    assert not outcome.proven
    assert "time limit exceeded" in outcome.reason


def test_the_time_limit_ends_the_proof_of_a_long_model() -> None:
    chain = " ".join(f"x{place + 1} = Sin(x{place})" for place in range(4000))
    text = f"g (float[2] x) => (float[2] x4000) {{x0 = KEY(x) {chain}}}"
    began = time.process_time()
    outcome = compare(*(model(text.replace("KEY", name)) for name in ("Abs", "Neg")), limit=-1.0)
    assert outcome.reason == "time limit exceeded"
    assert time.process_time() - began < 10


def test_the_reason_names_the_node_that_stands_in_the_way_of_many_others() -> None:
    chain = " ".join(f"x{place + 1} = Sin(x{place})" for place in range(4000))
    text = f"g (float[N] x) => (float[M] x4000) {{a = NonZero(x) b = Cast<to=1>(a) x0 = KEY(b) {chain}}}"
    first, second = (model(text.replace("KEY", name)) for name in ("Relu", "Abs"))
    outcome = compare(first, second, limit=8.0)
    assert not outcome.proven
    assert outcome.reason.startswith("NonZero (a): ")


def test_inputs_that_decide_shapes_can_be_given() -> None:
    first = model("g (float[6] x, int64[2] s) => (float[N,M] y) {a = Reshape(x, s) y = Relu(a)}")
    second = model("g (float[6] x, int64[2] s) => (float[N,M] y) {a = Relu(x) y = Reshape(a, s)}")
    assert not compare(first, second).proven
    assert compare(first, second, values={"s": np.array([2, 3])}).proven


def test_sizes_that_every_input_decides_are_given_as_tensors() -> None:
    text = "g (int64 n) => (float[M] y) <float none = {0}, float one = {1}> {m = Cast<to=1>(n)"
    first, second, wrong = (
        model(f"{text} a = Range(none, m, one) b = Div(a, m) y = Add({end})}}")
        for end in ("a, b", "b, a", "b, b")
    )
    outcome = compare(first, second, values={"n": np.array(3)})
    assert (outcome.proven, outcome.given) == (True, ("m",))
    assert not compare(first, wrong, values={"n": np.array(3)}).proven


def test_inputs_that_are_not_given_are_not_sampled() -> None:
    text = "g (float n, float z) => (float[M] y) <float none = {0}, float one = {1}> {a = Range(none, n, one) y ="
    first, second = model(text + " Mul(a, z)}"), model(text + " Identity(a)}")  # the same for this z alone
    assert not compare(first, second, values={"n": np.float32(3), "z": np.float32(1)}).proven


def test_sequences_are_tensors_of_given_shapes() -> None:
    head = "g (seq(float[N]) s) => (float[M] y) <int64 i = {0}, int64 j = {1}> "
    text = head + "{a = SequenceAt(s, i) b = SequenceAt(s, j) y = "
    first, second, wrong = (model(text + end) for end in ("Add(a, b)}", "Add(b, a)}", "Add(a, a)}"))
    assert prove(first, second, {"s": ((2,), (2,))}).proven
    assert not prove(first, wrong, {"s": ((2,), (2,))}).proven


def test_real_numbers_have_no_order_of_brackets() -> None:
    first, second = (model(text) for text in DIFFERENT["a float sum in another order of brackets"])
    assert compare(first, second, as_real=True).proven
    first, second = (model(text) for text in DIFFERENT["one element of a weight"])
    assert not compare(first, second, as_real=True).proven


@pytest.mark.parametrize("name", [path.name for path in sorted(Path(FIXTURES).glob("*.legacy.*.onnx"))])
def test_what_is_shared_costs_nothing(name: str) -> None:
    proto = onnx.load(Path(FIXTURES, name))
    outcome = compare(proto, proto)
    assert outcome.proven
    assert outcome.elements == 0
