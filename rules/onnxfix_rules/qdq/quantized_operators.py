"""Quantized operators: QLinearConv and QLinearMatMul (QDQ008), and those of ONNX Runtime (QDQ020)."""
# Long because: two rules about many operators, with an example of each.

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    AddNode,
    Draft,
    Edit,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    RemoveNode,
    Safety,
    Severity,
    Silent,
    Value,
    is_small,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.ops import _bounds
from onnxfix_rules.ops._runtimes import no_importer

from ._read import FLOATS, WEIGHT_LIMIT, Array
from ._region import region_of
from ._rewrite import Unable, Workshop, floats, ratio

_INTEGERS = (TensorProto.INT8, TensorProto.UINT8)
_MIDDLE: dict[int, int] = {TensorProto.INT8: 0, TensorProto.UINT8: 128}


@rule(
    "QDQ008",
    ops=("QLinearConv", "QLinearMatMul"),
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[57],
)
def quantized_operator(node: Node, model: Model) -> Iterator[Match]:
    """A QLinearConv or QLinearMatMul, for which TensorRT has no importer.

    ## Why it matters
    The parser fails: `UNSUPPORTED_NODE`, measured with TensorRT-RTX 1.7.1; NVIDIA's operator lists for TensorRT 8 to
    11 contain neither. ONNX Runtime's quantizer calls this format QOperator; TensorRT supports the other one, QDQ:
    DequantizeLinear, Conv, QuantizeLinear.

    ## Fix
    Both forms require `--numeric-fixes`.

    - If all types are signed around 0, or unsigned around the midpoint, which QDQ001 and QDQ002 convert next: the
      form for which TensorRT has INT8 kernels. DequantizeLinear of both factors, MatMul or Conv, QuantizeLinear; a
      bias becomes its dequantized floats. If a sum lies halfway between two steps, up to rounding, the result may be
      the other step, and a comparison of the outputs may report it: one step of the scale exceeds the tolerance.
      Before opset 13 DequantizeLinear has no axis; weights with per-filter scales then become floats.
    - Half precision would round the sums before they are quantized. ONNX keeps them in 32 bits, so half-precision
      scales are combined into one factor, as in onnx.reference, which scales the sums in float32; DequantizeLinear
      and QuantizeLinear get scale 1. Bit-identical as long as no sum reaches 2**24.
    - With other zero points INT8 is not possible, and the integers are written in floats, together with the whole
      quantized region: `Clip(Round(MatMul(a - za, b - zb) * m) + zy, 0, 255)`. Bit-identical to ONNX Runtime as long
      as no sum reaches 2**24. TensorRT 10.6.0 does not build that between Casts of int8 (`cannot be quantized by a.
      You might want to add a DQ node`, measured), so for TensorRT 10.0 to 10.13 a DQ and a Q of scale 1 take their
      place.

    If the sums cannot be written that way (float32 scales of unknown shape), the first form is used. No fix for
    float8, or if neither form is possible.

    ## References
    - https://onnx.ai/onnx/operators/onnx__QLinearConv.html
    - https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    count = 8
    if len(node.inputs) < count or any(value is None for value in node.inputs[:count]):
        return
    fix, reads = _remedy(node, model)
    yield Match(f"{target_of(model).title} does not import {node.op_type}", node=node, fix=fix, reads=reads)


def _remedy(node: Node, model: Model) -> tuple[Fix | None, tuple[Node | Value, ...]]:
    """The fix, and the values that it depends on."""
    own = tuple(value for value in node.inputs if value is not None)
    pairs = _as_pairs(node, model)
    if pairs is not None and _centered(node, model):
        return pairs, own
    region = region_of([node], model)
    found = floats(region, model, "multiply in float32, which loses INT8 execution")
    return (found, (*own, *region.reads)) if found is not None else (pairs, own)


def _centered(node: Node, model: Model) -> bool:
    """Whether every tensor is, or can be stored as, signed integers around 0."""
    for data, zero in ((0, 2), (3, 5), (None, 7)):
        value, point = None if data is None else node.input(data), node.input(zero)
        zeros = None if point is None else point.constant()
        elem = None if point is None else model.shapes.elem_type(point)
        if zeros is None or not zeros.size or elem not in _MIDDLE:
            return False
        weights = None if value is None else value.constant(WEIGHT_LIMIT)
        if weights is not None and weights.size:
            # Checks each zero point against the weights of every channel: stricter than needed, but simple.
            low, high = int(weights.min()) - int(zeros.max()), int(weights.max()) - int(zeros.min())
            if low < -128 or high > 127:
                return False
        elif not (zeros.astype(np.int64) == _MIDDLE[elem]).all():
            return False
    return True


def _as_pairs(node: Node, model: Model) -> Fix | None:
    try:
        edits = _Writer(node, model).run()
    except Unable:
        return None
    return Fix("replace by DequantizeLinear, the float operator, QuantizeLinear", edits, Safety.NUMERIC)


class _Writer:
    def __init__(self, node: Node, model: Model) -> None:
        self.node, self.model = node, model
        self.convolves = node.op_type == "QLinearConv"
        self.shop = Workshop()
        self.draft: Draft = self.shop.at(node)

    def run(self) -> list[Edit]:
        node = self.node
        output, scale, zero = node.output(0), self.given(6), self.given(7)
        if output is None or not self.single(scale) or not self.single(zero):
            raise Unable
        if self.model.shapes.elem_type(zero) not in _INTEGERS:
            raise Unable
        factors = [self.factor(0), self.factor(3)]
        if self.convolves:
            bias = node.input(8)
            factors += [] if bias is None else [self.bias(bias)]
            found = self.shop.like(node, "Conv", factors)
        else:
            found = self.draft.add("MatMul", factors)
        if self.kind(scale) != TensorProto.FLOAT:
            found = self.draft.add("Mul", [found, ratio(self.shop, node, self.model)])
        self.shop.edits.append(RemoveNode(node))
        self.draft.add("QuantizeLinear", [found, self.scale(scale), zero], output=output.name)
        return list(self.shop.edits)

    def given(self, index: int) -> Value:
        value = self.node.require(index)
        return value

    def single(self, value: Value) -> bool:
        shape = self.model.shapes.static_shape(value)
        return shape is not None and all(size == 1 for size in shape) and len(shape) < 2

    def factor(self, index: int) -> str:
        """Dequantize the data at ``index``, which its scale and zero point follow."""
        data, scale, zero = (self.given(index + k) for k in range(3))
        if self.model.shapes.elem_type(data) not in _INTEGERS or self.kind(scale) not in FLOATS:
            raise Unable
        if self.single(scale) and self.single(zero):
            return self.draft.add("DequantizeLinear", [data, self.scale(scale), zero])
        axis = self.axis(index, data, scale, zero)
        if self.node.opset >= 13:
            return self.draft.add("DequantizeLinear", [data, self.scale(scale), zero], axis=axis)
        return self.folded(data, scale, zero, axis)

    def kind(self, scale: Value) -> int | None:
        return self.model.shapes.elem_type(scale) if self.node.opset >= 21 else TensorProto.FLOAT

    def scale(self, scale: Value) -> Value | str:
        """The scale; 1 for a half-precision one, which would round the sums before they are quantized."""
        if self.kind(scale) == TensorProto.FLOAT:
            return scale
        shape = self.model.shapes.static_shape(scale)
        if shape is None or not is_small(*shape):
            raise Unable
        return self.shop.constant(self.node, np.ones(shape, np.float32), "one")

    def axis(self, index: int, data: Value, scale: Value, zero: Value) -> int:
        """The axis of a vector of scales."""
        shapes = self.model.shapes
        rank = shapes.rank(data)
        if rank is None or shapes.rank(scale) != 1 or not shapes.same_shape(scale, zero).yes:
            raise Unable
        if self.convolves:
            if index == 0:
                raise Unable  # ONNX: the data has one scale
            return 0
        if rank < 2:
            raise Unable
        return rank - 2 if index == 0 else rank - 1

    def folded(self, data: Value, scale: Value, zero: Value, axis: int) -> str:
        """Constant weights as floats."""
        weights, scales, zeros = data.constant(WEIGHT_LIMIT), scale.constant(), zero.constant()
        if weights is None or scales is None or zeros is None or weights.shape[axis] != scales.size:
            raise Unable
        shape = [1] * weights.ndim
        shape[axis] = -1
        shifted = weights.astype(np.int64) - zeros.astype(np.int64).reshape(shape)
        floats: Array = shifted.astype(np.float32) * scales.astype(np.float32).reshape(shape)
        return self.shop.constant(self.node, floats, "dequantized")

    def bias(self, bias: Value) -> str:
        """The dequantized bias. In ONNX its scale is the product of the two scales, around 0."""
        first, second = self.given(1), self.given(4)
        numbers, one, other = bias.constant(WEIGHT_LIMIT), first.constant(), second.constant()
        if numbers is not None and one is not None and other is not None and one.size == 1:
            scales = one.astype(np.float32).reshape(()) * other.astype(np.float32).reshape(-1)
            return self.shop.constant(self.node, numbers.astype(np.float32) * scales, "bias")
        # Vectors of one scale and of many broadcast with the bias, which is also a vector.
        product = self.draft.add("Mul", [first, second])
        return self.draft.add("Mul", [self.shop.cast(self.node, bias.name, TensorProto.FLOAT), product])


_PRODUCT = """<float s = {0.11}, int8 z = {0}, int8[2,2] w = {1, -2, 3, 4}, float t = {0.23}, int8 v = {0},
            float u = {0.37}> { y = QLinearMatMul(x, s, z, w, t, v, u, z) }"""
_fixed = partial(Fixed, ir_version=10, opset=21, safety=Safety.NUMERIC)
_flagged = partial(Flagged, ir_version=10, opset=21, runs=False, safety=Safety.NUMERIC)
_numeric = partial(Fixed, safety=Safety.NUMERIC)


quantized_operator.examples = [
    _fixed(
        "a product of signed values around 0",
        before=f"g (int8[N,2] x) => (int8[N,2] y) {_PRODUCT}",
        after="""g (int8[N,2] x) => (int8[N,2] y) <float s = {0.11}, int8 z = {0}, int8[2,2] w = {1, -2, 3, 4},
            float t = {0.23}, int8 v = {0}, float u = {0.37}> { a = DequantizeLinear(x, s, z)
            b = DequantizeLinear(w, t, v)  p = MatMul(a, b)  y = QuantizeLinear(p, u, z) }""",
    ),
    Flagged("requires --numeric-fixes", f"g (int8[N,2] x) => (int8[N,2] y) {_PRODUCT}"),
    _fixed(
        "uint8 around 128, and per-column scales of the second factor",
        before="""g (uint8[N,2] x) => (uint8[N,2] y) <float s = {0.11}, uint8 z = {128}, uint8[2,2] w = {1, 2, 3, 4},
            float[2] t = {0.23, 0.31}, uint8[2] v = {0, 1}, float u = {0.37}> {
            y = QLinearMatMul(x, s, z, w, t, v, u, z) }""",
        after="""g (uint8[N,2] x) => (uint8[N,2] y) <float s = {0.11}, uint8 z = {128}, uint8[2,2] w = {1, 2, 3, 4},
            float[2] t = {0.23, 0.31}, uint8[2] v = {0, 1}, float u = {0.37}> { a = DequantizeLinear(x, s, z)
            b = DequantizeLinear<axis = 1>(w, t, v)  p = MatMul(a, b)  y = QuantizeLinear(p, u, z) }""",
    ),
    _fixed(
        "a convolution with a bias and per-filter scales",
        before="""g (int8[N,1,4,4] x) => (int8[N,2,4,4] y) <float s = {0.5}, int8 z = {0},
            int8[2,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}, float[2] t = {0.5, 0.25},
            int8[2] v = {0, 0}, float u = {0.91}, int32[2] b = {4, -8}> {
            y = QLinearConv<pads = [1, 1, 1, 1]>(x, s, z, w, t, v, u, z, b) }""",
        after="""g (int8[N,1,4,4] x) => (int8[N,2,4,4] y) <float s = {0.5}, int8 z = {0},
            int8[2,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}, float[2] t = {0.5, 0.25},
            int8[2] v = {0, 0}, float u = {0.91}, float[2] b = {1, -1}> {
            d = DequantizeLinear(x, s, z)  e = DequantizeLinear<axis = 0>(w, t, v)
            c = Conv<pads = [1, 1, 1, 1]>(d, e, b)  y = QuantizeLinear(c, u, z) }""",
    ),
    _numeric(
        "opset 10 has no axis: per-filter weights become floats",
        before="""g (int8[1,1,2,2] x) => (float[1,2,2,2] y) <float s = {0.5}, int8 z = {0},
            int8[2,1,1,1] w = {4, 8}, float[2] t = {0.5, 0.25}, int8[2] v = {0, 2}, float u = {8}> {
            q = QLinearConv(x, s, z, w, t, v, u, z)  y = DequantizeLinear(q, u, z) }""",
        after="""g (int8[1,1,2,2] x) => (float[1,2,2,2] y) <float s = {0.5}, int8 z = {0},
            float[2,1,1,1] w = {2, 1.5}, float u = {8}> { d = DequantizeLinear(x, s, z)  c = Conv(d, w)
            q = QuantizeLinear(c, u, z)  y = DequantizeLinear(q, u, z) }""",
        opset=10,
    ),
    _fixed(
        "a non-constant scale with a bias",
        before="""g (int8[N,1,2,2] x, float s) => (int8[N,1,2,2] y) <int8 z = {0}, int8[1,1,1,1] w = {4},
            float t = {0.53}, int8 v = {0}, float u = {0.87}, int32[1] b = {4}> {
            y = QLinearConv(x, s, z, w, t, v, u, z, b) }""",
        after="""g (int8[N,1,2,2] x, float s) => (int8[N,1,2,2] y) <int8 z = {0}, int8[1,1,1,1] w = {4},
            float t = {0.53}, int8 v = {0}, float u = {0.87}, int32[1] b = {4}> {
            d = DequantizeLinear(x, s, z)  e = DequantizeLinear(w, t, v)  m = Mul(s, t)  f = Cast<to = FLOAT>(b)
            i = Mul(f, m)  c = Conv(d, e, i)  y = QuantizeLinear(c, u, z) }""",
    ),
    _fixed(
        "half-precision scales, combined to scale the sums in float32",
        before="""g (int8[N,2] x) => (int8[N,2] y) <float16 s = {7875}, int8 z = {0}, int8[2,2] w = {90, -80, 70, 60},
            float16[2] t = {f16(0.00705, 0.01016)}, int8[2] v = {0, 0}, float16 u = {f16(0.0107)}> {
            y = QLinearMatMul(x, s, z, w, t, v, u, z) }""",
        after="""g (int8[N,2] x) => (int8[N,2] y) <float16 s = {7875}, int8 z = {0}, int8[2,2] w = {90, -80, 70, 60},
            float16[2] t = {f16(0.00705, 0.01016)}, int8[2] v = {0, 0}, float16 u = {f16(0.0107)}, float one = {1},
            float[2] ones = {1, 1}> {
            a = DequantizeLinear(x, one, z)  b = DequantizeLinear<axis = 1>(w, ones, v)  p = MatMul(a, b)
            m = Mul(s, t)  d = Div(m, u)  r = Cast<to = FLOAT>(d)  k = Mul(p, r)  y = QuantizeLinear(k, one, z) }""",
    ),
    _fixed(
        "bfloat16",
        before="""g (int8[N,2] x) => (int8[N,2] y) <bfloat16 s = {15320}, int8 z = {0}, int8[2,2] w = {90, -80, 70, 60},
            bfloat16 u = {bf16(0.0108642578125)}> { y = QLinearMatMul(x, s, z, w, s, z, u, z) }""",
        after="""g (int8[N,2] x) => (int8[N,2] y) <bfloat16 s = {15320}, int8 z = {0}, int8[2,2] w = {90, -80, 70, 60},
            bfloat16 u = {bf16(0.0108642578125)}, float one = {1}> {
            a = DequantizeLinear(x, one, z)  b = DequantizeLinear(w, one, z)  p = MatMul(a, b)
            m = Mul(s, s)  d = Div(m, u)  r = Cast<to = FLOAT>(d)  k = Mul(p, r)  y = QuantizeLinear(k, one, z) }""",
    ),
    _fixed(
        "non-constant scales and zero points in half precision, as in ONNX's node tests",
        before="""g (int8[2,4] x, float16[1] s, int8[1] z, int8[4,3] w, float16[1] t, int8[1] v,
            float16[1] u, int8[1] o) => (int8[2,3] y) { y = QLinearMatMul(x, s, z, w, t, v, u, o) }""",
        after="""g (int8[2,4] x, float16[1] s, int8[1] z, int8[4,3] w, float16[1] t, int8[1] v,
            float16[1] u, int8[1] o) => (int8[2,3] y) <float l = {-128}, float h = {127}> {
            a = Cast<to = 1>(x)  b = Cast<to = 1>(z)  c = Sub(a, b)  d = Cast<to = 1>(w)  e = Cast<to = 1>(v)
            f = Sub(d, e)  p = MatMul(c, f)  m = Mul(s, t)  q = Div(m, u)  k = Cast<to = FLOAT>(q)  i = Mul(p, k)
            r = Round(i)  n = Cast<to = FLOAT>(o)  j = Add(r, n)  g = Clip(j, l, h)  y = Cast<to = INT8>(g) }""",
        differs={"branch": "quantized values that leave a branch are not followed"},
    ),
    _numeric(
        "other zero points: integer sums in floats",
        before="""g (uint8[N,2] x) => (uint8[N,2] y) <float s = {0.5}, uint8 z = {3}, int8[2,2] w = {1, -2, 3, 4},
            float t = {0.25}, int8 v = {1}, float u = {0.375}, uint8 o = {7}> {
            y = QLinearMatMul(x, s, z, w, t, v, u, o) }""",
        after="""g (uint8[N,2] x) => (uint8[N,2] y) <float z = {3}, float[2,2] w = {0, -3, 2, 3},
            float m = {0.333333343}, float o = {7}, float l = {0}, float h = {255}> { f = Cast<to = FLOAT>(x)
            a = Sub(f, z)  p = MatMul(a, w)  k = Mul(p, m)  r = Round(k)  i = Add(r, o)  c = Clip(i, l, h)
            y = Cast<to = UINT8>(c) }""",
        differs={"branch": "quantized values that leave a branch are not followed"},
    ),
    _numeric(
        "two convolutions in sequence, the second with per-filter scales, change together",
        before="""g (uint8[N,1,4,4] x) => (float[N,2,2,2] y) <float s = {0.5}, uint8 z = {3},
            uint8[1,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float t = {0.5}, uint8 v = {0}, float u = {0.25},
            int8[2,1,1,1] k = {4, 8}, float[2] j = {0.5, 0.25}, int8[2] i = {0, 0}, int32[2] b = {4, -8}> {
            q = QLinearConv(x, s, z, w, t, v, u, z)  p = QLinearConv(q, u, z, k, j, i, u, z, b)
            y = DequantizeLinear(p, u, z) }""",
        after="""g (uint8[N,1,4,4] x) => (float[N,2,2,2] y) <float z = {3}, float l = {0}, float h = {255},
            float[1,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float one = {1}, float[2,1,1,1] k = {4, 8},
            float[2] b = {4, -8}, float[2,1,1] j = {0.5, 0.25}, float u = {0.25}> {
            f = Cast<to = FLOAT>(x)  a = Sub(f, z)  c0 = Conv(a, w)  m0 = Mul(c0, one)  r0 = Round(m0)  a0 = Add(r0, z)
            q = Clip(a0, l, h)  d0 = Sub(q, z)  c1 = Conv(d0, k, b)  m1 = Mul(c1, j)  r1 = Round(m1)
            a1 = Add(r1, z)  p = Clip(a1, l, h)  d1 = Sub(p, z)  y = Mul(d1, u) }""",
    ),
    _numeric(
        "scales per row and batch, which DequantizeLinear cannot represent: the sums are scaled",
        before="""g (uint8[2,1,2] x) => (uint8[2,1,2] y) <float[2,1,1] s = {0.5, 0.25}, uint8[2,1,1] z = {3, 4},
            int8[2,2] w = {1, -2, 3, 4}, float t = {0.5}, int8 v = {0}, float u = {0.75}, uint8 o = {3}> {
            y = QLinearMatMul(x, s, z, w, t, v, u, o) }""",
        after="""g (uint8[2,1,2] x) => (uint8[2,1,2] y) <float[2,1,1] z = {3, 4}, float[2,2] w = {1, -2, 3, 4},
            float[2,1,1] m = {0.333333343, 0.166666672}, float o = {3}, float l = {0}, float h = {255}> {
            f = Cast<to = FLOAT>(x)  a = Sub(f, z)  p = MatMul(a, w)  k = Mul(p, m)  r = Round(k)  i = Add(r, o)
            c = Clip(i, l, h)  y = Cast<to = UINT8>(c) }""",
        runs=False,
        differs={"branch": "quantized values that leave a branch are not followed"},
    ),
    _numeric(
        "int8 with a zero point that is no constant, for TensorRT 10.6, which takes int8 for a quantized type",
        before="""g (int8[N] x, int8 z) => (int8[] y) <float s = {0.5}, int8[2] w = {1, -2}, int8 v = {0}> {
            y = QLinearMatMul(x, s, z, w, s, v, s, z) }""",
        after="""g (int8[N] x, int8 z) => (int8[] y) <float o = {1}, float[2] w = {1, -2}, float m = {0.5},
            float l = {-128}, float h = {127}, int8 q = {0}> { f = DequantizeLinear(x, o)  k = DequantizeLinear(z, o)
            a = Sub(f, k)  p = MatMul(a, w)  b = Mul(p, m)  r = Round(b)  e = DequantizeLinear(z, o)  i = Add(r, e)
            c = Clip(i, l, h)  y = QuantizeLinear(c, o, q) }""",
        target="trt10.6",
        differs={"branch": "quantized values that leave a branch are not followed"},
    ),
    _flagged(
        "a float8 product",
        """g (float8e4m3fn[N,2] x, float8e4m3fn z) => (float8e4m3fn[N,2] y) <float s = {0.1}> {
            y = QLinearMatMul(x, s, z, x, s, z, s, z) }""",
    ),
    Silent(
        "the form after the fix",
        """g (float[N,2] x) => (float[N,2] y) <float s = {0.1}, int8 z = {0}, int8[2,2] w = {1, -2, 3, 4}> {
            q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  b = DequantizeLinear(w, s, z)
            y = MatMul(a, b) }""",
    ),
]

PLAIN = {
    "QGemm": "Gemm",
    "QLinearAdd": "Add",
    "QLinearAveragePool": "AveragePool",
    "QLinearConcat": "Concat",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearMul": "Mul",
    "QLinearSigmoid": "Sigmoid",
    "QLinearSoftmax": "Softmax",
}
"""The float operator."""
_OWN = ("channels_last", "opset")
_BYTES = (TensorProto.INT8, TensorProto.UINT8)


class _Part(NamedTuple):
    """Data with its scale and zero point; data is None for the result."""

    data: Value | None
    scale: Value | None
    zero: Value | None


def _parts(node: Node) -> tuple[list[_Part], _Part]:
    """The quantized inputs and the quantization of the result."""

    def part(start: int, *, result: bool = False) -> _Part:
        if result:
            return _Part(None, node.input(start), node.input(start + 1))
        return _Part(node.input(start), node.input(start + 1), node.input(start + 2))

    if node.op_type == "QLinearConcat":
        return [part(index) for index in range(2, len(node.inputs), 3)], part(0, result=True)
    if node.op_type == "QGemm":
        return [part(0), part(3)], part(7, result=True)
    if node.op_type in ("QLinearAdd", "QLinearMul"):
        return [part(0), part(3)], part(6, result=True)
    return [part(0)], part(3, result=True)


def moved(node: Node, model: Model) -> Fix | None:
    """A Concat of inputs that are quantized like the result; None if they differ."""
    inputs, result = _parts(node)
    output = node.output()
    if node.op_type != "QLinearConcat" or output is None or node.attribute("axis") is None:
        return None
    names = [part.data for part in inputs]
    elems = {None if data is None else model.shapes.elem_type(data) for data in names}
    known = [(_bounds.number(part.scale), _bounds.number(part.zero)) for part in (*inputs, result)]
    if len(set(known)) != 1 or None in known[0] or len(elems) != 1 or not elems <= set(_BYTES):
        return None
    if not takes("Concat", node.scope.opset(), next(iter(elems)) or 0):
        return None
    shop = Workshop()
    shop.edits.append(RemoveNode(node))
    shop.at(node).add("Concat", names, output=output.name, axis=node.attr("axis"))
    return Fix("concatenate the quantized tensors", shop.edits)


def written(node: Node, model: Model) -> list[Edit]:
    """Build DequantizeLinear, the operator, QuantizeLinear.

    Raises:
        Unable: a type, scale or attribute is unknown or unsupported.
    """
    inputs, result = _parts(node)
    output, plain, shop = node.output(), PLAIN[node.op_type], Workshop()
    if output is None or not inputs or node.scope.opset() < 10 or not _plainly(node, model):
        raise Unable
    shop.edits.append(RemoveNode(node))
    draft = shop.at(node)
    elem = model.shapes.elem_type(inputs[0].data) if inputs[0].data is not None else None
    names = [_floats(shop, node, model, part, which) for which, part in enumerate(inputs)]
    if plain == "Gemm" and node.input(6) is not None:
        names.append(_bias(shop, node))
    found = shop.like(node, plain, names, without=_OWN)
    if result.scale is None:
        if plain != "Gemm":
            raise Unable
        for edit in shop.edits:
            if isinstance(edit, AddNode) and edit.proto.output[0] == found:
                edit.proto.output[0] = output.name
        return shop.edits
    ending = _ends(shop, node, model, result, elem)
    draft.add("QuantizeLinear", [found, *ending], output=output.name)
    return shop.edits


def _ends(shop: Workshop, node: Node, model: Model, part: _Part, elem: int | None) -> list[Value | str]:
    """Per-tensor scale and zero point of type ``elem``, as far as present."""
    scale, zero = part.scale, part.zero
    kind = TensorProto.UINT8 if zero is None else model.shapes.elem_type(zero)
    if scale is None or elem not in _BYTES or elem != kind:
        raise Unable
    if model.shapes.elem_type(scale) != TensorProto.FLOAT:
        raise Unable
    return [_single(shop, node, model, value) for value in (scale, zero) if value is not None]


def _plainly(node: Node, model: Model) -> bool:
    """Whether the attributes match those of the float operator."""
    if node.attr("channels_last", 0) != 0:
        return False
    if node.op_type == "QLinearSoftmax":
        axis, data = node.attr("axis", -1), node.input(0)
        rank = None if data is None else model.shapes.rank(data)
        last = axis == -1 or (rank is not None and axis == rank - 1)
        return last or (node.attr("opset", 0) >= 13 and node.scope.opset() >= 13)
    if node.op_type == "QGemm":
        alpha = node.attr("alpha", 1.0)
        return math.isfinite(alpha) and (node.input(6) is not None or node.scope.opset() >= 11)
    return True


def _floats(shop: Workshop, node: Node, model: Model, part: _Part, which: int) -> str:
    """The dequantized data of one input."""
    data, scale, zero = part
    if data is None or scale is None:
        raise Unable
    elem = model.shapes.elem_type(data)
    columns = node.op_type == "QGemm" and which == 1 and model.shapes.rank(scale) == 1
    if not columns or model.shapes.static_shape(scale) in ((), (1,)):
        return shop.at(node).add("DequantizeLinear", [data, *_ends(shop, node, model, part, elem)])
    if node.scope.opset() < 13 or zero is None or not model.shapes.same_shape(scale, zero).yes:
        raise Unable
    if elem not in _BYTES or model.shapes.elem_type(scale) != TensorProto.FLOAT:
        raise Unable
    axis = 0 if node.attr("transB", 0) else 1
    return shop.at(node).add("DequantizeLinear", [data, scale, zero], axis=axis)


def _single(shop: Workshop, node: Node, model: Model, value: Value) -> Value | str:
    """A one-element scale or zero point as a scalar, which DequantizeLinear requires for per-tensor quantization."""
    shape = model.shapes.static_shape(value)
    if shape == ():
        return value
    array = value.constant()
    if shape != (1,) or array is None:
        raise Unable
    return shop.constant(node, array.reshape(()), "scalar")


def _bias(shop: Workshop, node: Node) -> str:
    """The dequantized bias. In ONNX Runtime its scale is the product of the two scales and alpha, around 0."""
    values = [node.input(index) for index in (6, 1, 4)]
    arrays = [None if value is None else value.constant(WEIGHT_LIMIT) for value in values]
    if any(array is None for array in arrays):
        raise Unable
    numbers, first, second = (np.asarray(array, np.float32) for array in arrays)
    if first.size != 1 or (second.size != 1 and numbers.shape[-1:] != second.shape):
        raise Unable
    scales = first.reshape(()) * (second.reshape(()) if second.size == 1 else second)
    return shop.constant(
        node, np.asarray(numbers * scales * np.float32(node.attr("alpha", 1.0)), np.float32), "bias"
    )


@rule(
    "QDQ020",
    ops=[f"com.microsoft::{name}" for name in PLAIN],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[57],
)
def quantized_operator_of_onnx_runtime(node: Node, model: Model) -> Iterator[Match]:
    """A quantized operator of ONNX Runtime: QLinearAdd, QLinearSigmoid, QLinearConcat, QGemm and others.

    ## Why it matters
    `quantize_static` of ONNX Runtime writes them with `QuantFormat.QOperator`. TensorRT finds no importer: `Plugin
    not found, are the plugin name, version, and namespace correct?`, measured with TensorRT-RTX 1.7.1. QLinearConv
    and QLinearMatMul are covered by QDQ008.

    ## Fix
    The QDQ form, which TensorRT supports: DequantizeLinear of every input, the float operator, QuantizeLinear. Other
    rules then handle nonzero zero points (QDQ003) and uint8 (QDQ001). A QLinearConcat whose inputs have the scale and
    zero point of the result is a Concat: exact. Otherwise NUMERIC: a result halfway between two steps, up to
    rounding, may become the other step; ONNX Runtime's QLinearSoftmax divides integers, and is one step lower in up
    to a tenth of the elements.

    No fix for channels-last layouts, 16 bits, scales of unknown shape, and before opset 10. Better still: quantize
    with `QuantFormat.QDQ`, `ActivationSymmetric` and signed types.

    ## References
    - https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.QLinearAdd
    - https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    if node.function is not None or node.output() is None:
        return
    fix = moved(node, model)
    try:
        fix = fix or Fix(
            "replace by DequantizeLinear, the float operator, QuantizeLinear",
            written(node, model),
            Safety.NUMERIC,
        )
    except Unable:
        fix = None
    yield Match(
        no_importer(node),
        node=node,
        fix=fix,
        reads=tuple(value for value in node.inputs if value is not None),
    )


_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
_I = "g (int8[N,4,6,6] x) => (int8[N,4,6,6] y) <float s = {0.25}, int8 z = {0}, float t = {0.125}>"
_P = "g (int8[N,4,6,6] x) => (int8[N,4,3,3] y) <float s = {0.25}, int8 z = {0}>"
_TWO = "g (int8[N,4] x, int8[4] w) => (int8[N,4] y) <float s = {0.25}, int8 z = {0}, float t = {0.125}>"
_TWO_DONE = "a = DequantizeLinear(x, s, z)  b = DequantizeLinear(w, t, z)"
_GEMM = """g (int8[N,2] x) => (int8[N,2] y) <float s = {0.5}, int8 z = {0}, int8[2,2] w = {1, -2, 3, 4},
            float[2] t = {0.5, 0.25}, int8[2] v = {0, 0}, int32[2] c = {4, -8}, float u = {1}>"""


def _unary(call: str) -> str:
    return f"{_HEAD} {_I} {{ y = {call} }}"


_of_runtime = partial(Fixed, safety=Safety.NUMERIC)
_reported = partial(Flagged, runs=False, safety=Safety.NUMERIC)
quantized_operator_of_onnx_runtime.examples = [
    _of_runtime(
        "a sum of two tensors with different scales",
        before=f"{_HEAD} {_TWO} {{ y = com.microsoft.QLinearAdd(x, s, z, w, t, z, s, z) }}",
        after=f"{_HEAD} {_TWO} {{ {_TWO_DONE}  c = Add(a, b)  y = QuantizeLinear(c, s, z) }}",
    ),
    Flagged(
        "requires --numeric-fixes",
        f"{_HEAD} {_TWO} {{ y = com.microsoft.QLinearAdd(x, s, z, w, t, z, s, z) }}",
    ),
    _of_runtime(
        "a product without zero points: uint8 around 0",
        before=f"""{_HEAD} g (uint8[N,4] x) => (uint8[N,4] y) <float s = {{0.25}}> {{
            y = com.microsoft.QLinearMul(x, s, , x, s, , s) }}""",
        after=f"""{_HEAD} g (uint8[N,4] x) => (uint8[N,4] y) <float s = {{0.25}}> {{ a = DequantizeLinear(x, s)
            b = DequantizeLinear(x, s)  c = Mul(a, b)  y = QuantizeLinear(c, s) }}""",
        runs=False,  # ONNX Runtime's type inference refuses it
    ),
    _of_runtime(
        "Sigmoid",
        before=_unary("com.microsoft.QLinearSigmoid(x, s, z, t, z)"),
        after=f"{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Sigmoid(a)  y = QuantizeLinear(b, t, z) }}",
    ),
    _of_runtime(
        "LeakyRelu with its slope",
        before=_unary("com.microsoft.QLinearLeakyRelu<alpha = 0.5>(x, s, z, t, z)"),
        after=f"""{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = LeakyRelu<alpha = 0.5>(a)
            y = QuantizeLinear(b, t, z) }}""",
    ),
    _of_runtime(
        "Softmax",
        before=_unary("com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(x, s, z, t, z)"),
        after=f"""{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Softmax<axis = -1>(a)
            y = QuantizeLinear(b, t, z) }}""",
        runs=False,
    ),
    _of_runtime(
        "an average pool with padding",
        before=f"""{_HEAD} {_P} {{ y = com.microsoft.QLinearAveragePool<kernel_shape = [2, 2], strides = [2, 2]>
            (x, s, z, s, z) }}""",
        after=f"""{_HEAD} {_P} {{ a = DequantizeLinear(x, s, z)
            b = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(a)  y = QuantizeLinear(b, s, z) }}""",
    ),
    _of_runtime(
        "global average pooling",
        before=f"{_HEAD} {_P.replace('3,3', '1,1')} {{ y = com.microsoft.QLinearGlobalAveragePool(x, s, z, s, z) }}",
        after=f"""{_HEAD} {_P.replace("3,3", "1,1")} {{ a = DequantizeLinear(x, s, z)  b = GlobalAveragePool(a)
            y = QuantizeLinear(b, s, z) }}""",
    ),
    Fixed(
        "inputs with the same scale are only concatenated",
        before=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, w, s, z) }}""",
        after=f"""{_HEAD} g (int8[N,4] x, int8[N,4] w) => (int8[N,8] y) <float t = {{0.125}}> {{
            y = Concat<axis = 1>(x, w) }}""",
    ),
    _of_runtime(
        "inputs with different scales",
        before=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            y = com.microsoft.QLinearConcat<axis = 1>(s, z, x, s, z, w, t, z) }}""",
        after=f"""{_HEAD} {_TWO.replace("int8[4] w", "int8[N,4] w").replace("4] y", "8] y")} {{
            {_TWO_DONE}  c = Concat<axis = 1>(a, b)  y = QuantizeLinear(c, s, z) }}""",
    ),
    _of_runtime(
        "a Gemm with bias and per-column scales",
        before=f"{_HEAD} {_GEMM} {{ y = com.microsoft.QGemm<alpha = 1.0>(x, s, z, w, t, v, c, u, z) }}",
        after=f"""{_HEAD} {_GEMM.replace("int32[2] c = {4, -8}", "float[2] d = {1, -1}")} {{
            a = DequantizeLinear(x, s, z)  b = DequantizeLinear<axis = 1>(w, t, v)  g = Gemm<alpha = 1.0>(a, b, d)
            y = QuantizeLinear(g, u, z) }}""",
    ),
    _of_runtime(
        "a Gemm with float output, without a bias",
        before=f"""{_HEAD} {_GEMM.replace("=> (int8", "=> (float")} {{
            y = com.microsoft.QGemm(x, s, z, w, t, v) }}""",
        after=f"""{_HEAD} {_GEMM.replace("=> (int8", "=> (float")} {{ a = DequantizeLinear(x, s, z)
            b = DequantizeLinear<axis = 1>(w, t, v)  y = Gemm(a, b) }}""",
    ),
    _reported(
        "channels last", _unary("com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(x, s, z, s, z)")
    ),
    _reported(
        "int8 without zero points, which defaults to uint8", _unary("com.microsoft.QLinearSigmoid(x, s, , t)")
    ),
    _reported(
        "per-channel scales, which ONNX Runtime does not support there",
        _unary("com.microsoft.QLinearSigmoid(x, f, z, t, z)").replace(
            "<float s", "<float[4] f = {1,1,1,1}, float s"
        ),
    ),
    Silent(
        "the form after the fix",
        f"{_HEAD} {_I} {{ a = DequantizeLinear(x, s, z)  b = Sigmoid(a)  y = QuantizeLinear(b, t, z) }}",
    ),
]
