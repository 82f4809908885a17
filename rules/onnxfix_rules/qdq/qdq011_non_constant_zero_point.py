"""QDQ011: zero points that are not constant."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.files import tensors
from onnxfix.rule import Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, Value, rule, target_of

from ._common import DEQUANTIZE, QUANTIZE, U8, Linear, read
from ._region import Region
from ._remedy import around, floats

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
    if not linear.quantizes and _elsewhere(linear.zero, region):
        return
    reason = f" ({region.problem})" if region.problem else ""
    yield Match(
        f"the zero point {linear.zero.name!r} is not constant, which {target_of(model).title} "
        f"requires{reason}",
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


def _elsewhere(zero: Value, region: Region) -> bool:
    """Whether a QuantizeLinear of the region has the same zero point and reports it."""
    return any(other.zero is zero for other in region.quantizers)


_PAIR = "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)"


non_constant_zero_point.examples = [
    Fixed(
        "a graph input",
        before=f"g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {{0.1}}> {{ {_PAIR} }}",
        after="""g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {0.1}, float l = {0}, float h = {255}> {
            d = Div(x, s)  r = Round(d)  f = Cast<to = FLOAT>(z)  a = Add(r, f)  c = Clip(a, l, h)
            g = Cast<to = FLOAT>(z)  b = Sub(c, g)  y = Mul(b, s) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "requires --numeric-fixes",
        f"g (float[N,4] x, uint8 z) => (float[N,4] y) <float s = {{0.1}}> {{ {_PAIR} }}",
    ),
    Fixed(
        "per-channel zero points with a non-constant scale",
        before="""g (float[N,2,3] x, int8[2] z, float[2] s) => (float[N,2,3] y) {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,2,3] x, int8[2] z, float[2] s) => (float[N,2,3] y)
            <int64[1] e = {1}, float l = {-128}, float h = {127}> {
            t = Unsqueeze(s, e)  d = Div(x, t)  r = Round(d)  f = Cast<to = FLOAT>(z)  w = Unsqueeze(f, e)
            a = Add(r, w)  c = Clip(a, l, h)
            g = Cast<to = FLOAT>(z)  v = Unsqueeze(g, e)  b = Sub(c, v)  u = Unsqueeze(s, e)  y = Mul(b, u) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a default that may be overridden and is refused as it is",
        before=f"g (float[N,4] x, int8 z) => (float[N,4] y) <float s = {{0.1}}, int8 z = {{3}}> {{ {_PAIR} }}",
        after="""g (float[N,4] x, int8 z) => (float[N,4] y)
            <float s = {0.1}, int8 z = {3}, float l = {-128}, float h = {127}> {
            d = Div(x, s)  r = Round(d)  f = Cast<to = FLOAT>(z)  a = Add(r, f)  c = Clip(a, l, h)
            g = Cast<to = FLOAT>(z)  b = Sub(c, g)  y = Mul(b, s) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "computed: ONNX's definition of DynamicQuantizeLinear",
        before="""g (float[N,4] x, float s, float m) => (uint8[N,4] q, uint8 z) <float l = {0}, float h = {255}> {
            a = Div(m, s)  b = Sub(l, a)  c = Clip(b, l, h)  r = Round(c)  w = Cast<to = UINT8>(r)  z = Identity(w)
            q = QuantizeLinear(x, s, w) }""",
        after="""g (float[N,4] x, float s, float m) => (uint8[N,4] q, uint8 z)
            <float l = {0}, float h = {255}, float v = {0}, float u = {255}> {
            a = Div(m, s)  b = Sub(l, a)  c = Clip(b, l, h)  r = Round(c)  w = Add(r, v)  i = Identity(w)
            z = Cast<to = UINT8>(i)  d = Div(x, s)  o = Round(d)  p = Add(o, w)  e = Clip(p, v, u)
            q = Cast<to = UINT8>(e) }""",
        safety=Safety.NUMERIC,
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
]
