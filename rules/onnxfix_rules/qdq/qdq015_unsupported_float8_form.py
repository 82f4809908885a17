"""QDQ015: float8 and narrower quantization that TensorRT refuses or interprets differently."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, name_of, rule, target_of

from ._common import DEQUANTIZE, QUANTIZE, is_op

_MISSING = (
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2FNUZ,
    24,  # FLOAT8E8M0, FLOAT6E2M3 and FLOAT6E3M2, unnamed in older onnx packages
    27,
    28,
)


@rule("QDQ015", ops=(*QUANTIZE, *DEQUANTIZE), severity=Severity.ERROR)
def unsupported_float8_form(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear or DequantizeLinear of an unsupported float8 type, or with `saturate=0`.

    ## Why it matters
    TensorRT quantizes to float8e4m3fn and float4e2m1 besides int8 and int4. Measured with TensorRT-RTX 1.7.1: a zero
    point or weight of float8e5m2 fails in the parser, `Failed to import initializer` (`ONNX initializer z cannot be
    imported into TensorRT!`). `saturate=0`, which in ONNX turns overflow into NaN, is silently imported as the same
    QUANTIZE layer, which has no such setting: a warning, since only data beyond 448 scales is affected.

    ## Fix
    No fix: another type has other values. Export with float8e4m3fn, and without `saturate=0`.

    ## References
    - https://onnx.ai/onnx/technical/float8.html
    """
    quantizes = is_op(node, "QuantizeLinear")
    if not quantizes and not is_op(node, "DequantizeLinear"):
        return
    data, zero = node.input(0), node.input(2)
    typed = zero if quantizes else data
    elem = None if typed is None else model.shapes.elem_type(typed)
    if quantizes and zero is None and node.domain == "" and node.opset >= 21:
        elem = node.attr("output_dtype", 0)
    title = target_of(model).title
    if elem in _MISSING:
        yield Match(f"{title} does not support {name_of(elem)}", node=node)
    elif quantizes and elem == TensorProto.FLOAT8E4M3FN and node.attr("saturate", 1) == 0:
        yield Match(
            f"{title} ignores saturate=0: overflow becomes the largest float8, not NaN",
            node=node,
            severity=Severity.WARNING,
        )


unsupported_float8_form.examples = [
    Flagged(
        "float8e5m2",
        """g (float[N] x) => (float[N] y) <float s = {1}, float8e5m2 z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        opset=19,
    ),
    Flagged(
        "overflow to NaN",
        """g (float[N] x) => (float[N] y) <float s = {1}, float8e4m3fn z = {0}> {
            q = QuantizeLinear<saturate = 0>(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        opset=19,
    ),
    Silent(
        "float8e4m3fn with saturation",
        """g (float[N] x) => (float[N] y) <float s = {1}, float8e4m3fn z = {0}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        opset=19,
    ),
    Silent(
        "the attribute has no effect on integers",
        """g (float[N] x) => (float[N] y) <float s = {1}, int8 z = {0}> {
            q = QuantizeLinear<saturate = 0>(x, s, z)  y = DequantizeLinear(q, s, z) }""",
        opset=19,
    ),
]
