"""RSH006."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Flagged, Match, Model, Node, Severity, Silent, rule
from onnxfix_rules.rsh import _common as c


@rule("RSH006", ops=["Reshape"], severity=Severity.ERROR, hazards=[35])
def zero_without_counterpart(node: Node, model: Model) -> Iterator[Match]:
    """A 0 ("copy") in a Reshape's shape at a position that the data does not have.

    ## Why it matters
    There is nothing to copy, so the model is invalid: ONNX Runtime reports ``The dimension with value zero exceeds
    the dimension size of the input tensor``, and TensorRT-RTX 1.7.1 fails to parse it (measured).

    ## Fix
    None: the intended size is unknown. Export again, or write the intended size.

    ## References
    ONNX, Reshape. onnxruntime #19119.
    """
    if not c.copies_zero(node):
        return
    dims = c.requested(node, model)
    data = c.shape_of(node.input(0), model)
    if dims is None or data is None:
        return
    wrong = [i for i in c.zeros(dims) if i >= len(data)]
    if wrong:
        yield Match(
            f"the 0 at position {wrong[0]} of the shape {c.text(dims)} copies a dimension that the data, of rank "
            f"{len(data)}, does not have: TensorRT and ONNX Runtime reject it",
            node=node,
        )


zero_without_counterpart.examples = [
    Flagged(
        "position 2 of a tensor with axes 0 and 1",
        "g (float[2,6] x) => (float[A,B,C] y) <int64[3] s = {2, 6, 0}> { y = Reshape(x, s) }",
        runs=False,
    ),
    Flagged(
        "a known rank with unknown sizes; opset 13",
        "g (float[N,M] x) => (float[A,B,C] y) <int64[3] s = {0, -1, 0}> { y = Reshape(x, s) }",
        opset=13,
        runs=False,
    ),
    Flagged(
        "the other elements of the shape are computed",
        """g (float[N] x) => (float[A,B] y) <int64[1] z = {0}> {
            d = Shape(x) s = Concat<axis=0>(d, z) y = Reshape(x, s) }""",
        runs=False,
    ),
    Flagged(
        "a scalar has no axes",
        "g (float x) => (float[A] y) <int64[1] s = {0}> { y = Reshape(x, s) }",
        runs=False,
    ),
    Silent(
        "the last axis may be copied",
        "g (float[2,6] x) => (float[A,6] y) <int64[2] s = {-1, 0}> { y = Reshape(x, s) }",
    ),
    Silent(
        "with allowzero=1 nothing is copied",
        "g (float[0] x) => (float[2,0] y) <int64[2] s = {2, 0}> { y = Reshape<allowzero=1>(x, s) }",
    ),
    Silent(
        "the rank is unknown",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A,B] y) <int64[2] s = {3, 0}> { u = my.op(x) y = Reshape(u, s) }""",
    ),
    Silent(
        "a default that may be overridden is not a constant",
        "g (float[6] x, int64[2] s = {6, 0}) => (float[A,B] y) { y = Reshape(x, s) }",
    ),
]
