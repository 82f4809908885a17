"""QDQ002: quantized constants that TensorRT refuses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    name_of,
    rule,
    target_of,
)

from ._read import DEQUANTIZE, I4, I8, Linear, described, read, severity_of
from ._rewrite import fixed, stored_otherwise


@rule("QDQ002", ops=DEQUANTIZE, safety=Safety.EXACT, severity=Severity.ERROR, hazards=[36])
def unsupported_quantized_constant(node: Node, model: Model) -> Iterator[Match]:
    """A DequantizeLinear of a constant that is unsigned, 16-bit, scalar, or has a nonzero zero point.

    ## Why it matters
    TensorRT stores quantized constants as int8 or int4 around 0. Measured with TensorRT-RTX 1.7.1, the parser fails:
    `Found unsupported input type of UINT8` at a DequantizeLinear of uint8, for any zero point; `Non-zero zero point
    is not supported.` at int8 and int4; `Failed to import initializer` (`ONNX initializer w cannot be imported into
    TensorRT!`) for uint4, int2 and uint2, and `Found unsupported datatype (4) when importing initializer` for 16
    bits. TensorRT 8.6 and 10.x refuse zero points as well.

    The builder of TensorRT-RTX 1.7.1 refuses two more forms although type and zero point are correct. A scalar
    constant, as quantizers write for scalar operands: `Quantized constant (w) is only allowed before DQ`, since the
    parser inserts a SHUFFLE layer. An odd number of int4 elements: `Sub-byte quantization with odd tensor volume is
    not supported`.

    ## Fix
    Store `w - zero point` as int8 (int4 if it comes from 4 or 2 bits and fits), zero point 0. These are the integers
    that DequantizeLinear scales, so the result is bit-identical for any zero point, as long as every difference fits.
    uint8 around 128 always does. Readers with the same zero point share the new constant, others keep the old one.

    A scalar constant is stored as its float value, an odd number of int4 elements as int8. Both are exact.

    If one difference does not fit and the weights multiply dequantized data (MatMul, Gemm), another constant is
    subtracted from them, one for each scale, and the sum of the data times this constant is added to the product, which
    stays in INT8. It requires `--numeric-fixes`, since sums are rounded in another order.

    Otherwise the dequantized floats are stored: bit-identical, but four times the size and without INT8 execution, so
    for 8 bits this requires `--numeric-fixes`, too. For 16 bits TensorRT has no alternative, so it is done by default.

    No fix if the zero point or the scale is not constant, or above 256 MiB.

    ## References
    - NVIDIA/TensorRT issues 2774, 4698, 1749
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    """
    linear = read(node, model)
    if linear is None or linear.quantizes or not fixed(linear.data) or linear.elem == TensorProto.INT32:
        return
    refusal, severity = _refusal(linear, model)
    if not refusal:
        return
    yield Match(
        f"{linear.data.name!r} is {described(linear)}: {target_of(model).title} {refusal}",
        node=node,
        severity=severity,
        fix=stored_otherwise(linear, model),
        reads=tuple(v for v in (linear.data, linear.scale, linear.zero) if v is not None),
    )


def _refusal(linear: Linear, model: Model) -> tuple[str, Severity]:
    """Why TensorRT refuses the constant, "" if it accepts it or nothing is known; and the severity."""
    if linear.elem not in (I8, I4):
        reason = f"supports quantized constants only as int8 or int4 around 0, not as {name_of(linear.elem)}"
        return reason, Severity.ERROR
    if linear.zeros is not None and linear.zeros.astype(np.int64).any():
        return "supports only zero point 0", Severity.ERROR
    shape = model.shapes.static_shape(linear.data)
    if shape == ():
        return "requires at least one dimension for quantized constants", severity_of(model)
    if shape is not None and linear.elem == I4 and int(np.prod(shape, dtype=np.int64)) % 2:
        return "requires an even number of int4 elements", severity_of(model)
    return "", Severity.INFO


_ADD = "d = DequantizeLinear(w, s, z)  y = Add(x, d)"
_fixed = partial(Fixed, ir_version=10, opset=21)


def _add(elem: str, w_values: str, x: str = "N,4", w: str = "1,4") -> str:
    return f"""g (float[{x}] x) => (float[{x}] y) <{elem}[{w}] w = {{{w_values}}}, float s = {{0.1}}> {{
        d = DequantizeLinear(w, s)  y = Add(x, d) }}"""


def _mul(x: str, elem: str, w: str, w_values: str) -> str:
    return f"""g (float[{x}] x) => (float[{x}] y) <{elem}[{w}] w = {{{w_values}}}, float s = {{0.5}}> {{
        d = DequantizeLinear(w, s)  y = Mul(x, d) }}"""


unsupported_quantized_constant.examples = [
    Fixed(
        "uint8 around 128",
        before=f"""g (float[N,4] x) => (float[N,4] y) <uint8[1,4] w = {{0, 127, 128, 255}}, float s = {{0.1}},
            uint8 z = {{128}}> {{ {_ADD} }}""",
        after=_add("int8", "-128, -1, 0, 127"),
    ),
    Fixed(
        "uint8 without a zero point, all values below 128",
        before=_add("uint8", "0, 1, 2, 127"),
        after=_add("int8", "0, 1, 2, 127"),
    ),
    Fixed(
        "int8 around 5 with values that fit",
        before=f"""g (float[N,3] x) => (float[N,3] y) <int8[1,3] w = {{-123, 5, 127}}, float s = {{0.1}},
            int8 z = {{5}}> {{ {_ADD} }}""",
        after=_add("int8", "-128, 0, 122", x="N,3", w="1,3"),
    ),
    Fixed(
        "int8 around 5 with smallest values that do not fit: floats",
        before=f"""g (float[N,3] x) => (float[N,3] y) <int8[1,3] w = {{-124, 5, 127}}, float s = {{0.5}},
            int8 z = {{5}}> {{ {_ADD} }}""",
        after="g (float[N,3] x) => (float[N,3] y) <float[1,3] d = {-64.5, 0, 61}> { y = Add(x, d) }",
        safety=Safety.NUMERIC,
    ),
    _fixed(
        "weights of a MatMul that int8 does not hold: a part behind the product",
        before="""g (int8[N,2] x) => (float[N,2] y) <uint8[2,2] w = {0, 10, 255, 20}, float[2] s = {0.5, 2},
            uint8[2] z = {120, 10}, float t = {0.1}> { a = DequantizeLinear(x, t)
            d = DequantizeLinear(w, s, z)  y = MatMul(a, d) }""",
        after="""g (int8[N,2] x) => (float[N,2] y) <int8[2,2] w = {-128, 0, 127, 10}, float[2] s = {0.5, 2},
            float t = {0.1}, int64[1] l = {-1}, float[2] m = {4, 0}> { a = DequantizeLinear(x, t)
            d = DequantizeLinear(w, s)  p = MatMul(a, d)  r = ReduceSum<keepdims = 1>(a, l)  q = Mul(r, m)
            y = Add(p, q) }""",
        safety=Safety.NUMERIC,
    ),
    _fixed(
        "weights of a Gemm that int8 does not hold",
        before="""g (int8[N,2] x, float[2] b) => (float[N,2] y) <int8[2,2] w = {-128, 127, 10, 20}, float s = {0.5},
            int8 z = {-10}, float t = {0.1}> { a = DequantizeLinear(x, t)
            d = DequantizeLinear(w, s, z)  y = Gemm<alpha = 2.0, transB = 1>(a, d, b) }""",
        after="""g (int8[N,2] x, float[2] b) => (float[N,2] y) <int8[2,2] w = {-128, 127, 10, 20}, float s = {0.5},
            float t = {0.1}, int64[1] l = {-1}, float[1] m = {10}> { a = DequantizeLinear(x, t)
            d = DequantizeLinear(w, s)  p = Gemm<alpha = 2.0, transB = 1>(a, d, b)
            r = ReduceSum<keepdims = 1>(a, l)  q = Mul(r, m)  y = Add(p, q) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "floats require --numeric-fixes",
        f"""g (float[N,3] x) => (float[N,3] y) <uint8[1,3] w = {{0, 5, 255}}, float s = {{0.5}},
            uint8 z = {{0}}> {{ {_ADD} }}""",
    ),
    Fixed(
        "per-channel zero points on the first axis",
        before="""g (float[N,2] x) => (float[N,2] y) <uint8[2,2] w = {0, 255, 0, 200}, float[2] s = {0.1, 0.2},
            uint8[2] z = {128, 100}> { d = DequantizeLinear<axis = 0>(w, s, z)  y = MatMul(x, d) }""",
        after="""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {-128, 127, -100, 100}, float[2] s = {0.1, 0.2}> {
            d = DequantizeLinear<axis = 0>(w, s)  y = MatMul(x, d) }""",
    ),
    _fixed(
        "blocks with a shorter last one",
        before="""g (float[N,3] x) => (float[N,2] y) <uint8[3,2] w = {0, 255, 128, 127, 3, 4},
            float[2,2] s = {0.1, 0.2, 0.3, 0.4}, uint8[2,2] z = {128, 128, 1, 2}> {
            d = DequantizeLinear<axis = 0, block_size = 2>(w, s, z)  y = MatMul(x, d) }""",
        after="""g (float[N,3] x) => (float[N,2] y) <int8[3,2] w = {-128, 127, 0, -1, 2, 2},
            float[2,2] s = {0.1, 0.2, 0.3, 0.4}> {
            d = DequantizeLinear<axis = 0, block_size = 2>(w, s)  y = MatMul(x, d) }""",
    ),
    _fixed(
        "uint4 around 8 becomes int4 (0, 7, 8, 15, two per byte)",
        before="""g (float[N,4] x) => (float[N,4] y) <uint4[1,4] w = {112, 248}, float s = {0.1}, uint4 z = {8}> {
            d = DequantizeLinear(w, s, z)  y = Add(x, d) }""",
        after=_add("int4", "248, 112"),
    ),
    _fixed(
        "uint4 around 0 becomes int8", before=_add("uint4", "112, 248"), after=_add("int8", "0, 7, 8, 15")
    ),
    Fixed(
        "two readers share the new constant, a third keeps the old one",
        before="""g (float[N,2] x) => (float[N,2] y, uint8[2] v) <uint8[2] w = {0, 255}, float s = {0.1},
            float t = {0.2}, uint8 z = {128}> { a = DequantizeLinear(w, s, z)  b = DequantizeLinear(w, t, z)
            v = Identity(w)  c = Add(a, b)  y = Add(x, c) }""",
        after="""g (float[N,2] x) => (float[N,2] y, uint8[2] v) <uint8[2] w = {0, 255}, int8[2] q = {-128, 127},
            float s = {0.1}, float t = {0.2}> { a = DequantizeLinear(q, s)  b = DequantizeLinear(q, t)
            v = Identity(w)  c = Add(a, b)  y = Add(x, c) }""",
    ),
    Fixed(
        "zero points per row for one reader and per column for the other",
        before="""g (float[2,2] x) => (float[2,2] y) <uint8[2,2] w = {1, 100, 101, 200}, float[2] s = {0.1, 0.2},
            uint8[2] z = {1, 100}> { a = DequantizeLinear<axis = 0>(w, s, z)
            b = DequantizeLinear<axis = 1>(w, s, z)  c = Add(a, b)  y = Add(x, c) }""",
        after="""g (float[2,2] x) => (float[2,2] y) <int8[2,2] v = {0, 99, 1, 100}, int8[2,2] w = {0, 0, 100, 100},
            float[2] s = {0.1, 0.2}> { a = DequantizeLinear<axis = 0>(v, s)
            b = DequantizeLinear<axis = 1>(w, s)  c = Add(a, b)  y = Add(x, c) }""",
    ),
    _fixed(
        "uint16, which TensorRT does not support: floats lose nothing",
        before=f"""g (float[N,2] x) => (float[N,2] y) <uint16[2] w = {{0, 65535}}, float s = {{0.5}},
            uint16 z = {{32768}}> {{ {_ADD} }}""",
        after="g (float[N,2] x) => (float[N,2] y) <float[2] d = {-16384, 16383.5}> { y = Add(x, d) }",
    ),
    _fixed(
        "the dequantized constant is a graph output",
        before="""g (float[N] x) => (float[2] y, float[N] v) <uint16[2] w = {1, 60000}, float s = {0.5}> {
            y = DequantizeLinear(w, s)  v = Neg(x) }""",
        after="""g (float[N] x) => (float[2] y, float[N] v) <float[2] w = {0.5, 30000}> {
            y = Identity(w)  v = Neg(x) }""",
    ),
    Fixed(
        "a scalar",
        before="""g (float[N,2] x) => (float[N,2] y) <int8 w = {3}, float s = {0.5}, int8 z = {0}> {
            d = DequantizeLinear(w, s, z)  y = Mul(x, d) }""",
        after="g (float[N,2] x) => (float[N,2] y) <float d = {1.5}> { y = Mul(x, d) }",
    ),
    Silent("a one-element vector is supported", _mul("N,2", "int8", "1", "3")),
    _fixed(
        "an odd number of int4 elements (1, 2, 3)",
        before=_mul("N,3", "int4", "3", "33, 3"),
        after=_mul("N,3", "int8", "3", "1, 2, 3"),
    ),
    Silent("an even number of int4 elements", _mul("N,2", "int4", "2", "33"), opset=21, ir_version=10),
    Silent(
        "int8 around 0, explicitly and by default",
        """g (float[N,2] x) => (float[N,2] y) <int8[2] w = {-128, 127}, float s = {0.1}, int8 z = {0}> {
            a = DequantizeLinear(w, s, z)  b = DequantizeLinear(w, s)  c = Add(a, b)  y = Add(x, c) }""",
    ),
    Silent(
        "the weights may be overridden",
        f"""g (float[N,2] x, uint8[2] w) => (float[N,2] y) <uint8[2] w = {{0, 255}}, float s = {{0.1}},
            uint8 z = {{128}}> {{ {_ADD} }}""",
    ),
    Flagged(
        "the zero point may be overridden",
        f"""g (float[N,2] x, uint8 z) => (float[N,2] y) <uint8[2] w = {{0, 255}}, float s = {{0.1}},
            uint8 z = {{128}}> {{ {_ADD} }}""",
        safety=Safety.NUMERIC,
    ),
    Silent("int32 is covered by QDQ005", _add("int32", "0, 255", x="N,2", w="2")),
    Fixed(
        "uint4 around 8, for TensorRT 8.6, which has no int4",
        before="""g (float[N,4] x) => (float[N,4] y) <uint4[1,4] w = {152, 121}, float s = {0.1}, uint4 z = {8}> {
            d = DequantizeLinear(w, s, z)  y = Add(x, d) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <int8[1,4] w = {0, 1, 1, -1}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
        target="8.6",
        opset=21,
        ir_version=10,
    ),
]
