"""OPS070: Compress."""

from __future__ import annotations

import math
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
    Value,
    rule,
    symbols,
    target_of,
)


@rule("OPS070", ops=["Compress"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[43, 61])
def compress(node: Node, model: Model) -> Iterator[Match]:
    """A Compress, which no TensorRT imports, for a TensorRT that has NonZero.

    ## Why it matters
    The parser rejects it by name: `UNSUPPORTED_NODE` in `checkCompress`, measured with TensorRT-RTX 1.7.1 and found in
    NVIDIA's lists of operators of every version. TensorRT has NonZero, an equivalent, since 8.5. TensorRT-RTX does not:
    there OPS001 reports it, without a fix.

    ## Fix
    Cast the condition to float, NonZero, and Gather by its result. Exact: NonZero returns indices in ascending order.
    NonZero of booleans is in no list, hence the Cast. No fix where the condition may be longer than the axis: ONNX
    forbids that, ONNX Runtime ignores the rest, and Gather would read beyond the end. No TensorRT with NonZero was
    available, so the result has not been built.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Compress.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target = target_of(model)
    data, condition = node.require(0), node.require(1)
    node.require_output()
    if target.imports("Compress") is not False or target.imports("NonZero") is not True:
        return
    yield Match(
        f"{target.title} does not import Compress (source: {target.source})",
        node=node,
        fix=_decomposed(node, data, condition) if _fits(node, data, condition, model) else None,
        reads=(data, condition),
    )


def _fits(node: Node, data: Value, condition: Value, model: Model) -> bool:
    """Whether the condition is certainly no longer than the axis that it selects from."""
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
    count, size = length[0].value, shape[axis].value
    if count is not None and size is not None:
        return count <= size
    return symbols.equal(length[0], shape[axis]).yes


def _decomposed(node: Node, data: Value, condition: Value) -> Fix:
    axis = node.attr("axis")
    draft = Draft(node)
    source: Value | str = data
    if axis is None:
        source = draft.add("Reshape", [data, draft.integers([-1], "flat")], hint="row")
    chosen = draft.add("Cast", [condition], hint="chosen", to=TensorProto.FLOAT)
    indices = draft.add("NonZero", [chosen], hint="places")
    flat_indices = draft.add("Reshape", [indices, draft.integers([-1], "flat")], hint="which")
    draft.replace_output(node, draft.add("Gather", [source, flat_indices], axis=axis or 0))
    return Fix("decompose into NonZero and Gather", draft.edits)


_ROWS = "g (float[3,N] x, bool[3] c) => (float[A,N] y)"
_ALL = "g (int64[3,2] x, bool[K] c) => (int64[A] y)"


compress.examples = [
    Fixed(
        "rows",
        before=f"{_ROWS} {{ y = Compress<axis = 0>(x, c) }}",
        after=f"""{_ROWS} <int64[1] m = {{-1}}> {{
            f = Cast<to = FLOAT>(c)  n = NonZero(f)  i = Reshape(n, m)  y = Gather<axis = 0>(x, i) }}""",
        target="trt11",
    ),
    Fixed(
        "along the last axis, by a computed condition",
        before="""g (float[2,3] x, float[3] t) => (float[2,A] y) <float z = {0}> {
            c = Greater(t, z)  y = Compress<axis = -1>(x, c) }""",
        after="""g (float[2,3] x, float[3] t) => (float[2,A] y) <float z = {0}, int64[1] m = {-1}> {
            c = Greater(t, z)  f = Cast<to = FLOAT>(c)  n = NonZero(f)  i = Reshape(n, m)
            y = Gather<axis = -1>(x, i) }""",
        target="trt8.6",
    ),
    Fixed(
        "without an axis: from the flattened tensor; the condition may be shorter",
        before="g (int64[3,2] x, bool[4] c) => (int64[A] y) { y = Compress(x, c) }",
        after="""g (int64[3,2] x, bool[4] c) => (int64[A] y) <int64[1] m = {-1}, int64[1] o = {-1}> {
            r = Reshape(x, m)  f = Cast<to = FLOAT>(c)  n = NonZero(f)  i = Reshape(n, o)
            y = Gather<axis = 0>(r, i) }""",
        opset=11,
        target="trt10",
    ),
    Fixed(
        "empty tensor",
        before="g (float[0,2] x, bool[0] c) => (float[A] y) { y = Compress(x, c) }",
        after="""g (float[0,2] x, bool[0] c) => (float[A] y) <int64[1] m = {-1}, int64[1] o = {-1}> {
            r = Reshape(x, m)  f = Cast<to = FLOAT>(c)  n = NonZero(f)  i = Reshape(n, o)
            y = Gather<axis = 0>(r, i) }""",
        target="trt10",
    ),
    Flagged(
        "a condition that may be longer than the axis, which ONNX forbids and ONNX Runtime ignores",
        f"{_ALL} {{ y = Compress(x, c) }}",
        target="trt11",
    ),
    Flagged(
        "a condition that is longer than the flattened tensor",
        "g (int64[3,2] x, bool[7] c) => (int64[A] y) { y = Compress(x, c) }",
        target="trt11",
        runs=False,
    ),
    Silent(
        "TensorRT-RTX, which has no NonZero either (OPS001)",
        f"{_ROWS} {{ y = Compress<axis = 0>(x, c) }}",
        target="rtx",
    ),
    Silent(
        "TensorRT 8.4, which has no NonZero", f"{_ROWS} {{ y = Compress<axis = 0>(x, c) }}", target="trt8.4"
    ),
    Silent("Gather", "g (float[3,2] x, int64[K] i) => (float[K,2] y) { y = Gather(x, i) }", target="trt11"),
]
