"""Shifts, reinterpreted bits, and bitwise operators as logic of booleans or as integer arithmetic."""
# Long because: four rules, with an example of each operator and form of a mask.

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    dtypes,
    rule,
    target_of,
)
from onnxfix_rules.ops import _logic
from onnxfix_rules.ops._integers import SMALL, WIDE, Computer, wide_of
from onnxfix_rules.ops.expansions import _bits


@rule("OPS051", ops=["BitShift"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[43])
def bit_shift(node: Node, model: Model) -> Iterator[Match]:
    """A BitShift, which TensorRT does not import.

    ## Why it matters
    TensorRT does not import it: `UNSUPPORTED_NODE`, measured with TensorRT-RTX 1.7.1. It is used to unpack quantized
    weights.

    ## Fix
    A left shift becomes a product with a power of two, wrapped around by Mod; a right shift a quotient, for signed
    types rounded toward minus infinity. Where the amounts are not constant, the powers are gathered from a table.
    Amounts that are negative or not less than the width give 0, or -1 for a negative value shifted right, as defined
    since opset 28; before that ONNX did not define it, and backends differ. Exact: uint8 and int8 are computed in
    int32, int32 in int64, and nothing overflows.

    TensorRT layers: 5 to 10 for bytes by a constant; by non-constant amounts 9 to 19, for int64 up to 31.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BitShift.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    data, amounts, output = node.input(0), node.require(1), node.require_output()
    target = target_of(model)
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or target.imports("BitShift") is not False:
        return
    if elem not in (*SMALL, *WIDE) or not target.has_type(elem) or target.imports("Mod") is not True:
        return
    wide = wide_of(elem) if elem in SMALL else TensorProto.INT64
    if wide == TensorProto.INT64 and not target.int64:
        return
    left = node.attr("direction") == "LEFT"
    computer = Computer(Draft(node), model, elem, wide)
    shift = Shift(computer, amounts)
    x = computer.widened(data)
    if elem == TensorProto.INT64:
        result = _left_int64(shift, x) if left else _right_int64(shift, x)
    elif left:
        result = computer.wrapped(computer.add("Mul", x, shift.table("powers", lambda k: 1 << k)))
    else:
        result = _quotient(computer, x, shift.table("powers", lambda k: 1 << k))
    computer.finish(result, output)
    yield Match(
        "TensorRT has no BitShift",
        node=node,
        fix=Fix("decompose into integer arithmetic", computer.draft.edits),
        reads=(data, amounts),
    )


class Shift:
    """The amounts of a shift, and lookup tables by amount. Amounts out of range count as the width."""

    def __init__(self, computer: Computer, amounts: Value) -> None:
        self.computer, self.width = computer, computer.bits
        array = amounts.constant()
        self.fixed_amounts: np.ndarray[Any, Any] | None = None
        self.index = ""
        if array is not None:
            exact = array.astype(object)
            self.fixed_amounts = np.where((exact < 0) | (exact > self.width), self.width, exact).astype(
                np.int64
            )
        else:
            self.index = self._index(computer.widened(amounts))

    def _index(self, amounts: str) -> str:
        last = self.computer.number(self.width)
        out_of_range = self.computer.add("Greater", amounts, last)
        if self.computer.signed:
            negative = self.computer.add("Less", amounts, self.computer.number(0))
            out_of_range = self.computer.add("Or", negative, out_of_range)
        return self.computer.add("Where", out_of_range, last, amounts)

    def table(self, hint: str, entry: Callable[[int], int]) -> str:
        """The value of ``entry`` for each amount, in the wide type."""
        entries = [entry(amount) for amount in range(self.width + 1)]
        if self.fixed_amounts is None:
            return self.computer.add("Gather", self.computer.array(entries, hint), self.index)
        return self.computer.array(np.array(entries, dtype=object)[self.fixed_amounts], hint)

    def where(self, chosen: Callable[[int], bool], then: str, other: str) -> str:
        """``then`` for the chosen amounts (one, or all from one on), ``other`` for the rest."""
        picked = [amount for amount in range(self.width + 1) if chosen(amount)]
        if self.fixed_amounts is not None:
            mask = np.isin(self.fixed_amounts, picked)
            if mask.all() or not mask.any():
                return then if mask.size and mask.all() else other
            return self.computer.add("Where", self.computer.draft.constant(mask, "chosen"), then, other)
        test = "Equal" if len(picked) == 1 else "GreaterOrEqual"
        return self.computer.add(
            "Where", self.computer.add(test, self.index, self.computer.number(picked[0])), then, other
        )


def _quotient(computer: Computer, x: str, by: str) -> str:
    """x / by, rounded toward minus infinity; ``by`` is positive. TensorRT's and ONNX's Div may round negative values
    differently, so the dividend is made divisible first."""
    if not computer.signed:
        return computer.add("Div", x, by)
    return computer.add("Div", computer.add("Sub", x, computer.add("Mod", x, by)), by)


def _right_int64(shift: Shift, x: str) -> str:
    """int64 shifted right. Powers go up to 2**62; larger shifts leave only the sign."""
    computer = shift.computer
    near = _quotient(computer, x, shift.table("powers", lambda k: 1 << min(k, 62)))
    negative = computer.add("Less", x, computer.number(0))
    sign = computer.add("Where", negative, computer.number(-1), computer.number(0))
    return shift.where(lambda k: k >= 63, sign, near)


def _left_int64(shift: Shift, x: str) -> str:
    """int64 shifted left: a product of the bits below the sign bit, plus the bit that becomes the sign."""
    computer = shift.computer
    shifting = range(1, 64)
    limit = shift.table("limits", lambda k: 1 << (63 - k) if k in shifting else 1)
    low = computer.add("Mod", x, limit)
    high = computer.add("Div", computer.add("Sub", x, low), limit)
    bit = computer.add("Mod", high, computer.number(2))
    product = computer.add("Mul", low, shift.table("powers", lambda k: 1 << k if k in shifting[:-1] else 0))
    weight = shift.table("signs", lambda k: -(1 << 63) if k in shifting else 0)
    total = computer.add("Add", product, computer.add("Mul", bit, weight))
    return shift.where(lambda k: k == 0, x, total)


_TABLE = "int32[9] t = {1, 2, 4, 8, 16, 32, 64, 128, 256}, int32 k = {8}"
_fixed = partial(Fixed, ir_version=13, opset=26)


bit_shift.examples = [
    Fixed(
        "the high half of packed bytes",
        before='g (uint8[N,3] x) => (uint8[N,3] y) <uint8 s = {4}> { y = BitShift<direction = "RIGHT">(x, s) }',
        after="""g (uint8[N,3] x) => (uint8[N,3] y) <int32 f = {16}> {
            w = Cast<to = INT32>(x)  r = Div(w, f)  y = Cast<to = UINT8>(r) }""",
    ),
    Fixed(
        "to the left by several amounts, the last one out of range",
        before="""g (uint8[N,3] x) => (uint8[N,3] y) <uint8[3] s = {1, 7, 8}> {
            y = BitShift<direction = "LEFT">(x, s) }""",
        after="""g (uint8[N,3] x) => (uint8[N,3] y) <int32[3] f = {2, 128, 256}, int32 m = {256}> {
            w = Cast<to = INT32>(x)  p = Mul(w, f)  r = Mod(p, m)  y = Cast<to = UINT8>(r) }""",
    ),
    Fixed(
        "non-constant amounts: a table of powers",
        before='g (uint8[N] x, uint8[N] s) => (uint8[N] y) { y = BitShift<direction = "RIGHT">(x, s) }',
        after=f"""g (uint8[N] x, uint8[N] s) => (uint8[N] y) <{_TABLE}> {{
            v = Cast<to = INT32>(s)  b = Greater(v, k)  i = Where(b, k, v)  f = Gather(t, i)
            w = Cast<to = INT32>(x)  r = Div(w, f)  y = Cast<to = UINT8>(r) }}""",
        runs=False,  # ONNX Runtime's machine shift wraps amounts beyond 31
    ),
    Fixed(
        "powers of two",
        before='g (uint8[N] s) => (uint8[N] y) <uint8 x = {1}> { y = BitShift<direction = "LEFT">(x, s) }',
        after=f"""g (uint8[N] s) => (uint8[N] y) <{_TABLE}, int32 one = {{1}}, int32 m = {{256}}> {{
            v = Cast<to = INT32>(s)  b = Greater(v, k)  i = Where(b, k, v)  f = Gather(t, i)
            p = Mul(one, f)  r = Mod(p, m)  y = Cast<to = UINT8>(r) }}""",
        runs=False,
    ),
    Fixed(
        "a negative value to the right: toward minus infinity",
        before='g (int32[N] x) => (int32[N] y) <int32 s = {3}> { y = BitShift<direction = "RIGHT">(x, s) }',
        after="""g (int32[N] x) => (int32[N] y) <int64 f = {8}> {
            w = Cast<to = INT64>(x)  m = Mod(w, f)  d = Sub(w, m)  r = Div(d, f)  y = Cast<to = INT32>(r) }""",
        opset=28,
        ir_version=14,
    ),
    Silent(
        "a type that TensorRT does not support",
        'g (uint32[N] x) => (uint32[N] y) <uint32 s = {1}> { y = BitShift<direction = "LEFT">(x, s) }',
    ),
    Silent(
        "int32 is computed in int64, which TensorRT 8 does not support",
        'g (int32[N] x) => (int32[N] y) <int32 s = {1}> { y = BitShift<direction = "LEFT">(x, s) }',
        opset=28,
        ir_version=14,
        target="trt8.6",
    ),
]


_BYTES = (TensorProto.UINT8, TensorProto.INT8)


@rule("OPS061", ops=["BitCast"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[43])
def bit_cast_of_bytes(node: Node, model: Model) -> Iterator[Match]:
    """A BitCast between int8 and uint8, or from bool.

    ## Why it matters
    TensorRT does not import it: `Plugin not found, are the plugin name, version, and namespace correct?`, measured with
    TensorRT-RTX 1.7.1.

    ## Fix
    int32 modulo 256, and from bool a Cast: exact. The bits of floats cannot be computed by other operators at
    reasonable cost, so there is no fix for those.

    TensorRT layers: 1 to 12.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BitCast.html
    """
    data, output, to = node.input(0), node.require_output(), node.attr("to", 0)
    elem = None if data is None else model.shapes.elem_type(data)
    target = target_of(model)
    if data is None or elem is None or to not in _BYTES or not target.has_type(to):
        return
    if target.imports("BitCast") is not False or not target.has_type(elem):
        return
    draft = Draft(node)
    if elem in (to, TensorProto.BOOL):
        draft.remove(node)
        draft.add("Cast", [data], output=output.name, to=to)
    elif elem in _BYTES:
        wide = Computer(draft, model, elem).widened(data)
        computer = Computer(draft, model, to)
        computer.finish(computer.wrapped(wide), output)
    else:
        return
    yield Match(
        f"TensorRT has no BitCast; this one, {dtypes.name_of(elem)} to {dtypes.name_of(to)}, can be arithmetic",
        node=node,
        fix=Fix("compute it in int32" if elem in _BYTES else "replace by Cast", draft.edits),
    )


bit_cast_of_bytes.examples = [
    _fixed(
        "int8 as uint8",
        before="g (int8[N] x) => (uint8[N] y) { y = BitCast<to = UINT8>(x) }",
        after="""g (int8[N] x) => (uint8[N] y) <int32 m = {256}> {
            w = Cast<to = INT32>(x)  r = Mod(w, m)  y = Cast<to = UINT8>(r) }""",
    ),
    _fixed(
        "uint8 as int8",
        before="g (uint8[N] x) => (int8[N] y) { y = BitCast<to = INT8>(x) }",
        after="""g (uint8[N] x) => (int8[N] y) <int32 h = {128}, int32 m = {256}> {
            w = Cast<to = INT32>(x)  a = Add(w, h)  r = Mod(a, m)  s = Sub(r, h)  y = Cast<to = INT8>(s) }""",
    ),
    _fixed(
        "booleans, which are bytes of 0 and 1",
        before="g (bool[N] x) => (uint8[N] y) { y = BitCast<to = UINT8>(x) }",
        after="g (bool[N] x) => (uint8[N] y) { y = Cast<to = UINT8>(x) }",
    ),
    Silent(
        "the bits of a float",
        "g (float[N] x) => (int32[N] y) { y = BitCast<to = INT32>(x) }",
        opset=26,
        ir_version=13,
    ),
]

_TYPES = (*SMALL, TensorProto.INT32, TensorProto.INT64)


@rule(
    "OPS052",
    ops=["BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[43, 66],
)
def bitwise_operator(node: Node, model: Model) -> Iterator[Match]:
    """A bitwise operator on integers, which TensorRT does not import.

    ## Why it matters
    TensorRT imports none: `UNSUPPORTED_NODE at onnxOpCheckers.cpp:1090 checkBitwiseAnd`, measured with TensorRT-RTX
    1.7.1. They unpack quantized weights, and compute flags and hashes.

    ## Fix
    Integer arithmetic, exact. `x & 15` is `Mod(x, 16)`, and any other constant mask is a difference or sum of such
    terms, `~x` is `-1 - x`, `x | m` is `x + (m - (x & m))`; none of it overflows. For two non-constant tensors, And
    multiplies the bits one by one along a new axis: this multiplies the memory by the number of bits of the type. uint8
    and int8 are computed in int32.

    int32 is computed in halves of 16 bits, and a remainder of int32 is taken twice, or corrected where it is below 0.
    TensorRT 10.6.0 does not divide or sum large numbers of int32 exactly: in the simpler form of int8, 9 of 12 elements
    of ONNX's node models were wrong (measured on an H200). Rounded quotients and sums of float32 do not change the
    result of this form.

    TensorRT layers: 2 to 4 for Not, 7 to 11 for a mask of low bits; for two non-constant tensors of uint8 25 to 28,
    int8 44 to 47, int64 49 to 52, int32 60 (TensorRT-RTX 1.7.1).

    ## References
    - https://onnx.ai/onnx/operators/onnx__BitwiseAnd.html
    """
    output, first = node.require_output(), node.input(0)
    elem = None if first is None else model.shapes.elem_type(first)
    target = target_of(model)
    if first is None or elem not in _TYPES or not _is_supported(model, elem):
        return
    if target.imports(node.op_type) is not False:
        return
    computer = Computer(Draft(node), model, elem)
    if node.op_type == "BitwiseNot":
        result = computer.add("Sub", computer.number(-1 if computer.signed else 255), computer.widened(first))
    else:
        second = node.input(1)
        if second is None or all(_logic.boolean(v, node, model) is not None for v in node.inputs):
            return
        both = _result(computer, node.op_type, first, second)
        if not both:
            return
        result = both
    computer.finish(result, output)
    yield Match(
        f"TensorRT has no {node.op_type}",
        node=node,
        fix=Fix("decompose into integer arithmetic", computer.draft.edits),
        reads=tuple(value for value in node.inputs if value is not None),
    )


def _is_supported(model: Model, elem: int) -> bool:
    """Whether the target supports the type that this one is computed in."""
    target = target_of(model)
    return (
        target.has_type(elem)
        and target.imports("Mod") is True
        and (elem != TensorProto.INT64 or target.int64)
    )


def _result(computer: Computer, op_type: str, first: Value, second: Value) -> str:
    """And, Or or Xor as the name of a value; "" where the rank is unknown, or too high for an axis of bits."""
    known = [value.constant(_bits.LIMIT) for value in (first, second)]
    if known[0] is not None and known[1] is None:
        first, second, known = second, first, known[::-1]
    ranks = [computer.model.shapes.rank(value) for value in (first, second)]
    mask = known[1] if known[0] is None else None
    x = computer.widened(first)
    if mask is not None and mask.size == 1 and ranks[0] is not None and mask.ndim <= ranks[0]:
        number = int(mask.reshape(-1)[0])
        if _bits.is_simple(computer, number):
            other = "" if op_type == "BitwiseAnd" else computer.number(number)
            return _combined(computer, op_type, x, other, _bits.of_mask(computer, x, number))
    if any(rank is None or rank >= target_of(computer.model).max_rank for rank in ranks):
        return ""
    rank = max(rank for rank in ranks if rank is not None)
    if _bits.is_rounded(computer):
        logic = op_type.removeprefix("Bitwise")
        return _bits.by_halves(computer, logic, x, computer.widened(second) if mask is None else mask, rank)
    y = "" if mask is not None and op_type == "BitwiseAnd" else computer.widened(second)
    return _combined(computer, op_type, x, y, _bits.common(computer, x, y if mask is None else mask, rank))


def _combined(computer: Computer, op_type: str, x: str, y: str, both: str) -> str:
    """x & y, or x | y or x ^ y computed from it: sums of values without a common bit."""
    if op_type == "BitwiseAnd":
        return both
    rest = computer.add("Sub", y, both)
    if op_type == "BitwiseOr":
        return computer.add("Add", x, rest)
    return computer.add("Add", computer.add("Sub", x, both), rest)


bitwise_operator.examples = [
    Fixed(
        "the low half of packed bytes",
        before="g (uint8[N,3] x) => (uint8[N,3] y) <uint8 m = {15}> { y = BitwiseAnd(x, m) }",
        after="""g (uint8[N,3] x) => (uint8[N,3] y) <int32 m = {16}> {
            w = Cast<to = INT32>(x)  r = Mod(w, m)  y = Cast<to = UINT8>(r) }""",
    ),
    Fixed(
        "the high half: minus the bits below",
        before="g (uint8[N,3] x) => (uint8[N,3] y) <uint8 m = {240}> { y = BitwiseAnd(m, x) }",
        after="""g (uint8[N,3] x) => (uint8[N,3] y) <int32 m = {16}> {
            w = Cast<to = INT32>(x)  l = Mod(w, m)  r = Sub(w, l)  y = Cast<to = UINT8>(r) }""",
    ),
    Fixed(
        "bits 2 to 5, and bit 31 of a negative mask, of int32",
        before="g (int32[N] x) => (int32[N] y) <int32 m = {-2147483588}> { y = BitwiseAnd(x, m) }",
        after="""g (int32[N] x) => (int32[N] y)
            <int32 six = {64}, int32 two = {4}, int32 zero = {0}, int32 n = {-2147483648}> {
            m = Mod(x, six)  a = Mod(m, six)  n2 = Mod(x, two)  b = Mod(n2, two)  c = Sub(a, b)
            s = Less(x, zero)  d = Where(s, n, zero)  y = Add(c, d) }""",
    ),
    Fixed(
        "setting a bit",
        before="g (int64[N] x) => (int64[N] y) <int64 m = {8}> { y = BitwiseOr(x, m) }",
        after="""g (int64[N] x) => (int64[N] y) <int64 a = {16}, int64 b = {8}> {
            p = Mod(x, a)  q = Mod(x, b)  r = Sub(p, q)  s = Sub(b, r)  y = Add(x, s) }""",
    ),
    Fixed(
        "inverting all bits",
        before="g (int32[N] x) => (int32[N] y) { y = BitwiseNot(x) }",
        after="g (int32[N] x) => (int32[N] y) <int32 k = {-1}> { y = Sub(k, x) }",
    ),
    Fixed(
        "inverting the bits of bytes",
        before="g (uint8[N] x) => (uint8[N] y) { y = BitwiseNot(x) }",
        after="""g (uint8[N] x) => (uint8[N] y) <int32 k = {255}> {
            w = Cast<to = INT32>(x)  r = Sub(k, w)  y = Cast<to = UINT8>(r) }""",
    ),
    Fixed(
        "two tensors, bit by bit, broadcast",
        before="g (uint8[N,3] x, uint8[3] z) => (uint8[N,3] y) { y = BitwiseAnd(x, z) }",
        after="""g (uint8[N,3] x, uint8[3] z) => (uint8[N,3] y)
            <int32[8] p = {1, 2, 4, 8, 16, 32, 64, 128}, int32[8] ws = {1, 2, 4, 8, 16, 32, 64, 128}, int32 two = {2},
             int64[1] a = {-1}, int64[1] s = {2}> {
            v = Cast<to = INT32>(x)  w = Cast<to = INT32>(z)
            b = Unsqueeze(v, a)  c = Div(b, p)  d = Mod(c, two)
            e = Unsqueeze(w, a)  f = Div(e, p)  h = Mod(f, two)
            i = Mul(d, h)  j = Mul(i, ws)  k = ReduceSum<keepdims = 0>(j, s)  y = Cast<to = UINT8>(k) }""",
    ),
    Fixed(
        "empty tensors",
        before="g (uint8[0,3] x, uint8[3] z) => (uint8[0,3] y) { y = BitwiseAnd(x, z) }",
        after="""g (uint8[0,3] x, uint8[3] z) => (uint8[0,3] y)
            <int32[8] p = {1, 2, 4, 8, 16, 32, 64, 128}, int32[8] ws = {1, 2, 4, 8, 16, 32, 64, 128}, int32 two = {2},
             int64[1] a = {-1}, int64[1] s = {2}> {
            v = Cast<to = INT32>(x)  w = Cast<to = INT32>(z)
            b = Unsqueeze(v, a)  c = Div(b, p)  d = Mod(c, two)
            e = Unsqueeze(w, a)  f = Div(e, p)  h = Mod(f, two)
            i = Mul(d, h)  j = Mul(i, ws)  k = ReduceSum<keepdims = 0>(j, s)  y = Cast<to = UINT8>(k) }""",
    ),
    Fixed(
        "signed: the sign bit apart from the others",
        before="g (int8[3] x, int8[3] z) => (int8[3] y) { y = BitwiseXor(x, z) }",
        after="""g (int8[3] x, int8[3] z) => (int8[3] y)
            <int32[7] p = {1, 2, 4, 8, 16, 32, 64}, int32[7] ws = {1, 2, 4, 8, 16, 32, 64}, int32 two = {2},
             int64[1] a = {-1}, int64[1] last = {1}, int32 zero = {0}, int32 n = {-128}> {
            v = Cast<to = INT32>(x)  w = Cast<to = INT32>(z)
            s = Less(v, zero)  sn = Where(s, n, zero)  sl = Sub(v, sn)
            b = Unsqueeze(sl, a)  c = Div(b, p)  d = Mod(c, two)
            t = Less(w, zero)  tn = Where(t, n, zero)  tl = Sub(w, tn)
            e = Unsqueeze(tl, a)  f = Div(e, p)  h = Mod(f, two)
            i = Mul(d, h)  j = Mul(i, ws)  k = ReduceSum<keepdims = 0>(j, last)
            l = And(s, t)  m = Where(l, n, zero)  both = Add(k, m)
            q = Sub(v, both)  r = Sub(w, both)  u = Add(q, r)  y = Cast<to = INT8>(u) }""",
    ),
    Fixed(
        "int32, in halves of 16 bits",
        before="g (int32[3] x, int32[3] z) => (int32[3] y) { y = BitwiseOr(x, z) }",
        after="""g (int32[3] x, int32[3] z) => (int32[3] y)
            <int64[1] a = {-1}, bool[32] low = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
             int32[32] p = {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536,
                            2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536},
             int32[32] q = {0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095, 8191, 16383, 32767,
                            0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095, 8191, 16383, 32767},
             int32 half = {65536}, int32 zero = {0}, int64[1] last = {1}, int64[1] also = {1},
             int32[32] lows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768,
                               0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
             int32[32] highs = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768}> {
            b = Unsqueeze(x, a)  c = Mod(b, half)  d = Mod(c, half)  e = Sub(b, d)  f = Div(e, half)
            h = Where(low, d, f)  i = Mod(h, p)  j = Greater(i, q)
            bb = Unsqueeze(z, a)  cc = Mod(bb, half)  dd = Mod(cc, half)  ee = Sub(bb, dd)  ff = Div(ee, half)
            hh = Where(low, dd, ff)  ii = Mod(hh, p)  jj = Greater(ii, q)
            k = Or(j, jj)  l = Where(k, lows, zero)  m = ReduceSum<keepdims = 0>(l, last)
            n = Where(k, highs, zero)  o = ReduceSum<keepdims = 0>(n, also)  r = Mul(o, half)  y = Add(m, r) }""",
    ),
    Fixed(
        "a constant of several masks",
        before="g (uint8[2] x) => (uint8[2] y) <uint8[2] m = {15, 7}> { y = BitwiseAnd(x, m) }",
        after="""g (uint8[2] x) => (uint8[2] y)
             <int64[1] a = {-1}, int64[1] e = {1}, int32[8] p = {1, 2, 4, 8, 16, 32, 64, 128},
             int32 two = {2}, int32[2,8] w = {1, 2, 4, 8, 0, 0, 0, 0, 1, 2, 4, 0, 0, 0, 0, 0}> {
            v = Cast<to = INT32>(x)  b = Unsqueeze(v, a)  c = Div(b, p)  d = Mod(c, two)
            j = Mul(d, w)  k = ReduceSum<keepdims = 0>(j, e)  y = Cast<to = UINT8>(k) }""",
    ),
    Silent(
        "a mask that is a graph input's default, and an unknown rank",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (int32[2] x, int32 m) => (int32[2] y) <int32 m = {15}> { u = my.Unknown(x)  c = Cast<to = INT32>(u)
            y = BitwiseAnd(c, m) }""",
        runs=False,
    ),
    Silent(
        "booleans cast to integers (OPS026)",
        """g (bool[N] p, bool[N] q) => (int32[N] y) {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  y = BitwiseOr(a, b) }""",
    ),
    Silent("a type that TensorRT does not support", "g (uint16[N] x) => (uint16[N] y) { y = BitwiseNot(x) }"),
    Silent(
        "int64 where TensorRT computes in int32",
        "g (int64[N] x) => (int64[N] y) { y = BitwiseNot(x) }",
        target="trt8.6",
    ),
]


_LOGIC = {"BitwiseAnd": "And", "BitwiseOr": "Or", "BitwiseXor": "Xor"}


@rule("OPS026", ops=sorted(_LOGIC), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[66, 43])
def bitwise_logic(node: Node, model: Model) -> Iterator[Match]:
    """A bitwise And, Or or Xor of booleans that were cast to integers.

    ## Why it matters
    TensorRT imports no bitwise operator: `UNSUPPORTED_NODE at onnxOpCheckers.cpp:1090 checkBitwiseAnd`, measured with
    TensorRT-RTX 1.7.1. It has And, Or and Xor of booleans. PyTorch writes `a & b` of masks in both ways, depending on
    the exporter.

    ## Fix
    The logical operator on the booleans themselves, and a Cast of the result; where the result was cast back, CST003
    removes both Casts. A constant of 0 and 1 counts as boolean. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__BitwiseAnd.html
    """
    output = node.output()
    elem = None if output is None else model.shapes.elem_type(output)
    operands = [_logic.boolean(value, node, model) for value in node.inputs]
    if output is None or elem is None or len(operands) != 2:
        return
    if all(o is not None and o.constant for o in operands):
        return
    first, second = operands
    if first is None or second is None:
        return
    draft = Draft(node)
    logic = draft.add(_LOGIC[node.op_type], [first.name(draft), second.name(draft)])
    draft.replace_output(node, draft.cast(logic, elem))
    yield Match(
        f"TensorRT has no {node.op_type}; all operands here are 0 or 1",
        node=node,
        fix=Fix(f"replace by {_LOGIC[node.op_type]} of the booleans", draft.edits),
        reads=(*first.reads, *second.reads),
    )


bitwise_logic.examples = [
    *(
        Fixed(
            f"{bitwise} of booleans, between Casts",
            before=f"""g (bool[N,3] p, bool[3] q) => (bool[N,3] y) {{
                a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  c = {bitwise}(a, b)  y = Cast<to = BOOL>(c) }}""",
            after=f"""g (bool[N,3] p, bool[3] q) => (bool[N,3] y) {{
                l = {logic}(p, q)  c = Cast<to = INT32>(l)  y = Cast<to = BOOL>(c) }}""",
        )
        for bitwise, logic in _LOGIC.items()
    ),
    Fixed(
        "the result stays an integer",
        before="""g (bool[N] p, bool[N] q) => (int64[N] y) {
            a = Cast<to = INT64>(p)  b = Cast<to = INT64>(q)  y = BitwiseOr(a, b) }""",
        after="g (bool[N] p, bool[N] q) => (int64[N] y) { l = Or(p, q)  y = Cast<to = INT64>(l) }",
    ),
    Fixed(
        "a chain of three, the last a constant of 0 and 1",
        before="""g (bool[2] p, bool[2] q) => (int32[2] y) <int32[2] k = {1, 0}> {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  c = BitwiseOr(a, b)  y = BitwiseAnd(k, c) }""",
        after="""g (bool[2] p, bool[2] q) => (int32[2] y) <bool[2] k = {1, 0}> {
            l = Or(p, q)  m = And(k, l)  y = Cast<to = INT32>(m) }""",
    ),
    Silent(
        "a constant with another bit set",
        """g (bool[2] p) => (int32[2] y) <int32[2] k = {1, 2}> {
            a = Cast<to = INT32>(p)  y = BitwiseAnd(a, k) }""",
    ),
    Silent(
        "arbitrary integers",
        "g (int32[2] p, bool[2] q) => (int32[2] y) { b = Cast<to = INT32>(q)  y = BitwiseAnd(p, b) }",
    ),
    Silent(
        "integers that were cast to other integers",
        """g (int32[2] p, bool[2] q) => (int64[2] y) {
            a = Cast<to = INT64>(p)  b = Cast<to = INT64>(q)  y = BitwiseAnd(a, b) }""",
    ),
    Silent(
        "a default of a graph input",
        """g (bool[2] p, int32[2] k) => (int32[2] y) <int32[2] k = {1, 0}> {
            a = Cast<to = INT32>(p)  y = BitwiseAnd(a, k) }""",
    ),
    Silent(
        "BitwiseNot, which turns 0 into -1",
        "g (bool[2] p) => (int32[2] y) { a = Cast<to = INT32>(p)  y = BitwiseNot(a) }",
    ),
]
