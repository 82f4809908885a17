"""Arithmetic that TensorRT computes otherwise (OPS084, OPS103, OPS105)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import TensorProto, helper

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
    name_of,
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
        text = "Mod with fmod=1 by an infinite constant: ONNX gives the dividend, TensorRT NaN"
        yield Match(text, node=node, severity=Severity.ERROR, reads=(divisor,))
        return
    yield Match(
        "TensorRT computes Mod with fmod=1 as x - y * trunc(x / y), rounding each step: NaN for an infinite divisor, "
        f"and wrong for quotients of 2^{_SIGNIFICAND_BITS[elem]} and more",
        node=node,
    )


def _mod(attributes: str, elem: str = "float", x: str = "N,3") -> str:
    return f"g ({elem}[{x}] x, {elem}[3] d) => ({elem}[{x}] y) {{ y = Mod{attributes}(x, d) }}"


remainder_of_floats.examples = [
    Flagged("a non-constant divisor", _mod("<fmod = 1>")),
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
    Silent("integers, where TensorRT is exact", _mod("<fmod = 1>", elem="int32")),
    Silent("fmod=0: the divisor's sign (OPS055)", _mod(""), opset=28, ir_version=14),
    Silent(
        "a local function, which may be called with integers",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (int32[3] x, int32[3] d) => (int32[3] y) { y = my.F(x, d) }
            <domain: "my", opset_import: ["" : 18]> F (a, b) => (c) { c = Mod<fmod = 1>(a, b) }""",
    ),
    Silent("empty tensor", _mod("<fmod = 1>", x="0,3")),
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


_TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rule("OPS105", ops=["Mean"], safety=Safety.NUMERIC, severity=Severity.ERROR, types=_TYPES)
def mean_of_half_tensors(node: Node, model: Model) -> Iterator[Match]:
    """A Mean in half precision or bfloat16: TensorRT multiplies the sum by another number than 1/n.

    ## Why it matters
    The importer makes a constant of the tensor's type and writes 1/n into it as float32; the constant is the lower half
    of that number's bits: 0 for 1 and 2 inputs, -0.0521 for 3 in half precision. Measured with TensorRT-RTX 1.7.1 by
    reading the imported network, in opsets 8 and 13, with up to three inputs; an engine gave wrong values for 119 of
    120 elements. It parses and builds without a warning. The same lines are in onnx-tensorrt 9.3, 10.0 and 10.1. Up to
    9.0 the constant is float32, beside a sum in half precision. In float32 it is right, and so is float64, which is
    imported as float32.

    ## Fix
    A Sum, and a Div by the number of inputs. NUMERIC: ONNX leaves open how a mean rounds. `onnx.reference` sums and
    divides and gives the same bits, but 0 for a sum of -0. ONNX Runtime computes in float32 and multiplies by 1/n:
    of 300,000 half-precision means of 1 to 7 numbers, 13 bytes differ; a sum beyond 65504 is infinite after the
    fix, as in `onnx.reference`. With one input there is nothing to compute: it takes the place of the output. Exact.

    No fix before opset 7, in which Div does not broadcast.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/10.1-GA/onnxOpImporters.cpp, line 3470
    - https://onnx.ai/onnx/operators/onnx__Mean.html
    """
    node.require_output()
    inputs = [node.require(index) for index in range(len(node.inputs))]
    elem = next((one for one in map(model.shapes.elem_type, inputs) if one is not None), None)
    if elem not in _TYPES:
        return
    fix, draft, count = None, Draft(node), len(inputs)
    if count == 1:
        draft.replace_output(node, inputs[0])
        fix = Fix("take the only input", draft.edits)
    elif node.opset >= 7:
        number = np.array(count, helper.tensor_dtype_to_np_dtype(elem))
        draft.replace_output(
            node, draft.add("Div", [draft.add("Sum", inputs), draft.constant(number, "count")])
        )
        fix = Fix(f"divide the sum by {count}", draft.edits, Safety.NUMERIC)
    message = f"TensorRT multiplies the sum of this Mean of {name_of(elem)} by another number than 1/{count}"
    yield Match(message, node=node, fix=fix, reads=tuple(inputs))


_THREE = "g (float16[2,3,4] a, float16[3,4] b, float16[1,1] c) => (float16[2,3,4] y)"
_TWO = "g (bfloat16[N,3] a, bfloat16[N,3] b) => (bfloat16[N,3] y)"


def _mean(elem: str, a: str = "N") -> str:
    return f"g ({elem}[{a}] a, {elem}[{a}] b) => ({elem}[{a}] y) {{ y = Mean(a, b) }}"


mean_of_half_tensors.examples = [
    Fixed(
        "of three tensors, which broadcast",
        before=f"{_THREE} {{ n = Neg(a)  m = Mean(n, b, c)  y = Neg(m) }}",
        after=f"""{_THREE} <float16 k = {{f16(3.0)}}> {{
            n = Neg(a)  s = Sum(n, b, c)  m = Div(s, k)  y = Neg(m) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "in bfloat16",
        before=_mean("bfloat16", a="N,3"),
        after=f"{_TWO} <bfloat16 k = {{bf16(2.0)}}> {{ s = Sum(a, b)  y = Div(s, k) }}",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Fixed(
        "opset 7, in which Mean and Sum do not broadcast",
        before=_mean("float16"),
        after="""g (float16[N] a, float16[N] b) => (float16[N] y) <float16 k = {f16(2.0)}> {
            s = Sum(a, b)  y = Div(s, k) }""",
        opset=7,
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "of one tensor",
        before="g (float16[N] x) => (float16[N] y) { a = Neg(x)  m = Mean(a)  y = Neg(m) }",
        after="g (float16[N] x) => (float16[N] y) { a = Neg(x)  y = Neg(a) }",
    ),
    Flagged("before opset 7 Div does not broadcast", _mean("float16", a="2"), opset=6, safety=Safety.NUMERIC),
    Silent("in float32", _mean("float")),
    Silent("in float64, which TensorRT imports as float32", _mean("double"), runs=False),
    Silent(
        "of an unknown type",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]> g (float[2] x) => (float[2] y) { y = my.F(x, x) }
            <domain: "my", opset_import: ["" : 18]> F (a, b) => (c) { c = Mean(a, b) }""",
    ),
    Silent("a sum", "g (float16[N] a, float16[N] b) => (float16[N] y) { y = Sum(a, b) }"),
    Silent(
        "a mean over an axis",
        "g (float16[N,4] x) => (float16[N] y) { y = ReduceMean<axes = [1], keepdims = 0>(x) }",
        opset=13,
    ),
]
