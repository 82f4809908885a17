"""Remainders and maxima of floats that TensorRT computes in another way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
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
    rule,
    target_of,
)

_SIGNIFICAND_BITS: dict[int, int] = {
    TensorProto.FLOAT: 24,
    TensorProto.DOUBLE: 24,
    TensorProto.FLOAT16: 11,
    TensorProto.BFLOAT16: 8,
}
"""Significand bits in which TensorRT computes; it imports float64 as float32."""


@rule("OPS084", ops=["Mod"], severity=Severity.INFO, hazards=[26])
def remainder_of_floats(node: Node, model: Model) -> Iterator[Match]:
    """A Mod of floats with `fmod=1`: TensorRT computes `x - y * trunc(x / y)` and rounds each step.

    ## Why it matters
    ONNX's result is C's `fmod`: the exact remainder, and x where y is infinite. Measured with TensorRT-RTX 1.7.1 by
    reading the imported network, in opsets 10 to 28: DIV, FLOOR or CEIL, PROD, SUB. That is

    - NaN where y is infinite: an error where a constant divisor is,
    - wrong where the quotient is large: from 2^24 on in float32 and from 2^11 on in half precision the quotient has no
      bits left for the fraction,
    - off by a whole y where the quotient is rounded to an integer.

    Information, except for an infinite constant: angles, phases and the like, a few times as large as the divisor, are
    correct up to rounding.

    ## Fix
    None: an exact result requires a division step for each bit of the quotient. Keep the quotient small, or make x and
    y integers, for which TensorRT has an exact remainder.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Mod.html: "if the fmod attribute is set to 1, … follows the C fmod function"
    """
    data, divisor = node.require(0), node.require(1)
    if node.attr("fmod", 0) != 1:
        return
    elem, shapes = model.shapes.elem_type(data), [model.shapes.static_shape(v) for v in (data, divisor)]
    if elem not in _SIGNIFICAND_BITS or any(shape is not None and 0 in shape for shape in shapes):
        return
    if target_of(model).accepts("Mod", elem) is not True:
        return
    array = divisor.constant()
    if array is not None and bool(np.isinf(array).any()):
        yield Match(
            "Mod with fmod=1 by an infinite constant: ONNX gives the dividend, TensorRT NaN",
            node=node,
            severity=Severity.ERROR,
            reads=(divisor,),
        )
        return
    yield Match(
        "TensorRT computes Mod with fmod=1 as x - y * trunc(x / y), rounding each step: NaN for an infinite divisor, "
        f"and wrong for quotients of 2^{_SIGNIFICAND_BITS[elem]} and more",
        node=node,
    )


remainder_of_floats.examples = [
    Flagged(
        "a non-constant divisor", "g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod<fmod = 1>(x, d) }"
    ),
    Flagged(
        "constant divisors, one of them infinite",
        """g (float[N,3] x) => (float[N,3] y) <float[3] d = {2, -inf, 3}> { y = Mod<fmod = 1>(x, d) }""",
    ),
    Flagged(
        "a constant divisor of a full turn, in half precision",
        """g (float16[N,3] x) => (float16[N,3] y) <float16 d = {f16(2.146e-05)}> { y = Mod<fmod = 1>(x, d) }""",
        opset=13,
    ),
    Flagged(
        "an infinite default of a graph input",
        """g (float[3] x, float d) => (float[3] y) <float d = {inf}> { y = Mod<fmod = 1>(x, d) }""",
        opset=10,
    ),
    Flagged(
        "in a branch, with an infinite constant",
        """g (float[3] x, bool c) => (float[3] y) {
            y = If(c)<then_branch = p () => (float[3] u) <float d = {inf}> { u = Mod<fmod = 1>(x, d) },
                      else_branch = q () => (float[3] v) { v = Neg(x) }> }""",
    ),
    Silent(
        "integers, where TensorRT is exact",
        "g (int32[N,3] x, int32[3] d) => (int32[N,3] y) { y = Mod<fmod = 1>(x, d) }",
    ),
    Silent(
        "fmod=0: the divisor's sign (OPS055)",
        "g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod(x, d) }",
        opset=28,
        ir_version=14,
    ),
    Silent(
        "a local function, which may be called with integers",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (int32[3] x, int32[3] d) => (int32[3] y) { y = my.F(x, d) }
            <domain: "my", opset_import: ["" : 18]> F (a, b) => (c) { c = Mod<fmod = 1>(a, b) }""",
    ),
    Silent("empty tensor", "g (float[0,3] x, float[3] d) => (float[0,3] y) { y = Mod<fmod = 1>(x, d) }"),
]


@rule("OPS103", ops=["Equal"], safety=Safety.EXACT)
def maximum_of_minus_infinity(node: Node, model: Model) -> Iterator[Match]:
    """A ReduceMax compared with -inf: TensorRT 10.6's maximum of a row of -inf is a finite number.

    ## Why it matters
    Attention asks so for rows whose keys are all masked, which it makes zeros. In TensorRT the comparison is false, and
    the softmax of such a row is NaN, and so is all that is computed from it. Measured with TensorRT 10.6.0 on an H200:
    the maximum of a row of -inf is finite (the lowest number, it seems), and of ONNX's node models four of Attention
    give NaN (rows outside the window, and rows without a key). The imported network is right: no check but `trt-gpu`
    sees it. Other releases were not asked.

    ## Fix
    Compare the elements with -inf, and ask by ReduceMin whether all are. Exact, but for a row of -inf and NaN: ONNX
    Runtime's ReduceMax ignores a NaN that is not the first element.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Attention.html: the function body's BiasRowMax
    """
    target = target_of(model)
    if target.package != "tensorrt" or not (10,) <= target.oldest < (10, 14):
        return
    for value, other in ((node.require(0), node.require(1)), (node.require(1), node.require(0))):
        known, largest = other.constant(), value.producer
        if known is None or largest is None or largest.op_type != "ReduceMax" or known.size != 1:
            continue
        data, rank = largest.require(0), model.shapes.rank(value)
        if rank is None or known.ndim > rank or not np.isneginf(known).all():
            continue
        draft = Draft(node)
        low = draft.constant(np.array(-np.inf, known.dtype), "low")
        equal = draft.cast(draft.add("Equal", [data, low]), TensorProto.FLOAT)
        axes = [one for one in (largest.input(1),) if one is not None]
        defaults: dict[str, Any] = {"keepdims": 1, "axes": [], "noop_with_empty_axes": 0}
        kept = {name: largest.attr(name, what) for name, what in defaults.items() if largest.attribute(name)}
        every = draft.add("ReduceMin", [equal, *axes], **kept)
        half = draft.constant(np.array(0.5, np.float32), "half")
        draft.replace_output(node, draft.add("Greater", [every, half]))
        yield Match(
            f"{target.title} takes the maximum of elements that are all -inf for a finite number",
            node=node,
            fix=Fix("ask whether all elements are -inf", draft.edits),
            reads=(data, other),
        )
        return


_ROWS = "g (float[N,3] x) => (bool[N,1] y)"
_ALL = "l = Equal(x, low)  f = Cast<to = FLOAT>(l)  r = ReduceMin"

maximum_of_minus_infinity.examples = [
    Fixed(
        "whether a row is masked",
        before=f"{_ROWS} <float i = {{-inf}}, int64[1] a = {{1}}> {{ m = ReduceMax(x, a)  y = Equal(m, i) }}",
        after=f"""{_ROWS} <float low = {{-inf}}, int64[1] a = {{1}}, float half = {{0.5}}> {{
            {_ALL}(f, a)  y = Greater(r, half) }}""",
        target="trt10.6",
    ),
    Fixed(
        "the axes are an attribute before opset 18; the constant is the first operand",
        before="""g (float[N,3] x) => (bool[N] y) <float[1] i = {-inf}> {
            m = ReduceMax<axes = [1], keepdims = 0>(x)  y = Equal(i, m) }""",
        after=f"""g (float[N,3] x) => (bool[N] y) <float low = {{-inf}}, float half = {{0.5}}> {{
            {_ALL}<axes = [1], keepdims = 0>(f)  y = Greater(r, half) }}""",
        opset=13,
        target="trt10.6",
    ),
    Silent(
        "TensorRT 11",
        f"{_ROWS} <float i = {{-inf}}, int64[1] a = {{1}}> {{ m = ReduceMax(x, a)  y = Equal(m, i) }}",
    ),
    Silent(
        "another constant",
        f"{_ROWS} <float i = {{-1}}, int64[1] a = {{1}}> {{ m = ReduceMax(x, a)  y = Equal(m, i) }}",
        target="trt10.6",
    ),
    Silent(
        "a constant of a higher rank",
        """g (float[N,3] x) => (bool[1,N,1] y) <float[1,1,1] i = {-inf}, int64[1] a = {1}> {
            m = ReduceMax(x, a)  y = Equal(m, i) }""",
        target="trt10.6",
    ),
]
