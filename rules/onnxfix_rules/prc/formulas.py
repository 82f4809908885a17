"""Formulas that half precision breaks (PRC002, PRC007)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Silent, Value, rule

from ._common import ANY_RANK, HALF, NUMPY, producer, rank_of, scalar, type_of
from ._norm import axes_of

_HALF_A_STEP = 2.0**-25
"""Half of the smallest float16: values up to it are rounded to 0."""

EPSILON = float(np.float16(1e-7))
"""The epsilon that the fix writes: the nearest float16 to 1e-7, two steps above 0."""


@rule("PRC002", ops=["Add"], safety=Safety.UNSAFE, hazards=[72], types=[HALF])
def epsilon_rounds_to_zero(node: Node, model: Model) -> Iterator[Match]:
    """The epsilon that protects a divisor, root or logarithm from 0 is itself 0 in half precision.

    ## Why it matters
    The smallest positive float16 is 2**-24, about 6e-8: an epsilon of 1e-8 or 1e-12 becomes 0 when a model is
    converted, and a row of equal elements in a norm then gives 0 / 0. TensorRT-RTX 1.7.1 parses and builds such
    models without a warning about the epsilon, whether it is stored as 0 or cast from float32. With `onnx.reference`,
    a decomposed LayerNorm with epsilon 1e-12 gives NaN for a constant row, and 0 with 1e-7.

    A zero stored in float16 may be intended; its Add then has no effect. A constant that a Cast turns into 0 is never
    intended.

    ## Fix
    Write 1.19e-7, the float16 nearest to 1e-7, for this one Add. UNSAFE: the result changes where it was NaN or
    infinite, as intended, and wherever the sum is not large compared to 1e-7. If the model can compute this part in
    float32, prefer that, with the epsilon used in training.

    Covered operators are Sqrt, Log, Reciprocal, a Div's divisor and Pow with a negative or fractional exponent,
    directly after the Add or after a Cast.

    ## References
    - https://en.wikipedia.org/wiki/Half-precision_floating-point_format
    - NVIDIA/TensorRT issue 2564
    """
    for index in (0, 1):
        epsilon, other = node.input(index), node.input(1 - index)
        meant = _vanished(epsilon, model)
        if epsilon is None or other is None or meant is None or other.is_constant:
            continue
        reader = _hurt(node.output())
        if reader is None:
            return
        was = f"{meant:g} becomes 0" if meant else "is 0"
        message = f"the epsilon before this {reader} {was} in half precision: it does not prevent 0"
        draft = Draft(node)
        array = np.full(_shape(epsilon), EPSILON, np.float16)
        draft.set_input(node, index, draft.constant(array, "epsilon"))
        title = f"use {EPSILON:.3g}, which half precision represents"
        yield Match(message, node=node, fix=Fix(title, draft.edits, Safety.UNSAFE), reads=(epsilon,))
        return


def _vanished(value: Value | None, model: Model) -> float | None:
    """The value that is 0 in half precision, as it was before a Cast to it; None if there is none."""
    if type_of(value, model) != HALF:
        return None
    cast = producer(value, "Cast")
    number = scalar(value if cast is None else cast.input(0), most=ANY_RANK)
    if number is None or not abs(number) <= _HALF_A_STEP:
        return None
    wide = cast is not None and type_of(cast.input(0), model) in (TensorProto.FLOAT, TensorProto.DOUBLE)
    return number if cast is None or wide else None


def _shape(value: Value) -> tuple[int, ...]:
    cast = producer(value, "Cast")
    source = value if cast is None else cast.input(0)
    array = None if source is None else source.constant()
    return () if array is None else array.shape


def _hurt(value: Value | None) -> str | None:
    """The operator that turns a 0 in ``value`` into infinity or NaN, directly after it or after a Cast."""
    for use in value.uses if value is not None else ():
        node = use.node
        if not node.is_onnx:
            continue
        if node.op_type in ("Sqrt", "Log", "Reciprocal") or (node.op_type == "Div" and use.index == 1):
            return node.op_type
        if node.op_type == "Pow" and use.index == 0:
            exponent = scalar(node.input(1), most=ANY_RANK)
            if exponent is not None and (exponent < 0 or exponent != int(exponent)):
                return node.op_type
        if (
            node.op_type == "Cast"
            and node.attr("to") in NUMPY
            and (found := _hurt(node.output())) is not None
        ):
            return found
    return None


_IO = "g (float16[N,4] x) => (float16[N,4] y)"
_ZERO = "float16 e = {f16(0.0)}"
_SOME = "float16 c = {f16(1e-07)}"  # by its bits: 1.19e-7


_fixed = partial(Fixed, safety=Safety.UNSAFE, opset=17, ir_version=8, runs=False)
epsilon_rounds_to_zero.examples = [
    _fixed(
        "under a root that divides",
        f"{_IO} <{_ZERO}> {{ q = Mul(x, x)  a = Add(q, e)  s = Sqrt(a)  y = Div(x, s) }}",
        f"{_IO} <{_SOME}> {{ q = Mul(x, x)  a = Add(q, c)  s = Sqrt(a)  y = Div(x, s) }}",
    ),
    _fixed(
        "in a divisor, as the left operand of Add",
        f"{_IO} <{_ZERO}> {{ q = Abs(x)  a = Add(e, q)  y = Div(x, a) }}",
        f"{_IO} <{_SOME}> {{ q = Abs(x)  a = Add(c, q)  y = Div(x, a) }}",
    ),
    _fixed(
        "under a logarithm, of rank 1, opset 7",
        f"{_IO} <float16[1] e = {{f16(0.0)}}> {{ q = Abs(x)  a = Add(q, e)  y = Log(a) }}",
        f"{_IO} <float16[1] c = {{f16(1e-07)}}> {{ q = Abs(x)  a = Add(q, c)  y = Log(a) }}",
        opset=7,
    ),
    _fixed(
        "a float32 constant that a Cast turns into 0",
        f"{_IO} {{ f = Constant<value_float=1e-12>()  e = Cast<to=FLOAT16>(f)  q = Abs(x)  a = Add(q, e)"
        "  y = Reciprocal(a) }",
        f"{_IO} <{_SOME}> {{ q = Abs(x)  a = Add(q, c)  y = Reciprocal(a) }}",
    ),
    _fixed(
        "widened before use",
        f"{_IO} <{_ZERO}> {{ q = Abs(x)  a = Add(q, e)  w = Cast<to=FLOAT>(a)  r = Sqrt(w)  y = Cast<to=FLOAT16>(r) }}",
        f"{_IO} <{_SOME}> {{ q = Abs(x)  a = Add(q, c)  w = Cast<to=FLOAT>(a)  r = Sqrt(w)  y = Cast<to=FLOAT16>(r) }}",
    ),
    _fixed(
        "a negative power",
        f"{_IO} <{_ZERO}, float16 h = {{f16(-0.5)}}> {{ q = Mul(x, x)  a = Add(q, e)  y = Pow(a, h) }}",
        f"{_IO} <{_SOME}, float16 h = {{f16(-0.5)}}> {{ q = Mul(x, x)  a = Add(q, c)  y = Pow(a, h) }}",
    ),
    _fixed(
        "a zero with other readers, which keep it",
        f"g (float16[N,4] x) => (float16[N,4] y, float16[N,4] z) <{_ZERO}>"
        " { q = Abs(x)  a = Add(q, e)  y = Log(a)  z = Max(x, e) }",
        f"g (float16[N,4] x) => (float16[N,4] y, float16[N,4] z) <{_ZERO}, {_SOME}>"
        " { q = Abs(x)  a = Add(q, c)  y = Log(a)  z = Max(x, e) }",
    ),
    Silent(
        "an epsilon that half precision represents",
        f"{_IO} <{_SOME}> {{ q = Abs(x)  a = Add(q, c)  y = Log(a) }}",
    ),
    Silent(
        "the smallest number that a Cast keeps",
        f"{_IO} {{ f = Constant<value_float=6e-8>()  e = Cast<to=FLOAT16>(f)  a = Add(x, e)  y = Log(a) }}",
    ),
    Silent(
        "a zero in float32", "g (float[N] x) => (float[N] y) <float e = {0}> { a = Add(x, e)  y = Log(a) }"
    ),
    Silent(
        "bfloat16 represents 1e-12",
        "g (bfloat16[N] x) => (bfloat16[N] y) { f = Constant<value_float=1e-12>()  e = Cast<to=BFLOAT16>(f)"
        "  a = Add(x, e)  y = Log(a) }",
        runs=False,
    ),
    Silent("the sum is divided, not the divisor", f"{_IO} <{_ZERO}> {{ a = Add(x, e)  y = Div(a, x) }}"),
    Silent("no operator sensitive to 0", f"{_IO} <{_ZERO}> {{ a = Add(x, e)  y = Exp(a) }}"),
    Silent(
        "a positive power", f"{_IO} <{_ZERO}, float16 h = {{f16(2.0)}}> {{ a = Add(x, e)  y = Pow(a, h) }}"
    ),
    Silent(
        "it may be overridden",
        f"g (float16[N,4] x, float16 e) => (float16[N,4] y) <{_ZERO}> {{ a = Add(x, e)  y = Log(a) }}",
    ),
    Silent(
        "a bias of several zeros",
        f"{_IO} <float16[4] e = {{f16(0.0, 0.0, 0.0, 0.0)}}> {{ a = Add(x, e)  y = Log(a) }}",
    ),
]


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


_ROWS = "g (float16[N,8] x) => (float16[N,8] y)"
_K = "<int64[1] k = {1}>"


_numeric = partial(Fixed, safety=Safety.NUMERIC, opset=17, ir_version=8)
_flagged = partial(Flagged, safety=Safety.NUMERIC, opset=17, ir_version=8)
_silent = partial(Silent, opset=17, ir_version=8)


def _reduce_sum(x: str, k_values: str, elem: str = "float16", k: str = "1", attributes: str = "") -> str:
    return (
        f"g ({elem}[{x}] x) => ({elem}[{x}] y) <int64[{k}] k = {{{k_values}}}> {{ "
        f"e = Exp(x)  s = ReduceSum{attributes}(e, k)  y = Div(e, s) }}"
    )


decomposed_softmax.examples = [
    _numeric("divided by the sum", _reduce_sum("N,8", "1"), f"{_ROWS} {{ y = Softmax<axis=1>(x) }}"),
    _numeric(
        "axes as an attribute, opset 11, the last axis",
        f"{_ROWS} {{ e = Exp(x)  s = ReduceSum<axes=[-1]>(e)  y = Div(e, s) }}",
        f"{_ROWS} {{ y = Softmax<axis=1>(x) }}",
        opset=11,
    ),
    _numeric(
        "over an inner axis",
        _reduce_sum("2,N,8", "-2"),
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
    _flagged("over two axes", _reduce_sum("N,8", "0, 1", k="2")),
    _flagged("of rank 1, which TensorRT's Softmax does not support", _reduce_sum("N", "0")),
    _silent(
        "the maximum is subtracted",
        f"{_ROWS} {_K} {{ h = ReduceMax<axes=[1]>(x)  d = Sub(x, h)  e = Exp(d)  s = ReduceSum(e, k)  y = Div(e, s) }}",
    ),
    _silent("in float32", _reduce_sum("N,8", "1", elem="float")),
    _silent("in bfloat16", _reduce_sum("N,8", "1", elem="bfloat16"), runs=False),
    _silent(
        "the sum of another exponential",
        "g (float16[N,8] x, float16[N,8] z) => (float16[N,8] y)"
        f" {_K} {{ e = Exp(x)  f = Exp(z)  s = ReduceSum(f, k)  y = Div(e, s) }}",
    ),
    _silent("the sum without the reduced dimension", _reduce_sum("8,8", "1", attributes="<keepdims=0>")),
    _silent("a mean", f"{_ROWS} {{ e = Exp(x)  s = ReduceMean<axes=[1]>(e)  y = Div(e, s) }}"),
    _silent(
        "the sum over the exponential", f"{_ROWS} {_K} {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(s, e) }}"
    ),
]
