"""OPS070: Compress."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
    rule,
    symbols,
    target_of,
)


@rule("OPS070", ops=["Compress"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[13, 31])
def compress(node: Node, model: Model) -> Iterator[Match]:
    """Compress, which no TensorRT imports, for a TensorRT that has NonZero.

    ## Why it matters
    The parser refuses it by name: `UNSUPPORTED_NODE` in `checkCompress`, measured with TensorRT-RTX 1.7.1 and found in
    NVIDIA's lists of operators of every version. NonZero, which says the same in other words, TensorRT has since 8.5.
    TensorRT-RTX has not: there it is OPS001's, without a fix.

    ## Fix
    Cast the condition to float, NonZero, and Gather what it says. Exact: NonZero counts in rising order. NonZero of
    booleans is in no list, hence the Cast. None where the condition may be longer than what it chooses from: ONNX
    forbids that, ONNX Runtime ignores the rest, and Gather would read beyond the end. No TensorRT with NonZero was at
    hand, so that the result has not been built.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Compress.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    data, condition, output = node.require(0), node.require(1), node.require_output()
    if target.imports("Compress") is not False or target.imports("NonZero") is not True:
        return
    yield Match(
        f"{target.title} does not import Compress (source: {target.source})",
        node=node,
        fix=_written(node, data, condition, output) if _fits(node, data, condition, model) else None,
        reads=(data, condition),
    )


def _fits(node: Node, data: Value, condition: Value, model: Model) -> bool:
    """Whether the condition is certainly no longer than what it chooses from."""
    shape, length = model.shapes.shape(data), model.shapes.shape(condition)
    if shape is None or length is None or len(length) != 1:
        return False
    axis: int | None = node.attr("axis")
    if axis is None:
        sizes = [dim.value for dim in shape]
        static = [size for size in sizes if size is not None]
        count = length[0].value
        return count is not None and len(static) == len(sizes) and count <= math.prod(static)
    if not -len(shape) <= axis < len(shape):
        return False
    count, most_of_axis = length[0].value, shape[axis].value
    if count is not None and most_of_axis is not None:
        return count <= most_of_axis
    return symbols.equal(length[0], shape[axis]).yes


def _written(node: Node, data: Value, condition: Value, output: Value) -> Fix:
    axis = node.attr("axis")
    draft = Draft(node)
    draft.remove(node)
    source: Value | str = data
    if axis is None:
        source = draft.add("Reshape", [data, draft.constant(np.array([-1], np.int64), "flat")], hint="row")
    chosen = draft.add("Cast", [condition], hint="chosen", to=TensorProto.FLOAT)
    places = draft.add("NonZero", [chosen], hint="places")
    which = draft.add("Reshape", [places, draft.constant(np.array([-1], np.int64), "flat")], hint="which")
    draft.add("Gather", [source, which], output=output.name, axis=axis or 0)
    return Fix("gather by NonZero", draft.edits)


_ROWS = "g (float[3,N] x, bool[3] c) => (float[A,N] y)"
_ALL = "g (int64[3,2] x, bool[K] c) => (int64[A] y)"


compress.examples = [
    Fixed(
        "rows",
        before=f"{_ROWS} {{ y = Compress<axis = 0>(x, c) }}",
        after=f"""{_ROWS} <int64[1] m = {{-1}}> {{
            f = Cast<to = 1>(c)  n = NonZero(f)  i = Reshape(n, m)  y = Gather<axis = 0>(x, i) }}""",
        target="trt11",
    ),
    Fixed(
        "along the last axis, by a condition that the model computes",
        before="""g (float[2,3] x, float[3] t) => (float[2,A] y) <float z = {0}> {
            c = Greater(t, z)  y = Compress<axis = -1>(x, c) }""",
        after="""g (float[2,3] x, float[3] t) => (float[2,A] y) <float z = {0}, int64[1] m = {-1}> {
            c = Greater(t, z)  f = Cast<to = 1>(c)  n = NonZero(f)  i = Reshape(n, m)
            y = Gather<axis = -1>(x, i) }""",
        target="trt8.6",
    ),
    Fixed(
        "without an axis: of all elements in a row, of which the condition may name fewer",
        before="g (int64[3,2] x, bool[4] c) => (int64[A] y) { y = Compress(x, c) }",
        after="""g (int64[3,2] x, bool[4] c) => (int64[A] y) <int64[1] m = {-1}, int64[1] o = {-1}> {
            r = Reshape(x, m)  f = Cast<to = 1>(c)  n = NonZero(f)  i = Reshape(n, o)
            y = Gather<axis = 0>(r, i) }""",
        opset=11,
        target="trt10",
    ),
    Fixed(
        "of nothing",
        before="g (float[0,2] x, bool[0] c) => (float[A] y) { y = Compress(x, c) }",
        after="""g (float[0,2] x, bool[0] c) => (float[A] y) <int64[1] m = {-1}, int64[1] o = {-1}> {
            r = Reshape(x, m)  f = Cast<to = 1>(c)  n = NonZero(f)  i = Reshape(n, o)
            y = Gather<axis = 0>(r, i) }""",
        target="trt10",
    ),
    Flagged(
        "the condition may be longer than what it chooses from, which ONNX forbids and ONNX Runtime forgives",
        f"{_ALL} {{ y = Compress(x, c) }}",
        target="trt11",
    ),
    Flagged(
        "a condition that is longer than all elements",
        "g (int64[3,2] x, bool[7] c) => (int64[A] y) { y = Compress(x, c) }",
        target="trt11",
        runs=False,
    ),
    Silent(
        "TensorRT-RTX has no NonZero either: OPS001",
        f"{_ROWS} {{ y = Compress<axis = 0>(x, c) }}",
        target="rtx",
    ),
    Silent("nor has TensorRT 8.4", f"{_ROWS} {{ y = Compress<axis = 0>(x, c) }}", target="trt8.4"),
    Silent("Gather", "g (float[3,2] x, int64[K] i) => (float[K,2] y) { y = Gather(x, i) }", target="trt11"),
]
