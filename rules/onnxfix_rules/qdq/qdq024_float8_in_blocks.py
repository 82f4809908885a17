"""QDQ024: float8 that is dequantized in blocks, which engines compute wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Silent, name_of, rule

from ._common import FLOATS, WEIGHT_LIMIT, Workshop, numpy_type, repeated

_FLOAT8 = (17, 18, 19, 20)
"""FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2 and FLOAT8E5M2FNUZ."""


@rule("QDQ024", ops=["DequantizeLinear"], safety=Safety.EXACT, hazards=[32], types=_FLOAT8)
def float8_in_blocks(node: Node, model: Model) -> Iterator[Match]:
    """A DequantizeLinear of float8 with a scale for each of several blocks.

    ## Why it matters
    TensorRT documents blocks of weights for 4-bit types, and for float8 only where it quantizes itself (MXFP8).
    TensorRT-RTX takes the node and builds it, and the engine is wrong: all of 6 products with float8 weights in blocks
    of 2, 16 and 32, along either axis, were off by orders of magnitude or NaN, executed with 1.6.1 on an H200, which it
    does not list. One block was right, and so were int8 weights in blocks. The imported network is right
    (`trt-network`), so that only an executed engine shows it.

    ## Fix
    The dequantized weights as a constant, which takes two or four times the memory. Exact: only where each product is a
    number of the result's type. There is no fix if data or scales are computed, with a zero point, and above 256 MiB.

    ## References
    - https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    - https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html
    """
    data, scale, output = node.require(0), node.require(1), node.require_output()
    if node.attr("block_size", 0) == 0 or model.shapes.elem_type(data) not in _FLOAT8:
        return
    shape = model.shapes.shape(scale)
    axis = node.attr("axis", 1)
    if shape is not None and -len(shape) <= axis < len(shape) and shape[axis].value == 1:
        return
    yield Match(
        f"{data.name!r} is float8 in blocks, which engines dequantize wrongly",
        node=node,
        fix=_dequantize(node, model.shapes.elem_type(output)),
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
    return Fix(f"store the weights as {name_of(elem)}", shop.edits)


_G = "g (float[N,2] x) => (float[N,4] v)"
_W = "float8e4m3fn[2,4] w = {56, 60, 184, 1, 0, 126, 64, 48}"
_fixed = partial(Fixed, ir_version=10, opset=21)
_flagged = partial(Flagged, ir_version=10, opset=21, runs=False)
_silent = partial(Silent, ir_version=10, opset=21)

float8_in_blocks.examples = [
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
        f"""{_G} <int8[2,4] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[2,2] s = {{1, 2, 0.5, 0.25}}> {{
            y = DequantizeLinear<axis = -1, block_size = 2>(w, s)  v = MatMul(x, y) }}""",
    ),
]
