"""Casts to and from float8, constant float8e8m0, and forms of float8 that TensorRT does not support."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfix.rule import (
    AddNode,
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
    name_of,
    rule,
    target_of,
)

from ._read import DEQUANTIZE, FLOATS, QUANTIZE, WEIGHT_LIMIT, is_op, numpy_type, severity_of
from ._rewrite import Workshop

E4M3 = TensorProto.FLOAT8E4M3FN
E8M0 = 24  # unnamed in older onnx packages
_FLOAT8_SINCE = 19  # QuantizeLinear and DequantizeLinear know no such type before, and neither does Cast


@rule(
    "QDQ013",
    ops=("Cast", "CastLike"),
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[32],
    types=[E4M3],
)
def cast_to_or_from_float8(node: Node, model: Model) -> Iterator[Match]:
    """A Cast to or from float8e4m3fn, for which TensorRT requires QuantizeLinear and DequantizeLinear.

    ## Why it matters
    The builder fails: `Tensor q has datatype FP8 but is not produced by IPluginLayer, IPluginV2Layer, IPluginV3Layer,
    IQuantizeLayer, IConstantLayer, IConcatenationLayer, IShuffleLayer, or IdentityLayer`, and likewise `is not
    consumed by` for a Cast from it (measured with TensorRT-RTX 1.7.1; constants included).

    ## Fix
    QuantizeLinear with scale 1 to float8e4m3fn, and DequantizeLinear with scale 1 back. Exact: rounding and
    saturation are identical, compared for all half-precision and bfloat16 values with the ONNX reference, for half
    precision and half a million floats with ONNX Runtime. TensorRT-RTX 1.7.1 builds both, also as graph inputs and
    outputs.

    No fix for a Cast with `saturate=0`, whose NaN TensorRT's QUANTIZE layer cannot produce, and for types other than
    float, half precision and bfloat16. Other float8 types are not reported, since TensorRT does not support them.

    ## References
    - https://onnx.ai/onnx/technical/float8.html
    """
    data, output = node.require(0), node.require_output(0)
    if not target_of(model).has_type(E4M3):
        return
    source, result = model.shapes.elem_type(data), model.shapes.elem_type(output)
    if (source == E4M3) == (result == E4M3) or source is None or result is None:
        return
    title = target_of(model).title
    yield Match(
        f"Cast from {name_of(source)} to {name_of(result)}: {title} supports float8 only from "
        "QuantizeLinear and to DequantizeLinear",
        node=node,
        severity=severity_of(model),
        fix=_quantized(node, data, output, source)
        if result == E4M3
        else _dequantized(node, data, output, result),
        reads=(data,),
    )


def _quantized(node: Node, data: Value, output: Value, source: int) -> Fix | None:
    if source not in FLOATS or node.attr("saturate", 1) == 0 or node.scope.opset() < _FLOAT8_SINCE:
        return None
    shop = Workshop()
    scale = shop.constant(node, np.ones((), dtype=numpy_type(source)), "scale")
    zero = shop.constant(node, np.zeros((), dtype=numpy_type(E4M3)), "zero_point")
    shop.edits.append(RemoveNode(node))
    _add(shop, node, "QuantizeLinear", [data, scale, zero], output)
    return Fix("replace by QuantizeLinear with scale 1", shop.edits)


def _dequantized(node: Node, data: Value, output: Value, result: int) -> Fix | None:
    if result not in FLOATS or node.scope.opset() < _FLOAT8_SINCE:
        return None
    shop = Workshop()
    scale = shop.constant(node, np.ones((), dtype=numpy_type(result)), "scale")
    shop.edits.append(RemoveNode(node))
    _add(shop, node, "DequantizeLinear", [data, scale], output)
    return Fix("replace by DequantizeLinear with scale 1", shop.edits)


def _add(shop: Workshop, node: Node, op_type: str, inputs: Sequence[Value | str], output: Value) -> None:
    """Add a node that has the name of the Cast, or one of its place in a branch or body.

    TensorRT names a node without a name by its output. Two branches may have the same one, and it then refuses two
    quantizers.
    """
    scope = node.scope
    name = node.name or (f"{scope.path}/{output.name}" if scope.parent is not None else "")
    names = [one.name if isinstance(one, Value) else one for one in inputs]
    proto = NodeProto(op_type=op_type, name=name, input=names, output=[output.name])
    shop.edits.append(AddNode(scope, proto, node))


_fixed = partial(Fixed, ir_version=11, opset=24)
_flagged = partial(Flagged, opset=19)
_silent = partial(Silent, opset=19)


def _quantize_linear(attributes: str, elem: str = "float8e4m3fn") -> str:
    return f"""g (float[N] x) => (float[N] y) <float s = {{1}}, {elem} z = {{0}}> {{
        q = QuantizeLinear{attributes}(x, s, z)  y = DequantizeLinear(q, s, z) }}"""


def _cast(attributes: str) -> str:
    return f"g (float[N] x) => (float[N] y) {{ q = Cast<{attributes}>(x)  y = Cast<to = FLOAT>(q) }}"


cast_to_or_from_float8.examples = [
    Fixed(
        "a round trip",
        before=_cast("to = FLOAT8E4M3FN"),
        after="""g (float[N] x) => (float[N] y) <float s = {1}, float8e4m3fn z = {0}, float t = {1}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, t) }""",
        opset=19,
    ),
    Fixed(
        "half precision with a quantized graph output",
        before="g (float16[N] x) => (float8e4m3fn[N] y) { y = Cast<to = FLOAT8E4M3FN, saturate = 1>(x) }",
        after="""g (float16[N] x) => (float8e4m3fn[N] y) <float16 s = {f16(1.0)}, float8e4m3fn z = {0}> {
            y = QuantizeLinear(x, s, z) }""",
        opset=19,
    ),
    Fixed(
        "from a graph input to half precision",
        before="g (float8e4m3fn[N] x) => (float16[N] y) { y = Cast<to = FLOAT16>(x) }",
        after="g (float8e4m3fn[N] x) => (float16[N] y) <float16 s = {f16(1.0)}> { y = DequantizeLinear(x, s) }",
        opset=19,
    ),
    Fixed(
        "CastLike",
        before="""g (float[N] x) => (float[N] y) <float8e4m3fn l = {0}> {
            q = CastLike(x, l)  y = CastLike(q, x) }""",
        after="""g (float[N] x) => (float[N] y) <float s = {1}, float8e4m3fn z = {0}, float t = {1}> {
            q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, t) }""",
        opset=19,
    ),
    Fixed(
        "inside a branch",
        before="""g (float8e4m3fn[N] x, bool b) => (float[N] y) {
            y = If(b)<then_branch = t () => (float[N] u) { u = Cast<to = FLOAT>(x) },
                      else_branch = e () => (float[N] v) { w = Cast<to = FLOAT>(x)  v = Neg(w) }> }""",
        after="""g (float8e4m3fn[N] x, bool b) => (float[N] y) {
            y = If(b)<then_branch = t () => (float[N] u) <float s = {1}> { u = DequantizeLinear(x, s) },
                      else_branch = e () => (float[N] v) <float r = {1}> {
                        w = DequantizeLinear(x, r)  v = Neg(w) }> }""",
        opset=19,
    ),
    _flagged(
        "without saturation overflow becomes NaN, unlike in TensorRT's QuantizeLinear",
        "g (float[N] x) => (float[N] y) { q = Cast<to = FLOAT8E4M3FN, saturate = 0>(x)  y = DequantizeLinear(q, s) "
        " s = Constant<value = float {1}>() }",
        runs=False,
    ),
    _flagged(
        "from double, which cannot be quantized",
        "g (double[N] x) => (float8e4m3fn[N] y) { y = Cast<to = FLOAT8E4M3FN>(x) }",
        runs=False,
    ),
    _silent("float8e5m2, which TensorRT does not support in any form", _cast("to = FLOAT8E5M2")),
    Flagged(
        "before opset 19, which has the type and its quantizers: onnx.checker refuses the model",
        _cast("to = FLOAT8E4M3FN"),
        runs=False,
        opset=18,
    ),
    _silent("a target without float8 support", _cast("to = FLOAT8E4M3FN"), target="trt8.6"),
    _silent("QuantizeLinear and DequantizeLinear", _quantize_linear("")),
    _silent("other casts", _cast("to = FLOAT16")),
    _silent("Cast to float8e5m2", "g (float[2] x) => (float8e5m2[2] y) { y = Cast<to=FLOAT8E5M2>(x) }"),
]


_MISSING = (TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ, E8M0, 27, 28)
"""The last two are FLOAT6E2M3 and FLOAT6E3M2, unnamed in older onnx packages."""


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
        message = f"{title} ignores saturate=0: overflow becomes the largest float8, not NaN"
        yield Match(message, node=node, severity=Severity.WARNING)


unsupported_float8_form.examples = [
    _flagged("float8e5m2", _quantize_linear("", elem="float8e5m2")),
    _flagged("overflow to NaN", _quantize_linear("<saturate = 0>")),
    _silent("float8e4m3fn with saturation", _quantize_linear("")),
    _silent("the attribute has no effect on integers", _quantize_linear("<saturate = 0>", elem="int8")),
]


@rule(
    "QDQ022",
    ops=("Cast", "DequantizeLinear"),
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[50],
    types=[E8M0],
)
def constant_powers_of_two(node: Node, model: Model) -> Iterator[Match]:
    """A float8e8m0 constant that is cast to a float, or is the scale of a DequantizeLinear.

    ## Why it matters
    MXFP8 stores one power of two for each block of 32 weights as float8e8m0. The parser refuses such a weight: `Failed
    to import initializer: e8`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    The scales in the float type of the Cast, or of the DequantizeLinear's result. Exact: float and bfloat16 hold
    every power of two of float8e8m0, and half precision those from 2**-24 to 2**15; the rule has no fix for others.
    TensorRT-RTX 1.7.1 builds the blocked DequantizeLinear with float scales for compute capabilities 8.9 and 12.0, but
    its engine is wrong, and TensorRT before 10.8 refuses it, so that QDQ024 dequantizes the weights.

    No fix for 2**-127, which is a subnormal number that the ONNX reference doubles, and above 256 MiB.

    ## References
    - https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
    - https://onnx.ai/onnx/technical/float8.html
    """
    casts = node.op_type == "Cast"
    source, output = node.input(0 if casts else 1), node.output(0)
    if source is None or output is None or not source.is_constant or model.shapes.elem_type(source) != E8M0:
        return
    yield Match(
        f"{source.name!r} is float8e8m0, which {target_of(model).title} does not support as a constant",
        node=node,
        fix=_powers(node, source, model.shapes.elem_type(output)),
        reads=(source,),
    )


def _powers(node: Node, source: Value, elem: int | None) -> Fix | None:
    array = source.constant(WEIGHT_LIMIT)
    if elem not in FLOATS or array is None:
        return None
    numbers = array.astype(np.float32)
    with np.errstate(over="ignore"):
        stored = numbers.astype(numpy_type(elem))
    if not np.array_equal(stored.astype(np.float32), numbers, equal_nan=True) or (numbers < 2.0**-126).any():
        return None
    shop = Workshop()
    name = shop.constant(node, stored, "scale")
    if node.op_type == "Cast":
        shop.put(node, name)
    else:
        shop.at(node).set_input(node, 1, name)
        shop.at(node).set_attr(node, "output_dtype", None)
    return Fix(f"store {source.name!r} as {name_of(elem)}", shop.edits)


_SCALED = "y = DequantizeLinear<axis = -1, block_size = 2>(w, s)"
_W8 = "float8e4m3fn[2,4] w = {56, 60, 184, 1, 0, 126, 64, 48}"


constant_powers_of_two.examples = [
    _fixed(
        "the scales of blocks, cast to float (1, 2, 0.5 and 0.25)",
        before=f"""g (float[N,2] x) => (float[N,4] v) <{_W8}, float8e8m0[2,2] e = {{127, 128, 126, 125}}> {{
            s = Cast<to = FLOAT>(e)  {_SCALED}  v = MatMul(x, y) }}""",
        after=f"""g (float[N,2] x) => (float[N,4] v) <{_W8}, float[2,2] s = {{1, 2, 0.5, 0.25}}> {{
            {_SCALED}  v = MatMul(x, y) }}""",
    ),
    _fixed(
        "read by the DequantizeLinear, for half precision",
        before=f"""g (float16[N,2] x) => (float16[N,4] v) <{_W8}, float8e8m0[2,2] s = {{127, 128, 126, 125}}> {{
            {_SCALED.replace("2>", "2, output_dtype = 10>")}  v = MatMul(x, y) }}""",
        after=f"""g (float16[N,2] x) => (float16[N,4] v)
            <{_W8}, float16[2,2] s = {{f16(1.0, 2.0, 0.5, 0.25)}}> {{ {_SCALED}  v = MatMul(x, y) }}""",
        runs=False,
    ),
    _fixed(
        "the largest power is finite in bfloat16",
        before="""g (bfloat16[N] x) => (bfloat16[N] y) <float8e8m0[1] e = {254}> {
            a = Cast<to = BFLOAT16>(e)  y = Mul(x, a) }""",
        after="""g (bfloat16[N] x) => (bfloat16[N] y) <bfloat16[1] a = {bf16(1.7014118346046923e38)}> {
            y = Mul(x, a) }""",
    ),
    Flagged(
        "2**16, which half precision lacks",
        """g (float16[N] x) => (float16[N] y) <float8e8m0[1] e = {143}> {
            a = Cast<to = FLOAT16>(e)  y = Mul(x, a) }""",
        opset=24,
        ir_version=11,
    ),
    Flagged(
        "2**-127",
        """g (float[N] x) => (float[N] y) <float8e8m0[1] e = {0}> { a = Cast<to = FLOAT>(e)  y = Mul(x, a) }""",
        opset=24,
        ir_version=11,
    ),
    Silent(
        "computed scales are covered by CST005",
        """g (float[N] x) => (float[N] y) { e = Cast<to = FLOAT8E8M0>(x)  y = Cast<to = FLOAT>(e) }""",
        opset=24,
        ir_version=11,
    ),
    Silent(
        "float scales",
        f"""g (float[N,2] x) => (float[N,4] v) <{_W8}, float[2,2] s = {{1, 2, 0.5, 0.25}}> {{
            {_SCALED}  v = MatMul(x, y) }}""",
        opset=24,
        ir_version=11,
    ),
]
