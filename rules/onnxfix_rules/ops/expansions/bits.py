"""Shifts and reinterpreted bits."""

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
from onnxfix_rules.ops._integers import SMALL, WIDE, Computer, wide_of


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
