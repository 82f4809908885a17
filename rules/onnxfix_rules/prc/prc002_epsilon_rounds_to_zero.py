"""PRC002: an epsilon that half precision rounds to 0."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Silent, Value, rule

from ._common import ANY_RANK, HALF, NUMPY, producer, scalar, type_of

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
