"""PRC007: a decomposed Softmax in half precision that does not subtract the maximum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Silent, Value, rule

from ._common import HALF, producer, rank_of, type_of
from ._norm import axes_of


@rule("PRC007", ops=["Div"], safety=Safety.NUMERIC, hazards=[42], types=[HALF])
def decomposed_softmax(node: Node, model: Model) -> Iterator[Match]:
    """A decomposed Softmax in half precision without maximum subtraction: Exp exceeds 65504 from 11.1 on.

    ## Why it matters
    `exp(12)` is infinite in float16, and infinity over infinity is NaN: a row 12, 0, 0, … gives NaN with
    `onnx.reference` instead of 0.99. The sum overflows sooner. TensorRT-RTX 1.7.1 builds such models without a
    warning; its Softmax subtracts the maximum, as ONNX's does. ONNX Runtime computes half precision in float32 on the
    CPU, so it does not reveal the overflow.

    ## Fix
    One Softmax. NUMERIC: different rounding; after an overflow, finite values replace infinity and NaN, which
    verification judges by the original in higher precision. No fix if another node reads the exponentials or their
    sum, over several axes, over an inner axis before opset 13 (Softmax flattened there), and for rank 1.

    ## References
    - NVIDIA/TensorRT issues 2922, 3136, 4328
    - https://onnx.ai/onnx/operators/onnx__Softmax.html
    """
    powers, total = node.input(0), producer(node.input(1), "ReduceSum")
    exp = producer(powers, "Exp")
    data = None if exp is None else exp.input(0)
    if powers is None or total is None or exp is None or data is None or total.input(0) is not powers:
        return
    axes = axes_of(total, model)
    if type_of(powers, model) != HALF or axes == () or not total.attr("keepdims", 1) or _shifted(data):
        return
    yield Match(
        "a decomposed Softmax in half precision: exponentials from 11.1 on exceed 65504 and are infinite",
        node=node,
        fix=_softmax(node, exp, total, data, axes, model),
        reads=(exp, total, data),
    )


def _shifted(data: Value) -> bool:
    """Whether a maximum is subtracted first."""
    less = producer(data, "Sub")
    return less is not None and producer(less.input(1), "ReduceMax") is not None


def _softmax(
    node: Node, exp: Node, total: Node, data: Value, axes: tuple[int, ...] | None, model: Model
) -> Fix | None:
    powers, rank = exp.output(), rank_of(data, model)
    scopes = {node.scope, exp.scope, total.scope}
    alone = all(
        value is not None and value.replaceable and all(use.node in (node, total) for use in value.uses)
        for value in (powers, total.output())
    )
    if node.output() is None or not alone or len(scopes) != 1 or node.scope.lookup(data.name) is not data:
        return None
    if axes is None or len(axes) != 1 or rank < 2:
        return None
    axis = axes[0] % rank
    if node.opset < 13 and axis != rank - 1:
        return None
    draft = Draft(node)
    draft.replace_output(node, draft.add("Softmax", [data], axis=axis))
    return Fix("replace by Softmax, which subtracts the maximum", draft.edits, Safety.NUMERIC)


_IO = "g (float16[N,8] x) => (float16[N,8] y)"
_K = "<int64[1] k = {1}>"


_fixed = partial(Fixed, safety=Safety.NUMERIC, opset=17, ir_version=8)
_flagged = partial(Flagged, safety=Safety.NUMERIC, opset=17, ir_version=8)
_silent = partial(Silent, opset=17, ir_version=8)
decomposed_softmax.examples = [
    _fixed(
        "divided by the sum",
        f"{_IO} {_K} {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }}",
        f"{_IO} {{ y = Softmax<axis=1>(x) }}",
    ),
    _fixed(
        "axes as an attribute, opset 11, the last axis",
        f"{_IO} {{ e = Exp(x)  s = ReduceSum<axes=[-1]>(e)  y = Div(e, s) }}",
        f"{_IO} {{ y = Softmax<axis=1>(x) }}",
        opset=11,
    ),
    _fixed(
        "over an inner axis",
        "g (float16[2,N,8] x) => (float16[2,N,8] y) <int64[1] k = {-2}>"
        " { e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }",
        "g (float16[2,N,8] x) => (float16[2,N,8] y) { y = Softmax<axis=1>(x) }",
    ),
    _flagged(
        "over an inner axis before opset 13, where Softmax flattens",
        "g (float16[2,3,8] x) => (float16[2,3,8] y) { e = Exp(x)  s = ReduceSum<axes=[1]>(e)  y = Div(e, s) }",
        opset=11,
    ),
    _flagged(
        "another node reads the exponential",
        "g (float16[N,8] x) => (float16[N,8] y, float16[N,8] z)"
        f" {_K} {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s)  z = Neg(e) }}",
    ),
    _flagged(
        "over two axes", f"{_IO} <int64[2] k = {{0, 1}}> {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }}"
    ),
    _flagged(
        "of rank 1, which TensorRT's Softmax does not support",
        "g (float16[N] x) => (float16[N] y) <int64[1] k = {0}> { e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }",
    ),
    _silent(
        "the maximum is subtracted",
        f"{_IO} {_K} {{ h = ReduceMax<axes=[1]>(x)  d = Sub(x, h)  e = Exp(d)  s = ReduceSum(e, k)  y = Div(e, s) }}",
    ),
    _silent(
        "in float32",
        f"g (float[N,8] x) => (float[N,8] y) {_K} {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }}",
    ),
    _silent(
        "in bfloat16",
        f"g (bfloat16[N,8] x) => (bfloat16[N,8] y) {_K} {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }}",
        runs=False,
    ),
    _silent(
        "the sum of another exponential",
        "g (float16[N,8] x, float16[N,8] z) => (float16[N,8] y)"
        f" {_K} {{ e = Exp(x)  f = Exp(z)  s = ReduceSum(f, k)  y = Div(e, s) }}",
    ),
    _silent(
        "the sum without the reduced dimension",
        f"g (float16[8,8] x) => (float16[8,8] y) {_K}"
        " { e = Exp(x)  s = ReduceSum<keepdims=0>(e, k)  y = Div(e, s) }",
    ),
    _silent("a mean", f"{_IO} {{ e = Exp(x)  s = ReduceMean<axes=[1]>(e)  y = Div(e, s) }}"),
    _silent(
        "the sum over the exponential", f"{_IO} {_K} {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(s, e) }}"
    ),
]
