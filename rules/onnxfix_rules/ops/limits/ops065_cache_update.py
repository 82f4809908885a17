"""OPS065: TensorScatter forms that TensorRT's own layer does not support."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

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
    target_of,
)


@rule("OPS065", ops=["TensorScatter"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[43])
def cache_update(node: Node, model: Model) -> Iterator[Match]:
    """A TensorScatter that is circular, or whose cache does not have four dimensions.

    ## Why it matters
    The parser stops: `Only linear mode is supported for now, got circular`, `The past_cache tensor is required to be
    4D, got 3D.`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    A ScatterElements, whose indices count from the write index. Exact. It writes a new tensor, as ONNX defines;
    TensorRT's own layer writes in place.

    TensorRT layers: 5 to 11, with a dynamic batch 20.

    ## References
    - https://onnx.ai/onnx/operators/onnx__TensorScatter.html
    """
    cache, output = node.input(0), node.require_output()
    shape = None if cache is None else model.shapes.shape(cache)
    if cache is None or shape is None or not target_of(model).types_measured:
        return
    circular = node.attr("mode", "linear") == "circular"
    if len(shape) == 4 and not circular:
        return
    fix = _fix(node, model, cache, output, circular)
    yield Match(
        "TensorRT supports TensorScatter only in linear mode with a four-dimensional cache",
        node=node,
        fix=fix,
    )


def _fix(node: Node, model: Model, cache: Value, output: Value, circular: bool) -> Fix | None:
    update, write = node.input(1), node.input(2)
    shape, rows = model.shapes.shape(cache), None if update is None else model.shapes.shape(update)
    elem = model.shapes.elem_type(cache)
    if update is None or not shape or not rows or not elem or not target_of(model).between(elem):
        return None
    rank = len(shape)
    if len(rows) != rank:
        return None
    axis = int(node.attr("axis", -2)) % rank
    size, count = shape[axis].value, rows[axis].value
    if axis == 0 or count is None or (circular and not size) or not is_small(count, *[1] * (rank - 1)):
        return None
    draft = Draft(node)
    indices = ""
    if write is not None:
        indices = draft.add(
            "Reshape", [write, draft.constant(np.array([-1] + [1] * (rank - 1), np.int64), "shape")]
        )
    if count != 1 or not indices:
        steps = np.arange(count, dtype=np.int64).reshape([count] + [1] * (rank - 1 - axis))
        offsets = draft.constant(steps, "numbers")
        indices = draft.add("Add", [indices, offsets]) if indices else offsets
    if circular and write is not None:
        indices = draft.add("Mod", [indices, draft.constant(np.array(size, np.int64), "size")])
    expanded = draft.add("Expand", [indices, draft.add("Shape", [update])])
    draft.replace_output(node, draft.add("ScatterElements", [cache, expanded, update], axis=axis))
    return Fix("use ScatterElements", draft.edits)


_CACHE = "g (float[2,5,3] p, float[2,1,3] u, int64[2] w) => (float[2,5,3] y)"
_fixed = partial(Fixed, ir_version=12, opset=24)
_flagged = partial(Flagged, ir_version=12, opset=24, runs=False)


cache_update.examples = [
    _fixed(
        "three dimensions, one row",
        before=f"{_CACHE} {{ y = TensorScatter(p, u, w) }}",
        after=f"""{_CACHE} <int64[3] s = {{-1, 1, 1}}> {{
            f = Reshape(w, s)  d = Shape(u)  i = Expand(f, d)  y = ScatterElements<axis = 1>(p, i, u) }}""",
    ),
    _fixed(
        "several rows of a circular cache",
        before="""g (int32[B,4,5,3] p, int32[B,4,2,3] u, int64[B] w) => (int32[B,4,5,3] y) {
            y = TensorScatter<mode = "circular">(p, u, w) }""",
        after="""g (int32[B,4,5,3] p, int32[B,4,2,3] u, int64[B] w) => (int32[B,4,5,3] y)
            <int64[4] s = {-1, 1, 1, 1}, int64[2,1] n = {0, 1}, int64 m = {5}> {
            f = Reshape(w, s)  a = Add(f, n)  r = Mod(a, m)  d = Shape(u)  i = Expand(r, d)
            y = ScatterElements<axis = 2>(p, i, u) }""",
    ),
    _fixed(
        "no write indices: from the start",
        before="g (float[2,5,3] p, float[2,2,3] u) => (float[2,5,3] y) { y = TensorScatter(p, u) }",
        after="""g (float[2,5,3] p, float[2,2,3] u) => (float[2,5,3] y) <int64[2,1] n = {0, 1}> {
            d = Shape(u)  i = Expand(n, d)  y = ScatterElements<axis = 1>(p, i, u) }""",
    ),
    Silent(
        "four dimensions, which TensorRT supports",
        """g (float[2,1,5,3] p, float[2,1,1,3] u, int64[2] w) => (float[2,1,5,3] y) {
            y = TensorScatter(p, u, w) }""",
        opset=24,
        ir_version=12,
    ),
    _flagged(
        "a circular cache of unknown length",
        """g (float[2,N,3] p, float[2,1,3] u, int64[2] w) => (float[2,N,3] y) {
            y = TensorScatter<mode = "circular">(p, u, w) }""",
    ),
    _flagged(
        "an unknown number of rows",
        "g (float[2,5,3] p, float[2,N,3] u, int64[2] w) => (float[2,5,3] y) { y = TensorScatter(p, u, w) }",
    ),
]
