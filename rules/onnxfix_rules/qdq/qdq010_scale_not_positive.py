"""QDQ010: scales that are zero, negative or NaN."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._common import DEQUANTIZE, QUANTIZE, WEIGHT_LIMIT, Array, Linear, Workshop, dequantized, read, spread
from ._constants import as_floats, fixed
from ._remedy import around, floats


@rule("QDQ010", ops=(*QUANTIZE, *DEQUANTIZE), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[6])
def scale_not_positive(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear or DequantizeLinear with a scale that is zero, negative or NaN.

    ## Why it matters
    The parser stops: `Scale coefficients must all be positive` (measured with TensorRT-RTX 1.7.1, for one such scale
    among many, too). ONNX does not ask for it. Zeros come from channels whose weights are all zero; frameworks that
    derive the scale from the largest weight write 0 for them.

    ## Fix
    - Constant weights with scales of 0: scale 1 and weight 0 there. Exact, unless a negative weight times 0 made -0.0;
      then it has to be asked for.
    - Constant weights with negative scales: the floats that they stand for. The same bits, without INT8 execution; it
      has to be asked for.
    - Activations with negative scales: the integers in floats (as QDQ003), on demand. With a scale of 0 there is
      nothing that the result could be.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    - onnx-tensorrt, onnxOpImporters.cpp
    """
    linear = read(node, model)
    if linear is None or linear.scales is None:
        return
    scales = linear.scales.astype(np.float64)
    if (scales > 0).all():
        return
    yield Match(
        f"{linear.scale.name!r} is not positive everywhere: {target_of(model).title} takes positive scales only",
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
    return as_floats(linear, weights, Safety.NUMERIC)


def _without_zeros(linear: Linear, weights: Array) -> Fix | None:
    """Scale 1 where it was 0, and there the weights that mean 0."""
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
    # What a dead channel gave is 0.0 or, from a negative offset, -0.0.
    signed = bool(np.signbit(before[dead].astype(np.float64)).any())
    return Fix("take 1 for scales of 0", shop.edits, Safety.NUMERIC if signed else Safety.EXACT)


_ADD = "d = DequantizeLinear(w, s)  y = Add(x, d)"


scale_not_positive.examples = [
    Fixed(
        "a dead channel: its weights are 0, and so is its scale",
        before=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}}, float[2] s = {{0.5, 0}}> {{
            {_ADD} }}""",
        after=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}}, float[2] s = {{0.5, 1}}> {{
            {_ADD} }}""",
    ),
    Fixed(
        "weights that a scale of 0 makes 0",
        before=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 7, 2, 9}}, float[2] s = {{0.5, 0}}> {{
            {_ADD} }}""",
        after=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}}, float[2] s = {{0.5, 1}}> {{
            {_ADD} }}""",
    ),
    Fixed(
        "a negative weight times 0 is -0.0, which would become 0.0",
        before=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, -7, 2, 9}}, float[2] s = {{0.5, 0}}> {{
            {_ADD} }}""",
        after=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}}, float[2] s = {{0.5, 1}}> {{
            {_ADD} }}""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "which has to be asked for",
        f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, -7, 2, 9}}, float[2] s = {{0.5, 0}}> {{
            {_ADD} }}""",
    ),
    Fixed(
        "another reader keeps the old constants",
        before="""g (float[N,2] x) => (float[N,2] y, float[2,2] u, int8[2,2] v) <int8[2,2] w = {1, 7, 2, 9},
            float[2] s = {0.5, 0}> { u = DequantizeLinear(w, s)  y = Mul(x, s)  v = Identity(w) }""",
        after="""g (float[N,2] x) => (float[N,2] y, float[2,2] u, int8[2,2] v) <int8[2,2] w = {1, 7, 2, 9},
            float[2] s = {0.5, 0}, int8[2,2] q = {1, 0, 2, 0}, float[2] t = {0.5, 1}> {
            u = DequantizeLinear(q, t)  y = Mul(x, s)  v = Identity(w) }""",
    ),
    Fixed(
        "a negative scale: floats",
        before=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 2, 3, 0}}, float[2] s = {{0.5, -1}}> {{
            {_ADD} }}""",
        after="g (float[N,2] x) => (float[N,2] y) <float[2,2] d = {0.5, -2, 1.5, -0}> { y = Add(x, d) }",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "a negative scale of activations: floats",
        before="""g (float[N,2] x) => (float[N,2] y) <float s = {-0.5}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (float[N,2] x) => (float[N,2] y)
            <float s = {-0.5}, float z = {0}, float l = {-128}, float h = {127}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  y = Mul(c, s) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "a scale of 0 for activations has no meaning",
        """g (float[N,2] x) => (float[N,2] y) <float s = {0}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "positive scales",
        f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}}, float[2] s = {{0.5, 1e-30}}> {{
            {_ADD} }}""",
    ),
    Silent(
        "a scale that the caller gives",
        f"""g (float[N,2] x, float[2] s) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}},
            float[2] s = {{0.5, 0}}> {{ {_ADD} }}""",
    ),
]
