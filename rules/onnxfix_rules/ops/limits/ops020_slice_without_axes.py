"""OPS020: a Slice without axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
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
    Value,
    is_small,
    rule,
)

_INDICES: dict[int, type[np.signedinteger[Any]]] = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}


@rule("OPS020", ops=["Slice"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[45])
def slice_without_axes(node: Node, model: Model) -> Iterator[Match]:
    """A Slice without `axes` whose data has more axes than it has starts.

    ## Why it matters
    Without `axes`, ONNX Runtime and the ONNX reference slice the first axes, one per start. TensorRT assumes all axes
    of the data and stops: `The shape of input starts misaligns with the shape of input axes. Shape of input starts = 1,
    shape of input axes = 2.`, measured with TensorRT-RTX 1.7.1 for opsets 10 to 20; the parser of TensorRT 10.1 has the
    same line. In opset 9, where starts are an attribute, it accepts the node.

    If the rank of the data is unknown, the finding is a warning: TensorRT refuses the node if the rank exceeds the
    number of starts. If the number of starts is unknown, there is no fix.

    ## Fix
    Add the axes 0, 1, … in the type of the starts. Exact. A Slice with zero starts is a copy and is removed.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Slice.html
    - onnx-tensorrt 10.1, onnxOpImporters.cpp, line 5320
    """
    data, starts, ends = node.require(0), node.require(1), node.input(2)
    if node.opset < 10 or node.input(3) is not None:
        return
    rank = model.shapes.rank(data)
    count = _length(model, starts, ends)
    if rank == count and rank is not None:
        return
    if rank is not None and ((rank < 2 and count != 0) or (count is not None and count > rank)):
        return
    known = "an unknown number of" if count is None else str(count)
    yield Match(
        f"Slice without axes: {known} starts on data of {'unknown rank' if rank is None else f'rank {rank}'}",
        node=node,
        fix=_fix(node, count, model),
        severity=Severity.WARNING if rank is None or count is None else Severity.ERROR,
        reads=tuple(v for v in (data, starts, ends) if v is not None),
    )


def _length(model: Model, *values: Value | None) -> int | None:
    """The number of starts, from the shape of the starts or the ends."""
    for value in values:
        shape = None if value is None else model.shapes.static_shape(value)
        if shape is not None and len(shape) < 2:
            return shape[0] if shape else 1
    return None


def _fix(node: Node, count: int | None, model: Model) -> Fix | None:
    data, starts = node.input(0), node.input(1)
    assert data is not None
    assert starts is not None
    draft = Draft(node)
    if count == 0:
        draft.bypass(node, data)
        return Fix("remove the Slice, which copies its input", draft.edits)
    dtype = _INDICES.get(model.shapes.elem_type(starts) or 0)
    if count is None or dtype is None or not is_small(count):
        return None
    draft.set_input(node, 3, draft.constant(np.arange(count, dtype=dtype), "axes"))
    return Fix(f"add axes {list(range(count))}", draft.edits)


_IN = "<int64[1] s = {1}, int64[1] e = {3}>"


slice_without_axes.examples = [
    Fixed(
        "one start, data of rank 2",
        before=f"g (float[4,N] x) => (float[2,N] y) {_IN} {{ y = Slice(x, s, e) }}",
        after="""g (float[4,N] x) => (float[2,N] y) <int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {0}> {
            y = Slice(x, s, e, a) }""",
    ),
    Fixed(
        "with steps; axes get the type of the starts",
        before="""g (float[6,3,2] x) => (float[2,1,2] y)
            <int32[2] s = {5, 0}, int32[2] e = {-6, 1}, int32[2] t = {-3, 1}> {
            y = Slice(x, s, e, , t) }""",
        after="""g (float[6,3,2] x) => (float[2,1,2] y)
            <int32[2] s = {5, 0}, int32[2] e = {-6, 1}, int32[2] t = {-3, 1}, int32[2] a = {0, 1}> {
            y = Slice(x, s, e, a, t) }""",
    ),
    Fixed(
        "starts and ends are not constant, but their count is known",
        before="g (float[4,5] x, int64[1] s, int64[1] e) => (float[A,5] y) { y = Slice(x, s, e) }",
        after="""g (float[4,5] x, int64[1] s, int64[1] e) => (float[A,5] y) <int64[1] a = {0}> {
            y = Slice(x, s, e, a) }""",
        opset=11,
    ),
    Fixed(
        "opset 10, the first with starts as an input",
        before=f"g (float[4,5] x) => (float[2,5] y) {_IN} {{ y = Slice(x, s, e) }}",
        after="""g (float[4,5] x) => (float[2,5] y) <int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {0}> {
            y = Slice(x, s, e, a) }""",
        opset=10,
    ),
    Fixed(
        "zero starts: a copy",
        before="g (float[4,5] x) => (float[4,5] y) <int64[0] s = {}> { t = Slice(x, s, s)  y = Neg(t) }",
        after="g (float[4,5] x) => (float[4,5] y) { y = Neg(x) }",
    ),
    Fixed(
        "in a branch, of captured data",
        before="""g (float[4,5] x, bool c) => (float[2,5] y) <int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {0}> {
            y = If(c)<then_branch = p () => (float[2,5] u) { u = Slice(x, s, e) },
                      else_branch = q () => (float[2,5] v) { v = Slice(x, s, e, a) }> }""",
        after="""g (float[4,5] x, bool c) => (float[2,5] y) <int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {0}> {
            y = If(c)<then_branch = p () => (float[2,5] u) <int64[1] b = {0}> { u = Slice(x, s, e, b) },
                      else_branch = q () => (float[2,5] v) { v = Slice(x, s, e, a) }> }""",
    ),
    Fixed(
        "unknown rank: TensorRT may refuse it",
        before=f"""g (float[A,B] x, int64[K] h) => (float[C,D] y) {_IN} {{
            r = Reshape(x, h)  t = Slice(r, s, e)  y = Reshape(t, h) }}""",
        after="""g (float[A,B] x, int64[K] h) => (float[C,D] y)
            <int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {0}> {
            r = Reshape(x, h)  t = Slice(r, s, e, a)  y = Reshape(t, h) }""",
        runs=False,
    ),
    Flagged(
        "unknown number of starts",
        "g (float[4,5] x, int64[K] s, int64[K] e) => (float[A,B] y) { y = Slice(x, s, e) }",
    ),
    Silent(
        "as many starts as axes",
        """g (float[4,5] x) => (float[2,1] y) <int64[2] s = {1, 2}, int64[2] e = {3, 3}> {
            y = Slice(x, s, e) }""",
    ),
    Silent("data of rank 1", f"g (float[4] x) => (float[2] y) {_IN} {{ y = Slice(x, s, e) }}"),
    Silent(
        "data of rank 1, unknown number of starts",
        "g (float[4] x, int64[K] s, int64[K] e) => (float[A] y) { y = Slice(x, s, e) }",
    ),
    Silent(
        "axes are given",
        f"g (float[5,4] x) => (float[5,2] y) {_IN[:-1]}, int64[1] a = {{1}}> {{ y = Slice(x, s, e, a) }}",
    ),
    Silent(
        "before opset 10 starts are attributes, which the parser counts",
        "g (float[4,5] x) => (float[2,5] y) { y = Slice<starts = [1], ends = [3]>(x) }",
        opset=9,
    ),
]
