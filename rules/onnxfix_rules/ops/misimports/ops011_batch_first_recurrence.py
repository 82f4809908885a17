"""OPS011: recurrent operators in batch-first layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from onnxfix.rule import (
    AddNode,
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    is_read,
    rule,
)

_OUTPUTS = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
"""Permutations that turn the time-first layout of Y, Y_h and Y_c into the batch-first one."""

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@rule("OPS011", ops=sorted(_GATES), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[2])
def batch_first_recurrence(node: Node, model: Model) -> Iterator[Match]:
    """A GRU, LSTM or RNN with `layout = 1` (batch first): TensorRT treats the batch axis as time.

    ## Why it matters
    TensorRT does not read the attribute. Its loop runs along axis 0 of X, so the samples of a batch become the steps of
    one sequence. Measured with TensorRT-RTX 1.7.1 by reading the imported network, for all three operators, forward,
    reverse and bidirectional, in opsets 14 and 22:

    - Without initial states it parses and builds without a warning. For X of [2, 3, 5] it computes Y_h as [1, 3, 4],
      where ONNX has [2, 1, 4], and Y as [2, 1, 3, 4] instead of [2, 3, 1, 4].
    - With initial states and static sizes the build fails: `IRecurrenceLayer must have inputs with same shape. First
      input h0 has shape [2,1,4] and second input … has shape [2,3,4]`. With dynamic sizes it builds.
    - With sequence lengths the parser rejects sizes that do not happen to match (`broadcast dimensions must be
      conformable`).

    ## Fix
    Time first: a Transpose before X and the initial states, one after each output, and no `layout`. Exact, since only
    the order of the elements changes. ONNX Runtime does not run `layout = 1` (`Batchwise recurrent operations (layout
    == 1) are not supported`), but it runs the result.

    ## References
    - https://onnx.ai/onnx/operators/onnx__LSTM.html, attribute layout, since opset 14
    """
    data = node.require(0)
    if node.opset < 14 or node.attr("layout", 0) != 1:
        return
    shape = model.shapes.static_shape(data)
    if shape is not None and shape[:2] == (1, 1) and node.attr("direction", "forward") != "bidirectional":
        return
    if not any(is_read(value) for value in node.outputs):
        return
    yield Match(
        f"{node.op_type} with layout=1 (batch first): TensorRT ignores it and treats the batch axis as time",
        node=node,
        fix=Fix("convert to time first with Transposes", _time_first(node).edits),
    )


def _time_first(node: Node) -> Draft:
    draft = Draft(node)
    draft.remove(node)
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    kept = [a for a in node.proto.attribute if a.name != "layout"]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    for index in (0, 5, 6):  # X, initial_h, initial_c
        value = node.input(index)
        if value is not None:
            proto.input[index] = draft.add("Transpose", [value], hint=f"time_first_{index}", perm=[1, 0, 2])
    back = []
    for index, name in enumerate(node.proto.output):
        read = is_read(node.outputs[index])
        proto.output[index] = ""
        if read:
            proto.output[index] = draft.name(f"time_first_{name}")
            back.append((proto.output[index], name, _OUTPUTS[index]))
    while not proto.output[-1]:
        proto.output.pop()
    draft.edits.append(AddNode(node.scope, proto, node))
    for source, name, permutation in back:
        draft.add("Transpose", [source], output=name, perm=permutation)
    return draft


def _with_lengths(op_type: str, layout: int) -> ModelProto:
    """A model with sequence lengths; its output is declared with the operator's own shape."""
    gates = _GATES[op_type] * 3
    shapes: dict[str, Any] = {"x": ["B", "T", 2], "w": [1, gates, 2], "r": [1, gates, 3]}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    infos.append(helper.make_tensor_value_info("l", TensorProto.INT32, ["B"]))
    node = helper.make_node(op_type, ["x", "w", "r", "", "l"], ["y"], hidden_size=3, layout=layout)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "T", 1, 3])
    graph = helper.make_graph([node], "g", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=9)


batch_first_recurrence.examples = [
    Fixed(
        "the last state of a GRU",
        before="""g (float[B,T,2] x, float[1,12,2] w, float[1,12,4] r) => (float[B,1,4] h) {
            , h = GRU<hidden_size = 4, layout = 1>(x, w, r) }""",
        after="""g (float[B,T,2] x, float[1,12,2] w, float[1,12,4] r) => (float[B,1,4] h) {
            t = Transpose<perm = [1,0,2]>(x)  , u = GRU<hidden_size = 4>(t, w, r)
            h = Transpose<perm = [1,0,2]>(u) }""",
    ),
    Fixed(
        "all outputs of an LSTM with initial states, in the newest opset",
        before="""g (float[2,3,2] x, float[1,16,2] w, float[1,16,4] r, float[1,32] b, float[2,1,4] i, float[2,1,4] j)
            => (float[2,3,1,4] y, float[2,1,4] h, float[2,1,4] c) {
            y, h, c = LSTM<hidden_size = 4, layout = 1>(x, w, r, b, , i, j) }""",
        after="""g (float[2,3,2] x, float[1,16,2] w, float[1,16,4] r, float[1,32] b, float[2,1,4] i, float[2,1,4] j)
            => (float[2,3,1,4] y, float[2,1,4] h, float[2,1,4] c) {
            t = Transpose<perm = [1,0,2]>(x)  i0 = Transpose<perm = [1,0,2]>(i)  j0 = Transpose<perm = [1,0,2]>(j)
            y0, h0, c0 = LSTM<hidden_size = 4>(t, w, r, b, , i0, j0)
            y = Transpose<perm = [2,0,1,3]>(y0)  h = Transpose<perm = [1,0,2]>(h0)  c = Transpose<perm = [1,0,2]>(c0)
            }""",
        opset=22,
    ),
    Fixed(
        "a bidirectional RNN; one output is unused",
        before="""g (float[B,T,2] x, float[2,3,2] w, float[2,3,3] r) => (float[B,T,2,3] y) {
            y, dead = RNN<hidden_size = 3, layout = 1, direction = "bidirectional">(x, w, r) }""",
        after="""g (float[B,T,2] x, float[2,3,2] w, float[2,3,3] r) => (float[B,T,2,3] y) {
            t = Transpose<perm = [1,0,2]>(x)
            y0 = RNN<hidden_size = 3, direction = "bidirectional">(t, w, r)
            y = Transpose<perm = [2,0,1,3]>(y0) }""",
        opset=14,
    ),
    Fixed(
        "in a branch, with a captured sequence",
        before="""g (float[2,3,2] x, float[1,3,2] w, float[1,3,3] r, bool k) => (float[2,1,3] y) {
            y = If(k)<then_branch = p () => (float[2,1,3] u) { , u = RNN<hidden_size = 3, layout = 1>(x, w, r) },
                      else_branch = q () => (float[2,1,3] v) { , m = RNN<hidden_size = 3, layout = 1>(x, w, r)
                                                                 v = Neg(m) }> }""",
        after="""g (float[2,3,2] x, float[1,3,2] w, float[1,3,3] r, bool k) => (float[2,1,3] y) {
            y = If(k)<then_branch = p () => (float[2,1,3] u) { a = Transpose<perm = [1,0,2]>(x)
                          , b = RNN<hidden_size = 3>(a, w, r)  u = Transpose<perm = [1,0,2]>(b) },
                      else_branch = q () => (float[2,1,3] v) { c = Transpose<perm = [1,0,2]>(x)
                          , d = RNN<hidden_size = 3>(c, w, r)  m = Transpose<perm = [1,0,2]>(d)  v = Neg(m) }> }""",
    ),
    Fixed(
        "in a local function that gets hidden_size from the call",
        before="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3,2] x, float[1,3,2] w, float[1,3,3] r) => (float[2,1,3] y) { y = my.F<size = 3>(x, w, r) }
            <domain: "my", opset_import: ["" : 18]> F <size> (a, w, r) => (b) {
                , b = RNN<hidden_size : int = @size, layout = 1>(a, w, r) }""",
        after="""<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3,2] x, float[1,3,2] w, float[1,3,3] r) => (float[2,1,3] y) { y = my.F<size = 3>(x, w, r) }
            <domain: "my", opset_import: ["" : 18]> F <size> (a, w, r) => (b) {
                t = Transpose<perm = [1,0,2]>(a)  , u = RNN<hidden_size : int = @size>(t, w, r)
                b = Transpose<perm = [1,0,2]>(u) }""",
    ),
    Fixed(
        "sequences of different lengths",
        before=lambda: _with_lengths("GRU", 1),
        after="""<ir_version: 9, opset_import: ["" : 22]>
            g (float[B,T,2] x, float[1,9,2] w, float[1,9,3] r, int32[B] l) => (float[B,T,1,3] y) {
            t = Transpose<perm = [1,0,2]>(x)  y0 = GRU<hidden_size = 3>(t, w, r, , l)
            y = Transpose<perm = [2,0,1,3]>(y0) }""",
    ),
    Fixed(
        "a batch of one sequence",
        before="""g (float[1,3,2] x, float[1,3,2] w, float[1,3,3] r) => (float[1,1,3] h) {
            , h = RNN<hidden_size = 3, layout = 1>(x, w, r) }""",
        after="""g (float[1,3,2] x, float[1,3,2] w, float[1,3,3] r) => (float[1,1,3] h) {
            t = Transpose<perm = [1,0,2]>(x)  , u = RNN<hidden_size = 3>(t, w, r)
            h = Transpose<perm = [1,0,2]>(u) }""",
    ),
    Silent(
        "time first by default",
        """g (float[T,B,2] x, float[1,12,2] w, float[1,12,4] r) => (float[1,B,4] h) {
            , h = GRU<hidden_size = 4>(x, w, r) }""",
    ),
    Silent(
        "explicit layout = 0",
        """g (float[T,B,2] x, float[1,16,2] w, float[1,16,4] r) => (float[T,1,B,4] y) {
            y = LSTM<hidden_size = 4, layout = 0>(x, w, r) }""",
    ),
    Silent(
        "one step of one sequence: both axes have length 1, so their order does not matter",
        """g (float[1,1,2] x, float[1,3,2] w, float[1,3,3] r) => (float[1,1,3] h) {
            , h = RNN<hidden_size = 3, layout = 1>(x, w, r) }""",
    ),
]
