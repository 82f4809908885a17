"""BRC003: broadcasts without an operand of the result's shape."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule

from ._common import MULTIDIRECTIONAL, broadcast_of, form_of, label, text


@rule("BRC003", ops=(*MULTIDIRECTIONAL, "MatMul"), severity=Severity.INFO, hazards=[51])
def two_sided_broadcast(node: Node, model: Model) -> Iterator[Match]:
    """No operand has the shape of the result: all of them are repeated, along different axes.

    ## Why it matters
    `[N,1]` with `[1,M]` makes N × M elements of N + M. If that is intended (masks, relative positions, distances), it
    is fine: TensorRT-RTX 1.7.1 parses and builds every valid form, and computes it in one ELEMENTWISE layer. If it is
    an accident, such as a missing `keepdims` or transpose, nothing fails and the result has an unexpected shape. Older
    converters had bugs here (Torch-TensorRT PR 2819).

    ## Fix
    None by default: an explicit `Expand` is exact but adds layers (measured: 1 becomes 3) and memory traffic. BRC006
    inserts it when selected. BRC005 reports the cases that depend on the batch size.

    ## References
    - ONNX, docs/Broadcasting.md (multidirectional broadcasting)
    """
    form = form_of(node, model)
    broadcast = broadcast_of(node, model) if form is not None and form.is_two_sided else None
    if broadcast is None:
        return
    sides = " and ".join(label(operand) + text(operand.shape) for operand in broadcast.operands)
    kind = "the batch dimensions of " if node.op_type == "MatMul" else ""
    yield Match(f"{kind}{sides} are all repeated: none has the shape of the result", node=node)


two_sided_broadcast.examples = [
    Flagged("a column and a row", "g (float[2,1] x, float[1,3] z) => (float[2,3] y) { y = Add(x, z) }"),
    Flagged("symbolic sizes", "g (float[N,1] x, float[1,M] z) => (bool[N,M] y) { y = Less(x, z) }"),
    Flagged(
        "operands of different rank",
        "g (float[N,1] x, float[3] z) => (float[N,3] y) { y = Sub(x, z) }",
    ),
    Flagged(
        "three operands, none of which has the result's shape",
        "g (bool[N,1,1] p, float[1,2,1] x, float[3] z) => (float[N,2,3] y) { y = Where(p, x, z) }",
    ),
    Flagged(
        "batch dimensions of a MatMul",
        "g (float[N,1,2,3] x, float[1,4,3,2] z) => (float[N,4,2,2] y) { y = MatMul(x, z) }",
    ),
    Silent(
        "one operand has the result's shape",
        "g (float[N,1,3] x, float[N,2,3] z) => (float[N,2,3] y) { y = Add(x, z) }",
    ),
    Silent(
        "one of three operands has the result's shape",
        "g (bool[N,1] p, float[1,3] x, float[N,3] z) => (float[N,3] y) { y = Where(p, x, z) }",
    ),
    Silent("all dimensions are 1", "g (float[1,1] x, float[1] z) => (float[1,1] y) { y = Add(x, z) }"),
    Silent(
        "an attention mask", "g (float[N,4,S,S] x, float[N,1,1,S] m) => (float[N,4,S,S] y) { y = Add(x, m) }"
    ),
    Silent(
        "an Expand, which is explicit",
        "g (float[1,3] x) => (float[2,3] y) <int64[2] s = {2,1}> { y = Expand(x, s) }",
    ),
    Silent(
        "unknown rank",
        "g (float[N,1] x, float[1,3] z, int64[K] s) => (float[] y) { r = Reshape(x, s)  y = Add(r, z) }",
        runs=False,
    ),
]
