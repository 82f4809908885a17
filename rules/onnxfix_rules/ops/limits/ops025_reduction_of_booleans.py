"""OPS025: ReduceMax and ReduceMin of booleans."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, is_small, rule
from onnxfix_rules.ops import _rewrite as rw


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
    proto = rw.copy_of(node)
    proto.input[0] = draft.add("Cast", [data], hint="int32", to=TensorProto.INT32)
    proto.output[0] = draft.name("reduced")
    rw.replace(draft, node, proto)
    if node.op_type == "ReduceMin":
        draft.add("Cast", [proto.output[0]], output=output.name, to=TensorProto.BOOL)
    else:
        zero = np.zeros(ones, np.int32)
        draft.add("Greater", [proto.output[0], draft.constant(zero, "zero")], output=output.name)
    yield Match(
        f"TensorRT has no {node.op_type} of booleans",
        node=node,
        fix=Fix("reduce in int32", draft.edits),
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
        "along all axes, inside a branch",
        before="""g (bool[2,3] x, bool c) => (bool y) {
            y = If(c)<then_branch = p () => (bool u) { u = ReduceMax<keepdims = 0>(x) },
                      else_branch = q () => (bool v) { v = ReduceMin<keepdims = 0>(x) }> }""",
        after="""g (bool[2,3] x, bool c) => (bool y) {
            y = If(c)<then_branch = p () => (bool u) <int32 z = {0}> {
                          i = Cast<to = INT32>(x)  m = ReduceMax<keepdims = 0>(i)  u = Greater(m, z) },
                      else_branch = q () => (bool v) {
                          i = Cast<to = INT32>(x)  m = ReduceMin<keepdims = 0>(i)  v = Cast<to = BOOL>(m) }> }""",
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
