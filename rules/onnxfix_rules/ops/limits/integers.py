"""Mod of floats, and Casts through small integers."""

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
    rule,
    takes,
    target_of,
)
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
    data, divisor, output = node.input(0), node.require(1), node.require_output()
    elem = None if data is None else model.shapes.elem_type(data)
    target = target_of(model)
    if data is None or elem not in _FLOATS or node.attr("fmod", 0) != 0:
        return
    if target.accepts("Mod", elem) is not True or not takes("Equal", node.opset, elem):
        return
    draft = Draft(node)
    draft.remove(node)
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
    draft.add("Where", [left, moved, signed], output=output.name)
    yield Match(
        "TensorRT supports Mod of floats only with fmod=1",
        node=node,
        fix=Fix("compute it from Mod with fmod=1", draft.edits, Safety.NUMERIC),
    )


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
