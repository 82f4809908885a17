"""Products in half precision: scaled ones, powers and long dot products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, Value, rule

from ._common import ANY_RANK, HALF, HIGHEST, producer, rank_of, scalar, type_of


@rule("PRC006", ops=["Mul", "Div"], safety=Safety.NUMERIC, hazards=[42], types=[HALF])
def scale_after_product(node: Node, model: Model) -> Iterator[Match]:
    """A half-precision product of two non-constant matrices that is scaled down only afterwards.

    ## Why it matters
    Attention scores `Q @ K.T / 8` overflow in the product although the quotient would not: with 128 elements of 100
    and 10 each, `onnx.reference` gives infinity instead of 16000, and a Softmax turns it into NaN. TensorRT-RTX 1.7.1
    builds it without a warning. ONNX Runtime computes half precision in float32 on the CPU, so it does not reveal the
    overflow.

    ## Fix
    Scale the left factor first. NUMERIC: exact for powers of two unless values become subnormal, otherwise each
    element is rounded; where the product overflowed, finite values replace infinity, which verification judges by the
    original in higher precision. No fix if another node reads the product.

    Products with a constant matrix are not reported: their scale belongs in the weight.

    ## References
    - NVIDIA/TensorRT issues 2922, 3136, 3619, 4328
    """
    for index in (0,) if node.op_type == "Div" else (0, 1):
        product, scale = node.input(index), node.input(1 - index)
        matmul = producer(product, "MatMul")
        factor = scalar(scale, most=rank_of(product, model))
        if matmul is None or product is None or scale is None or factor is None or not _shrinks(node, factor):
            continue
        left, right = matmul.input(0), matmul.input(1)
        if left is None or right is None or left.is_constant or right.is_constant:
            return
        if type_of(left, model) != HALF or type_of(scale, model) != HALF or not _matrix(left, right, model):
            return
        alone = product.use_count == 1 and product.replaceable and matmul.scope is node.scope
        yield Match(
            f"a product in half precision is scaled by {factor:g} only afterwards: it may overflow first",
            node=node,
            fix=_before(node, matmul, left, right, scale) if alone else None,
            reads=(matmul, left, right, scale),
        )
        return


def _shrinks(node: Node, factor: float) -> bool:
    return 1 < abs(factor) < float("inf") if node.op_type == "Div" else 0 < abs(factor) < 1


def _matrix(left: Value, right: Value, model: Model) -> bool:
    """Whether both have rank 2 or more, so that a scale of rank 1 changes no rank."""
    ranks = [model.shapes.rank(left), model.shapes.rank(right)]
    return all(rank is not None and rank >= 2 for rank in ranks)


def _before(node: Node, matmul: Node, left: Value, right: Value, scale: Value) -> Fix | None:
    if node.output() is None or any(node.scope.lookup(one.name) is not one for one in (left, right)):
        return None
    draft = Draft(node)
    scaled = draft.add(node.op_type, [left, scale], hint="scaled")
    draft.replace_output(node, draft.add("MatMul", [scaled, right]))
    return Fix("scale the left factor before the product", draft.edits, Safety.NUMERIC)


_IO = "g (float16[2,3,8] q, float16[2,8,3] k) => (float16[2,3,3] y)"
_EIGHT, _EIGHTH = "float16 c = {f16(8.0)}", "float16 c = {f16(0.125)}"


_fixed = partial(Fixed, safety=Safety.NUMERIC, opset=17, ir_version=8)
scale_after_product.examples = [
    _fixed(
        "divided",
        f"{_IO} <{_EIGHT}> {{ s = MatMul(q, k)  y = Div(s, c) }}",
        f"{_IO} <{_EIGHT}> {{ p = Div(q, c)  y = MatMul(p, k) }}",
    ),
    _fixed(
        "multiplied by a constant first operand",
        f"{_IO} <{_EIGHTH}> {{ s = MatMul(q, k)  d = Mul(c, s)  y = Softmax<axis=-1>(d) }}",
        f"{_IO} <{_EIGHTH}> {{ p = Mul(q, c)  s = MatMul(p, k)  y = Softmax<axis=-1>(s) }}",
    ),
    _fixed(
        "a scale of rank 1",
        f"{_IO} <float16[1] c = {{f16(0.125)}}> {{ s = MatMul(q, k)  y = Mul(s, c) }}",
        f"{_IO} <float16[1] c = {{f16(0.125)}}> {{ p = Mul(q, c)  y = MatMul(p, k) }}",
    ),
    _fixed(
        "a scale of the product's rank",
        f"{_IO} <float16[1,1,1] c = {{f16(0.125)}}> {{ s = MatMul(q, k)  y = Mul(s, c) }}",
        f"{_IO} <float16[1,1,1] c = {{f16(0.125)}}> {{ p = Mul(q, c)  y = MatMul(p, k) }}",
    ),
    Silent(
        "a scale that raises the rank",
        "g (float16[2,3,8] q, float16[2,8,3] k) => (float16[1,2,3,3] y) <float16[1,1,1,1] c = {f16(0.125)}>"
        " { s = MatMul(q, k)  y = Mul(s, c) }",
    ),
    Flagged(
        "the product is a graph output",
        "g (float16[2,3,8] q, float16[2,8,3] k) => (float16[2,3,3] y, float16[2,3,3] s)"
        f" <{_EIGHT}> {{ s = MatMul(q, k)  y = Div(s, c) }}",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "another node reads the product",
        "g (float16[2,3,8] q, float16[2,8,3] k) => (float16[2,3,3] y, float16[2,3,3] z)"
        f" <{_EIGHT}> {{ s = MatMul(q, k)  y = Div(s, c)  z = Neg(s) }}",
        safety=Safety.NUMERIC,
    ),
    Silent("scaled before the product", f"{_IO} <{_EIGHT}> {{ p = Div(q, c)  y = MatMul(p, k) }}"),
    Silent("scaled up", f"{_IO} <{_EIGHT}> {{ s = MatMul(q, k)  y = Mul(s, c) }}"),
    Silent("a constant divided by scores", f"{_IO} <{_EIGHT}> {{ s = MatMul(q, k)  y = Div(c, s) }}"),
    Silent("divided by 0", f"{_IO} <float16 c = {{f16(0.0)}}> {{ s = MatMul(q, k)  y = Div(s, c) }}"),
    Silent("times 0", f"{_IO} <float16 c = {{f16(0.0)}}> {{ s = MatMul(q, k)  y = Mul(s, c) }}"),
    Silent(
        "in float32",
        "g (float[2,3,8] q, float[2,8,3] k) => (float[2,3,3] y) <float c = {8}>"
        " { s = MatMul(q, k)  y = Div(s, c) }",
    ),
    Silent(
        "a constant weight",
        "g (float16[2,8] q) => (float16[2,1] y) <float16[8,1] w = {1,2,3,4,5,6,7,8}, float16 c = {18432}>"
        " { s = MatMul(q, w)  y = Div(s, c) }",
    ),
    Silent(
        "per-column scales",
        f"{_IO} <float16[3] c = {{f16(8.0, 8.0, 8.0)}}> {{ s = MatMul(q, k)  y = Div(s, c) }}",
    ),
    Silent(
        "a scale that may be overridden",
        "g (float16[2,3,8] q, float16[2,8,3] k, float16 c) => (float16[2,3,3] y)"
        f" <{_EIGHT}> {{ s = MatMul(q, k)  y = Div(s, c) }}",
    ),
    Silent(
        "vectors, whose rank a scale of rank 1 would change",
        "g (float16[8] q, float16[8] k) => (float16[1] y) <float16[1] c = {f16(0.125)}>"
        " { s = MatMul(q, k)  y = Mul(s, c) }",
    ),
]


@rule("PRC008", ops=["Pow", "Exp"], severity=Severity.INFO, hazards=[42], types=[HALF])
def power_in_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A power or exponential in half precision, which is infinite for moderate operands.

    ## Why it matters
    float16 ends at 65504: a square exceeds it from 256 on, a cube (as in GELU's tanh approximation) from 40.3, an
    exponential from 11.1. With `onnx.reference` such results are infinite, and a following Tanh or quotient may hide
    it or produce NaN. TensorRT-RTX 1.7.1 builds these models without a warning; it has one for the squares of norms
    only (see PRC001).

    ## Fix
    None: cast back to half precision the result is as large as before. Keep the following nodes in float32 as well,
    until the values are small again, or bound the operand by Clip. Operands that are never positive by construction
    (after maximum subtraction, minus a square or a magnitude) are not reported, and neither are squares that are
    averaged or summed, which other rules cover.

    ## References
    - NVIDIA/TensorRT issues 2922, 3136, 4328
    - https://en.wikipedia.org/wiki/Half-precision_floating-point_format
    """
    data, output = node.require(0), node.require_output()
    if type_of(data, model) != HALF:
        return
    if any(use.node.is_onnx and use.node.op_type.startswith("Reduce") for use in output.uses):
        return
    if node.op_type == "Exp":
        if not _not_positive(data):
            yield Match("an exponential in half precision: infinite from 11.1 on", node=node)
        return
    exponent = scalar(node.input(1), most=ANY_RANK)
    if exponent is not None and exponent >= 1.5:
        limit = HIGHEST ** (1 / exponent)
        yield Match(f"the power {exponent:g} in half precision: infinite from {limit:.3g} on", node=node)


def _not_positive(value: Value) -> bool:
    """Whether the value is never positive: ``x - max(x)``, ``-x * x``, ``-|x|``."""
    less = producer(value, "Sub")
    if less is not None and (top := producer(less.input(1), "ReduceMax")) is not None:
        return top.input(0) is less.input(0)
    negated = producer(value, "Neg")
    source = None if negated is None else producer(negated.input(0), "Abs", "Mul", "Relu", "Sqrt")
    return source is not None and (source.op_type != "Mul" or source.input(0) is source.input(1))


_POWER = "g (float16[N,8] x) => (float16[N,8] y)"


_flagged = partial(Flagged, opset=17, ir_version=8)
_silent = partial(Silent, opset=17, ir_version=8)
power_in_half_precision.examples = [
    _flagged(
        "the cube in the tanh approximation of GELU",
        f"{_POWER} <float16 c = {{f16(3.0)}}> {{ p = Pow(x, c)  y = Tanh(p) }}",
    ),
    _flagged("a square", f"{_POWER} <float16 c = {{f16(2.0)}}> {{ p = Pow(x, c)  y = Neg(p) }}"),
    _flagged("an exponent in another type", f"{_POWER} <int64 c = {{2}}> {{ p = Pow(x, c)  y = Neg(p) }}"),
    _flagged("an exponential", f"{_POWER} {{ y = Exp(x) }}"),
    _silent(
        "exponential after maximum subtraction",
        f"{_POWER} {{ h = ReduceMax<axes=[1]>(x)  d = Sub(x, h)  y = Exp(d) }}",
    ),
    _silent("exponential of minus a square", f"{_POWER} {{ q = Mul(x, x)  d = Neg(q)  y = Exp(d) }}"),
    _silent("exponential of minus a magnitude", f"{_POWER} {{ q = Abs(x)  d = Neg(q)  y = Exp(d) }}"),
    _silent("a root", f"{_POWER} <float16 c = {{f16(0.5)}}> {{ y = Pow(x, c) }}"),
    _silent("a reciprocal", f"{_POWER} <float16 c = {{f16(-1.0)}}> {{ p = Abs(x)  y = Pow(p, c) }}"),
    _silent(
        "a square in a mean is covered by the norm and sum rules",
        f"{_POWER} <float16 c = {{f16(2.0)}}> {{ p = Pow(x, c)  y = ReduceMean<axes=[1]>(p) }}".replace(
            "8] y", "1] y"
        ),
    ),
    _silent(
        "the exponential of a decomposed Softmax is covered by PRC007",
        f"{_POWER} <int64[1] k = {{1}}> {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }}",
    ),
    _silent("in float32", "g (float[N,8] x) => (float[N,8] y) { y = Exp(x) }"),
    _silent("non-constant exponents", "g (float16[N] x, float16[N] p) => (float16[N] y) { y = Pow(x, p) }"),
]


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


def _mat_mul(a: str, b: str, elem: str = "float16", y: str = "2,2") -> str:
    return f"g ({elem}[{a}] a, {elem}[{b}] b) => ({elem}[{y}] y) {{ y = MatMul(a, b) }}"


long_dot_product.examples = [
    _flagged("a product of two non-constant matrices", _mat_mul("2,16384", "16384,2")),
    _flagged("a vector as the first operand", _mat_mul("20000", "20000,2", y="2")),
    _flagged("the length is known only from the second operand", _mat_mul("2,K", "16384,2")),
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
    _silent("shorter", _mat_mul("2,16383", "16383,2")),
    _silent("in float32", _mat_mul("2,16384", "16384,2", elem="float")),
    _silent("of unknown length", _mat_mul("2,K", "K,2")),
    _silent("large in another dimension", _mat_mul("16384,2", "2,2", y="16384,2")),
]
