"""OPS112: reductions of what a mask selects."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    Value,
    dtypes,
    equal,
    every_node,
    rule,
)
from onnxfix_rules.ops.limits import _masks

_ZERO = ("ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare")
_OPS = (*_ZERO, "ReduceMax", "ReduceMin", "ReduceProd")


@rule("OPS112", ops=_OPS, safety=Safety.EXACT, severity=Severity.ERROR, hazards=[43, 61])
def masked_reduction(node: Node, model: Model) -> Iterator[Match]:
    """A reduction of all values that a NonZero selects.

    ## Why it matters
    PyTorch's exporters write `x[mask].sum()`, `.mean()`, `.max()` and `masked_select` in this form: NonZero, Transpose,
    GatherND, perhaps arithmetic, and a reduction. TensorRT-RTX has no NonZero (`NonZero plugin creator version 1 was
    not found in plugin registry`, measured with 1.7.1), nor has TensorRT before 8.5. TensorRT 8.6.1, executed, has it
    and does not build the sum of what a mask selects that is an input: `[myelinNodesClusterer.cpp::
    recolorMyelinSpecialSurroundingNodes::520] … Assertion mChunkTypeOfVertex[head] == ChunkType::kMYELIN failed`, four
    of four models. It builds two means by a computed mask, and 10.6.0 builds all six.

    ## Fix
    The whole tensor is reduced; a Where replaces what the mask does not select, NaN included, by the neutral value: 0
    for sums, 1 for products, -inf for a maximum, inf for a minimum. These are also the results for a mask without an
    element. A mean is the sum over the number of elements, or over 1 if there are none: ONNX Runtime 1.32 returns 0
    there, ONNX leaves it undefined, and PyTorch has NaN.

    Exact for integers. NUMERIC for floats, which are added in another order, and offered only where the target has no
    NonZero or fails as 8.6.1 does. If a selected value is NaN, a maximum or minimum may be NaN before and not after:
    ONNX Runtime 1.32 compares in an order of its own. No fix for reductions along other axes than all or the first one
    of selected rows, means and ReduceL2 of integers and of half precision, whose sum may overflow, and for what OPS110
    does not follow.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ReduceMean.html: `Reduction over an empty set of values yields undefined`
    - NVIDIA/TensorRT-RTX issue 32: NonZero
    """
    if ("", "NonZero") not in every_node(model).operators:
        return
    values = node.require(0)
    rank, elem = model.shapes.rank(values), model.shapes.elem_type(values)
    found = _masks.selection(values, model)
    if not rank or elem is None or found is None:
        return
    mask, data = found
    axes = _reduced_axes(node, rank, mask, data, model)
    if axes is None or not _masks.can_test(node, mask, model):
        return
    severity = _masks.severity(model, (8, 6), node.op_type == "ReduceSum" and mask.is_input)
    draft = Draft(node)
    spread = _masks.Spread(draft, model, _masks.base_of(mask, model), data)
    total = _reduced(values, spread, axes)
    exact = dtypes.is_integer(elem) and spread.exact
    if not total or (not exact and severity is Severity.INFO):
        return
    if node.attr("keepdims", 1):
        total = draft.unsqueeze(total, [0]) if axes else draft.reshape(total, [1] * rank)
    draft.replace_output(node, total)
    yield Match(
        f"a reduction of what {mask.name!r} selects needs no NonZero",
        node=node,
        severity=severity,
        fix=Fix("reduce the masked tensor", draft.edits, Safety.EXACT if exact else Safety.NUMERIC),
        reads=(mask, data, values),
    )


def _reduced(values: Value, spread: _masks.Spread, axes: list[int]) -> str:
    """The reduction of the masked tensor along ``axes``, of all if empty; "" if it cannot be written."""
    draft, model, mask, data = spread.draft, spread.model, spread.base, spread.like
    op, elem = draft.anchor.op_type, model.shapes.elem_type(values) or 0
    neutral = _masks.neutral(op, elem)
    written = None if neutral is None else spread.of(values)
    if neutral is None or written is None:
        return ""
    chosen = _masks.condition(draft, mask, model.shapes.rank(data) or 0, model)
    kept = draft.add("Where", [chosen, written, draft.constant(neutral, "neutral")])
    if op != "ReduceMean":
        return _reduce(draft, op, kept, axes)
    count = _count(draft, mask, mask if axes else data, elem, model)
    return draft.add("Div", [_reduce(draft, "ReduceSum", kept, axes), count]) if count else ""


def _reduce(draft: Draft, op: str, value: str, axes: list[int]) -> str:
    return draft.along(op, value, axes, keepdims=0) if axes else draft.add(op, [value], keepdims=0)


def _reduced_axes(node: Node, rank: int, mask: Value, data: Value, model: Model) -> list[int] | None:
    """The axes of the whole tensor; [] for all, None where the reduction is along others than the selected."""
    given = node.input(1)
    axes = node.attr("axes") if given is None else given.constant()
    if axes is None or len(axes) == 0:
        return [] if given is None and not node.attr("noop_with_empty_axes", 0) else None
    reduced = {int(axis) % rank for axis in axes}
    if reduced == set(range(rank)):
        return []
    base = model.shapes.rank(_masks.base_of(mask, model)) or 0
    shape, whole = model.shapes.shape(node.require(0)) or (), model.shapes.shape(data) or ()
    is_row = rank == 1 + len(whole) - base
    is_row = is_row and all(equal(*pair).yes for pair in zip(shape[1:], whole[base:], strict=True))
    return list(range(base)) if reduced == {0} and is_row else None


def _count(draft: Draft, mask: Value, data: Value, elem: int, model: Model) -> str:
    """The number of selected elements as a float, at least 1; "" if the size of a row is not known."""
    rank, shape = model.shapes.rank(mask) or 0, model.shapes.shape(data) or ()
    row = [dim.value for dim in shape[rank:]]
    sizes = [size for size in row if size is not None]
    if len(sizes) < len(row):
        return ""
    number = draft.cast(_masks.condition(draft, mask, rank, model), TensorProto.INT64)
    total = draft.cast(draft.add("ReduceSum", [number], keepdims=0), elem)
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    if math.prod(sizes) != 1:
        total = draft.add("Mul", [total, draft.constant(np.array(math.prod(sizes), dtype), "row")])
    return draft.add("Max", [total, draft.constant(np.array(1, dtype), "one")])


_G = "g (float[3,4] x, bool[3,4] m) => (float y)"
_PLACES = "n = NonZero(m)  i = Transpose<perm = [1,0]>(n)"


masked_reduction.examples = [
    Fixed(
        "the sum of the selected values",
        before=f"{_G} {{ a = Neg(x)  {_PLACES}  u = GatherND(a, i)  s = ReduceSum<keepdims = 0>(u)  y = Abs(s) }}",
        after=f"""{_G} <float z = {{0}}> {{ a = Neg(x)  w = Where(m, a, z)  s = ReduceSum<keepdims = 0>(w)
            y = Abs(s) }}""",
        safety=Safety.NUMERIC,
        target="rtx",
    ),
    Fixed(
        "the mean of squares: over at least one",
        before=f"""{_G} {{ {_PLACES}  u = GatherND(x, i)  q = Mul(u, u)  s = ReduceMean<keepdims = 0>(q)
            y = Abs(s) }}""",
        after=f"""{_G} <float z = {{0}}, float o = {{1}}> {{ q = Mul(x, x)  w = Where(m, q, z)
            t = ReduceSum<keepdims = 0>(w)  k = Cast<to = INT64>(m)  c = ReduceSum<keepdims = 0>(k)
            f = Cast<to = FLOAT>(c)  d = Max(f, o)  s = Div(t, d)  y = Abs(s) }}""",
        safety=Safety.NUMERIC,
        target="rtx",
    ),
    Fixed(
        "the maximum of integers in selected rows: exact",
        before="""g (int32[N,4] x, bool[N] m) => (int32[1,1] y) <int64[2] k = {-1, 1}, int64[2] a = {0, 1}> {
            n = NonZero(m)  i = Reshape(n, k)  u = GatherND(x, i)  s = ReduceMax(u, a)  y = Neg(s) }""",
        after="""g (int32[N,4] x, bool[N] m) => (int32[1,1] y)
            <int64[1] p = {1}, int32 l = {-2147483648}, int64[2] r = {1, 1}> {
            c = Unsqueeze(m, p)  w = Where(c, x, l)  t = ReduceMax<keepdims = 0>(w)  s = Reshape(t, r)
            y = Neg(s) }""",
    ),
    Fixed(
        "the sum of selected rows",
        before="""g (float[N,3,4] x, bool[N,3] m) => (float[4] y) <int64[1] a = {0}> {
            n = NonZero(m)  i = Transpose<perm = [1,0]>(n)  u = GatherND(x, i)  s = ReduceSum<keepdims = 0>(u, a)
            y = Neg(s) }""",
        after="""g (float[N,3,4] x, bool[N,3] m) => (float[4] y)
            <int64[1] p = {2}, float z = {0}, int64[2] a = {0, 1}> { c = Unsqueeze(m, p)  w = Where(c, x, z)
            s = ReduceSum<keepdims = 0>(w, a)  y = Neg(s) }""",
        safety=Safety.NUMERIC,
        target="rtx",
    ),
    Fixed(
        "the sum of the selected values, for TensorRT 8.6",
        before=f"{_G} {{ {_PLACES}  u = GatherND(x, i)  s = ReduceSum<keepdims = 0>(u)  y = Abs(s) }}",
        after=f"{_G} <float z = {{0}}> {{ w = Where(m, x, z)  s = ReduceSum<keepdims = 0>(w)  y = Abs(s) }}",
        safety=Safety.NUMERIC,
        target="trt8.6",
    ),
    Silent(
        "floats, for a TensorRT that has NonZero",
        f"{_G} {{ {_PLACES}  u = GatherND(x, i)  y = ReduceSum<keepdims = 0>(u) }}",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "along the columns of the selected rows",
        """g (int32[N,4] x, bool[N] m) => (int32[K] y) <int64[2] k = {-1, 1}, int64[1] a = {1}> {
            n = NonZero(m)  i = Reshape(n, k)  u = GatherND(x, i)  y = ReduceSum<keepdims = 0>(u, a) }""",
    ),
    Silent(
        "a mean of half precision",
        f"""g (float16[3,4] x, bool[3,4] m) => (float16 y) {{ {_PLACES}  u = GatherND(x, i)
            y = ReduceMean<keepdims = 0>(u) }}""",
        safety=Safety.NUMERIC,
        target="rtx",
    ),
    Silent(
        "values that a mask and another tensor give",
        f"""g (int32[3,4] x, int32[K] v, bool[3,4] m) => (int32 y) {{ {_PLACES}  u = GatherND(x, i)  w = Add(u, v)
            y = ReduceSum<keepdims = 0>(w) }}""",
        runs=False,
    ),
    Silent("no mask", "g (int32[3,4] x) => (int32 y) { y = ReduceSum<keepdims = 0>(x)  n = NonZero(x) }"),
    Silent(
        "a reduction along pairs of elements: its rows are no rows of the tensor",
        f"""g (int32[N,4] x, bool[N] m) => (int32[K] y) <int64[2] k = {{-1, 2}}, int64[1] a = {{0}}> {{
            {_PLACES}  u = GatherND(x, i)  w = Reshape(u, k)  s = ReduceSum<keepdims = 0>(w, a)  y = Neg(s) }}""",
        target="rtx",
    ),
    Silent(
        "three numbers may be added to one that is selected",
        f"""g (int32[N] x, bool[N] m) => (int32 y) <int32 v = {{7}}, int64[1] k = {{3}}> {{
            {_PLACES}  u = GatherND(x, i)  e = Expand(v, k)  w = Add(u, e)  s = ReduceSum<keepdims = 0>(w)
            y = Neg(s) }}""",
        target="rtx",
    ),
    Fixed(
        "integers that are cut from sines, whose last bits may depend on the place",
        before=f"""g (float[N] x, bool[N] m) => (int32 y) {{ {_PLACES}  u = GatherND(x, i)  f = Sin(u)
            w = Cast<to = INT32>(f)  s = ReduceSum<keepdims = 0>(w)  y = Neg(s) }}""",
        after="""g (float[N] x, bool[N] m) => (int32 y) <int32 z = {0}> { f = Sin(x)  w = Cast<to = INT32>(f)
            k = Where(m, w, z)  s = ReduceSum<keepdims = 0>(k)  y = Neg(s) }""",
        safety=Safety.NUMERIC,
        target="rtx",
    ),
]
