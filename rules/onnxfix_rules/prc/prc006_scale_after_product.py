"""PRC006: attention scores that are scaled down after their product."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, Value, rule

from ._common import HALF, producer, rank_of, scalar, type_of


@rule(
    "PRC006", ops=["Mul", "Div"], safety=Safety.NUMERIC, severity=Severity.WARNING, hazards=[42], types=[HALF]
)
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
    output = node.output()
    if (
        output is None
        or node.scope.lookup(left.name) is not left
        or node.scope.lookup(right.name) is not right
    ):
        return None
    draft = Draft(node)
    scaled = draft.add(node.op_type, [left, scale], hint="scaled")
    draft.remove(node)
    draft.add("MatMul", [scaled, right], output=output.name)
    return Fix("scale the left factor before the product", draft.edits, Safety.NUMERIC)


_IO = "g (float16[2,3,8] q, float16[2,8,3] k) => (float16[2,3,3] y)"
_EIGHT, _EIGHTH = "float16 c = {f16(8.0)}", "float16 c = {f16(0.125)}"


def _fixed(why: str, before: str, after: str) -> Fixed:
    return Fixed(why, before, after, safety=Safety.NUMERIC, opset=17, ir_version=8)


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
