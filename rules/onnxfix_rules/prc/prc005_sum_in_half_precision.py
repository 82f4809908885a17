"""PRC005: sums, squares and exponentials that overflow in half precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule

from ._common import FLOAT, HALF, rank_of, scalar, type_of

_SMALL_RESULT = ("ReduceL2", "ReduceLogSumExp")
_SUMS = ("ReduceL1", "ReduceLogSum", "ReduceSum", "ReduceSumSquare")


@rule(
    "PRC005",
    ops=(*_SMALL_RESULT, *_SUMS),
    safety=Safety.NUMERIC,
    severity=Severity.INFO,
    hazards=[42],
    types=[HALF],
)
def sum_in_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A sum, or a root or logarithm of one, in half precision, which may exceed 65504 internally.

    ## Why it matters
    `ReduceL2` squares first: 100 elements of 300 have the length 3000, and `onnx.reference` gives infinity in float16
    for the sum of their squares. TensorRT-RTX 1.7.1 builds such models without a warning. ONNX Runtime computes half
    precision in float32 on the CPU, so it does not reveal the overflow.

    ## Fix
    For `ReduceL2` and `ReduceLogSumExp`, whose results are smaller than their sums: float32 between two Casts. The
    same applies to a sum whose only reader is a division, or a multiplication by a constant below 1. NUMERIC:
    rounding, and finite values instead of infinity, which verification judges by the original in higher precision.

    Other sums are only reported: cast back, they are as large as before. Scale their input, or keep the following
    nodes in float32.

    ## References
    - NVIDIA/TensorRT issues 2922, 3136, 4328
    """
    data = node.require(0)
    node.require_output()
    if type_of(data, model) != HALF:
        return
    if node.op_type in _SUMS:
        scaled = _scaled(node, model)
        yield Match(
            f"{node.op_type} in half precision: beyond 65504 it is infinite",
            node=node,
            fix=None if scaled is None else _wide(node, *scaled),
            severity=Severity.INFO if scaled is None else Severity.WARNING,
            reads=() if scaled is None else scaled[:1],
        )
        return
    yield Match(
        f"{node.op_type} in half precision: its sum may exceed 65504 although its result would not",
        node=node,
        severity=Severity.WARNING,
        fix=_wide(node, node, None),
    )


def _scaled(node: Node, model: Model) -> tuple[Node, np.ndarray[Any, Any]] | None:
    """The Div or Mul by a constant that is the only reader of a sum and reduces it, and that constant."""
    total = node.output()
    if total is None or total.use_count != 1 or not total.replaceable:
        return None
    [use] = total.uses
    last, other = use.node, use.node.input(1 - use.index)
    factor = scalar(other, most=rank_of(total, model))
    if factor is None or other is None or last.scope is not node.scope or last.output() is None:
        return None
    smaller = (last.op_type == "Div" and use.index == 0 and abs(factor) > 1) or (
        last.op_type == "Mul" and 0 < abs(factor) < 1
    )
    array = other.constant() if last.is_onnx and smaller and np.isfinite(factor) else None
    return None if array is None else (last, array)


def _wide(node: Node, last: Node, factor: np.ndarray[Any, Any] | None) -> Fix:
    """``node``, and ``last`` if that is another node, which scales by ``factor``, in float32."""
    data, output = node.input(0), last.output()
    assert data is not None
    assert output is not None
    attributes: dict[str, Any] = {a.name: node.attr(a.name) for a in node.proto.attribute}
    draft = Draft(last)
    wide = draft.add("Cast", [data], hint="wide", to=FLOAT)
    result = draft.add(node.op_type, [wide, *node.inputs[1:]], **attributes)
    if factor is not None:
        result = draft.add(last.op_type, [result, draft.constant(factor.astype(np.float32), "scale")])
    draft.remove(last)
    draft.add("Cast", [result], output=output.name, to=HALF)
    return Fix("compute in float32 between Casts", draft.edits, Safety.NUMERIC)


def _fixed(why: str, before: str, after: str, opset: int) -> Fixed:
    return Fixed(why, before, after, safety=Safety.NUMERIC, opset=opset, ir_version=8)


def _flagged(why: str, before: str, opset: int = 17) -> Flagged:
    return Flagged(why, before, safety=Safety.NUMERIC, opset=opset, ir_version=8)


_IO = "g (float16[N,8] x) => (float16[N,1] y)"


sum_in_half_precision.examples = [
    _fixed(
        "a length, axes as an attribute",
        f"{_IO} {{ y = ReduceL2<axes=[1]>(x) }}",
        f"{_IO} {{ w = Cast<to=FLOAT>(x)  r = ReduceL2<axes=[1]>(w)  y = Cast<to=FLOAT16>(r) }}",
        13,
    ),
    _fixed(
        "a length, axes as an input",
        f"{_IO} <int64[1] a = {{1}}> {{ r = ReduceL2(x, a)  y = Neg(r) }}",
        f"{_IO} <int64[1] a = {{1}}> {{ w = Cast<to=1>(x)  t = ReduceL2(w, a)  r = Cast<to=10>(t)  y = Neg(r) }}",
        18,
    ),
    _fixed(
        "exponentials under a logarithm",
        f"{_IO} {{ y = ReduceLogSumExp<axes=[1]>(x) }}",
        f"{_IO} {{ w = Cast<to=FLOAT>(x)  r = ReduceLogSumExp<axes=[1]>(w)  y = Cast<to=FLOAT16>(r) }}",
        11,
    ),
    _fixed(
        "a sum with a division",
        f"{_IO} <int64[1] a = {{1}}, float16 n = {{f16(8.0)}}> {{ s = ReduceSum(x, a)  y = Div(s, n) }}",
        f"{_IO} <int64[1] a = {{1}}, float m = {{8}}> {{ w = Cast<to=FLOAT>(x)  s = ReduceSum(w, a)  d = Div(s, m)"
        "  y = Cast<to=FLOAT16>(d) }",
        17,
    ),
    _fixed(
        "a sum of squares times a constant below 1, axes as an attribute",
        f"{_IO} <float16 n = {{f16(0.125)}}> {{ s = ReduceSumSquare<axes=[1]>(x)  y = Mul(n, s) }}",
        f"{_IO} <float m = {{0.125}}> {{ w = Cast<to=FLOAT>(x)  s = ReduceSumSquare<axes=[1]>(w)  d = Mul(s, m)"
        "  y = Cast<to=FLOAT16>(d) }",
        13,
    ),
    _flagged(
        "a sum with other readers before its division",
        "g (float16[N,8] x) => (float16[N,1] y, float16[N,1] z) <int64[1] a = {1}, float16 n = {f16(8.0)}>"
        " { s = ReduceSum(x, a)  y = Div(s, n)  z = Neg(s) }",
    ),
    _flagged(
        "a sum that is scaled up",
        f"{_IO} <int64[1] a = {{1}}, float16 n = {{f16(8.0)}}> {{ s = ReduceSum(x, a)  y = Mul(s, n) }}",
    ),
    _flagged(
        "a divided sum",
        f"{_IO} <int64[1] a = {{1}}, float16 n = {{f16(8.0)}}> {{ s = ReduceSum(x, a)  y = Div(n, s) }}",
    ),
    _flagged("a sum whose result is as large", f"{_IO} <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}"),
    _flagged("a sum of squares", f"{_IO} {{ y = ReduceSumSquare<axes=[1]>(x) }}"),
    _flagged(
        "a sum of exponentials: a decomposed Softmax",
        "g (float16[N,8] x) => (float16[N,8] y) <int64[1] a = {1}>"
        " { e = Exp(x)  s = ReduceSum(e, a)  y = Div(e, s) }",
    ),
    Silent(
        "in float32",
        "g (float[N,8] x) => (float[N,1] y) { y = ReduceL2<axes=[1]>(x) }",
        opset=17,
        ir_version=8,
    ),
    Silent(
        "in bfloat16",
        "g (bfloat16[N,8] x) => (bfloat16[N,1] y) { y = ReduceL2<axes=[1]>(x) }",
        opset=17,
        ir_version=8,
        runs=False,
    ),
    Silent(
        "axes that depend on the function's caller",
        '<ir_version: 10, opset_import: ["" : 13, "my" : 1]>'
        f" {_IO} {{ y = my.Length<over=[1]>(x) }}"
        ' <domain: "my", opset_import: ["" : 13]> Length <over>(p) => (r)'
        " { h = Cast<to=FLOAT16>(p)  r = ReduceL2<axes: ints = @over>(h) }",
    ),
    Silent("an exponential alone", "g (float16[N] x) => (float16[N] y) { y = Exp(x) }"),
    Silent("a maximum", f"{_IO} {{ y = ReduceMax<axes=[1]>(x) }}", opset=17, ir_version=8),
    Silent(
        "GlobalAveragePool in half",
        "g (float16[1,2,64,64] x) => (float16[1,2,1,1] y) { y = GlobalAveragePool(x) }",
        opset=17,
    ),
    Silent(
        "Pow in half, no norm",
        "g (float16[2,8] x) => (float16[2,8] y) <float16 e = {f16(3.0)}> { y = Pow(x, e) }",
        opset=17,
    ),
    Flagged(
        "ReduceSum times 1/n",
        """g (float16[2,8] x) => (float16[2,1] y) <int64[1] a = {1}, float16 c = {f16(0.125)}> { s = ReduceSum(x, a)
            y = Mul(s, c) }""",
        opset=17,
    ),
    Silent(
        "product with a large weight",
        "g (float16[2,4096] x, float16[4096,2] w) => (float16[2,2] y) { y = MatMul(x, w) }",
        opset=17,
    ),
]
