"""Reductions of scalars and of booleans."""

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
    Value,
    dtypes,
    is_small,
    rule,
    takes,
)

_COPIES = ("ReduceMax", "ReduceMin", "ReduceProd")
_SUMS = ("ReduceMean", "ReduceSum")
_OTHERS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


@rule("OPS024", ops=[*_COPIES, *_SUMS, *_OTHERS], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[44])
def reduction_of_scalar(node: Node, model: Model) -> Iterator[Match]:
    """A reduction of a scalar, which has no axis to reduce.

    ## Why it matters
    ONNX allows it: the result is a scalar. TensorRT stops: `ITensor::getDimensions: Error Code 3: API Usage Error (…:
    at least 1 dimensions are required for input.`, measured with TensorRT-RTX 1.7.1 for all ten reductions, with and
    without `keepdims`. With `noop_with_empty_axes` set it imports an Identity.

    ## Fix
    Product, maximum and minimum of one element are that element; so are sum and mean of an integer. ReduceL1 becomes
    Abs, ReduceSumSquare `Mul(x, x)`, ReduceLogSum Log. The sum of a single -0.0 is 0.0 in ONNX Runtime and the
    reference, so sum and mean of a float become `Add(x, 0)`. ReduceL2 and ReduceLogSumExp may overflow in an
    intermediate result; they stay and get an axis of length 1. All exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ReduceSum.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    data = node.require(0)
    node.require_output()
    if model.shapes.rank(data) != 0:
        return
    if node.attr("noop_with_empty_axes", 0) != 0:
        return
    message = f"{node.op_type} of a scalar: TensorRT requires an axis to reduce"
    yield Match(message, node=node, fix=_fix(node, data, model))


def _fix(node: Node, data: Value, model: Model) -> Fix | None:
    draft = Draft(node)
    elem = model.shapes.elem_type(data)
    if node.op_type in _COPIES or (node.op_type in _SUMS and elem is not None and dtypes.is_integer(elem)):
        draft.bypass(node, data)
        return Fix("use the scalar itself", draft.edits)
    if elem is None or not (dtypes.is_float(elem) or node.op_type in ("ReduceL1", "ReduceSumSquare")):
        return None
    if node.op_type in ("ReduceL2", "ReduceLogSumExp"):
        return _with_axis(node, data, draft)
    if node.op_type == "ReduceSumSquare" and not takes("Mul", node.opset, elem):
        return None  # opset 6 and before multiply floats only
    if node.op_type in _SUMS:
        zero = draft.constant(np.zeros((), helper.tensor_dtype_to_np_dtype(elem)), "zero")
        result = draft.add("Add", [data, zero])
    elif node.op_type == "ReduceSumSquare":
        result = draft.add("Mul", [data, data])
    else:
        result = draft.add("Abs" if node.op_type == "ReduceL1" else "Log", [data])
    draft.replace_output(node, result)
    return Fix("compute it without a reduction", draft.edits)


def _with_axis(node: Node, data: Value, draft: Draft) -> Fix:
    row = draft.unsqueeze(data, [0])
    if node.opset >= 18:
        axes = draft.constant(np.zeros(1, np.int64), "axes")
        draft.replace_node(node, inputs=[row, axes], axes=None, keepdims=0)
    else:
        draft.replace_node(node, inputs=[row], axes=[0], keepdims=0)
    return Fix("unsqueeze the scalar before the reduction", draft.edits)


def _of_scalar(call: str, elem: str = "float") -> str:
    return f"g ({elem} x) => ({elem} y) {{ y = {call}(x) }}"


reduction_of_scalar.examples = [
    *(
        Fixed(
            f"{op}: a copy",
            before=f"g (float x) => (float y) {{ r = {op}(x)  y = Neg(r) }}",
            after=_of_scalar("Neg"),
        )
        for op in _COPIES
    ),
    *(
        Fixed(
            f"{op} in opset {opset}: a copy, except that -0.0 becomes 0.0",
            before=f"g (float x) => (float y) {{ y = {op}(x) }}",
            after="g (float x) => (float y) <float z = {0}> { y = Add(x, z) }",
            opset=opset,
        )
        for op, opset in (("ReduceMean", 11), ("ReduceMean", 20), ("ReduceSum", 11), ("ReduceSum", 20))
    ),
    Fixed(
        "a copy that is the graph's output",
        before=_of_scalar("ReduceProd<keepdims = 0>"),
        after=_of_scalar("Identity"),
    ),
    Fixed(
        "of integers, with empty axes",
        before="g (int64 x) => (int64 y) <int64[0] a = {}> { r = ReduceSum(x, a)  y = Neg(r) }",
        after=_of_scalar("Neg", elem="int64"),
        opset=13,
    ),
    Fixed(
        "the second of two reductions",
        before="g (float[N] x) => (float y) { a = ReduceMax<keepdims = 0>(x)  m = ReduceMax(a)  y = Neg(m) }",
        after="g (float[N] x) => (float y) { a = ReduceMax<keepdims = 0>(x)  y = Neg(a) }",
        opset=11,
    ),
    Fixed("ReduceL1: Abs", before=_of_scalar("ReduceL1"), after=_of_scalar("Abs")),
    Fixed(
        "ReduceSumSquare: a product",
        before=_of_scalar("ReduceSumSquare<keepdims = 0>", elem="int64"),
        after="g (int64 x) => (int64 y) { y = Mul(x, x) }",
        opset=11,
    ),
    Fixed("ReduceLogSum: Log", before=_of_scalar("ReduceLogSum"), after=_of_scalar("Log")),
    Fixed(
        "reductions whose intermediate result may overflow get an axis",
        before="g (float x) => (float y, float z) { y = ReduceL2(x)  z = ReduceLogSumExp<keepdims = 0>(x) }",
        after="""g (float x) => (float y, float z)
            <int64[1] a = {0}, int64[1] b = {0}, int64[1] c = {0}, int64[1] d = {0}> {
            u = Unsqueeze(x, a)  y = ReduceL2<keepdims = 0>(u, b)
            v = Unsqueeze(x, c)  z = ReduceLogSumExp<keepdims = 0>(v, d) }""",
    ),
    Fixed(
        "the same with axes as an attribute",
        before=_of_scalar("ReduceL2"),
        after="""g (float x) => (float y) <int64[1] a = {0}> {
            u = Unsqueeze(x, a)  y = ReduceL2<keepdims = 0, axes = [0]>(u) }""",
        opset=13,
    ),
    Fixed(
        "inside a branch, of a captured scalar",
        before="""g (float x, bool c) => (float y) {
            y = If(c)<then_branch = p () => (float u) { u = ReduceL1(x) },
                      else_branch = q () => (float v) { v = ReduceMin(x) }> }""",
        after="""g (float x, bool c) => (float y) {
            y = If(c)<then_branch = p () => (float u) { u = Abs(x) },
                      else_branch = q () => (float v) { v = Identity(x) }> }""",
    ),
    Flagged(
        "no kernel for the logarithm of integers either", _of_scalar("ReduceLogSum", elem="int32"), runs=False
    ),
    Silent(
        "noop_with_empty_axes, which TensorRT supports", _of_scalar("ReduceSum<noop_with_empty_axes = 1>")
    ),
    Silent("of a vector", "g (float[1] x) => (float[1] y) { y = ReduceSum(x) }"),
    Silent(
        "of unknown rank",
        "g (float[A,B] x, int64[K] h) => (float[C] y) { r = Reshape(x, h)  y = ReduceSum<keepdims = 0>(r) }",
        runs=False,
    ),
]


@rule("OPS025", ops=["ReduceMax", "ReduceMin"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[66])
def reduction_of_booleans(node: Node, model: Model) -> Iterator[Match]:
    """A ReduceMax or ReduceMin of booleans: whether any, or all, of them are true.

    ## Why it matters
    ONNX has it since opset 20. TensorRT does not: `Found unsupported input type of BOOL`, measured with TensorRT-RTX
    1.7.1. And, Or, Xor, Not, Equal, Where, Concat, Slice, Gather and Scatter of booleans are supported.

    ## Fix
    Cast to int32, reduce, and convert back: ReduceMin by a Cast, ReduceMax by `Greater(…, 0)`, because the maximum of
    an empty tensor is the smallest int32, which a Cast would make true. Exact.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ReduceMax.html
    """
    data, output = node.require(0), node.require_output()
    if model.shapes.elem_type(data) != TensorProto.BOOL:
        return
    if model.shapes.rank(data) == 0 and node.attr("noop_with_empty_axes", 0) == 0:
        return  # OPS024 has a simpler fix
    ones = [1] * (model.shapes.rank(output) or 0)
    if not is_small(*ones):
        return
    draft = Draft(node)
    cast = draft.add("Cast", [data], hint="int32", to=TensorProto.INT32)
    reduced = draft.replace_node(node, "", [cast, *node.inputs[1:]], [draft.name("reduced")])
    if node.op_type == "ReduceMin":
        draft.add("Cast", [reduced], output=output.name, to=TensorProto.BOOL)
    else:
        zero = np.zeros(ones, np.int32)
        draft.add("Greater", [reduced, draft.constant(zero, "zero")], output=output.name)
    yield Match(
        f"TensorRT has no {node.op_type} of booleans", node=node, fix=Fix("reduce in int32", draft.edits)
    )


reduction_of_booleans.examples = [
    Fixed(
        "ReduceMax: whether any is true",
        before="g (bool[N,3] x) => (bool[N,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        after="""g (bool[N,3] x) => (bool[N,1] y) <int64[1] a = {1}, int32[1,1] z = {0}> {
            i = Cast<to = INT32>(x)  m = ReduceMax(i, a)  y = Greater(m, z) }""",
        opset=20,
    ),
    Fixed(
        "ReduceMin: whether all are true",
        before="""g (bool[N,3] x) => (bool[3] z) <int64[1] a = {0}> {
            y = ReduceMin<keepdims = 0>(x, a)  z = Not(y) }""",
        after="""g (bool[N,3] x) => (bool[3] z) <int64[1] a = {0}> {
            i = Cast<to = INT32>(x)  m = ReduceMin<keepdims = 0>(i, a)  y = Cast<to = BOOL>(m)  z = Not(y) }""",
        opset=20,
    ),
    Fixed(
        "an empty tensor: the maximum is false",
        before="g (bool[0,3] x) => (bool[1,3] y) <int64[1] a = {0}> { y = ReduceMax(x, a) }",
        after="""g (bool[0,3] x) => (bool[1,3] y) <int64[1] a = {0}, int32[1,1] z = {0}> {
            i = Cast<to = INT32>(x)  m = ReduceMax(i, a)  y = Greater(m, z) }""",
        opset=20,
        runs=False,
    ),
    Fixed(
        "along all axes",
        before="""g (bool[2,3] x) => (bool y, bool z) {
            y = ReduceMax<keepdims = 0>(x)  z = ReduceMin<keepdims = 0>(x) }""",
        after="""g (bool[2,3] x) => (bool y, bool z) <int32 c = {0}> {
            i = Cast<to = INT32>(x)  m = ReduceMax<keepdims = 0>(i)  y = Greater(m, c)
            j = Cast<to = INT32>(x)  n = ReduceMin<keepdims = 0>(j)  z = Cast<to = BOOL>(n) }""",
        opset=20,
    ),
    Silent(
        "integers", "g (int32[N,3] x) => (int32[N,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }", opset=20
    ),
    Silent(
        "booleans already cast to integers",
        """g (bool[N,3] x) => (bool[N,1] y) <int64[1] a = {1}> {
            i = Cast<to = INT32>(x)  m = ReduceMax(i, a)  y = Cast<to = BOOL>(m) }""",
        opset=20,
    ),
    Silent(
        "of unknown type",
        """<ir_version: 9, opset_import: ["" : 20, "my" : 1]>
            g (bool[2,3] x) => (bool[1,1] y) { u = my.Unknown(x)  y = ReduceMax(u) }""",
        runs=False,
    ),
]
