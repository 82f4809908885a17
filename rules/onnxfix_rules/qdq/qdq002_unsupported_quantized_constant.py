"""QDQ002: quantized constants that TensorRT cannot hold: a zero point, or an unsigned type."""

from __future__ import annotations

from collections.abc import Iterator

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

from ._common import DEQUANTIZE, I4, I8, Linear, described, read, severity_of
from ._constants import fixed, stored_otherwise


@rule("QDQ002", ops=DEQUANTIZE, safety=Safety.EXACT, severity=Severity.ERROR, hazards=[6])
def unsupported_quantized_constant(node: Node, model: Model) -> Iterator[Match]:
    """A DequantizeLinear reads a constant that is unsigned, of 16 bits, without dimensions, or not around 0.

    ## Why it matters
    TensorRT holds quantized constants as int8 or int4 around 0. Measured with TensorRT-RTX 1.7.1, the parser stops:
    `Found unsupported input type of UINT8` at a DequantizeLinear of uint8, whatever its zero point; `Non-zero zero
    point is not supported.` at int8 and int4; `Failed to import initializer` (`ONNX initializer w cannot be imported
    into TensorRT!`) for uint4, int2 and uint2, and `Found unsupported datatype (4) when importing initializer` for 16
    bits. TensorRT 8.6 and 10.x refuse zero points as well.

    Two more forms stop the builder of TensorRT-RTX 1.7.1 although type and zero point are right. A constant without
    dimensions, as quantizers write for scalar operands: `Quantized constant (w) is only allowed before DQ`, since the
    parser puts a SHUFFLE layer in between. An odd number of int4: `Sub-byte quantization with odd tensor volume is not
    supported`.

    ## Fix
    Store `w - zero point` as int8 (int4 where it comes from 4 or 2 bits and fits), zero point 0: the very integers
    that DequantizeLinear scales, so the result has the same bits, whatever the zero point, as long as every difference
    fits. uint8 around 128 always does. The readers with the same zero point share the new constant, others keep the
    old one.

    A constant without dimensions becomes the float that it stands for, an odd number of int4 int8. Both are exact.

    Where one difference does not fit, the dequantized floats are stored: the same bits too, but four times the size
    and no INT8 execution, so for 8 bits it has to be asked for. For 16 bits TensorRT has nothing better, and it is done
    by default.

    None where the zero point or the scale is not constant, and over 256 MiB.

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
    """Why TensorRT refuses the constant, "" where it takes it or nothing is known against it; and how sure that is."""
    if linear.elem not in (I8, I4):
        reason = f"holds quantized constants as int8 or int4 around 0 only, not as {name_of(linear.elem)}"
        return reason, Severity.ERROR
    if linear.zeros is not None and linear.zeros.astype(np.int64).any():
        return "takes zero point 0 only", Severity.ERROR
    shape = model.shapes.static_shape(linear.data)
    if shape == ():
        return "takes quantized constants of at least one dimension", severity_of(model)
    if shape is not None and linear.elem == I4 and int(np.prod(shape, dtype=np.int64)) % 2:
        return "takes an even number of int4 only", severity_of(model)
    return "", Severity.INFO


_ADD = "d = DequantizeLinear(w, s, z)  y = Add(x, d)"


unsupported_quantized_constant.examples = [
    Fixed(
        "uint8 around 128",
        before=f"""g (float[N,4] x) => (float[N,4] y) <uint8[1,4] w = {{0, 127, 128, 255}}, float s = {{0.1}},
            uint8 z = {{128}}> {{ {_ADD} }}""",
        after="""g (float[N,4] x) => (float[N,4] y) <int8[1,4] w = {-128, -1, 0, 127}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
    ),
    Fixed(
        "uint8 without a zero point, all of it below 128",
        before="""g (float[N,4] x) => (float[N,4] y) <uint8[1,4] w = {0, 1, 2, 127}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <int8[1,4] w = {0, 1, 2, 127}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
    ),
    Fixed(
        "int8 around 5: it fits, whatever the zero point",
        before=f"""g (float[N,3] x) => (float[N,3] y) <int8[1,3] w = {{-123, 5, 127}}, float s = {{0.1}},
            int8 z = {{5}}> {{ {_ADD} }}""",
        after="""g (float[N,3] x) => (float[N,3] y) <int8[1,3] w = {-128, 0, 122}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
    ),
    Fixed(
        "int8 around 5 whose smallest numbers do not fit: floats",
        before=f"""g (float[N,3] x) => (float[N,3] y) <int8[1,3] w = {{-124, 5, 127}}, float s = {{0.5}},
            int8 z = {{5}}> {{ {_ADD} }}""",
        after="g (float[N,3] x) => (float[N,3] y) <float[1,3] d = {-64.5, 0, 61}> { y = Add(x, d) }",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "floats have to be asked for",
        f"""g (float[N,3] x) => (float[N,3] y) <uint8[1,3] w = {{0, 5, 255}}, float s = {{0.5}},
            uint8 z = {{0}}> {{ {_ADD} }}""",
    ),
    Fixed(
        "a zero point for each channel of the first axis",
        before="""g (float[N,2] x) => (float[N,2] y) <uint8[2,2] w = {0, 255, 0, 200}, float[2] s = {0.1, 0.2},
            uint8[2] z = {128, 100}> { d = DequantizeLinear<axis = 0>(w, s, z)  y = MatMul(x, d) }""",
        after="""g (float[N,2] x) => (float[N,2] y) <int8[2,2] w = {-128, 127, -100, 100}, float[2] s = {0.1, 0.2}> {
            d = DequantizeLinear<axis = 0>(w, s)  y = MatMul(x, d) }""",
    ),
    Fixed(
        "blocks, the last of them shorter",
        before="""g (float[N,3] x) => (float[N,2] y) <uint8[3,2] w = {0, 255, 128, 127, 3, 4},
            float[2,2] s = {0.1, 0.2, 0.3, 0.4}, uint8[2,2] z = {128, 128, 1, 2}> {
            d = DequantizeLinear<axis = 0, block_size = 2>(w, s, z)  y = MatMul(x, d) }""",
        after="""g (float[N,3] x) => (float[N,2] y) <int8[3,2] w = {-128, 127, 0, -1, 2, 2},
            float[2,2] s = {0.1, 0.2, 0.3, 0.4}> {
            d = DequantizeLinear<axis = 0, block_size = 2>(w, s)  y = MatMul(x, d) }""",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "uint4 around 8 becomes int4 (0, 7, 8, 15, two in a byte)",
        before="""g (float[N,4] x) => (float[N,4] y) <uint4[1,4] w = {112, 248}, float s = {0.1}, uint4 z = {8}> {
            d = DequantizeLinear(w, s, z)  y = Add(x, d) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <int4[1,4] w = {248, 112}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "uint4 around 0 becomes int8",
        before="""g (float[N,4] x) => (float[N,4] y) <uint4[1,4] w = {112, 248}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
        after="""g (float[N,4] x) => (float[N,4] y) <int8[1,4] w = {0, 7, 8, 15}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "two readers share the new constant; a third keeps the old one",
        before="""g (float[N,2] x) => (float[N,2] y, uint8[2] v) <uint8[2] w = {0, 255}, float s = {0.1},
            float t = {0.2}, uint8 z = {128}> { a = DequantizeLinear(w, s, z)  b = DequantizeLinear(w, t, z)
            v = Identity(w)  c = Add(a, b)  y = Add(x, c) }""",
        after="""g (float[N,2] x) => (float[N,2] y, uint8[2] v) <uint8[2] w = {0, 255}, int8[2] q = {-128, 127},
            float s = {0.1}, float t = {0.2}> { a = DequantizeLinear(q, s)  b = DequantizeLinear(q, t)
            v = Identity(w)  c = Add(a, b)  y = Add(x, c) }""",
    ),
    Fixed(
        "zero points for rows here and for columns there",
        before="""g (float[2,2] x) => (float[2,2] y) <uint8[2,2] w = {1, 100, 101, 200}, float[2] s = {0.1, 0.2},
            uint8[2] z = {1, 100}> { a = DequantizeLinear<axis = 0>(w, s, z)
            b = DequantizeLinear<axis = 1>(w, s, z)  c = Add(a, b)  y = Add(x, c) }""",
        after="""g (float[2,2] x) => (float[2,2] y) <int8[2,2] v = {0, 99, 1, 100}, int8[2,2] w = {0, 0, 100, 100},
            float[2] s = {0.1, 0.2}> { a = DequantizeLinear<axis = 0>(v, s)
            b = DequantizeLinear<axis = 1>(w, s)  c = Add(a, b)  y = Add(x, c) }""",
    ),
    Fixed(
        "uint16: TensorRT has no such type, so that floats lose nothing",
        before=f"""g (float[N,2] x) => (float[N,2] y) <uint16[2] w = {{0, 65535}}, float s = {{0.5}},
            uint16 z = {{32768}}> {{ {_ADD} }}""",
        after="g (float[N,2] x) => (float[N,2] y) <float[2] d = {-16384, 16383.5}> { y = Add(x, d) }",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "the dequantized constant is a graph output",
        before="""g (float[N] x) => (float[2] y, float[N] v) <uint16[2] w = {1, 60000}, float s = {0.5}> {
            y = DequantizeLinear(w, s)  v = Neg(x) }""",
        after="""g (float[N] x) => (float[2] y, float[N] v) <float[2] w = {0.5, 30000}> {
            y = Identity(w)  v = Neg(x) }""",
        opset=21,
        ir_version=10,
    ),
    Fixed(
        "an empty constant",
        before=f"""g (float[N,0] x) => (float[N,0] y) <uint8[1,0] w = {{}}, float s = {{0.1}}, uint8 z = {{3}}>
            {{ {_ADD} }}""",
        after="""g (float[N,0] x) => (float[N,0] y) <int8[1,0] w = {}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
    ),
    Fixed(
        "a single number without dimensions",
        before="""g (float[N,2] x) => (float[N,2] y) <int8 w = {3}, float s = {0.5}, int8 z = {0}> {
            d = DequantizeLinear(w, s, z)  y = Mul(x, d) }""",
        after="g (float[N,2] x) => (float[N,2] y) <float d = {1.5}> { y = Mul(x, d) }",
    ),
    Silent(
        "a single number with a dimension is fine",
        """g (float[N,2] x) => (float[N,2] y) <int8[1] w = {3}, float s = {0.5}> {
            d = DequantizeLinear(w, s)  y = Mul(x, d) }""",
    ),
    Fixed(
        "an odd number of int4 (1, 2, 3)",
        before="""g (float[N,3] x) => (float[N,3] y) <int4[3] w = {33, 3}, float s = {0.5}> {
            d = DequantizeLinear(w, s)  y = Mul(x, d) }""",
        after="""g (float[N,3] x) => (float[N,3] y) <int8[3] w = {1, 2, 3}, float s = {0.5}> {
            d = DequantizeLinear(w, s)  y = Mul(x, d) }""",
        opset=21,
        ir_version=10,
    ),
    Silent(
        "an even number of int4",
        """g (float[N,2] x) => (float[N,2] y) <int4[2] w = {33}, float s = {0.5}> {
            d = DequantizeLinear(w, s)  y = Mul(x, d) }""",
        opset=21,
        ir_version=10,
    ),
    Silent(
        "int8 around 0, with and without saying so",
        """g (float[N,2] x) => (float[N,2] y) <int8[2] w = {-128, 127}, float s = {0.1}, int8 z = {0}> {
            a = DequantizeLinear(w, s, z)  b = DequantizeLinear(w, s)  c = Add(a, b)  y = Add(x, c) }""",
    ),
    Silent(
        "the caller may give other weights",
        f"""g (float[N,2] x, uint8[2] w) => (float[N,2] y) <uint8[2] w = {{0, 255}}, float s = {{0.1}},
            uint8 z = {{128}}> {{ {_ADD} }}""",
    ),
    Flagged(
        "the caller may give another zero point",
        f"""g (float[N,2] x, uint8 z) => (float[N,2] y) <uint8[2] w = {{0, 255}}, float s = {{0.1}},
            uint8 z = {{128}}> {{ {_ADD} }}""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "int32 is QDQ005's",
        """g (float[N,2] x) => (float[N,2] y) <int32[2] w = {0, 255}, float s = {0.1}> {
            d = DequantizeLinear(w, s)  y = Add(x, d) }""",
    ),
]
