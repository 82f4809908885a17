"""ScatterElements and ScatterND with a reduction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    Dim,
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
    dtypes,
    equal,
    rule,
    takes,
    target_of,
)
from onnxfix_rules.ops import _scatter_indices
from onnxfix_rules.ops._integers import SMALL

LIMIT = 1 << 22
"""Maximum number of comparisons."""
_MOST_INDICES = 1 << 18
"""Maximum number of indices in a constant."""
REDUCTIONS = {"Add": "ReduceSum", "Max": "ReduceMax", "Min": "ReduceMin", "Mul": "ReduceProd"}


def reduced(draft: Draft, node: Node, model: Model, op: str) -> str:
    """Add the reduction of all updates of each element, in the shape of the data; return the name of the value.

    Elements without an update get the neutral value. "" if a size is unknown that decides the number of comparisons for
    an element, a shape is empty, or there are too many comparisons.
    """
    data, indices, updates = node.inputs[:3]
    if data is None or indices is None or updates is None:
        return ""
    shape, index_shape = model.shapes.shape(data), model.shapes.shape(indices)
    elem = model.shapes.elem_type(data)
    if not shape or not index_shape or elem is None or 0 in [dim.value for dim in (*shape, *index_shape)]:
        return ""
    neutral = _neutral(op, elem)
    if neutral is None or (op in ("Add", "Mul") and elem in SMALL):
        return ""  # ONNX has no sum or product of 8-bit integers along an axis
    kind = model.shapes.elem_type(indices)
    if not kind:
        return ""
    comparison = _Comparison(draft, op, neutral, np.dtype(helper.tensor_dtype_to_np_dtype(kind)))
    if node.op_type == "ScatterND":
        sizes = [model.shapes.static_shape(value) for value in (data, indices)]
        return (
            ""
            if sizes[0] is None or sizes[1] is None
            else comparison.rows(sizes[0], sizes[1], indices, updates)
        )
    return comparison.elements(shape, index_shape, indices, updates, int(node.attr("axis", 0)) % len(shape))


def _neutral(op: str, elem: int) -> np.ndarray[tuple[()], np.dtype[np.generic]] | None:
    """The neutral value of the reduction, in the data's type."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    if elem in dtypes.INTEGERS:
        ends = dtypes.INTEGERS[elem]
        return np.array({"Add": 0, "Mul": 1, "Max": ends.low, "Min": ends.high}[op], dtype)
    if not dtypes.is_float(elem):
        return None
    return np.array({"Add": 0.0, "Mul": 1.0, "Max": -math.inf, "Min": math.inf}[op], dtype)


class _Comparison:
    def __init__(
        self,
        draft: Draft,
        op: str,
        neutral: np.ndarray[tuple[()], np.dtype[np.generic]],
        kind: np.dtype[np.generic],
    ) -> None:
        self.draft, self.op, self.kind = draft, op, kind
        self.neutral = draft.constant(neutral, "neutral")

    def rows(
        self, shape: tuple[int, ...], index_shape: tuple[int, ...], indices: Value, updates: Value
    ) -> str:
        """For ScatterND: flatten the indexed axes, the updates, and the other axes."""
        depth, count = index_shape[-1], math.prod(index_shape[:-1])
        if depth > len(shape):
            return ""  # no valid model; a declared shape may say 2**40
        slots, width = math.prod(shape[:depth]), math.prod(shape[depth:])
        if depth == 0 or slots > _MOST_INDICES or slots * count * width > LIMIT:
            return ""
        strides = [math.prod(shape[axis + 1 : depth]) for axis in range(depth)]
        flat = self._shaped(indices, count, depth)
        # Negative indices count from the end.
        counted = self.draft.add("Mod", [flat, self._indices(shape[:depth])])
        if depth > 1:
            weighed = self.draft.add("Mul", [counted, self._indices(strides)])
            counted = self.draft.along("ReduceSum", weighed, [1], keepdims=0)
        matches = self.draft.add(
            "Equal", [self._shaped(counted, 1, count, 1), self._range(slots, (slots, 1, 1))]
        )
        total = self._reduced_updates(matches, self._shaped(updates, 1, count, width), 1)
        return self._shaped(total, *shape)

    def elements(
        self, shape: tuple[Dim, ...], index_shape: tuple[Dim, ...], indices: Value, updates: Value, axis: int
    ) -> str:
        """For ScatterElements: move the axis last, and compare with the updates along a new last axis."""
        rank = len(shape)
        others = [other for other in range(rank) if other != axis]
        if rank >= 8 or len(index_shape) != rank:
            return ""
        size, count = shape[axis].value, index_shape[axis].value
        if (
            size is None
            or count is None
            or not all(equal(shape[one], index_shape[one]).yes for one in others)
        ):
            return ""
        if math.prod(dim.value or 1 for dim in shape) * count > LIMIT:
            return ""
        order = [*others, axis]
        moved = [
            value if axis == rank - 1 else self.draft.add("Transpose", [value], perm=order)
            for value in (indices, updates)
        ]
        counted = self.draft.add("Mod", [moved[0], self._indices(size)])
        column = self.draft.unsqueeze(counted, [rank - 1])
        matches = self.draft.add("Equal", [column, self._range(size, (size, 1))])
        total = self._reduced_updates(matches, self.draft.unsqueeze(moved[1], [rank - 1]), rank)
        if axis == rank - 1:
            return total
        return self.draft.add("Transpose", [total], perm=[order.index(other) for other in range(rank)])

    def _reduced_updates(self, matches: str, updates: str, axis: int) -> str:
        masked = self.draft.add("Where", [matches, updates, self.neutral])
        return self.draft.along(REDUCTIONS[self.op], masked, [axis], keepdims=0)

    def _shaped(self, value: Value | str, *shape: int) -> str:
        return self.draft.add("Reshape", [value, self.draft.integers(shape, "shape")])

    def _indices(self, values: object) -> str:
        return self.draft.constant(np.array(values, self.kind), "sizes")

    def _range(self, count: int, shape: tuple[int, ...]) -> str:
        return self.draft.constant(np.arange(count, dtype=self.kind).reshape(shape), "numbers")


_OPS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


@rule(
    "OPS039", ops=["ScatterElements", "ScatterND"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[62]
)
def scatter_with_reduction(node: Node, model: Model) -> Iterator[Match]:
    """A ScatterND or ScatterElements with `reduction`.

    ## Why it matters
    The parser stops: `ScatterND with reduction is not supported.`, measured with TensorRT-RTX 1.7.1, as that of 10.1.
    ScatterElements is a plugin, which RTX lacks: `Unsupported reduction type`. 8.6.1 ignores the attribute.

    ## Fix
    With constant indices without duplicates: gather the current elements, combine them with the updates, and scatter
    the result. Exact for sums and products of integers, float and double; maxima and minima of floats, and half
    precision, may differ between backends in NaN, the sign of zero and rounding, and require `--numeric-fixes`.

    With duplicate or non-constant indices, each element's index is compared with each index of the updates, and the
    matching updates are reduced and combined with the element: exact for maxima and minima of integers, with
    `--numeric-fixes` for the rest: floats are added in another order, and ONNX Runtime 1.31 computes sums and products
    of integers in double. All shapes must be static; of a ScatterElements only the sizes along the axis, if the others
    are the same in data and indices. The number of elements times that of updates is at most 4 million, with dynamic
    sizes for each of their elements; above that, and where TensorRT ignores the axes of the reduction (OPS098), there
    is no fix.

    TensorRT layers: 4 by gathering; 14 to 20 by comparing.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ScatterND.html
    """
    kind = node.attr("reduction", "none")
    if kind not in _OPS or (node.op_type == "ScatterElements" and target_of(model).has_plugin(node.op_type)):
        return
    if _scatter_indices.are_distinct(node, model) is True:
        fix = _gathered(node, model, _OPS[kind])
    else:
        fix = _compared(node, model, _OPS[kind])
    yield Match(
        f"TensorRT has no {node.op_type} with reduction={kind}"
        + ("" if fix else ", and indices may be duplicates"),
        node=node,
        fix=fix,
        reads=tuple(v for v in node.inputs[1:2] if v is not None),
    )


def _gathered(node: Node, model: Model, op: str) -> Fix | None:
    data, indices, updates = node.inputs[:3]
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or indices is None or updates is None or elem is None or not _combines(node, op, elem):
        return None
    draft = Draft(node)
    if node.op_type == "ScatterND":
        current = draft.add("GatherND", [data, indices])
    else:
        current = draft.add("GatherElements", [data, indices], axis=node.attr("axis", 0))
    combined = _combined(draft, op, current, updates, integer=dtypes.is_integer(elem))
    draft.replace_node(node, inputs=[data, indices, combined], reduction=None)
    exact = dtypes.is_integer(elem) or (
        op in ("Add", "Mul") and elem in (TensorProto.FLOAT, TensorProto.DOUBLE)
    )
    return Fix(
        f"gather the elements, combine them by {op}, and scatter the result",
        draft.edits,
        Safety.EXACT if exact else Safety.NUMERIC,
    )


def _compared(node: Node, model: Model, op: str) -> Fix | None:
    """The fix for indices that may be duplicates."""
    data, output, target = node.input(0), node.output(), target_of(model)
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or output is None or elem is None or not target.between(elem):
        return None
    if not _combines(node, op, elem):
        return None
    if node.opset >= 18 and REDUCTIONS[op] in target.ignores_axes:
        return None
    draft = Draft(node)
    total = reduced(draft, node, model, op)
    if not total:
        return None
    draft.replace_output(node, _combined(draft, op, data.name, total, integer=dtypes.is_integer(elem)))
    return Fix(
        "compare each element's index with those of the updates, and reduce the matches",
        draft.edits,
        Safety.EXACT if dtypes.is_integer(elem) and op in ("Max", "Min") else Safety.NUMERIC,
    )


def _combines(node: Node, op: str, elem: int) -> bool:
    """Whether this opset has operators that combine such elements: a scatter also accepts booleans."""
    if dtypes.is_integer(elem) and op in ("Max", "Min"):
        op = "Less"
    opset = node.scope.opset()
    return takes(op, opset, elem) and takes("Where", opset, elem, 1)


def _combined(draft: Draft, op: str, current: str, updates: Value | str, *, integer: bool) -> str:
    """Combine the elements with the updates. Not by Max: ONNX Runtime 1.31 returns Max(2**31, 0) = 0 for int64."""
    if not integer or op in ("Add", "Mul"):
        return draft.add(op, [current, updates])
    smaller = draft.add("Less", [current, updates] if op == "Max" else [updates, current])
    return draft.add("Where", [smaller, updates, current])


_ND = "g (float[4,3] x, float[2,3] u) => (float[4,3] y)"
_EL = "g (float[4,3] x, float[2,3] u) => (float[4,3] y)"
_ROWS = "<int64[2,1] i = {0, 2}>"
_PLACES = "<int64[2,3] i = {0, 1, 2, 3, 0, 1}>"
_fixed = partial(Fixed, runs=False, safety=Safety.NUMERIC)
_flagged = partial(Flagged, runs=False, safety=Safety.NUMERIC)


def _scatter_nd(elem: str, x: str = "4,3") -> str:
    return f"""g ({elem}[{x}] x, {elem}[2,3] u, int64[2,1] i) => ({elem}[{x}] y) {{
        y = ScatterND<reduction = "add">(x, i, u) }}"""


scatter_with_reduction.examples = [
    *(
        Fixed(
            f"ScatterND, {reduction}: no duplicate indices",
            before=f'{_ND} {_ROWS} {{ y = ScatterND<reduction = "{reduction}">(x, i, u) }}',
            after=f"{_ND} {_ROWS} {{ g = GatherND(x, i)  r = {op}(g, u)  y = ScatterND(x, i, r) }}",
            safety=Safety.EXACT if reduction in ("add", "mul") else Safety.NUMERIC,
        )
        for reduction, op in (("add", "Add"), ("mul", "Mul"), ("max", "Max"), ("min", "Min"))
    ),
    Fixed(
        "the maximum of integers: exact; one negative index",
        before="""g (int64[4,3] x, int64[2,3] u) => (int64[4,3] y) <int64[2,1] i = {0, -1}> {
            y = ScatterND<reduction = "max">(x, i, u) }""",
        after="""g (int64[4,3] x, int64[2,3] u) => (int64[4,3] y) <int64[2,1] i = {0, -1}> {
            g = GatherND(x, i)  l = Less(g, u)  r = Where(l, u, g)  y = ScatterND(x, i, r) }""",
    ),
    Fixed(
        "along a dynamic axis",
        before="""g (float[N,3] x, float[1,3] u) => (float[N,3] y) <int64[1,1] i = {0}> {
            y = ScatterND<reduction = "add">(x, i, u) }""",
        after="""g (float[N,3] x, float[1,3] u) => (float[N,3] y) <int64[1,1] i = {0}> {
            g = GatherND(x, i)  r = Add(g, u)  y = ScatterND(x, i, r) }""",
        opset=16,
    ),
    Fixed(
        "ScatterElements without duplicate indices",
        before=f'{_EL} {_PLACES} {{ y = ScatterElements<axis = 0, reduction = "add">(x, i, u) }}',
        after=f"""{_EL} {_PLACES} {{
            g = GatherElements<axis = 0>(x, i)  r = Add(g, u)  y = ScatterElements<axis = 0>(x, i, r) }}""",
        target="trt8.6",
    ),
    Flagged(
        "duplicate indices",
        f'{_ND} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND<reduction = "add">(x, i, u) }}',
    ),
    Flagged(
        "duplicate indices, one of them negative",
        f'{_ND} <int64[2,1] i = {{3, -1}}> {{ y = ScatterND<reduction = "add">(x, i, u) }}',
    ),
    Flagged(
        "possible duplicates: the axis is dynamic",
        """g (float[N,3] x, float[2,3] u) => (float[N,3] y) <int64[2,1] i = {0, -1}> {
            y = ScatterND<reduction = "add">(x, i, u) }""",
        runs=False,
    ),
    _fixed(
        "non-constant indices: compared with each element's index",
        before=_scatter_nd("int32"),
        after="""g (int32[4,3] x, int32[2,3] u, int64[2,1] i) => (int32[4,3] y)
            <int64[2] a = {2, 1}, int64[1] n = {4}, int64[3] b = {1, 2, 1}, int64[4,1,1] r = {0, 1, 2, 3},
             int64[3] c = {1, 2, 3}, int32 zero = {0}, int64[1] k = {1}, int64[2] s = {4, 3}> {
            d = Reshape(i, a)  e = Mod(d, n)  f = Reshape(e, b)  h = Equal(f, r)
            v = Reshape(u, c)  w = Where(h, v, zero)  t = ReduceSum<keepdims = 0>(w, k)  q = Reshape(t, s)
            y = Add(x, q) }""",
        # not run: indices may be out of range
    ),
    Fixed(
        "duplicate indices, with numeric fixes",
        before=f'{_ND} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND<reduction = "max">(x, i, u) }}',
        after=f"""{_ND} <int64[2,1] i = {{1, 1}}, int64[2] a = {{2, 1}}, int64[1] n = {{4}}, int64[3] b = {{1, 2, 1}},
             int64[4,1,1] r = {{0, 1, 2, 3}}, int64[3] c = {{1, 2, 3}}, float zero = {{-inf}}, int64[1] k = {{1}},
             int64[2] s = {{4, 3}}> {{
            d = Reshape(i, a)  e = Mod(d, n)  f = Reshape(e, b)  h = Equal(f, r)
            v = Reshape(u, c)  w = Where(h, v, zero)  t = ReduceMax<keepdims = 0>(w, k)  q = Reshape(t, s)
            y = Max(x, q) }}""",
        safety=Safety.NUMERIC,
    ),
    _fixed(
        "ScatterElements with non-constant indices",
        before="""g (int32[3,2] x, int32[2,2] u, int64[2,2] i) => (int32[3,2] y) {
            y = ScatterElements<axis = 0, reduction = "mul">(x, i, u) }""",
        after="""g (int32[3,2] x, int32[2,2] u, int64[2,2] i) => (int32[3,2] y)
            <int64 n = {3}, int64[3,1] r = {0, 1, 2}, int32 one = {1}, int64[1] a = {1}, int64[1] f = {1},
             int64[1] b = {2}> {
            it = Transpose<perm = [1,0]>(i)  ut = Transpose<perm = [1,0]>(u)
            c = Mod(it, n)  d = Unsqueeze(c, a)  h = Equal(d, r)  v = Unsqueeze(ut, f)  w = Where(h, v, one)
            t = ReduceProd<keepdims = 0>(w, b)  q = Transpose<perm = [1,0]>(t)  y = Mul(x, q) }""",
        target="rtx",
    ),
    Flagged(
        "TensorRT 8.6 ignores the axes of a ReduceMax of opset 18",
        f'{_ND} <int64[2,1] i = {{1, 1}}> {{ y = ScatterND<reduction = "max">(x, i, u) }}',
        safety=Safety.NUMERIC,
        target="trt8.6",
    ),
    _fixed(
        "duplicates in a dynamic batch",
        before="""g (float[N,3] x, float[N,2] u, int64[N,2] i) => (float[N,3] y) {
            y = ScatterElements<axis = 1, reduction = "add">(x, i, u) }""",
        after="""g (float[N,3] x, float[N,2] u, int64[N,2] i) => (float[N,3] y)
            <int64 n = {3}, int64[1] a = {1}, int64[3,1] r = {0, 1, 2}, int64[1] f = {1}, float zero = {0},
            int64[1] b = {2}> {
            c = Mod(i, n)  d = Unsqueeze(c, a)  h = Equal(d, r)  v = Unsqueeze(u, f)  w = Where(h, v, zero)
            t = ReduceSum<keepdims = 0>(w, b)  y = Add(x, t) }""",
        target="rtx",
    ),
    _flagged("int8, which ONNX's ReduceSum does not support", _scatter_nd("int8")),
    _flagged("non-constant indices along a dynamic axis", _scatter_nd("float", x="N,3")),
    Silent(
        "for ScatterElements TensorRT has a plugin",
        f'{_EL} {_PLACES} {{ y = ScatterElements<axis = 0, reduction = "add">(x, i, u) }}',
    ),
    Silent("no reduction", f"{_ND} {_ROWS} {{ y = ScatterND(x, i, u) }}"),
    Silent(
        "an explicit reduction of none", f'{_ND} {_ROWS} {{ y = ScatterND<reduction = "none">(x, i, u) }}'
    ),
    _flagged(
        "booleans, which a scatter adds but Add does not support",
        """g (bool[4] x, bool[2] u) => (bool[4] y) <int64[2,1] i = {0, 2}> {
            y = ScatterND<reduction = "add">(x, i, u) }""",
    ),
]
