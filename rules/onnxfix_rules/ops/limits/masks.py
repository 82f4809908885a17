"""NonZero of a mask around an assignment, a reduction or a count, which need no places."""
# Long because: three rules, with an example of each way to read what a mask selects.

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    Draft,
    Edit,
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
    takes,
)
from onnxfix.targets.documented import names
from onnxfix_rules.ops.limits import _masks

_COMBINED = {"add": "Add", "mul": "Mul"}


@rule("OPS110", ops=["ScatterND"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[43, 61])
def masked_assignment(node: Node, model: Model) -> Iterator[Match]:
    """A ScatterND at the places of a mask, which NonZero lists.

    ## Why it matters
    PyTorch's exporters write `x[mask] = value`, `x[mask] += value`, `x[mask] = y[mask]` and `masked_scatter` in this
    form: NonZero, Transpose, GatherND, arithmetic, ScatterND. TensorRT-RTX has no NonZero (`NonZero plugin creator
    version 1 was not found in plugin registry`, measured with 1.7.1), nor has TensorRT before 8.5. The others have it,
    but the number of places depends on data: information there. TensorRT 10.6.0, executed, does not build it if the
    updates are expanded to the sum of the mask, as PyTorch 2 writes `x[mask] = y[mask]`, three of three models: `Tensor
    val_11 has empty producer but nonempty consumers`, `Has no upper bound: (VALUE val_9)`. 8.6.1 builds it.

    ## Fix
    A Where between what was assigned and the tensor. What was computed with the selected values is computed with whole
    tensors; what comes out outside of the mask, NaN included, is not chosen. masked_scatter takes the elements of its
    source in order: CumSum of the mask numbers them, and Gather takes them; from opset 14 on, since Reshape with
    allowzero keeps empty tensors.

    Exact for integers, booleans, and constants other than -0.0. NUMERIC where a float may be -0.0, whose sign ONNX
    Runtime's Where loses (measured with 1.32), and after functions like Exp or in half precision; offered only where
    the target has no NonZero or fails as 10.6.0 does.

    No fix if the updates are not known to be selected by the same mask, for integer division (outside of the mask the
    divisor may be 0), for indices of which Slice, Split or Concat are part, and if the mask's shape is not known to be
    the tensor's or its first axes.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ScatterND.html
    - NVIDIA/TensorRT-RTX issue 32: NonZero
    """
    data, indices, values = (node.require(index) for index in range(3))
    kind = node.attr("reduction", "none")
    mask = _masks.mask_of(indices, model)
    if mask is None or not _starts(mask, indices, data, model) or not _masks.can_test(node, mask, model):
        return
    draft, base, elem = Draft(node), _masks.base_of(mask, model), model.shapes.elem_type(data)
    spread = _masks.Spread(draft, model, base, data, counted=True)
    written = spread.updates(values)
    if written is None or elem is None or kind not in ("none", *_COMBINED):
        return
    if kind != "none":
        if not takes(_COMBINED[kind], node.opset, elem):
            return
        written = draft.add(_COMBINED[kind], [data, written])
    exact = spread.exact and not (
        dtypes.is_float(elem) and (kind == "mul" or _masks.may_be_minus_zero(values))
    )
    severity = _masks.severity(model, (10, 6), _is_counted(values))
    if not exact and severity is Severity.INFO:
        return
    chosen = _masks.condition(draft, base, model.shapes.rank(data) or 0, model)
    draft.replace_output(node, draft.add("Where", [chosen, written, data]))
    yield Match(
        f"{mask.name!r} is a mask: a Where assigns without NonZero",
        node=node,
        severity=severity,
        fix=Fix("assign by Where", draft.edits, Safety.EXACT if exact else Safety.NUMERIC),
        reads=(mask, indices, values),
    )


def _is_counted(values: Value) -> bool:
    """Whether the updates are expanded to a sum, that of the mask."""
    node = values.producer
    while node is not None and node.is_onnx and node.op_type in ("Reshape", "Identity"):
        node = node.require(0).producer
    if node is None or not node.is_onnx or node.op_type != "Expand":
        return False
    size = node.require(1).producer
    return size is not None and size.is_onnx and size.op_type == "ReduceSum"


def _starts(mask: Value, indices: Value, data: Value, model: Model) -> bool:
    """Whether the mask has the shape of the data or of its first axes, and the indices have that many columns."""
    kept, places, shape = (model.shapes.shape(value) for value in (mask, indices, data))
    if not kept or not places or shape is None or len(places) != 2 or places[1].value != len(kept):
        return False
    first = shape[: len(kept)]
    return len(first) == len(kept) and all(equal(*pair).yes for pair in zip(kept, first, strict=True))


_SET = "g (float[3,4] x, bool[3,4] m) => (float[3,4] y)"
_PLACES = "n = NonZero(m)  i = Transpose<perm = [1,0]>(n)"
_silent = partial(Silent, runs=False)


masked_assignment.examples = [
    Fixed(
        "a constant, repeated for each place",
        before=f"""{_SET} <float v = {{2}}, int64[1] k = {{0}}> {{ a = Neg(x)  {_PLACES}
            s = Shape(i)  c = Gather(s, k)  u = Expand(v, c)  b = ScatterND(a, i, u)  y = Abs(b) }}""",
        after=f"{_SET} <float v = {{2}}> {{ a = Neg(x)  b = Where(m, v, a)  y = Abs(b) }}",
    ),
    Fixed(
        "a constant that is added to the selected values",
        before=f"""{_SET} <float v = {{2}}> {{ a = Neg(x)  {_PLACES}
            u = GatherND(a, i)  w = Add(u, v)  b = ScatterND(a, i, w)  y = Abs(b) }}""",
        after=f"{_SET} <float v = {{2}}> {{ a = Neg(x)  w = Add(a, v)  b = Where(m, w, a)  y = Abs(b) }}",
    ),
    Fixed(
        "rows of a tensor, by an integer mask, as reduction",
        before="""g (int32[N,4] x, int32[N] m) => (int32[N,4] y) <int64[2] k = {-1, 1}> {
            n = NonZero(m)  i = Reshape(n, k)
            o = GatherND(x, i)  p = Neg(o)  b = ScatterND<reduction = "add">(x, i, p)  y = Abs(b) }""",
        after="""g (int32[N,4] x, int32[N] m) => (int32[N,4] y) <int32 zero = {0}, int64[1] a = {1}> {
            p = Neg(x)  q = Add(x, p)  e = Equal(m, zero)  t = Not(e)  c = Unsqueeze(t, a)  b = Where(c, q, x)
            y = Abs(b) }""",
    ),
    Fixed(
        "the values of another tensor: -0.0 among them, perhaps",
        before=f"""{_SET} {{ a = Neg(x)  {_PLACES}  u = GatherND(x, i)  b = ScatterND(a, i, u)  y = Abs(b) }}""",
        after=f"{_SET} {{ a = Neg(x)  b = Where(m, x, a)  y = Abs(b) }}",
        safety=Safety.NUMERIC,
        target="rtx",
    ),
    Fixed(
        "the values of another tensor, expanded to the number of places, for TensorRT 10.6",
        before=f"""{_SET} <int64[1] f = {{-1}}> {{ a = Neg(x)  {_PLACES}  u = GatherND(x, i)  r = Reshape(m, f)
            k = Cast<to = INT64>(r)  c = ReduceSum(k)  e = Expand(u, c)  w = Reshape(e, f)  b = ScatterND(a, i, w)
            y = Abs(b) }}""",
        after=f"{_SET} {{ a = Neg(x)  b = Where(m, x, a)  y = Abs(b) }}",
        safety=Safety.NUMERIC,
        target="trt10.6",
    ),
    Fixed(
        "a mask that is repeated along the last axis",
        before="""g (float[3,4] x, bool[3] m) => (float[3,4] y)
            <float v = {2}, int64[1] p = {1}, int64[2] s = {3, 4}, int64[1] k = {0}> {
            a = Neg(x)  q = Unsqueeze(m, p)  r = Expand(q, s)  n = NonZero(r)  i = Transpose<perm = [1,0]>(n)
            t = Shape(i)  c = Gather(t, k)  u = Expand(v, c)  b = ScatterND(a, i, u)  y = Abs(b) }""",
        after="""g (float[3,4] x, bool[3] m) => (float[3,4] y) <float v = {2}, int64[1] p = {1}> {
            a = Neg(x)  q = Unsqueeze(m, p)  b = Where(q, v, a)  y = Abs(b) }""",
    ),
    Fixed(
        "masked_scatter: the elements of the source in order",
        before=f"""g (int64[3,4] x, bool[3,4] m, int64[12] t) => (int64[3,4] y)
            <int64[1] o = {{0}}> {{ {_PLACES}  s = Shape(i)  c = Gather(s, o)
            u = Slice(t, o, c, o)  b = ScatterND(x, i, u)  y = Abs(b) }}""",
        after="""g (int64[3,4] x, bool[3,4] m, int64[12] t) => (int64[3,4] y)
            <int64[1] f = {-1}, int64 z = {0}, int64[1] o = {0}> {
            c = Cast<to = INT32>(m)  k = Reshape(c, f)  p = CumSum<exclusive = 1>(k, z)  q = Mul(p, k)
            l = Concat<axis = 0>(t, o)  v = Gather<axis = 0>(l, q)  s = Shape(x)  w = Reshape<allowzero = 1>(v, s)
            b = Where(m, w, x)  y = Abs(b) }""",
    ),
    Silent(
        "floats that may be -0.0, for a TensorRT that has NonZero",
        f"{_SET} {{ a = Neg(x)  {_PLACES}  u = GatherND(x, i)  y = ScatterND(a, i, u) }}",
        safety=Safety.NUMERIC,
    ),
    _silent(
        "values selected by another mask",
        """g (float[3,4] x, bool[3,4] m, bool[3,4] p) => (float[3,4] y) {
            n = NonZero(m)  i = Transpose<perm = [1,0]>(n)  o = NonZero(p)  j = Transpose<perm = [1,0]>(o)
            u = GatherND(x, j)  y = ScatterND(x, i, u) }""",
        safety=Safety.NUMERIC,
        target="rtx",
    ),
    _silent(
        "division of integers: outside of the mask the divisor may be 0",
        f"""g (int32[3,4] x, bool[3,4] m) => (int32[3,4] y) <int32 v = {{7}}> {{ {_PLACES}
            u = GatherND(x, i)  w = Div(v, u)  y = ScatterND(x, i, w) }}""",
    ),
    _silent(
        "a mask of another shape",
        """g (float[5,4] x, bool[3,4] m, float[K] u) => (float[5,4] y) {
            n = NonZero(m)  i = Transpose<perm = [1,0]>(n)  y = ScatterND(x, i, u) }""",
    ),
    _silent(
        "no mask", "g (float[3,4] x, int64[2,1] i, float[2,4] u) => (float[3,4] y) { y = ScatterND(x, i, u) }"
    ),
]


@rule("OPS111", ops=["NonZero"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[43, 61])
def counted_mask(node: Node, model: Model) -> Iterator[Match]:
    """A NonZero of which only the number of places is read.

    ## Why it matters
    `mask.nonzero().shape[0]` and `x[mask].numel()` are exported in this form: NonZero, perhaps Transpose and GatherND,
    Shape. TensorRT-RTX has no NonZero (`NonZero plugin creator version 1 was not found in plugin registry`, measured
    with 1.7.1), nor has TensorRT before 8.5. For the others it is information: the places are computed in vain.

    ## Fix
    The mask as int64, summed over all axes, in the place of each Shape and Size. Exact: integers are added.

    No fix if a size of the shape that is read is neither constant nor the number of places, and if anything else
    reads the places or what they select; OPS110 is about assignments.

    ## References
    - https://onnx.ai/onnx/operators/onnx__NonZero.html
    - NVIDIA/TensorRT-RTX issue 32: NonZero
    """
    places, mask = node.require_output(), _masks.root_of(node.require(0), model)
    found, readers = model.shapes.shape(places), _readers(places)
    if not found or len(found) != 2 or not readers or not _masks.can_test(node, mask, model):
        return
    edits: list[Edit] = []
    for reader in readers:
        shape = model.shapes.shape(reader.require(0))
        sizes = [dim.value if dim.value is not None else equal(dim, found[1]).yes for dim in shape or ()]
        read = sizes[reader.attr("start", 0) : reader.attr("end")]
        if not any(size is True for size in read) or any(size is False for size in read):
            return
        draft = Draft(reader)
        if reader.op_type == "Shape":
            parts = [_count(draft, mask, model) if size is True else size for size in read]
            draft.replace_output(reader, _listed(draft, parts))
        elif sum(size is True for size in read) > 1:
            return
        else:
            others = np.array(math.prod(size for size in read if size is not True), np.int64)
            count = draft.squeeze(_count(draft, mask, model), [0])
            draft.replace_output(reader, draft.add("Mul", [count, draft.constant(others, "size")]))
        edits += draft.edits
    yield Match(
        f"of the places that are not zero in {mask.name!r}, only the number is read",
        node=node,
        severity=_masks.severity(model),
        fix=Fix("sum the mask", edits),
        reads=(mask, *readers),
    )


def _readers(value: Value) -> list[Node]:
    """The nodes that read a size of the value, or of what it selects; none if anything reads more than sizes."""
    found: dict[Node, None] = {}
    stack = [value]
    while stack:
        made = stack.pop()
        if not made.replaceable:
            return []
        for node, index in made.uses:
            if not node.is_onnx or index != (node.op_type in ("Gather", "GatherND")):
                return []
            if node.op_type in ("Shape", "Size"):
                found[node] = None
            elif node.op_type in _PASSED:
                stack.append(node.require_output())
            else:
                return []
    return list(found)


_PASSED = names("Cast Flatten Gather GatherND Identity Reshape Squeeze Transpose Unsqueeze")


def _count(draft: Draft, mask: Value, model: Model) -> str:
    """The number of places, [1]."""
    rank = model.shapes.rank(mask) or 0
    number = draft.cast(_masks.condition(draft, mask, rank, model), TensorProto.INT64)
    return draft.sum(number if rank == 1 else draft.reshape(number, [-1]), [0], keepdims=True)


def _listed(draft: Draft, parts: Sequence[str | int]) -> str:
    names = [part if isinstance(part, str) else draft.integers([part], "size") for part in parts]
    return names[0] if len(names) == 1 else draft.add("Concat", names, axis=0)


counted_mask.examples = [
    Fixed(
        "the number of elements that are not 0",
        before="""g (float[N] x) => (int64 y) <int64 i = {1}> {
            n = NonZero(x)  s = Shape(n)  c = Gather(s, i)  y = Neg(c) }""",
        after="""g (float[N] x) => (int64 y) <int64 i = {1}, float z = {0}, int64[1] a = {0}, int64[1] r = {1}> {
            e = Equal(x, z)  m = Not(e)  k = Cast<to = INT64>(m)  t = ReduceSum<keepdims = 1>(k, a)
            s = Concat<axis = 0>(r, t)  c = Gather(s, i)  y = Neg(c) }""",
    ),
    Fixed(
        "the size of what a mask selects, of two axes",
        before=f"""{_SET} {{ {_PLACES}  u = GatherND(x, i)  s = Shape<start = 0, end = 1>(u)
            f = Cast<to = FLOAT>(s)  y = Div(x, f) }}""",
        after=f"""{_SET} <int64[1] f = {{-1}}, int64[1] a = {{0}}> {{
            k = Cast<to = INT64>(m)  r = Reshape(k, f)  s = ReduceSum<keepdims = 1>(r, a)
            d = Cast<to = FLOAT>(s)  y = Div(x, d) }}""",
        target="rtx",
    ),
    Fixed(
        "Size of the selected rows, below opset 13",
        before="""g (float[N,4] x, bool[N] m) => (int64 y) <int64[1] k = {-1}> {
            n = NonZero(m)  i = Reshape(n, k)  u = Gather(x, i)  s = Size(u)  y = Neg(s) }""",
        after="""g (float[N,4] x, bool[N] m) => (int64 y) <int64 w = {4}> {
            k = Cast<to = INT64>(m)  s = ReduceSum<axes = [0], keepdims = 1>(k)  q = Squeeze<axes = [0]>(s)
            p = Mul(q, w)  y = Neg(p) }""",
        opset=12,
    ),
    Silent(
        "the places themselves are read, too",
        """g (float[3,4] x) => (int64[2] y, int64[2,K] z) { z = NonZero(x)  y = Shape(z) }""",
    ),
    Silent(
        "so is what they select",
        f"g (float[3,4] x, bool[3,4] m) => (int64[1] y, float[K] z) {{ {_PLACES}  z = GatherND(x, i)  y = Shape(z) }}",
    ),
    Silent(
        "a size that is not known",
        """g (float[N,M] x, bool[N] m) => (int64[2] y) <int64[1] k = {-1}> {
            n = NonZero(m)  i = Reshape(n, k)  u = Gather(x, i)  y = Shape(u) }""",
    ),
    Silent(
        "only the rank is read", "g (float[3,4] x) => (int64[1] y) { n = NonZero(x)  y = Shape<end = 1>(n) }"
    ),
]

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
    count = _divisor(draft, mask, mask if axes else data, elem, model)
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


def _divisor(draft: Draft, mask: Value, data: Value, elem: int, model: Model) -> str:
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
