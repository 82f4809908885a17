"""Updates and indices (OPS033, OPS035, OPS065)."""

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
from onnxfix_rules.ops import _scatter_indices


@rule("OPS033", ops=["ScatterElements", "ScatterND"], hazards=[62])
def duplicate_scatter_indices(node: Node, model: Model) -> Iterator[Match]:
    """A ScatterND or ScatterElements with duplicate constant indices.

    ## Why it matters
    Without a reduction ONNX leaves undefined which update wins. ONNX Runtime writes one after the other, a GPU all at
    once: the result may differ from ONNX Runtime's and from run to run. TensorRT-RTX 1.7.1 parses and builds it without
    a warning (measured; no engine was executed).

    ## Fix
    None: the model does not define which update is meant.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ScatterND.html: "`indices` should not have duplicate entries"
    """
    if node.attr("reduction", "none") == "none" and _scatter_indices.are_distinct(node, model) is False:
        yield Match(f"{node.op_type} has duplicate indices, and which update wins is undefined", node=node)


_G = "g (float[4,3] x, float[2,3] u) => (float[4,3] y)"


def _scatter(i: str, i_values: str, call: str, u: str = "2,3") -> str:
    return (
        f"g (float[4,3] x, float[{u}] u) => (float[4,3] y) <int64[{i}] i = {{{i_values}}}> {{ "
        f"y = {call}(x, i, u) }}"
    )


duplicate_scatter_indices.examples = [
    Flagged("duplicate rows", _scatter("2,1", "1, 1", "ScatterND"), runs=False),
    Flagged("duplicate rows, one counted from the end", _scatter("2,1", "3, -1", "ScatterND"), runs=False),
    Flagged("duplicate elements", _scatter("2,3", "0, 1, 2, 3, 1, 0", "ScatterElements"), runs=False),
    Silent("distinct rows", _scatter("2,1", "0, -1", "ScatterND")),
    Silent("the same index in another column", _scatter("2,3", "0, 1, 2, 1, 0, 0", "ScatterElements")),
    Silent(
        "distinct along the other axis", _scatter("2,3", "0, 1, 2, 0, 1, 2", "ScatterElements<axis = -1>")
    ),
    Silent(
        "a dynamic axis: perhaps the same row",
        """g (float[N,3] x, float[2,3] u) => (float[N,3] y) <int64[2,1] i = {0, -1}> {
            y = ScatterND(x, i, u) }""",
        runs=False,
    ),
    Silent(
        "reduction = add, where the order does not matter (OPS039)",
        _scatter("2,1", "1, 1", 'ScatterND<reduction = "add">'),
    ),
    Silent(
        "indices that are not constant",
        "g (float[4,3] x, float[2,3] u, int64[2,1] i) => (float[4,3] y) { y = ScatterND(x, i, u) }",
        runs=False,
    ),
]


_AXIS = ("Gather", "GatherElements", "Scatter", "ScatterElements")
_LIMIT = 1 << 24
"""Maximum size of indices that are checked, in bytes."""


@rule("OPS035", ops=[*_AXIS, "GatherND", "ScatterND"], severity=Severity.ERROR, hazards=[73])
def index_out_of_range(node: Node, model: Model) -> Iterator[Match]:
    """Constant indices of a Gather or Scatter that are out of range.

    ## Why it matters
    ONNX defines it as an error, and ONNX Runtime fails: `indices element out of data bounds, idx=9 must be within the
    inclusive range [-4,3]`. TensorRT-RTX 1.7.1 parses and builds it without a warning (measured, for Gather,
    GatherElements, GatherND, ScatterElements and ScatterND); what an engine then reads is undefined.

    ## Fix
    None: the model is wrong, usually because a vocabulary or a table of positions was cut. Negative indices within
    range count from the end, and TensorRT interprets them so; before 8.2 its parser did not, according to
    onnx-tensorrt's history: there a Gather with such indices is a warning (target trt8.4, which starts at 8.0).

    ## References
    - https://onnx.ai/onnx/operators/onnx__Gather.html: "It is an error if any of the index values are out of bounds"
    """
    data, indices = node.input(0), node.input(1)
    shape = None if data is None else model.shapes.shape(data)
    array = None if indices is None else indices.constant(_LIMIT)
    if shape is None or array is None or array.size == 0 or array.dtype not in (np.int32, np.int64):
        return
    if node.op_type in _AXIS:
        axis = node.attr("axis", 0)
        if not -len(shape) <= axis < len(shape):
            return
        indices_by_axis = {axis % len(shape): array}
    else:
        first = node.attr("batch_dims", 0) if node.op_type == "GatherND" else 0
        if array.ndim == 0 or first + array.shape[-1] > len(shape):
            return
        indices_by_axis = {first + i: array[..., i] for i in range(array.shape[-1])}
    for axis, wanted in indices_by_axis.items():
        size = shape[axis].value
        if size is None:
            continue
        wrong = wanted[(wanted < -size) | (wanted >= size)]
        if wrong.size:
            yield Match(
                f"{node.op_type} with index {wrong.reshape(-1)[0]} on axis {axis}, which has {size} elements",
                node=node,
            )
            return
    target = target_of(model)
    before_8_2 = target.oldest < (8, 2) and not target.int64
    if (
        before_8_2
        and node.op_type == "Gather"
        and any(bool((wanted < 0).any()) for wanted in indices_by_axis.values())
    ):
        message = "Gather with negative indices: TensorRT before 8.2 does not count them from the end"
        yield Match(message, node=node, severity=Severity.WARNING)


def _gather(y: str, i: str, i_values: str, x: str = "4,3") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) <int64[{i}] i = {{{i_values}}}> {{ y = Gather(x, i) }}"


def _pick(y: str, i: str, i_values: str, call: str, x: str = "4,3") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) <int64[{i}] i = {{{i_values}}}> {{ y = {call}(x, i) }}"


index_out_of_range.examples = [
    Flagged("Gather", _gather("2,N", "2", "0, 9", x="4,N")),
    Flagged(
        "Gather, a negative index below the range",
        "g (float[N,4] x) => (float[N] y) <int64 i = {-5}> { y = Gather<axis = -1>(x, i) }",
    ),
    Flagged("GatherElements", _pick("1,3", "1,3", "0, 1, 4", "GatherElements")),
    Flagged(
        "ScatterElements",
        """g (float[4,3] x, float[1,3] u) => (float[4,3] y) <int64[1,3] i = {0, 1, 4}> {
            y = ScatterElements(x, i, u) }""",
    ),
    Flagged("GatherND, the second component of the index", _pick("1", "1,2", "3, 3", "GatherND")),
    Flagged("ScatterND", _scatter("1,1", "4", "ScatterND", u="1,3")),
    Flagged(
        "GatherND with a batch dimension; the indexed axis comes after it",
        _pick("2", "2,1", "0, 3", "GatherND<batch_dims = 1>", x="2,3"),
    ),
    Silent(
        "GatherND with a batch dimension that is shorter than the indexed axis",
        _pick("2", "2,1", "0, 2", "GatherND<batch_dims = 1>", x="2,3"),
    ),
    Silent("negative indices within range", _gather("2,3", "2", "-4, -1")),
    Silent("a dynamic axis", _gather("1,3", "1", "9", x="N,3")),
    Silent(
        "indices that are not constant", "g (float[4,3] x, int64[1] i) => (float[1,3] y) { y = Gather(x, i) }"
    ),
    Silent("empty indices", _gather("0,3", "0", "")),
    Silent("GatherND in range", _pick("1", "1,2", "3, -3", "GatherND")),
    Flagged("a negative index, for TensorRT 8.0 and 8.1", _gather("1,3", "1", "-1"), target="trt8.4"),
    Silent("a negative index, for TensorRT-RTX", _gather("1,3", "1", "-1"), target="rtx"),
    Silent("a negative index, for TensorRT 8.6", _gather("1,3", "1", "-1"), target="trt8.6"),
]


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
    message = "TensorRT supports TensorScatter only in linear mode with a four-dimensional cache"
    yield Match(message, node=node, fix=fix)


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
        indices = draft.add("Reshape", [write, draft.integers([-1] + [1] * (rank - 1), "shape")])
    if count != 1 or not indices:
        steps = np.arange(count, dtype=np.int64).reshape([count] + [1] * (rank - 1 - axis))
        offsets = draft.constant(steps, "numbers")
        indices = draft.add("Add", [indices, offsets]) if indices else offsets
    if circular and write is not None:
        indices = draft.add("Mod", [indices, draft.integers(size, "size")])
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
