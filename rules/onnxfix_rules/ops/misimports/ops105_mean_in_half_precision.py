"""OPS105: Mean in half precision, whose factor 1/n TensorRT's importer writes in the wrong type."""

from __future__ import annotations

from collections.abc import Iterator

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
)

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
    yield Match(
        f"TensorRT multiplies the sum of this Mean of {name_of(elem)} by another number than 1/{count}",
        node=node,
        fix=fix,
        reads=tuple(inputs),
    )


_THREE = "g (float16[2,3,4] a, float16[3,4] b, float16[1,1] c) => (float16[2,3,4] y)"
_TWO = "g (bfloat16[N,3] a, bfloat16[N,3] b) => (bfloat16[N,3] y)"

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
        before=f"{_TWO} {{ y = Mean(a, b) }}",
        after=f"{_TWO} <bfloat16 k = {{bf16(2.0)}}> {{ s = Sum(a, b)  y = Div(s, k) }}",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Fixed(
        "opset 7, in which Mean and Sum do not broadcast",
        before="g (float16[N] a, float16[N] b) => (float16[N] y) { y = Mean(a, b) }",
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
    Fixed(
        "in the body of a loop",
        before="""g (float16[3] x, float16[3] z, int64 n) => (float16[3] y) {
            y = Loop(n, , x)<body = b (int64 i, bool c, float16[3] p) => (bool d, float16[3] q) {
                d = Identity(c)  q = Mean(p, z) }> }""",
        after="""g (float16[3] x, float16[3] z, int64 n) => (float16[3] y) {
            y = Loop(n, , x)<body = b (int64 i, bool c, float16[3] p) => (bool d, float16[3] q)
                <float16 k = {f16(2.0)}> { d = Identity(c)  s = Sum(p, z)  q = Div(s, k) }> }""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "before opset 7 Div does not broadcast",
        "g (float16[2] a, float16[2] b) => (float16[2] y) { y = Mean(a, b) }",
        opset=6,
        safety=Safety.NUMERIC,
    ),
    Silent("in float32", "g (float[N] a, float[N] b) => (float[N] y) { y = Mean(a, b) }"),
    Silent(
        "in float64, which TensorRT imports as float32",
        "g (double[N] a, double[N] b) => (double[N] y) { y = Mean(a, b) }",
        runs=False,
    ),
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
