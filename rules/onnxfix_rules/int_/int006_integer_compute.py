"""INT006: integer operators that TensorRT has no kernel for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.dtypes import name_of
from onnxfix.edits import Draft
from onnxfix.graph.overlay import Model, Node, Value
from onnxfix.rule import Example, Fix, Match, Safety, Severity, rule

EXAMPLES = [
    Example(
        why="Relu of int32, its zero of the data's type and rank",
        before="g (int32[N,3] x) => (int32[N,3] y) { y = Relu(x) }",
        after="g (int32[N,3] x) => (int32[N,3] y) <int32[1,1] z = {0}> { y = Max(x, z) }",
    ),
    Example(
        why="Relu of int64 between other nodes",
        before="g (int64[N] x) => (int64[N] y) { a = Neg(x)  r = Relu(a)  y = Neg(r) }",
        after="g (int64[N] x) => (int64[N] y) <int64[1] z = {0}> { a = Neg(x)  r = Max(a, z)  y = Neg(r) }",
    ),
    Example(
        why="a scalar, and data of unknown rank, meet a scalar",
        before="g (int64 x, int64[] w) => (int64 y, int64[] v) { y = Relu(x)  v = Relu(w) }",
        after="""g (int64 x, int64[] w) => (int64 y, int64[] v) <int64 z = {0}, int64 u = {0}> {
            y = Max(x, z)  v = Max(w, u) }""",
    ),
    Example(
        why="inside a branch",
        before="""g (int64[N] x, bool b) => (int64[N] y) {
            y = If(b) <then_branch = p () => (int64[N] u) { u = Relu(x) },
                       else_branch = q () => (int64[N] w) { w = Neg(x) }> }""",
        after="""g (int64[N] x, bool b) => (int64[N] y) {
            y = If(b) <then_branch = p () => (int64[N] u) <int64[1] z = {0}> { u = Max(x, z) },
                       else_branch = q () => (int64[N] w) { w = Neg(x) }> }""",
    ),
    Example(
        why="MatMul",
        before="g (int32[N,3] x, int32[3,2] w) => (int32[N,2] y) { y = MatMul(x, w) }",
        detect=True,
    ),
    Example(
        why="Gemm",
        before="g (int64[N,3] x, int64[3,2] w) => (int64[N,2] y) { y = Gemm(x, w) }",
        detect=True,
    ),
    Example(
        why="Einsum",
        before="""g (int32[N,3] x, int32[3,2] w) => (int32[N,2] y) { y = Einsum<equation = "ij,jk->ik">(x, w) }""",
        detect=True,
    ),
    Example(why="ReduceL2", before="g (int64[N,3] x) => (int64[1,1] y) { y = ReduceL2(x) }", detect=True),
    Example(
        why="floats",
        before="g (float[N,3] x, float[3,2] w) => (float[N,2] y) { m = MatMul(x, w)  y = Relu(m) }",
    ),
    Example(
        why="integer operators that have kernels",
        before="""g (int64[N] x) => (int64[N] y, int64[1] s) <int64 k = {3}> {
            a = Mul(x, k)  b = Mod(a, k)  y = Abs(b)  s = ReduceSum(b) }""",
    ),
    Example(
        why="a local function called Relu",
        before="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (int64[N] x) => (int64[N] y) { y = my.Relu(x) }
            <opset_import: ["" : 18], domain: "my"> Relu (a) => (b) { b = Neg(a) }""",
    ),
    Example(
        why="int8 is not int32 or int64",
        before="g (int8[N] x) => (int8[N] y) { y = Relu(x) }",
    ),
]


@rule(
    "INT006",
    ops=["MatMul", "Gemm", "Einsum", "Relu", "ReduceL2"],
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    examples=EXAMPLES,
)
def integer_operator_without_kernel(node: Node, model: Model) -> Iterator[Match]:
    """An int32 or int64 operator for which TensorRT has no kernel.

    ## Why it matters
    The parser stops: `Found unsupported input type of INT64` for MatMul, Gemm, Einsum and Relu, `operator SQRT with
    ... INT64` for ReduceL2, measured with TensorRT-RTX 1.7.1 for INT32 and INT64 alike. Add, Sub, Mul, Div, Mod, Pow,
    Clip, Abs, Neg, Sign, CumSum, Where, TopK, Max, Range, Gather, Pad and the sum, mean, product and maximum
    reductions of integers do have kernels.

    ## Fix
    Relu becomes `Max(x, 0)`, with a zero of the data's type and rank: exact, integers have neither NaN nor -0.0. It is
    an operator on integers from opset 14 on.

    The others have none: computed in float32 they are exact only as long as every partial sum stays below 2**24, which
    the model does not say. Cast their inputs where you know that.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - https://onnx.ai/onnx/operators/onnx__Relu.html
    """
    data = node.input(0)
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or elem not in (TensorProto.INT32, TensorProto.INT64):
        return
    fix = _as_max(node, data, elem, model) if node.op_type == "Relu" else None
    yield Match(
        f"TensorRT has no {name_of(elem)} kernel for {node.op_type}", node=node, fix=fix, reads=(data,)
    )


def _as_max(node: Node, data: Value, elem: int, model: Model) -> Fix | None:
    """``Max(data, 0)`` in place of the Relu; its zero has the data's rank, so that nothing broadcasts ranks."""
    output = node.output()
    if node.opset < 14 or output is None:
        return None
    dtype = np.dtype(np.int64 if elem == TensorProto.INT64 else np.int32)
    zero = np.zeros([1] * (model.shapes.rank(data) or 0), dtype=dtype)
    draft = Draft(node)
    draft.remove(node)
    draft.add("Max", [data, draft.constant(zero)], output=output.name)
    return Fix("write Max(x, 0)", draft.edits)
