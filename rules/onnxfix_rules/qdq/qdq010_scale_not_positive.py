"""QDQ010: scales that are zero, negative or NaN."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._common import DEQUANTIZE, QUANTIZE, WEIGHT_LIMIT, Array, Linear, Workshop, dequantized, read, spread
from ._constants import as_floats, fixed
from ._remedy import around, floats


@rule("QDQ010", ops=(*QUANTIZE, *DEQUANTIZE), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[36])
def scale_not_positive(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear or DequantizeLinear with a zero, negative or NaN scale.

    ## Why it matters
    The parser fails: `Scale coefficients must all be positive` (measured with TensorRT-RTX 1.7.1, also for one such
    scale among many). ONNX does not require positive scales. Zero scales come from channels whose weights are all
    zero, in frameworks that derive the scale from the largest weight.

    ## Fix
    - Constant weights with scale 0: scale 1 and weight 0 instead. Exact, unless a negative weight times 0 gave -0.0;
      then it requires `--numeric-fixes`.
    - Constant weights with negative scales: their dequantized floats. Bit-identical, but without INT8 execution;
      requires `--numeric-fixes`.
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
    if (scales > 0).all():
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
    return as_floats(linear, weights, Safety.NUMERIC)


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


scale_not_positive.examples = [
    Fixed(
        "a dead channel: weights and scale are 0",
        before=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}}, float[2] s = {{0.5, 0}}> {{
            {_ADD} }}""",
        after=f"""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}}, float[2] s = {{0.5, 1}}> {{
            {_ADD} }}""",
    ),
    Fixed(
        "weights that a zero scale turns into 0",
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
        "-0.0 requires --numeric-fixes",
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
        "negative scales of weights: floats",
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
        "a zero scale of activations",
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
        "a scale that is a graph input",
        f"""g (float[N,2] x, float[2] s) => (float[N,2] y) <int8[2,2] w = {{1, 0, 2, 0}},
            float[2] s = {{0.5, 0}}> {{ {_ADD} }}""",
    ),
]
