"""OPS073: norms, sums of squares and logarithms of sums over no axes."""

from __future__ import annotations

from collections.abc import Iterator

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
    dtypes,
    rule,
)

_RESULTS = {
    "ReduceL1": "the absolute value of each element",
    "ReduceL2": "the absolute value of each element",
    "ReduceLogSum": "the logarithm of each element",
    "ReduceSumSquare": "the square of each element",
}


@rule("OPS073", ops=sorted(_RESULTS), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[12])
def reduction_over_no_axes(node: Node, model: Model) -> Iterator[Match]:
    """A ReduceL1, ReduceL2, ReduceLogSum or ReduceSumSquare with `noop_with_empty_axes = 1` and without axes.

    ## Why it matters
    Over no axes nothing is summed, but the rest of the operator still applies: "ReduceLogSum returns the Log of input
    tensor, and ReduceSumSquare returns the Square of the input tensor", according to ONNX; its function bodies for
    these operators have always computed that, as do its reference and ONNX Runtime (1.31). TensorRT copies: the sum of
    squares of -2 and 3 is -2 and 3, not 4 and 9. It parses and builds without a warning. Measured with TensorRT-RTX
    1.7.1 by reading the imported network, which is one `IDENTITY` layer, for float, half, int32 and int64, of any rank,
    static and dynamic. For ReduceSum, ReduceMean, ReduceProd, ReduceMax, ReduceMin and ReduceLogSumExp a copy is
    correct.

    ## Fix
    Give the omitted axes explicitly, as an empty list. Exact: ONNX defines both as the same. TensorRT imports it
    correctly: its network computes the absolute value, the square or the logarithm. No fix for ReduceL2 of integers,
    which TensorRT would then reject (`does not support the given operator SQRT with the given input data type INT32`).

    ## References
    - https://onnx.ai/onnx/operators/onnx__ReduceSumSquare.html, attribute noop_with_empty_axes: "composite-reduction
      operators will still perform the non-reduction steps as needed". Up to onnx 1.17 the text said that the output
      "would be equivalent to input tensor"; the operator's function body did not.
    """
    data = node.require(0)
    if node.opset < 18 or node.input(1) is not None or node.attr("noop_with_empty_axes", 0) != 1:
        return
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    if shape is not None and any(dim.value == 0 for dim in shape):
        return
    is_integer = elem is not None and dtypes.is_integer(elem)
    if is_integer and node.op_type == "ReduceLogSum":
        return
    fix = None
    if node.op_type != "ReduceL2" or (elem not in (None, TensorProto.UNDEFINED) and not is_integer):
        draft = Draft(node)
        draft.set_input(node, 1, draft.integers([], "axes"))
        fix = Fix("give the axes as an empty list", draft.edits)
    message = f"{node.op_type} over no axes is {_RESULTS[node.op_type]}; TensorRT copies its input"
    yield Match(message, node=node, fix=fix, reads=(data,))


reduction_over_no_axes.examples = [
    Fixed(
        "the square of each element",
        before="g (float[2,3] x) => (float[2,3] y) { y = ReduceSumSquare<noop_with_empty_axes = 1>(x) }",
        after="""g (float[2,3] x) => (float[2,3] y) <int64[0] a = {}> {
            y = ReduceSumSquare<noop_with_empty_axes = 1>(x, a) }""",
    ),
    Fixed(
        "the absolute value of each element, with dynamic shape, in half precision; the axes have an empty name",
        before="g (float16[N,M] x) => (float16[N,M] y) { y = ReduceL1<noop_with_empty_axes = 1, keepdims = 0>(x, ) }",
        after="""g (float16[N,M] x) => (float16[N,M] y) <int64[0] a = {}> {
            y = ReduceL1<noop_with_empty_axes = 1, keepdims = 0>(x, a) }""",
        opset=23,
    ),
    Fixed(
        "the root of the square, of a scalar",
        before="g (float x) => (float y) { y = ReduceL2<noop_with_empty_axes = 1>(x) }",
        after="g (float x) => (float y) <int64[0] a = {}> { y = ReduceL2<noop_with_empty_axes = 1>(x, a) }",
    ),
    Fixed(
        "the logarithm of each element",
        before="g (float[N] x) => (float[N] y) { y = ReduceLogSum<noop_with_empty_axes = 1>(x) }",
        after="g (float[N] x) => (float[N] y) <int64[0] a = {}> { y = ReduceLogSum<noop_with_empty_axes = 1>(x, a) }",
    ),
    Fixed(
        "integers",
        before="g (int32[N] x) => (int32[N] y) { y = ReduceL1<noop_with_empty_axes = 1>(x) }",
        after="g (int32[N] x) => (int32[N] y) <int64[0] a = {}> { y = ReduceL1<noop_with_empty_axes = 1>(x, a) }",
    ),
    Flagged(
        "ReduceL2 of integers: TensorRT has no square root of integers",
        "g (int32[N] x) => (int32[N] y) { y = ReduceL2<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "an explicit empty list of axes: imported correctly",
        """g (float[2,3] x) => (float[2,3] y) <int64[0] a = {}> {
            y = ReduceSumSquare<noop_with_empty_axes = 1>(x, a) }""",
    ),
    Silent(
        "an empty list of axes, as the default of a graph input",
        "g (float[2,3] x, int64[0] a = {}) => (float[2,3] y) { y = ReduceL1<noop_with_empty_axes = 1>(x, a) }",
    ),
    Silent(
        "an axis",
        """g (float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> {
            y = ReduceL2<noop_with_empty_axes = 1>(x, a) }""",
    ),
    Silent("over all axes, by default", "g (float[2,3] x) => (float[1,1] y) { y = ReduceSumSquare(x) }"),
    Silent(
        "over all axes, explicitly",
        "g (float[2,3] x) => (float[1,1] y) { y = ReduceL1<noop_with_empty_axes = 0>(x) }",
    ),
    Silent(
        "a value other than 0 and 1: ONNX's reference and ONNX Runtime disagree",
        "g (float[2,3] x) => (float[A,B] y) { y = ReduceL1<noop_with_empty_axes = 2>(x) }",
    ),
    Silent(
        "ReduceSum: the sum of one element is the element",
        "g (float[2,3] x) => (float[2,3] y) { y = ReduceSum<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "ReduceLogSumExp: the logarithm of the exponential",
        "g (float[2,3] x) => (float[2,3] y) { y = ReduceLogSumExp<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "the logarithm of integers, which is undefined",
        "g (int32[N] x) => (int32[N] y) { y = ReduceLogSum<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "empty tensor",
        "g (float[0,3] x) => (float[0,3] y) { y = ReduceSumSquare<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "before opset 18 there is no such attribute",
        "g (float[2,3] x) => (float[A,B] y) { y = ReduceL1<noop_with_empty_axes = 1>(x) }",
        opset=13,
    ),
    Silent(
        "every call of the function sets it",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[1,1] y) { y = my.F<idle = 0>(x) }
            <domain: "my", opset_import: ["" : 18]> F <idle> (a) => (b) {
                b = ReduceL1<noop_with_empty_axes : int = @idle>(a) }""",
    ),
]
