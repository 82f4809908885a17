"""Arithmetic and casts of small types that TensorRT refuses (OPS027, OPS055, OPS062)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto, helper

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
    dtypes,
    name_of,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.ops import _logic
from onnxfix_rules.ops._integers import SMALL, unnarrowed

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@rule("OPS055", ops=["Mod"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43])
def mod_of_floats(node: Node, model: Model) -> Iterator[Match]:
    """A Mod of floats whose result has the divisor's sign, like Python's `%`.

    ## Why it matters
    The parser stops: `The fmod attribute is set to 0. Inputs cannot be of floating point types.`, measured with
    TensorRT-RTX 1.7.1. Opset 28 allows it.

    ## Fix The remainder with the dividend's sign, by `fmod=1`, plus the divisor where the signs differ. Equal up to
    rounding, so it requires `--numeric-fixes`: for `fmod=1` too TensorRT computes `x - d * trunc(x / d)` (read from the
    network that TensorRT-RTX 1.7.1 makes), which is less precise than ONNX Runtime if the quotient is large. It is NaN
    if the divisor is infinite, also in the engines of TensorRT 10.6.0. So the largest number is the divisor there,
    unless the divisor is a finite constant or a double, whose infinity TensorRT reads as a finite number: 0 for plus
    and minus that number itself, the dividend for all others, as in ONNX.

    TensorRT layers: 27, and 6 more for a divisor that may be infinite.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Mod.html
    """
    data, divisor = node.input(0), node.require(1)
    node.require_output()
    elem = None if data is None else model.shapes.elem_type(data)
    target = target_of(model)
    if data is None or elem not in _FLOATS or node.attr("fmod", 0) != 0:
        return
    if target.accepts("Mod", elem) is not True or not takes("Equal", node.opset, elem):
        return
    draft = Draft(node)
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    zero, minus = (draft.constant(np.array(number, dtype), "zero") for number in (0.0, -0.0))
    array, finite = divisor.constant(), divisor.name
    # TensorRT reads an infinite constant of type double as a finite one.
    if elem != TensorProto.DOUBLE and (array is None or np.isinf(array).any()):
        largest = np.array(np.finfo(dtype).max, dtype)
        same = draft.add(
            "Equal", [draft.add("Abs", [divisor]), draft.constant(np.array(np.inf, dtype), "inf")]
        )
        finite = draft.add("Where", [same, draft.constant(largest, "end"), divisor])
    rest = draft.add("Mod", [data, finite], fmod=1)
    positive = draft.add("Greater", [divisor, zero])
    differ = draft.add("Xor", [draft.add("Greater", [rest, zero]), positive])
    moved = draft.add("Where", [differ, draft.add("Add", [rest, divisor]), rest])
    # Zeros are the last operand of each Where: ONNX Runtime loses the sign of the other operand.
    signed = draft.add("Where", [positive, zero, minus])
    left = draft.add("Not", [draft.add("Equal", [rest, zero])])
    draft.replace_output(node, draft.add("Where", [left, moved, signed]))
    message = "TensorRT supports Mod of floats only with fmod=1"
    yield Match(message, node=node, fix=Fix("compute it from Mod with fmod=1", draft.edits, Safety.NUMERIC))


_SIGNED = """rp = Greater(r, zero)  dp = Greater(d, zero)  o = Xor(rp, dp)  m = Add(r, d)  s = Where(o, m, r)
            z = Where(dp, zero, minus)  e = Equal(r, zero)  n = Not(e)  y = Where(n, s, z) }"""
_fixed = partial(Fixed, ir_version=14, opset=28, safety=Safety.NUMERIC)

mod_of_floats.examples = [
    _fixed(
        "the divisor's sign, the default, allowed for floats since opset 28",
        before="g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod(x, d) }",
        after="""g (float[N,3] x, float[3] d) => (float[N,3] y)
            <float zero = {0}, float minus = {-0.0}, float inf = {inf}, float last = {3.4028235e38}> {
            a = Abs(d)  i = Equal(a, inf)  f = Where(i, last, d)  r = Mod<fmod = 1>(x, f) """
        + _SIGNED,
    ),
    _fixed(
        "a finite constant",
        before="g (float[N] x) => (float[N] y) <float d = {-2.5}> { y = Mod(x, d) }",
        after="""g (float[N] x) => (float[N] y) <float d = {-2.5}, float zero = {0}, float minus = {-0.0}> {
            r = Mod<fmod = 1>(x, d) """
        + _SIGNED,
    ),
    Silent(
        "the dividend's sign, which TensorRT supports",
        "g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod<fmod = 1>(x, d) }",
    ),
    Silent("integers", "g (int32[N,3] x, int32[3] d) => (int32[N,3] y) { y = Mod(x, d) }"),
    Silent(
        "opset 10, whose Equal does not support floats",
        "g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod(x, d) }",
        opset=10,
        runs=False,
    ),
]


@rule(
    "OPS062", ops=["Cast"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[50, 32], types=tuple(SMALL)
)
def cast_through_small_integer(node: Node, model: Model) -> Iterator[Match]:
    """A Cast of int32 or int64 to uint8 that loses nothing, followed by a Cast to another type.

    ## Why it matters
    uint8 between two nodes is refused: `TensorRT does not support UINT8 types for intermediate tensors`, measured with
    TensorRT-RTX 1.7.1. That includes the middle of such a chain, which rewritten uint8 arithmetic leaves behind. The
    severity is info if the uint8 is a graph output, which another node may also read.

    ## Fix
    Cast from the wide integer. Exact: the range of the integers is proven from the operators that produce them.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    value = node.input(0)
    elem = None if value is None else model.shapes.elem_type(value)
    if value is None or elem is None or target_of(model).between(elem):
        return
    before = unnarrowed(value, node, model)
    if before is None:
        return
    draft = Draft(node)
    draft.set_input(node, 0, before)
    yield Match(
        f"{dtypes.name_of(elem)} between two Casts, where TensorRT does not support it",
        node=node,
        fix=Fix("cast from the wide integer", draft.edits),
        severity=Severity.INFO if value.is_output else None,  # other nodes may also read a graph output
        reads=(value, before),
    )


cast_through_small_integer.examples = [
    Fixed(
        "wrapped around by Mod before the Cast",
        before="""g (int32[N] x) => (float[N] y) <int32 m = {256}> {
            r = Mod(x, m)  s = Cast<to = UINT8>(r)  y = Cast<to = FLOAT>(s) }""",
        after="g (int32[N] x) => (float[N] y) <int32 m = {256}> { r = Mod(x, m)  y = Cast<to = FLOAT>(r) }",
    ),
    Fixed(
        "a small sum; the uint8 is a graph output too",
        before="""g (bool[N] x, bool[N] z) => (float[N] y, uint8[N] s) {
            a = Cast<to = 6>(x)  b = Cast<to = 6>(z)  r = Add(a, b)  s = Cast<to = 2>(r)  y = Cast<to = 1>(s) }""",
        after="""g (bool[N] x, bool[N] z) => (float[N] y, uint8[N] s) {
            a = Cast<to = 6>(x)  b = Cast<to = 6>(z)  r = Add(a, b)  s = Cast<to = 2>(r)  y = Cast<to = 1>(r) }""",
    ),
    Silent(
        "values that may be too large",
        "g (int32[N] x) => (float[N] y) { s = Cast<to = UINT8>(x)  y = Cast<to = FLOAT>(s) }",
    ),
    Silent(
        "values that may be negative",
        """g (int32[N] x) => (float[N] y) <int32 m = {256}> {
            r = Mod<fmod = 1>(x, m)  s = Cast<to = UINT8>(r)  y = Cast<to = FLOAT>(s) }""",
    ),
]


_LOGIC = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}


@rule(
    "OPS027",
    ops=["Cast"],
    safety=Safety.EXACT,
    severity=Severity.INFO,
    hazards=[66],
    types=[TensorProto.BOOL],
)
def arithmetic_logic(node: Node, model: Model) -> Iterator[Match]:
    """Booleans cast to numbers, added or multiplied, and cast back to booleans: an Or, or an And.

    ## Why it matters
    Older exporters write logic this way. TensorRT imports four layers where one suffices: measured with TensorRT-RTX
    1.7.1, three CAST and one ELEMENTWISE instead of one ELEMENTWISE. With int32 or a float as the intermediate type it
    builds. With a type that TensorRT does not have between nodes it is an **error**: `TensorRT does not support UINT8
    types for intermediate tensors`.

    ## Fix
    Replace Add and Max by Or, Mul and Min by And, on the booleans themselves. Exact: for 0 and 1, a sum is 0 only if
    both are 0, and a product only if one is; in no numeric type does 2 become 0.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Or.html
    """
    value = node.input(0)
    node.require_output()
    arithmetic = None if value is None else value.producer
    if arithmetic is None or not arithmetic.is_onnx:
        return
    if arithmetic.op_type not in _LOGIC or len(arithmetic.inputs) != 2:
        return
    if node.opset < 7 or value is None or node.attr("to") != TensorProto.BOOL:
        return
    first, second = (_logic.boolean(operand, node, model) for operand in arithmetic.inputs)
    if first is None or second is None or (first.constant and second.constant):
        return
    elem = model.shapes.elem_type(value)
    if elem is None:
        return
    logic = _LOGIC[arithmetic.op_type]
    draft = Draft(node)
    draft.replace_output(node, draft.add(logic, [first.name(draft), second.name(draft)]))
    yield Match(
        f"{arithmetic.op_type} of booleans as {name_of(elem)}, cast back to bool: {logic}",
        node=node,
        fix=Fix(f"use {logic}", draft.edits),
        severity=Severity.INFO if target_of(model).between(elem) else Severity.ERROR,
        reads=(arithmetic, *first.reads, *second.reads),
    )


arithmetic_logic.examples = [
    *(
        Fixed(
            f"{arithmetic} between Casts is {logic}",
            before=f"""g (bool[N,3] p, bool[3] q) => (bool[N,3] z) {{
                a = Cast<to = 6>(p)  b = Cast<to = 6>(q)  c = {arithmetic}(a, b)  y = Cast<to = 9>(c)  z = Not(y) }}""",
            after=f"g (bool[N,3] p, bool[3] q) => (bool[N,3] z) {{ y = {logic}(p, q)  z = Not(y) }}",
        )
        for arithmetic, logic in _LOGIC.items()
    ),
    Fixed(
        "as uint8, which TensorRT lacks between nodes; the result is a graph output",
        before="""g (bool[N] p, bool[N] q) => (bool[N] y) {
            a = Cast<to = UINT8>(p)  b = Cast<to = UINT8>(q)  c = Mul(a, b)  y = Cast<to = BOOL>(c) }""",
        after="g (bool[N] p, bool[N] q) => (bool[N] y) { y = And(p, q) }",
        opset=14,
    ),
    Fixed(
        "the sum has another use, and stays",
        before="""g (bool[N] p, bool[N] q) => (bool[N] y, float[N] s) {
            a = Cast<to = FLOAT>(p)  b = Cast<to = FLOAT>(q)  s = Add(a, b)  y = Cast<to = BOOL>(s) }""",
        after="""g (bool[N] p, bool[N] q) => (bool[N] y, float[N] s) {
            a = Cast<to = FLOAT>(p)  b = Cast<to = FLOAT>(q)  s = Add(a, b)  y = Or(p, q) }""",
    ),
    Fixed(
        "with a constant of 0 and 1, inside a branch",
        before="""g (bool[2] p, bool c) => (bool[2] y) <float[2] k = {1, 0}> {
            y = If(c)<then_branch = t () => (bool[2] u) { a = Cast<to = 1>(p)  m = Mul(a, k)  u = Cast<to = 9>(m) },
                      else_branch = e () => (bool[2] v) { v = Not(p) }> }""",
        after="""g (bool[2] p, bool c) => (bool[2] y) {
            y = If(c)<then_branch = t () => (bool[2] u) <bool[2] k = {1, 0}> { u = And(p, k) },
                      else_branch = e () => (bool[2] v) { v = Not(p) }> }""",
    ),
    Silent(
        "integers that were not booleans: -1 and 1 sum to 0",
        "g (int32[N] p, bool[N] q) => (bool[N] y) { b = Cast<to = INT32>(q)  c = Add(p, b)  y = Cast<to = BOOL>(c) }",
    ),
    Silent(
        "a difference",
        """g (bool[N] p, bool[N] q) => (bool[N] y) {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  c = Sub(a, b)  y = Cast<to = BOOL>(c) }""",
    ),
    Silent(
        "the sum itself is the output",
        """g (bool[N] p, bool[N] q) => (int32[N] y) {
            a = Cast<to = INT32>(p)  b = Cast<to = INT32>(q)  y = Add(a, b) }""",
    ),
    Silent(
        "a constant 2",
        """g (bool[2] p) => (bool[2] y) <int32[2] k = {2, 0}> {
            a = Cast<to = INT32>(p)  c = Mul(a, k)  y = Cast<to = BOOL>(c) }""",
    ),
]
