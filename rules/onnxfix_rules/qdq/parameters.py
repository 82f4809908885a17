"""Scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from onnxfix.files import tensors
from onnxfix.rule import (
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    name_of,
    rule,
    target_of,
)

from ._read import (
    DEQUANTIZE,
    I4,
    QUANTIZE,
    U8,
    WEIGHT_LIMIT,
    Array,
    Linear,
    dequantized,
    offsets,
    read,
    spread,
)
from ._rewrite import Workshop, around, as_floats, elem_of, fixed, floats, narrowed


@rule("QDQ010", ops=(*QUANTIZE, *DEQUANTIZE), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[36])
def scale_not_positive(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear or DequantizeLinear with a zero, negative or NaN scale.

    ## Why it matters
    The parser fails: `Scale coefficients must all be positive` (measured with TensorRT-RTX 1.7.1, also for one such
    scale among many). ONNX does not require positive scales. Zero scales come from channels whose weights are all
    zero, in frameworks that derive the scale from the largest weight. TensorRT-RTX 1.7.1 takes any scale for int4
    (the assertion has `allowNegativeScale`, which the public parser of 11.x sets to false), and is left alone there.

    ## Fix
    - Constant weights with scale 0: scale 1 and weight 0 instead. Exact, unless a negative weight times 0 gave -0.0;
      then it requires `--numeric-fixes`.
    - Constant weights with negative scales, as ONNX Runtime's 4-bit quantizer writes them: the positive scales, and
      weights of the other sign: int8 where int4 does not hold them, since -8 becomes 8. Exact up to a 0, which was
      -0.0; with one it requires `--numeric-fixes`. If int8 does not hold them either (-128), their dequantized floats:
      bit-identical, but without INT8 execution; requires `--numeric-fixes`.
    - Activations with negative scales: the integers in floats (see QDQ003); requires `--numeric-fixes`. For
      activations a scale of 0 has no defined result.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    - onnx-tensorrt, onnxOpImporters.cpp
    """
    linear = read(node, model)
    if linear is None or linear.scales is None:
        return
    scales = linear.scales.astype(np.float64)
    if (scales > 0).all() or (linear.elem == I4 and target_of(model).package == "tensorrt-rtx"):
        return
    yield Match(
        f"{linear.scale.name!r} is not positive everywhere: {target_of(model).title} supports only "
        "positive scales",
        node=node,
        fix=_remedy(linear, scales, model),
        reads=tuple(v for v in (linear.data, linear.scale, linear.zero) if v is not None),
    )


def _remedy(linear: Linear, scales: Array, model: Model) -> Fix | None:
    if linear.quantizes or not fixed(linear.data):
        region = around(linear, model)
        parts = [other.scales for other in (*region.quantizers, *region.dequantizers)]
        if any(part is None or not part.all() or np.isnan(part.astype(np.float64)).any() for part in parts):
            return None
        return floats(region, model)
    weights = linear.data.constant(WEIGHT_LIMIT)
    if weights is None:
        return None
    if (scales >= 0).all():
        return _without_zeros(linear, weights)
    return _turned(linear, weights) or as_floats(linear, weights, Safety.NUMERIC)


def _turned(linear: Linear, weights: Array) -> Fix | None:
    """Positive scales, with the signs moved into the weights; None where a scale is 0 or NaN, or nothing holds them."""
    assert linear.scales is not None
    scales = linear.scales.astype(np.float64)
    signs = spread(np.sign(scales), linear, weights.ndim, list(weights.shape))
    numbers = offsets(linear, weights)
    if signs is None or numbers is None or not weights.ndim or not (np.abs(scales) > 0).all():
        return None
    found = narrowed(linear, numbers * signs.astype(np.int64))
    if found is None:
        return None
    shop, node = Workshop(), linear.node
    draft = shop.at(node)
    draft.set_input(node, 0, shop.constant(node, found, "turned"))
    draft.set_input(node, 1, shop.constant(node, np.abs(linear.scales), "scale"))
    if node.input(2) is not None:
        draft.set_input(node, 2, None)
    safety = Safety.NUMERIC if ((numbers == 0) & (signs < 0)).any() else Safety.EXACT  # -0.0 becomes 0.0
    return Fix(f"move the signs of the scales into {name_of(elem_of(found))} weights", shop.edits, safety)


def _without_zeros(linear: Linear, weights: Array) -> Fix | None:
    """Replace scale 0 by 1, and the affected weights by those that represent 0."""
    assert linear.scales is not None
    placed = spread(linear.scales, linear, weights.ndim, list(weights.shape))
    before = dequantized(linear, weights)
    zeros = None if linear.zeros is None else spread(linear.zeros, linear, weights.ndim, list(weights.shape))
    if placed is None or before is None or zeros is None:
        return None
    dead = np.broadcast_to(placed.astype(np.float64) == 0, weights.shape)
    cleared = np.where(dead, zeros.astype(weights.dtype), weights).astype(weights.dtype)
    ones = np.where(linear.scales.astype(np.float64) == 0, 1.0, linear.scales.astype(np.float64))
    shop = Workshop()
    draft = shop.at(linear.node)
    if not np.array_equal(cleared.astype(np.int64), weights.astype(np.int64)):
        draft.set_input(linear.node, 0, shop.constant(linear.node, cleared, "cleared"))
    draft.set_input(linear.node, 1, shop.constant(linear.node, ones.astype(linear.scales.dtype), "scale"))
    # The result of a dead channel was 0.0 or, for a negative offset, -0.0.
    signed = bool(np.signbit(before[dead].astype(np.float64)).any())
    return Fix("replace scales of 0 by 1", shop.edits, Safety.NUMERIC if signed else Safety.EXACT)


_ADD = "d = DequantizeLinear(w, s)  y = Add(x, d)"
_FOUR = '<ir_version: 10, opset_import: ["" : 21]> g (float[N,2] x) => (float[N,2] y)'
_BLOCKS = "d = DequantizeLinear<axis = 1, block_size = 2>(w, s)  y = MatMul(x, d)"
_fixed = partial(Fixed, safety=Safety.NUMERIC)


def _add(w: str, s: str) -> str:
    return f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{{w}}}, float[2] s = {{{s}}}> {{
        d = DequantizeLinear(w, s)  y = Add(x, d) }}"""


scale_not_positive.examples = [
    Fixed(
        "a dead channel: weights and scale are 0",
        before=_add("1, 0, 2, 0", "0.5, 0"),
        after=_add("1, 0, 2, 0", "0.5, 1"),
    ),
    Fixed(
        "weights that a zero scale turns into 0",
        before=_add("1, 7, 2, 9", "0.5, 0"),
        after=_add("1, 0, 2, 0", "0.5, 1"),
    ),
    _fixed(
        "a negative weight times 0 is -0.0, which would become 0.0",
        before=_add("1, -7, 2, 9", "0.5, 0"),
        after=_add("1, 0, 2, 0", "0.5, 1"),
    ),
    Flagged("-0.0 requires --numeric-fixes", _add("1, -7, 2, 9", "0.5, 0")),
    Fixed(
        "another reader keeps the old constants",
        before="""g (float[N,2] x) => (float[N,2] y, float[2,2] u, int8[2,2] v) <int8[2,2] w = {1, 7, 2, 9},
            float[2] s = {0.5, 0}> { u = DequantizeLinear(w, s)  y = Mul(x, s)  v = Identity(w) }""",
        after="""g (float[N,2] x) => (float[N,2] y, float[2,2] u, int8[2,2] v) <int8[2,2] w = {1, 7, 2, 9},
            float[2] s = {0.5, 0}, int8[2,2] q = {1, 0, 2, 0}, float[2] t = {0.5, 1}> {
            u = DequantizeLinear(q, t)  y = Mul(x, s)  v = Identity(w) }""",
    ),
    Fixed(
        "negative scales of weights",
        before=_add("1, 2, 0, 3", "0.5, -1"),
        after=_add("1, -2, 0, -3", "0.5, 1"),
    ),
    _fixed(
        "int4 blocks in which 0 and -8 are turned (0, -8, 1, -8)",
        before=f"{_FOUR} <int4[2,2] w = {{128, 129}}, float[2,1] s = {{-0.5, 1}}> {{ {_BLOCKS} }}",
        after=f"{_FOUR} <int8[2,2] w = {{0, 8, 1, -8}}, float[2,1] s = {{0.5, 1}}> {{ {_BLOCKS} }}",
    ),
    _fixed(
        "a turned -128: floats",
        before=_add("1, -128, 3, 0", "0.5, -1"),
        after="g (float[N,2] x) => (float[N,2] y) <float[2,2] d = {0.5, 128, 1.5, -0}> { y = Add(x, d) }",
    ),
    _fixed(
        "a negative scale of activations: floats",
        before="""g (float[N,2] x) => (float[N,2] y) <float s = {-0.5}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,2] x) => (float[N,2] y)
            <float s = {-0.5}, float z = {0}, float l = {-128}, float h = {127}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  y = Mul(c, s) }""",
    ),
    Flagged(
        "a zero scale of activations",
        """g (float[N,2] x) => (float[N,2] y) <float s = {0}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        safety=Safety.NUMERIC,
    ),
    Silent("positive scales", _add("1, 0, 2, 0", "0.5, 1e-30")),
    Silent(
        "int4 on TensorRT-RTX",
        f"{_FOUR} <int4[2,2] w = {{128, 129}}, float[2,1] s = {{-0.5, 1}}> {{ {_BLOCKS} }}",
        target="rtx",
    ),
    Silent(
        "a scale that is a graph input",
        f"""g (float[N,2] x, float[2] s) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}},
            float[2] s = {{0.5, 0}}> {{ {_ADD} }}""",
    ),
]


MAX_NODES = 64


@rule("QDQ011", ops=(*QUANTIZE, *DEQUANTIZE), safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[57])
def non_constant_zero_point(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear or DequantizeLinear whose zero point is a graph input, or computed from one.

    ## Why it matters
    The builder fails: ``IQuantizeLayer/IDequantizeLayer node_of_q has `zero_point` which is not an initializer``
    (measured with TensorRT-RTX 1.7.1); a computed zero point already fails at the Cast to uint8: `TensorRT does not
    support UINT8 types for intermediate tensors`. The parser treats a default that the caller may override as a
    constant, and refuses it unless it is 0; as uint8 it is misread as int8 (QDQ004). A non-constant scale is
    supported.

    ## Fix
    The integers are written in floats, `Clip(Round(x / s) + z, least, largest)` and `(q - z) * s`, with the zero
    point cast to float, or used before its Cast to uint8 if that is known to round nothing. Requires
    `--numeric-fixes`, since INT8 execution is lost; a DequantizeLinear alone is exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """
    linear = read(node, model)
    if linear is None or linear.zero is None or not _refused(linear, linear.zero, model):
        return
    region = around(linear, model)
    if not linear.quantizes and any(other.zero is linear.zero for other in region.quantizers):
        return  # a QuantizeLinear of the region reports it
    yield Match(
        f"the zero point {linear.zero.name!r} is not constant, which {target_of(model).title} "
        f"requires{region.reason}",
        node=node,
        fix=floats(region, model),
        reads=region.reads,
    )


def _refused(linear: Linear, zero: Value, model: Model) -> bool:
    """Whether the parser cannot fold the zero point, or folds it to one that it refuses or misreads."""
    if zero.initializer is None:
        return _depends_on_input(zero, model)
    if not zero.is_input:
        return False
    array = tensors.to_array(zero.initializer, model.base_dir, 1 << 20)
    return array is not None and (linear.elem == U8 or bool(array.astype(np.int64).any()))


def _depends_on_input(value: Value, model: Model) -> bool:
    """Whether the value is computed from a graph input, within a limited number of producers.

    DynamicQuantizeLinear is covered by QDQ009.
    """
    pending = [value]
    seen: set[int] = set()
    while pending and len(seen) < MAX_NODES:
        one = pending.pop()
        node = one.producer
        if node is None:
            if one.is_input and one.scope is model.main and one.initializer is None:
                return True
            continue
        if node.op_type == "DynamicQuantizeLinear" or node.op_type in ("Shape", "Size") or node.subgraphs:
            continue
        if id(node) not in seen:
            seen.add(id(node))
            pending.extend(v for v in node.inputs if v is not None)
    return False


_PAIR = "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)"


non_constant_zero_point.examples = [
    _fixed(
        "a graph input",
        before=f"g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {{0.1}}> {{ {_PAIR} }}",
        after="""g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {0.1}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  f = Cast<to = FLOAT>(z)  a = Add(r, f)  c = Clip(a, l, h)
            g = Cast<to = FLOAT>(z)  b = Sub(c, g)  y = Mul(b, s) }""",
    ),
    Flagged(
        "requires --numeric-fixes",
        f"g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {{0.1}}> {{ {_PAIR} }}",
    ),
    _fixed(
        "per-channel zero points with a non-constant scale",
        before="""g (float[N,2,3] x, int8[2] z, float[2] s) => (float[N,2,3] y) {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,2,3] x, int8[2] z, float[2] s) => (float[N,2,3] y)
            <int64[1] e = {1}, float l = {-128}, float h = {127}> {
            t = Unsqueeze(s, e)  d = Div(x, t)  r = Round(d)  f = Cast<to = FLOAT>(z)  w = Unsqueeze(f, e)
            a = Add(r, w)  c = Clip(a, l, h)
            g = Cast<to = FLOAT>(z)  v = Unsqueeze(g, e)  b = Sub(c, v)  u = Unsqueeze(s, e)  y = Mul(b, u) }""",
    ),
    _fixed(
        "a default that may be overridden and is refused as it is",
        before=f"g (float[N,4] x, int8 z) => (float[N,4] y) <float s = {{0.1}}, int8 z = {{3}}> {{ {_PAIR} }}",
        after="""g (float[N,4] x, int8 z) => (float[N,4] y)
            <float s = {0.1}, int8 z = {3}, float l = {-128}, float h = {127}> {
            d = Div(x, s)  r = Round(d)  f = Cast<to = FLOAT>(z)  a = Add(r, f)  c = Clip(a, l, h)
            g = Cast<to = FLOAT>(z)  b = Sub(c, g)  y = Mul(b, s) }""",
    ),
    _fixed(
        "computed: ONNX's definition of DynamicQuantizeLinear",
        before="""g (float[N,4] x, float s, float m) => (uint8[N,4] q, uint8 z) <float l = {0}, float h = {255}> {
            a = Div(m, s)  b = Sub(l, a)  c = Clip(b, l, h)  r = Round(c)  w = Cast<to = UINT8>(r)  z = Identity(w)
            q = QuantizeLinear(x, s, w) }""",
        after="""g (float[N,4] x, float s, float m) => (uint8[N,4] q, uint8 z)
            <float l = {0}, float h = {255}, float v = {0}, float u = {255}> {
            a = Div(m, s)  b = Sub(l, a)  c = Clip(b, l, h)  r = Round(c)  w = Add(r, v)  i = Identity(w)
            z = Cast<to = UINT8>(i)  d = Div(x, s)  o = Round(d)  p = Add(o, w)  e = Clip(p, v, u)
            q = Cast<to = UINT8>(e) }""",
        differs={
            "branch": "quantized values that leave a branch are not followed",
            "function": "the caller may give a constant",
        },
    ),
    Silent(
        "a default that the parser accepts",
        f"g (float[N,4] x, int8 z) => (float[N,4] y) <float s = {{0.1}}, int8 z = {{0}}> {{ {_PAIR} }}",
    ),
    Fixed(
        "a DequantizeLinear alone",
        before="g (int8[N,4] x, int8 z) => (float[N,4] y) <float s = {0.1}> { y = DequantizeLinear(x, s, z) }",
        after="""g (int8[N,4] x, int8 z) => (float[N,4] y) <float s = {0.1}> {
            f = Cast<to = FLOAT>(x)  g = Cast<to = FLOAT>(z)  b = Sub(f, g)  y = Mul(b, s) }""",
    ),
    Fixed(
        "blocked quantization",
        before="""g (uint8[2,5] x, uint8[2,3] z, float[2,3] s) => (float[2,5] y) {
            y = DequantizeLinear<axis = 1, block_size = 2>(x, s, z) }""",
        after="""g (uint8[2,5] x, uint8[2,3] z, float[2,3] s) => (float[2,5] y) <int64[5] i = {0, 0, 1, 1, 2}> {
            f = Cast<to = FLOAT>(x)  g = Cast<to = FLOAT>(z)  w = Gather<axis = 1>(g, i)  b = Sub(f, w)
            t = Gather<axis = 1>(s, i)  y = Mul(b, t) }""",
        opset=21,
        ir_version=10,
    ),
    Silent(
        "computed from constants, which the parser may fold",
        f"""g (float[N,4] x) => (float[N,4] y) <float s = {{0.1}}, int32 i = {{0}}> {{
            z = Cast<to = INT8>(i)  {_PAIR} }}""",
    ),
    Silent(
        "a non-constant scale is supported",
        f"g (float[N,4] x, float s) => (float[N,4] y) <int8 z = {{0}}> {{ {_PAIR} }}",
    ),
    Silent(
        "DynamicQuantizeLinear is covered by QDQ009",
        """g (float[N,4] x) => (float[N,4] y) { q, s, z = DynamicQuantizeLinear(x)
            y = DequantizeLinear(q, s, z) }""",
    ),
    Silent(
        "an axis before opset 13, which has no such attribute",
        "g (int8[3,3] x, float[3] s, int8[3] z) => (float[3,3] y) { y = DequantizeLinear<axis = 0>(x, s, z) }",
        opset=12,
    ),
]
