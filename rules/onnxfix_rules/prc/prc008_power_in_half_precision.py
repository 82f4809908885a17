"""PRC008: powers and exponentials in half precision that may exceed 65504."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, Value, rule

from ._common import ANY_RANK, HALF, HIGHEST, producer, scalar, type_of


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


_IO = "g (float16[N,8] x) => (float16[N,8] y)"


def _flagged(why: str, before: str) -> Flagged:
    return Flagged(why, before, opset=17, ir_version=8)


def _silent(why: str, before: str) -> Silent:
    return Silent(why, before, opset=17, ir_version=8)


power_in_half_precision.examples = [
    _flagged(
        "the cube in the tanh approximation of GELU",
        f"{_IO} <float16 c = {{f16(3.0)}}> {{ p = Pow(x, c)  y = Tanh(p) }}",
    ),
    _flagged("a square", f"{_IO} <float16 c = {{f16(2.0)}}> {{ p = Pow(x, c)  y = Neg(p) }}"),
    _flagged("an exponent in another type", f"{_IO} <int64 c = {{2}}> {{ p = Pow(x, c)  y = Neg(p) }}"),
    _flagged("an exponential", f"{_IO} {{ y = Exp(x) }}"),
    _silent(
        "exponential after maximum subtraction",
        f"{_IO} {{ h = ReduceMax<axes=[1]>(x)  d = Sub(x, h)  y = Exp(d) }}",
    ),
    _silent(
        "exponential of minus a square",
        f"{_IO} {{ q = Mul(x, x)  d = Neg(q)  y = Exp(d) }}",
    ),
    _silent(
        "exponential of minus a magnitude",
        f"{_IO} {{ q = Abs(x)  d = Neg(q)  y = Exp(d) }}",
    ),
    _silent("a root", f"{_IO} <float16 c = {{f16(0.5)}}> {{ y = Pow(x, c) }}"),
    _silent("a reciprocal", f"{_IO} <float16 c = {{f16(-1.0)}}> {{ p = Abs(x)  y = Pow(p, c) }}"),
    _silent(
        "a square in a mean is covered by the norm and sum rules",
        f"{_IO} <float16 c = {{f16(2.0)}}> {{ p = Pow(x, c)  y = ReduceMean<axes=[1]>(p) }}".replace(
            "8] y", "1] y"
        ),
    ),
    _silent(
        "the exponential of a decomposed Softmax is covered by PRC007",
        f"{_IO} <int64[1] k = {{1}}> {{ e = Exp(x)  s = ReduceSum(e, k)  y = Div(e, s) }}",
    ),
    _silent("in float32", "g (float[N,8] x) => (float[N,8] y) { y = Exp(x) }"),
    _silent("non-constant exponents", "g (float16[N] x, float16[N] p) => (float16[N] y) { y = Pow(x, p) }"),
]
