"""QDQ016: QuantizeLinear of int32."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule, target_of

from ._common import QUANTIZE, Workshop, is_op


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
    yield Match(
        f"{target_of(model).title} supports quantization of floats only, not int32",
        node=node,
        fix=fix,
        reads=(data, scale),
    )


quantized_int32.examples = [
    Fixed(
        "non-constant int32",
        before="""g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        after="""g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {0}> {
            f = Cast<to = FLOAT>(x)  q = QuantizeLinear(f, s, z)  y = DequantizeLinear(q, s, z) }""",
        opset=13,
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Flagged(
        "requires --numeric-fixes",
        """g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        opset=23,
        ir_version=11,
    ),
    Flagged(
        "opset 19: the scale has the data's type, and int32 holds no fractions",
        """g (int32[N,4] x, int32 s) => (int8[N,4] q) <int8 z = {0}> { q = QuantizeLinear(x, s, z) }""",
        opset=19,
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Silent(
        "floats",
        """g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
    ),
    Silent(
        "dequantized int32 is covered by QDQ005",
        "g (int32[N,4] x) => (float[N,4] y) <float s = {0.1}> { y = DequantizeLinear(x, s) }",
    ),
]
