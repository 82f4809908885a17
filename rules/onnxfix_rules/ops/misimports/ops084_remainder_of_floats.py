"""OPS084: Mod of floats with the dividend's sign (fmod=1)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule, target_of

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
        "a non-constant divisor",
        "g (float[N,3] x, float[3] d) => (float[N,3] y) { y = Mod<fmod = 1>(x, d) }",
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
