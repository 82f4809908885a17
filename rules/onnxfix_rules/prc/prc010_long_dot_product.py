"""PRC010: matrix products with a very long reduction in half precision."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule

from ._common import HALF, type_of

LONG = 1 << 14
"""This many products of two values of magnitude 2 sum to 65536."""


@rule("PRC010", ops=["MatMul", "Gemm", "Conv"], severity=Severity.INFO, hazards=[42], types=[HALF])
def long_dot_product(node: Node, model: Model) -> Iterator[Match]:
    """A matrix product or convolution in half precision that sums 16384 products or more per result.

    ## Why it matters
    This many products of two values of magnitude 2, all of one sign, exceed 65504, float16's largest value. The
    accumulation type depends on the kernel; the result is float16 in any case, and then infinite. TensorRT-RTX 1.7.1
    builds such models without a warning. ONNX Runtime computes half precision in float32 on the CPU, so it does not
    reveal the overflow.

    ## Fix
    None: whether such values occur depends on the data. Scale an operand down before and the result up later, or keep
    the product and its readers in float32.

    ## References
    - NVIDIA/TensorRT issues 2922, 3136, 4328
    - NVIDIA ModelOpt, AutoCast (`max_depth_of_reduction`)
    """
    data = node.require(0)
    if type_of(data, model) != HALF:
        return
    count = _length(node, model)
    if count >= LONG:
        yield Match(f"{node.op_type} in half precision sums {count:,} products per result", node=node)


def _length(node: Node, model: Model) -> int:
    """Number of products in one sum, 0 if unknown."""
    left, right = node.input(0), node.input(1)
    first = None if left is None else model.shapes.shape(left)
    second = None if right is None else model.shapes.shape(right)
    if node.op_type == "Conv":
        sizes = [None] if second is None else [dim.value for dim in second[1:]]
        return 0 if None in sizes else math.prod(size for size in sizes if size is not None)
    turned = bool(node.attr("transA", 0)), bool(node.attr("transB", 0))
    found = []
    if first:
        found.append(first[-2 if turned[0] else -1].value)
    if second:
        found.append(second[-1 if turned[1] or len(second) == 1 else -2].value)
    return max((size for size in found if size is not None), default=0)


def _flagged(why: str, before: str) -> Flagged:
    return Flagged(why, before, opset=17, ir_version=8)


def _silent(why: str, before: str) -> Silent:
    return Silent(why, before, opset=17, ir_version=8)


long_dot_product.examples = [
    _flagged(
        "a product of two non-constant matrices",
        "g (float16[2,16384] a, float16[16384,2] b) => (float16[2,2] y) { y = MatMul(a, b) }",
    ),
    _flagged(
        "a vector as the first operand",
        "g (float16[20000] a, float16[20000,2] b) => (float16[2] y) { y = MatMul(a, b) }",
    ),
    _flagged(
        "the length is known only from the second operand",
        "g (float16[2,K] a, float16[16384,2] b) => (float16[2,2] y) { y = MatMul(a, b) }",
    ),
    _flagged(
        "Gemm with a transposed first operand",
        "g (float16[16384,2] a, float16[K,3] b) => (float16[2,3] y) { y = Gemm<transA=1>(a, b) }",
    ),
    _flagged(
        "Gemm with a transposed second operand",
        "g (float16[2,K] a, float16[3,16384] b) => (float16[2,3] y) { y = Gemm<transB=1>(a, b) }",
    ),
    _flagged(
        "a convolution with a kernel as large as the image",
        "g (float16[1,64,16,16] a, float16[2,64,16,16] w) => (float16[1,2,1,1] y) { y = Conv(a, w) }",
    ),
    _silent(
        "shorter",
        "g (float16[2,16383] a, float16[16383,2] b) => (float16[2,2] y) { y = MatMul(a, b) }",
    ),
    _silent(
        "in float32",
        "g (float[2,16384] a, float[16384,2] b) => (float[2,2] y) { y = MatMul(a, b) }",
    ),
    _silent(
        "of unknown length",
        "g (float16[2,K] a, float16[K,2] b) => (float16[2,2] y) { y = MatMul(a, b) }",
    ),
    _silent(
        "large in another dimension",
        "g (float16[16384,2] a, float16[2,2] b) => (float16[16384,2] y) { y = MatMul(a, b) }",
    ),
]
