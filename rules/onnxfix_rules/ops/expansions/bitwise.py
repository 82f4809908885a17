"""OPS026 and OPS052: bitwise operators, as logic of booleans or as integer arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

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
    rule,
    target_of,
)
from onnxfix_rules.ops import _logic
from onnxfix_rules.ops._integers import SMALL, Computer
from onnxfix_rules.ops.expansions import _bits

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
