"""QDQ024 and QDQ025: forms of quantization that only some releases take: in blocks, and without a zero point."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Flagged,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    is_small,
    name_of,
    rule,
    target_of,
)

from ._read import (
    DEQUANTIZE,
    FLOATS,
    I4,
    I8,
    QUANTIZE,
    WEIGHT_LIMIT,
    numpy_type,
    read,
    repeated,
    takes_blocks,
)
from ._rewrite import Workshop, around, as_floats, floats

_FLOAT8 = (17, 18, 19, 20)
"""FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2 and FLOAT8E5M2FNUZ."""


@rule("QDQ024", ops=["DequantizeLinear", "QuantizeLinear"], safety=Safety.NUMERIC, hazards=[32])
def quantization_in_blocks(node: Node, model: Model) -> Iterator[Match]:
    """A DequantizeLinear or QuantizeLinear in blocks, of a type whose blocks TensorRT refuses or dequantizes wrongly.

    ## Why it matters
    Before 10.0 TensorRT has no blocks. From 10.0 to 10.7 it takes them of int4 alone: `Block quantization is supported
    only for DataType::kINT4` (executed: TensorRT 10.6.0, H200, int8 and float8; reported for 10.7). 10.15.1 and 11.2.1
    import int8 and float8 too; for 10.8 to 10.14, which added FP4 and the operators of MXFP8, it is not known.

    TensorRT-RTX takes float8 and builds it, and the engine is wrong: all of 6 products with float8 weights in blocks
    of 2, 16 and 32, along either axis, were off by orders of magnitude or NaN, executed with 1.6.1 on an H200, which it
    does not list. One block was right, and so were int8 weights in blocks. The imported network is right
    (`trt-network`), so that only an executed engine shows it.

    ## Fix
    The dequantized weights as a constant, which takes two, four or eight times the memory. NUMERIC: the weights are
    bit-identical (of float8 there is a fix only where each product is a number of the result's type), but ONNX Runtime
    adds products with a constant in another order. Data that are not constant are quantized in floats. There is no fix
    for computed float8, for float8 with a zero point, for computed scales of constants, and above 256 MiB.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html
    """
    data, scale, output = node.require(0), node.require(1), node.require_output()
    shape, axis = model.shapes.shape(scale), node.attr("axis", 1)
    if node.attr("block_size", 0) == 0 or (shape is not None and all(size.value == 1 for size in shape)):
        return
    linear = read(node, model)
    elem = model.shapes.elem_type(data) if linear is None else linear.elem
    if elem not in (I4, I8) and (elem not in _FLOAT8 or node.op_type != "DequantizeLinear"):
        return
    title, taken = target_of(model).title, takes_blocks(model, elem)
    text = "refuses" if taken is False else "may refuse"
    if taken and linear is None:
        text = "dequantizes wrongly"
        taken = shape is not None and -len(shape) <= axis < len(shape) and shape[axis].value == 1
    if taken:
        return
    fix = None
    if linear is None:
        fix = _dequantize(node, model.shapes.elem_type(output))
    elif linear.quantizes or not data.is_constant:
        region = around(linear, model)
        if not linear.quantizes and any(other.block for other in region.quantizers):
            return  # a QuantizeLinear of the region reports it
        fix = floats(region, model)
    elif (weights := data.constant(WEIGHT_LIMIT)) is not None and 4 * weights.size <= WEIGHT_LIMIT:
        fix = as_floats(linear, weights, Safety.NUMERIC)
    yield Match(
        f"{data.name!r} is {name_of(elem)} in blocks, which {title} {text}",
        node=node,
        severity=Severity.ERROR if text == "refuses" else None,
        fix=fix,
        reads=(data, scale),
    )


def _dequantize(node: Node, elem: int | None) -> Fix | None:
    data, scales = (node.require(index).constant(WEIGHT_LIMIT) for index in (0, 1))
    if elem not in FLOATS or data is None or scales is None or node.input(2) is not None:
        return None
    if not data.size or 4 * data.size > WEIGHT_LIMIT or scales.ndim != data.ndim:
        return None
    axis = node.attr("axis", 1) % data.ndim
    spread = repeated(scales, axis, node.attr("block_size", 0), data.shape[axis])
    if spread is None or spread.shape != data.shape:
        return None
    with np.errstate(all="ignore"):
        numbers = data.astype(np.float64) * spread.astype(np.float64)
        stored = numbers.astype(numpy_type(elem))
    if not np.array_equal(stored.astype(np.float64), numbers, equal_nan=True):
        return None
    shop = Workshop()
    shop.put(node, shop.constant(node, stored, "weights"))
    return Fix(f"store the weights as {name_of(elem)}, which loses compression", shop.edits, Safety.NUMERIC)


_G = "g (float[N,2] x) => (float[N,4] v)"
_W8 = "int8[2,4] w = {1, 2, 3, 4, 5, 6, 7, 8}"
_W = "float8e4m3fn[2,4] w = {56, 60, 184, 1, 0, 126, 64, 48}"
_fixed = partial(Fixed, ir_version=10, opset=21, safety=Safety.NUMERIC)
_flagged = partial(Flagged, ir_version=10, opset=21, runs=False)
_silent = partial(Silent, ir_version=10, opset=21)

quantization_in_blocks.examples = [
    _fixed(
        "two blocks in each row (1, 2, 0.5 and 0.25)",
        before=f"""{_G} <{_W}, float[2,2] s = {{1, 2, 0.5, 0.25}}> {{
            y = DequantizeLinear<axis = -1, block_size = 2>(w, s)  v = MatMul(x, y) }}""",
        after=f"""{_G} <float[2,4] y = {{1, 1.5, -2, 0.00390625, 0, 224, 0.5, 0.125}}> {{
            v = MatMul(x, y) }}""",
    ),
    _fixed(
        "two blocks in each column, in half precision",
        before=f"""g (float16[N,2] x) => (float16[N,4] v)
            <{_W}, float16[2,4] s = {{f16(1.0, 1.0, 2.0, 2.0, 0.5, 0.5, 1.0, 1.0)}}> {{
            y = DequantizeLinear<axis = 0, block_size = 1>(w, s)  v = MatMul(x, y) }}""",
        after="""g (float16[N,2] x) => (float16[N,4] v)
            <float16[2,4] y = {f16(1.0, 1.5, -2.0, 0.00390625, 0.0, 224.0, 2.0, 0.5)}> { v = MatMul(x, y) }""",
    ),
    _fixed(
        "the weights are the model's output",
        before=f"""g (float[N] x) => (float[N] z, float[2,4] y) <{_W}, float[2,2] s = {{1, 2, 4, 8}}> {{
            z = Neg(x)  y = DequantizeLinear<axis = 1, block_size = 2>(w, s) }}""",
        after="""g (float[N] x) => (float[N] z, float[2,4] y)
            <float[2,4] k = {1, 1.5, -2, 0.00390625, 0, 1792, 16, 4}> { z = Neg(x)  y = Identity(k) }""",
    ),
    _flagged(
        "a product is no number of the type",
        f"""{_G.replace("float", "float16")} <{_W}, float16[2,2] s = {{f16(1.0, 2.0, 0.1, 1024.0)}}> {{
            y = DequantizeLinear<axis = -1, block_size = 2>(w, s)  v = MatMul(x, y) }}""",
    ),
    _flagged(
        "blocks of an input",
        """g (float8e4m3fn[2,4] w, float[N,2] x) => (float[N,4] v) <float[2,2] s = {1, 2, 0.5, 0.25}> {
            y = DequantizeLinear<axis = -1, block_size = 2>(w, s)  v = MatMul(x, y) }""",
    ),
    _silent(
        "one block",
        f"""{_G} <{_W}, float[2,1] s = {{1, 2}}> {{
            y = DequantizeLinear<axis = -1, block_size = 4>(w, s)  v = MatMul(x, y) }}""",
    ),
    _silent(
        "a scale for each column",
        f"""{_G} <{_W}, float[4] s = {{1, 2, 4, 8}}> {{
            y = DequantizeLinear<axis = 1>(w, s)  v = MatMul(x, y) }}""",
    ),
    _silent(
        "int8",
        f"""{_G} <{_W8}, float[2,2] s = {{1, 2, 0.5, 0.25}}> {{
            y = DequantizeLinear<axis = -1, block_size = 2>(w, s)  v = MatMul(x, y) }}""",
    ),
    _fixed(
        "int8 weights in blocks, for TensorRT 10.6",
        before=f"""{_G} <{_W8}, float[2,2] s = {{1, 2, 0.5, 0.25}}> {{
            y = DequantizeLinear<axis = -1, block_size = 2>(w, s)  v = MatMul(x, y) }}""",
        after=f"""{_G} <float[2,4] y = {{1, 2, 6, 8, 2.5, 3, 1.75, 2}}> {{ v = MatMul(x, y) }}""",
        target="10.6",
    ),
    _fixed(
        "one block of float8 (MXFP8), for TensorRT 10.6",
        before=f"""{_G} <{_W}, float[2,1] s = {{1, 2}}> {{
            y = DequantizeLinear<axis = -1, block_size = 4>(w, s)  v = MatMul(x, y) }}""",
        after=f"""{_G} <float[2,4] y = {{1, 1.5, -1, 0.001953125, 0, 896, 4, 1}}> {{ v = MatMul(x, y) }}""",
        target="10.6",
    ),
    _fixed(
        "data in blocks, for TensorRT 10.6: in floats",
        before="""g (float[N,4] x) => (float[N,4] y) <float[1,2] s = {1, 2}, int8[1,2] z = {0, 0}> {
            q = QuantizeLinear<axis = 1, block_size = 2>(x, s, z)
            y = DequantizeLinear<axis = 1, block_size = 2>(q, s, z) }""",
        after="""g (float[N,4] x) => (float[N,4] y)
            <float[1,4] s = {1, 1, 2, 2}, float[1,4] z = {0, 0, 0, 0}, float l = {-128}, float h = {127}> {
            d = Div(x, s)  r = Round(d)  a = Add(r, z)  c = Clip(a, l, h)  y = Mul(c, s) }""",
        target="10.6",
    ),
    _flagged(
        "TensorRT 10.12 was not measured",
        f"""{_G} <{_W8}, float[2,2] s = {{1, 2, 0.5, 0.25}}> {{
            y = DequantizeLinear<axis = -1, block_size = 2>(w, s)  v = MatMul(x, y) }}""",
        target="10.12",
    ),
    _silent(
        "TensorRT 10.6 takes blocks of int4",
        f"""{_G} <int4[2,4] w = {{33, 67, 101, 7}}, float[2,2] s = {{1, 2, 0.5, 0.25}}> {{
            y = DequantizeLinear<axis = -1, block_size = 2>(w, s)  v = MatMul(x, y) }}""",
        target="10.6",
    ),
]


@rule("QDQ025", ops=(*QUANTIZE, *DEQUANTIZE), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[57])
def omitted_zero_point(node: Node, model: Model) -> Iterator[Match]:
    """A QuantizeLinear or DequantizeLinear of int8 without a zero point, which TensorRT 8 requires.

    ## Why it matters
    ONNX's zero point is optional, and 0 without it. The parser of 8.6.1 reads the third input of a node that has two:
    `vector::_M_range_check: __n (which is 2) >= this->size() (which is 2)` (executed: TensorRT 8.6.1, H200, in six
    exports). The source of 8.4 says it: `This version of TensorRT requires 3 inputs for the DequantizeLinear
    operator.` Since 9.0 the input may be missing. The other rules write none.

    ## Fix
    Zeros in the shape of the scales. Exact. No fix if that shape is not static.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    - https://github.com/onnx/onnx-tensorrt/blob/release/8.6-GA/builtin_op_importers.cpp
    """
    target = target_of(model)
    if target.package != "tensorrt" or target.oldest >= (9,):
        return
    linear = read(node, model)
    if linear is None or linear.zero is not None or linear.elem != I8 or linear.block:
        return
    shape, draft = model.shapes.static_shape(linear.scale), Draft(node)
    if shape is not None and is_small(*shape):
        draft.set_input(node, 2, draft.constant(np.zeros(shape, np.int8), "zero_point"))
    yield Match(
        f"{node.op_type} without a zero point, which {target.title} requires",
        node=node,
        fix=Fix("write the zero point 0", draft.edits) if draft.edits else None,
        reads=(linear.scale,),
    )


_W3 = "int8[2,3] w = {1, 2, 3, 4, 5, 6}"
omitted_zero_point.examples = [
    Fixed(
        "a weight, a scale for each row",
        before=f"""g (float[N,2] x) => (float[N,3] y) <{_W3}, float[2] s = {{0.5, 2}}> {{
            d = DequantizeLinear<axis = 0>(w, s)  y = MatMul(x, d) }}""",
        after=f"""g (float[N,2] x) => (float[N,3] y) <{_W3}, float[2] s = {{0.5, 2}}, int8[2] z = {{0, 0}}> {{
            d = DequantizeLinear<axis = 0>(w, s, z)  y = MatMul(x, d) }}""",
        target="8.6",
    ),
    Fixed(
        "data that are quantized to int8 by an attribute",
        before="""g (float[N,2] x) => (float[N,2] y) <float s = {0.5}> {
            q = QuantizeLinear<output_dtype = 3>(x, s)  y = DequantizeLinear(q, s) }""",
        after="""g (float[N,2] x) => (float[N,2] y) <float s = {0.5}, int8 z = {0}, int8 o = {0}> {
            q = QuantizeLinear<output_dtype = 3>(x, s, z)  y = DequantizeLinear(q, s, o) }""",
        target="8.4",
        opset=21,
        ir_version=10,
    ),
    Flagged(
        "scales of unknown number",
        f"g (float[N] s) => (float[2,N] y) <{_W3}> {{ y = DequantizeLinear<axis = 1>(w, s) }}",
        target="8.6",
    ),
    Silent(
        "with a zero point",
        f"g (float s) => (float[2,3] y) <{_W3}, int8 z = {{0}}> {{ y = DequantizeLinear(w, s, z) }}",
        target="8.6",
    ),
    Silent(
        "TensorRT 9.0 needs none",
        f"g (float s) => (float[2,3] y) <{_W3}> {{ y = DequantizeLinear(w, s) }}",
        target="9.0",
    ),
]
