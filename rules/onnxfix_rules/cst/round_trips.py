"""Casts to a type and back."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx import TensorProto

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
    dtypes,
    rule,
)
from onnxfix_rules.cst import _common as cst


@rule("CST003", ops=cst.CASTS, safety=Safety.EXACT, severity=Severity.INFO, hazards=[32])
def exact_cast_round_trip(node: Node, model: Model) -> Iterator[Match]:
    """A Cast to another type and straight back that loses no value.

    ## Why it matters
    Mixed-precision tools wrap operators in Casts; between two adjacent wrapped operators `half → float → half` is
    left. TensorRT imports two layers and must detect that they cancel. Some round trips do not parse:

    - **error**: through int16, uint16, uint32, uint64 (`Unsupported data type for the Cast operator!`) or uint8
      (`TensorRT does not support UINT8 types for intermediate tensors`), measured with TensorRT-RTX 1.7.1.
    - **warning**: `int32 → double → int32` is exact in ONNX, but TensorRT computes double as float and rounds above
      2**24.
    - **info**: everything else.

    ## Fix
    Readers of the second Cast use the original value; the first Cast is removed if it has no other reader. A graph
    output keeps its name: the value's producer gets it, or an Identity if that is not possible. Exact if the other
    type holds every value of the first one, including NaN, infinities and -0.0. No Cast is ever moved across an
    operator.

    Not covered: float8e5m2, whose infinities become finite unless `saturate` is 0, and float8e8m0, whose smallest
    value the ONNX reference doubles. Lossy round trips are covered by CST004.

    ## References
    - ONNX, operator Cast: https://onnx.ai/onnx/operators/onnx__Cast.html
    """
    pair = cst.pair_at(node, model)
    if pair is None or pair.a != pair.c or not cst.same_values(pair.a, pair.b, pair.c):
        return
    if not cst.keeps_values(node, pair.c):
        return
    if pair.c not in cst.ORDINARY and not cst.removable(node, pair.source):
        return  # ONNX Runtime has no Identity for int4
    draft = Draft(node)
    draft.bypass(node, pair.source)
    a, b = dtypes.name_of(pair.a), dtypes.name_of(pair.b)
    yield Match(
        f"Casts {pair.chain}: {b} holds every {a}, so the result equals the input",
        node=node,
        fix=Fix(f"use the {a} value before the Casts", draft.edits),
        severity=cst.severity_of(pair),
        reads=pair.reads,
    )


def _of_unknown(elem: str, first: str, second: str) -> str:
    return f"""<ir_version: 9, opset_import: ["" : 18, "d" : 1]> g ({elem}[N] x) => ({elem}[N] y) <{elem}[N] u>
        {{ u = d.Unknown(x)  a = Cast<{first}>(u)  y = Cast<{second}>(a) }}"""


exact_cast_round_trip.examples = [
    Fixed(
        "half to float and back",
        before="g (float16[N] x) => (float16[N] y) { a = Cast<to=FLOAT>(x)  b = Cast<to=FLOAT16>(a)  y = Neg(b) }",
        after="g (float16[N] x) => (float16[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "TensorRT does not support uint8 between two nodes",
        before="g (bool[N] x) => (bool[N] y) { a = Cast<to=UINT8>(x)  b = Cast<to=BOOL>(a)  y = Not(b) }",
        after="g (bool[N] x) => (bool[N] y) { y = Not(x) }",
    ),
    Fixed(
        "from a graph input to a graph output an Identity remains",
        before="g (bfloat16[N] x) => (bfloat16[N] y) { a = Cast<to=FLOAT>(x)  y = Cast<to=BFLOAT16>(a) }",
        after="g (bfloat16[N] x) => (bfloat16[N] y) { y = Identity(x) }",
    ),
    Fixed(
        "the producer gets the graph output's name",
        before="g (int32[N] x) => (int32[N] y) { n = Neg(x)  a = Cast<to=INT64>(n)  y = Cast<to=INT32>(a) }",
        after="g (int32[N] x) => (int32[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "the original value is a graph output as well",
        before="g (int32[N] x) => (int32[N] n, int32[N] y) { n = Neg(x)  a = Cast<to=7>(n)  y = Cast<to=6>(a) }",
        after="g (int32[N] x) => (int32[N] n, int32[N] y) { n = Neg(x)  y = Identity(n) }",
    ),
    Fixed(
        "the intermediate value is a graph output",
        before="g (int32[N] x) => (int64[N] a, int32[N] y) { a = Cast<to=7>(x)  b = Cast<to=6>(a)  y = Neg(b) }",
        after="g (int32[N] x) => (int64[N] a, int32[N] y) { a = Cast<to=INT64>(x)  y = Neg(x) }",
    ),
    Fixed(
        "CastLike in both directions",
        before="g (int32[N] x, int64[1] t) => (int32[N] y) { a = CastLike(x, t)  b = CastLike(a, x)  y = Neg(b) }",
        after="g (int32[N] x, int64[1] t) => (int32[N] y) { y = Neg(x) }",
    ),
    Fixed(
        "float8, which needs no direct Cast here",
        before="g (float8e4m3fn[N] x) => (float[N] y) { a = Cast<to=1>(x)  b = Cast<to=17>(a)  y = Cast<to=1>(b) }",
        after="g (float8e4m3fn[N] x) => (float[N] y) { y = Cast<to=FLOAT>(x) }",
        opset=19,
    ),
    Silent(
        "float8e5m2: infinity becomes finite",
        "g (float8e5m2[N] x) => (float[N] y) { a = Cast<to=1>(x)  b = Cast<to=19>(a)  y = Cast<to=1>(b) }",
        opset=19,
    ),
    Silent(
        "float8e8m0: 2**-127 becomes 2**-126",
        "g (float8e8m0[N] x) => (float[N] y) { a = Cast<to=11>(x)  b = Cast<to=24>(a)  y = Cast<to=1>(b) }",
        opset=24,
    ),
    Silent(
        "float to half and back rounds",
        "g (float[N] x) => (float[N] y) { a = Cast<to=FLOAT16>(x)  y = Cast<to=FLOAT>(a) }",
    ),
    Silent(
        "half and bfloat16 represent different values",
        "g (float16[N] x) => (float16[N] y) { a = Cast<to=BFLOAT16>(x)  y = Cast<to=FLOAT16>(a) }",
    ),
    Silent(
        "back by wrapping twice, which some backends do not support",
        "g (int8[N] x) => (int8[N] y) { a = Cast<to=UINT8>(x)  y = Cast<to=INT8>(a) }",
    ),
    Silent(
        "an operator in between",
        "g (float16[N] x) => (float16[N] y) { a = Cast<to=FLOAT>(x)  b = Neg(a)  y = Cast<to=FLOAT16>(b) }",
    ),
    Silent(
        "not a round trip",
        "g (int32[N] x) => (uint32[N] y) { a = Cast<to=INT64>(x)  y = Cast<to=UINT32>(a) }",
    ),
    Silent("the first type is unknown", _of_unknown("float16", "to=FLOAT", "to=FLOAT16"), runs=False),
]


@rule("CST004", ops=cst.CASTS, severity=Severity.INFO, hazards=[32])
def lossy_cast_round_trip(node: Node, model: Model) -> Iterator[Match]:
    """A Cast to a type that cannot hold every value, and a Cast straight back.

    ## Why it matters
    It looks redundant but is not: `float → half → float` rounds to 11 significant bits and turns everything above
    65504 into infinity, `int64 → int32 → int64` wraps, `float → int64 → float` truncates fractions. Simplifiers that
    drop such a pair change results. It may be intentional (rounding, truncation) or left behind by a converter that
    inserted too many Casts. The message names the loss.

    - **error**: TensorRT's parser refuses the intermediate type: int16, uint16, uint32, uint64 (`Unsupported data
      type for the Cast operator!`), uint8 (`TensorRT does not support UINT8 types for intermediate tensors`).
    - **warning**: the intermediate type is double, which TensorRT computes as float: more is lost than in ONNX.
    - **info**: everything else; TensorRT loses the same as ONNX.

    ## Fix
    None: only the author knows whether the loss is intended. Lossless Casts are covered by CST001 and CST003. `int8 →
    uint8 → int8` is not reported by either: ONNX lets integers wrap, and back, but not every backend does.

    ## References
    - ONNX, operator Cast, tables of conversions: https://onnx.ai/onnx/operators/onnx__Cast.html
    - NVIDIA/TensorRT issue 4019
    """
    pair = cst.pair_at(node, model)
    if pair is None or pair.a != pair.c or not loses(pair.a, pair.b):
        return
    message = f"Casts {pair.chain}: {loss(pair.a, pair.b)}"
    yield Match(message, node=node, severity=cst.severity_of(pair), reads=pair.reads)


def loses(a: int, b: int) -> bool:
    """Whether some value of type ``a`` does not survive type ``b``."""
    if dtypes.is_integer(a) and dtypes.is_integer(b):
        # Integers wrap, so only the number of bits matters.
        narrow, wide = dtypes.INTEGERS[a], dtypes.INTEGERS[b]
        return wide.high - wide.low < narrow.high - narrow.low
    return not dtypes.holds_exactly(b, a)


def loss(a: int, b: int) -> str:
    """What values of type ``a`` lose in type ``b``, as part of a sentence."""
    if b == TensorProto.BOOL:
        return "only zero or nonzero is left"
    if a in dtypes.INTEGERS and b in dtypes.INTEGERS:
        return f"integers outside {dtypes.INTEGERS[b].low} to {dtypes.INTEGERS[b].high} wrap"
    if b in dtypes.INTEGERS:
        low, high = dtypes.INTEGERS[b].low, dtypes.INTEGERS[b].high
        return f"fractions are truncated; NaN, infinities and values outside {low} to {high} are undefined"
    if a in dtypes.INTEGERS:
        return _integer_in_float(dtypes.INTEGERS[a], dtypes.FLOATS[b])
    return _float_in_float(dtypes.FLOATS[a], dtypes.FLOATS[b])


def _integer_in_float(a: dtypes.IntFormat, b: dtypes.FloatFormat) -> str:
    lost = []
    if max(-a.low, a.high) > 2**b.precision:
        lost.append(f"integers above 2**{b.precision} are rounded")
    if max(-a.low, a.high) > b.highest:
        lost.append(f"magnitudes above {b.highest:g} overflow")
    if not b.negative and a.low < 0:
        lost.append("negative values are lost")
    if not b.zero:
        lost.append("zero is lost")
    return ", ".join(lost)


def _float_in_float(a: dtypes.FloatFormat, b: dtypes.FloatFormat) -> str:
    lost = []
    if a.precision > b.precision:
        lost.append(f"values are rounded to {b.precision} significant bits")
    if a.highest > b.highest:
        lost.append(f"magnitudes above {b.highest:g} overflow")
    if a.lowest < b.lowest:
        normal = math.ldexp(1, b.lowest + b.precision - 1)
        lost.append(f"magnitudes below {normal:.3g} lose digits or become zero")
    if a.infinity and not b.infinity:
        lost.append("infinities are lost")
    if a.nan and not b.nan:
        lost.append("NaN is lost")
    if a.negative and not b.negative:
        lost.append("negative values are lost")
    if a.zero and not b.zero:
        lost.append("zero is lost")
    elif a.negative_zero and not b.negative_zero:
        lost.append("the sign of zero is lost")
    return ", ".join(lost)


def _round_trip(a: str, b: int, c: int) -> str:
    return f"g ({a}[N] x) => ({a}[N] y) {{ m = Cast<to={b}>(x)  y = Cast<to={c}>(m) }}"


lossy_cast_round_trip.examples = [
    Flagged("half overflows above 65504 and rounds", _round_trip("float", 10, 1)),
    Flagged("bfloat16 keeps 8 significant bits", _round_trip("float", 16, 1)),
    Flagged("the fraction is truncated", _round_trip("float", 7, 1)),
    Flagged("int32 wraps", _round_trip("int64", 6, 7)),
    Flagged("float rounds integers above 2**24", _round_trip("int64", 1, 7)),
    Flagged("double rounds integers above 2**53", _round_trip("int64", 11, 7)),
    Flagged("bool keeps only zero or nonzero", _round_trip("float", 9, 1)),
    Flagged("uint8 is too narrow for int16, regardless of sign", _round_trip("int16", 2, 5)),
    Flagged("TensorRT does not support int16", _round_trip("int32", 5, 6)),
    Flagged(
        "a graph output in between, in a branch",
        """g (float[2] x, bool k) => (float[2] y, float16[2] h) { h = Cast<to=FLOAT16>(x)
            y = If(k)<then_branch = t () => (float[2] p) { p = Cast<to=FLOAT>(h) },
                      else_branch = e () => (float[2] q) { q = Neg(x) }> }""",
    ),
    Silent("float represents every half", _round_trip("float16", 1, 10)),
    Silent("int64 represents every int32", _round_trip("int32", 7, 6)),
    Silent("an integer of the same width wraps back", _round_trip("int8", 2, 3)),
    Silent("uint64 is wide enough to wrap back from", _round_trip("int32", 13, 6)),
    Silent(
        "not a round trip",
        "g (double[N] x) => (float16[N] y) { a = Cast<to=FLOAT>(x)  y = Cast<to=FLOAT16>(a) }",
    ),
    Silent(
        "an operator in between",
        "g (float[N] x) => (float[N] y) { a = Cast<to=INT64>(x)  b = Neg(a)  y = Cast<to=FLOAT>(b) }",
    ),
    Silent("the first type is unknown", _of_unknown("float", "to=FLOAT16", "to=FLOAT"), runs=False),
    Flagged(
        "float rounds int32 above 2**24 as well",
        "g (int32[N] x) => (int32[N] y) { m = Cast<to=FLOAT>(x)  y = Cast<to=INT32>(m) }",
    ),
]
