"""Quantized values of type int32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
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
    rule,
    target_of,
)

from ._read import DEQUANTIZE, FLOATS, QUANTIZE, WEIGHT_LIMIT, Linear, is_op, numpy_type, read, sizes, spread
from ._rewrite import Workshop, as_floats, behind_ones, fixed


@rule("QDQ005", ops=DEQUANTIZE, safety=Safety.EXACT, severity=Severity.ERROR, hazards=[57])
def dequantized_int32(node: Node, model: Model) -> Iterator[Match]:
    """A DequantizeLinear of int32, as quantizers write it for biases.

    ## Why it matters
    The parser fails: `input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8` (measured with
    TensorRT-RTX 1.7.1, for constants and computed tensors alike). TensorRT adds biases in float.

    ## Fix
    A constant is stored as its dequantized floats, which have the same size. A computed tensor becomes `Mul(Cast(x),
    scale)`. Both are exact: ONNX Runtime and the ONNX reference also round int32 to float32 first and multiply in
    float32.

    No fix for a nonzero zero point (ONNX defines none for int32), or if a required rank or size is unknown.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    """
    linear = read(node, model)
    if linear is None or linear.quantizes or linear.elem != TensorProto.INT32:
        return
    yield Match(
        f"int32 is dequantized: {target_of(model).title} supports only int8 and narrower types",
        node=node,
        fix=_remedy(linear, model),
        reads=tuple(v for v in (linear.data, linear.scale, linear.zero) if v is not None),
    )


def _remedy(linear: Linear, model: Model) -> Fix | None:
    if linear.zeros is None or linear.zeros.astype(np.int64).any():
        return None
    if fixed(linear.data):
        weights = linear.data.constant(WEIGHT_LIMIT)
        found = None if weights is None else as_floats(linear, weights, Safety.EXACT)
        if found is not None:
            return found
    return _computed(linear, model)


def _computed(linear: Linear, model: Model) -> Fix | None:
    """``Mul(Cast(x), scale)`` in float32, rounded to the result's type at the end."""
    node, output = linear.node, linear.node.output(0)
    shop = Workshop()
    name = _scale(shop, linear, model)
    if name is None or output is None or linear.result == 0:
        return None
    single = linear.result == TensorProto.FLOAT
    draft = shop.at(node)
    shop.edits.append(RemoveNode(node))
    numbers = shop.cast(node, linear.data.name, TensorProto.FLOAT)
    product = draft.add("Mul", [numbers, name], output=output.name if single else "")
    if not single:
        draft.add("Cast", [product], output=output.name, to=linear.result)
    return Fix("replace by Mul(Cast(x), scale)", shop.edits)


def _scale(shop: Workshop, linear: Linear, model: Model) -> str | None:
    """The scale in float32, reshaped to broadcast with the data; None if that is unknown."""
    node, scale, rank = linear.node, linear.scale, model.shapes.rank(linear.data)
    if linear.scales is not None:
        found = spread(linear.scales, linear, rank, sizes(linear.data, model))
        if found is None:
            return None
        if scale.constant() is linear.scales and found.shape == linear.scales.shape:
            return _single(shop, node, scale, model)
        return shop.constant(node, found.astype(numpy_type(TensorProto.FLOAT)), "scale")
    name, own = _single(shop, node, scale, model), model.shapes.rank(scale)
    if name is None or own == 0:
        return name
    if own != 1 or rank is None or not -rank <= linear.axis < rank or linear.kind == "block":
        return None
    return behind_ones(shop, node, name, 0 if linear.kind == "tensor" else rank - 1 - linear.axis % rank)


def _single(shop: Workshop, node: Node, scale: Value, model: Model) -> str | None:
    elem = model.shapes.elem_type(scale)
    if elem not in FLOATS:
        return None
    return scale.name if elem == TensorProto.FLOAT else shop.cast(node, scale.name, TensorProto.FLOAT)


_ADD = "d = DequantizeLinear(b, s)  y = Add(x, d)"


dequantized_int32.examples = [
    Fixed(
        "a bias",
        before=f"g (float[N,2] x) => (float[N,2] y) <int32[2] b = {{-3, 100000}}, float s = {{0.5}}> {{ {_ADD} }}",
        after="g (float[N,2] x) => (float[N,2] y) <float[2] d = {-1.5, 50000}> { y = Add(x, d) }",
    ),
    Fixed(
        "per-channel scales and a zero point of 0",
        before="""g (float[N,2] x) => (float[N,2] y) <int32[2] b = {-3, 4}, float[2] s = {0.5, 0.25},
            int32[2] z = {0, 0}> { d = DequantizeLinear<axis = 0>(b, s, z)  y = Add(x, d) }""",
        after="g (float[N,2] x) => (float[N,2] y) <float[2] d = {-1.5, 1}> { y = Add(x, d) }",
    ),
    Fixed(
        "values above 2**24, rounded to float first, as in ONNX Runtime",
        before=f"g (float[N,1] x) => (float[N,1] y) <int32[1] b = {{16777217}}, float s = {{0.5}}> {{ {_ADD} }}",
        after="g (float[N,1] x) => (float[N,1] y) <float[1] d = {8388608}> { y = Add(x, d) }",
    ),
    Fixed(
        "two readers of one bias",
        before="""g (float[N,2] x) => (float[N,2] y) <int32[2] b = {1, 2}, float s = {0.5}, float t = {0.25}> {
            d = DequantizeLinear(b, s)  e = DequantizeLinear(b, t)  a = Add(x, d)  y = Add(a, e) }""",
        after="""g (float[N,2] x) => (float[N,2] y) <float[2] d = {0.5, 1}, float[2] e = {0.25, 0.5}> {
            a = Add(x, d)  y = Add(a, e) }""",
    ),
    Fixed(
        "non-constant int32",
        before="g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}> { y = DequantizeLinear(x, s) }",
        after="g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}> { f = Cast<to = FLOAT>(x)  y = Mul(f, s) }",
    ),
    Fixed(
        "non-constant int32 with non-constant per-channel scales",
        before="g (int32[N,2,3] x, float[2] s) => (float[N,2,3] y) { y = DequantizeLinear(x, s) }",
        after="""g (int32[N,2,3] x, float[2] s) => (float[N,2,3] y) <int64[1] e = {1}> {
            f = Cast<to = FLOAT>(x)  t = Unsqueeze(s, e)  y = Mul(f, t) }""",
    ),
    Fixed(
        "half precision, computed in float and rounded once",
        before="g (int32[N,4] x, float16 s) => (float16[N,4] y) { y = DequantizeLinear(x, s) }",
        after="""g (int32[N,4] x, float16 s) => (float16[N,4] y) { f = Cast<to = FLOAT>(x)  t = Cast<to = FLOAT>(s)
            m = Mul(f, t)  y = Cast<to = FLOAT16>(m) }""",
        opset=19,
    ),
    Flagged(
        "a nonzero zero point, which ONNX does not define",
        "g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}, int32 z = {3}> { y = DequantizeLinear(x, s, z) }",
        runs=False,
    ),
    Flagged(
        "unknown rank with per-channel scales",
        """g (int32[N,2,3] w, int64[K] r) => (float[] y) <float[2] s = {0.1, 0.2}> {
            x = Reshape(w, r)  y = DequantizeLinear(x, s) }""",
        runs=False,
    ),
    Silent(
        "int8",
        """g (float[N,2] x) => (float[N,2] y) <int8[2] b = {1, 2}, float s = {0.5}> {
            d = DequantizeLinear(b, s)  y = Add(x, d) }""",
    ),
    Silent(
        "int32 that is cast",
        """g (float[N,2] x) => (float[N,2] y) <int32[2] b = {1, 2}, float s = {0.5}> {
            d = Cast<to = FLOAT>(b)  y = Add(x, d) }""",
    ),
]


@rule("QDQ016", ops=QUANTIZE, safety=Safety.NUMERIC, severity=Severity.ERROR)
def quantized_int32(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear of int32 data.

    ## Why it matters
    The parser fails: `input has type Int32 but must have type Float, Half, or BFloat16` (measured with TensorRT-RTX
    1.7.1). ONNX Runtime has no kernel for it either.

    ## Fix
    Insert a Cast to the scale's type. Values up to 2**24 are unchanged; ONNX does not specify how larger ones are
    rounded before the division, and the ONNX reference divides in double. Therefore it requires `--numeric-fixes`. No
    fix if the scale is an integer, too (required in opsets 19 to 22).

    ## References
    - https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """
    data, scale = node.require(0), node.require(1)
    if not is_op(node, "QuantizeLinear"):
        return
    if model.shapes.elem_type(data) != TensorProto.INT32:
        return
    fix = None
    if model.shapes.elem_type(scale) == TensorProto.FLOAT and (node.opset < 19 or node.opset >= 23):
        shop = Workshop()
        shop.at(node).set_input(node, 0, shop.cast(node, data.name, TensorProto.FLOAT))
        fix = Fix("cast to float first", shop.edits, Safety.NUMERIC)
    message = f"{target_of(model).title} supports quantization of floats only, not int32"
    yield Match(message, node=node, fix=fix, reads=(data, scale))


def _dequantize_linear(elem: str) -> str:
    return f"""g ({elem}[N,4] x) => (float[N,4] y) <float s = {{0.1}}, int8 z = {{0}}> {{
        q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }}"""


quantized_int32.examples = [
    Fixed(
        "non-constant int32",
        before=_dequantize_linear("int32"),
        after="""g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {0}> {
            f = Cast<to = FLOAT>(x)  q = QuantizeLinear(f, s, z)  y = DequantizeLinear(q, s, z) }""",
        opset=13,
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Flagged("requires --numeric-fixes", _dequantize_linear("int32"), opset=23, ir_version=11),
    Flagged(
        "opset 19: the scale has the data's type, and int32 holds no fractions",
        """g (int32[N,4] x, int32 s) => (int8[N,4] q) <int8 z = {0}> { q = QuantizeLinear(x, s, z) }""",
        opset=19,
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Silent("floats", _dequantize_linear("float")),
    Silent(
        "dequantized int32 is covered by QDQ005",
        "g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}> { y = DequantizeLinear(x, s) }",
    ),
]
