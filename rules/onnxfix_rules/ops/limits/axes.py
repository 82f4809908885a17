"""Axes that are not constant, of reductions (OPS041) and of other operators."""
# Long because: three rules, with an example of each operator and place of the axes.

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import helper

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
    rule,
    target_of,
)
from onnxfix_rules.ops.limits import _axes
from onnxfix_rules.ops.limits._axes import ONE, REDUCTIONS, Axes, Choice

#: TensorRT-RTX 1.7.1 layers of reductions that need more than one.
_LAYERS = {"ReduceL1": 2, "ReduceL2": 3, "ReduceLogSum": 2, "ReduceLogSumExp": 12, "ReduceSumSquare": 2}
_MOST_LAYERS = 200
_COPIES = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


@rule("OPS041", ops=REDUCTIONS, safety=Safety.EXACT, severity=Severity.ERROR, hazards=[56])
def reduction_over_non_constant_axes(node: Node, model: Model) -> Iterator[Match]:
    """A reduction whose axes are not constant, but whose number of axes is known.

    ## Why it matters
    TensorRT must know the axes at build time: `Axis input must resolve to a build-time constant (an initializer or a
    constant-foldable subgraph)!`, measured with TensorRT-RTX 1.7.1 for all ten reductions. NVIDIA's lists for TensorRT
    10 agree: "axes must be an initializer".

    ## Fix
    If the number of axes equals the rank, all axes are reduced. If it is zero, the input is omitted, which means the
    same; with `noop_with_empty_axes` TensorRT then copies, as does ONNX for sum, product, mean and extremes. Neither
    costs a layer.

    Otherwise the reduction is computed for every possible set of axes, the flattened results are concatenated, and the
    selected one is sliced and reshaped. Its offset and shape are looked up in tables by a code computed from the axes,
    which are a shape tensor in TensorRT. Exact, even for sums of floats: the result is that of the same reduction over
    the same axes. Axes may be negative and in any order. Duplicate axes, which ONNX leaves open and its reference
    refuses, are an error or give an empty result.

    Layers of TensorRT-RTX 1.7.1 for one of 2, 3, 4 or 8 axes: 39, 43, 45, 53; for two of 3, 4 or 6: 41, 50, 68; for
    three of 6: 78; for four of 8, the maximum: 178. A dynamic dimension costs 16 more. This is for sum, mean, product
    and extremes; of the others each reduction is two or three layers, of ReduceLogSumExp twelve (one of three axes:
    76). No fix above 200. Reductions that are not selected are computed too: one of n axes costs n reductions, four of
    eight 70.

    No fix if the rank or the number of axes is unknown, if an axis certainly comes twice, if the axes are computed from
    floats, which TensorRT does not accept as a shape, or before opset 14, whose Reshape cannot express 0, with dynamic
    dimensions, which may be 0. The optimization profile of such a model must give the values of the axes: the minimum
    and the maximum. ONNX Runtime 1.31 does not reduce a negative axis of an empty tensor; the result of the rewrite has
    ONNX's shape.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - https://onnx.ai/onnx/operators/onnx__ReduceSum.html
    """
    data = node.require(0)
    node.require_output()
    axes = _axes.non_constant(node, model)
    if axes is None or node.opset < (13 if node.op_type == "ReduceSum" else 18):
        return
    target, elem = target_of(model), model.shapes.elem_type(data)
    if target.imports(node.op_type) is False or (elem and target.accepts(node.op_type, elem) is False):
        return
    fix = _fix(node, data, axes, target.max_rank)
    if fix is not None:
        message = f"the axes of this {node.op_type} are not constant; TensorRT requires a constant"
        yield Match(message, node=node, fix=fix, reads=(axes, data))


def _fix(node: Node, data: Value, axes: Value, max_rank: int) -> Fix | None:
    count, rank = _axes.count_of(axes, node.model), node.model.shapes.rank(data)
    if count == 0:
        return _without_axes(node, rank)
    if count is None or rank is None or not count <= rank <= max_rank:
        return None
    if count == rank:
        draft = Draft(node)
        draft.set_input(node, 1, draft.constant(np.arange(rank), "axes"))
        return Fix("reduce all axes", draft.edits)
    if not _axes.is_shape_tensor(axes, node.model):
        return None
    return _over_subset(node, data, axes, rank, count)


def _without_axes(node: Node, rank: int | None) -> Fix | None:
    """Omit empty axes, which ONNX defines to be the same."""
    noop = node.attr("noop_with_empty_axes", 0) != 0
    if (node.op_type not in _COPIES) if noop else (rank == 0):
        return None
    draft = Draft(node)
    draft.replace_node(node, inputs=node.inputs[:1])
    return Fix("omit the empty axes", draft.edits)


def _over_subset(node: Node, data: Value, axes: Value, rank: int, count: int) -> Fix | None:
    shape = node.model.shapes.static_shape(data)
    if _layers(node.op_type, rank, count, dynamic=shape is None) > _MOST_LAYERS:
        return None
    draft = Draft(node)
    choice = Choice(draft, data, axes, rank=rank, count=count)
    keep = node.attr("keepdims", 1)
    if keep not in (0, 1):
        return None
    rows = {
        reduced: [ONE if axis in reduced else axis for axis in range(rank) if keep or axis not in reduced]
        for reduced in choice.sets
    }
    empty = shape is None or 0 in shape
    if empty and node.scope.opset() < 14:
        elem = node.model.shapes.elem_type(data)
        if shape is None or not elem:
            return None
        zero = draft.constant(np.zeros((), helper.tensor_dtype_to_np_dtype(elem)), "zero")
        draft.replace_output(node, draft.add("Expand", [zero, choice.shape(rows)]))
        return Fix("fill the shape that the axes give with zeros", draft.edits)
    flat = _candidates(draft, node, data, choice, rank - count)
    start, end = choice.span()
    first = draft.constant(np.zeros(1, np.int64), "axis")
    selected = draft.add("Slice", [flat, start, end, first], hint="taken")
    made = _axes.reshaped(draft, selected, choice.shape(rows), empty=empty)
    if made is None:
        return None
    draft.replace_output(node, made)
    return Fix(f"reduce along each of the {len(choice.sets)} sets of axes, and select one", draft.edits)


def _layers(op_type: str, rank: int, count: int, *, dynamic: bool) -> int:
    """The number of TensorRT-RTX 1.7.1 layers of the rewrite, within two or three."""
    each = _LAYERS.get(op_type, 1) + (rank - count > 1)
    return 38 + 16 * dynamic + math.comb(rank, count) * each


def _candidates(draft: Draft, node: Node, data: Value, choice: Choice, left: int) -> str:
    """All results, flattened and concatenated; ``left`` is the number of axes that are not reduced."""
    flat = []
    for reduced_axes in choice.sets:
        axes = draft.integers(reduced_axes, "axes")
        reduced = draft.add(node.op_type, [data, axes], hint="reduced", keepdims=0)
        if left > 1:
            line = draft.integers([-1], "line")
            reduced = draft.add("Reshape", [reduced, line], hint="flat")
        flat.append(reduced)
    return draft.add("Concat", flat, axis=0)


_TABLES = """int64[1] rank = {2}, int64[1] zero = {0}, int64[4,1] from = {0, 3, 0, 3}, int64[4,1] to = {3, 5, 3, 5},
    int64[1] a0 = {0}, int64[1] a1 = {1}, int64[1] line = {0}"""
_LOOKUP = "p = Add(a, rank)  c = Squeeze(p, zero)"
_PICK = "f = Gather<axis = 0>(from, c)  t = Gather<axis = 0>(to, c)  u = Slice(all, f, t, line)"
_silent = partial(Silent, runs=False)


reduction_over_non_constant_axes.examples = [
    Fixed(
        "one of two axes: both are reduced, and one result is selected",
        before="g (float[2,3] x, int64[1] a) => (float[A,B] y) { y = ReduceSum(x, a) }",
        after=f"""g (float[2,3] x, int64[1] a) => (float[A,B] y)
            <{_TABLES}, int64[4,2] shapes = {{1, 3, 2, 1, 1, 3, 2, 1}}> {{
            {_LOOKUP}
            r = ReduceSum<keepdims = 0>(x, a0)  q = ReduceSum<keepdims = 0>(x, a1)  all = Concat<axis = 0>(r, q)
            {_PICK}  s = Gather<axis = 0>(shapes, c)  y = Reshape(u, s) }}""",
        opset=13,
    ),
    Fixed(
        "in a branch, without keepdims; a mean is exact too, computed by the same reduction",
        before="""g (float[2,3] x, int64[1] a, bool b) => (float[A] y) <int64[1] one = {1}> {
            y = If(b)<then_branch = p () => (float[A] m) { m = ReduceMean<keepdims = 0>(x, a) },
                      else_branch = q () => (float[2] v) { v = ReduceMean<keepdims = 0>(x, one) }> }""",
        after=f"""g (float[2,3] x, int64[1] a, bool b) => (float[A] y) <int64[1] one = {{1}}> {{
            y = If(b)<then_branch = p () => (float[A] m) <{_TABLES}, int64[4,1] shapes = {{3, 2, 3, 2}}> {{
                          {_LOOKUP}
                          r = ReduceMean<keepdims = 0>(x, a0)  q = ReduceMean<keepdims = 0>(x, a1)
                          all = Concat<axis = 0>(r, q)  {_PICK}
                          s = Gather<axis = 0>(shapes, c)  m = Reshape(u, s) }},
                      else_branch = q () => (float[2] v) {{ v = ReduceMean<keepdims = 0>(x, one) }}> }}""",
    ),
    Fixed(
        "two of three axes, one of them dynamic and possibly 0",
        before="g (int32[N,2,3] x, int64[2] a) => (int32[A,B,C] y) { y = ReduceMax(x, a) }",
        after="""g (int32[N,2,3] x, int64[2] a) => (int32[A,B,C] y)
            <int64[1] rank = {3}, int64[6] powers = {1, 2, 4, 1, 2, 4}, int64[1] zero = {0}, int64[2] more = {1, 0},
            int64[2] a01 = {0, 1}, int64[2] a02 = {0, 2}, int64[2] a12 = {1, 2}, int64[1] one = {1},
            int64[4,3] dims = {3, 3, 2, 3, 1, 3, 0, 3, 3, 4, 4, 4},
            int64[4,4] before = {0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0},
            int64[9,1] which = {3, 3, 3, 0, 3, 1, 2, 3, 3},
            int64[9,3] kept = {4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 2, 4, 4, 4, 3, 1, 3, 0, 3, 3, 4, 4, 4, 4, 4, 4},
            int64[1] s0 = {0}, int64[1] s1 = {1}> {
            p = Add(a, rank)  b = Gather(powers, p)  c = ReduceSum<keepdims = 0>(b, zero)
            r = ReduceMax<keepdims = 0>(x, a01)  q = ReduceMax<keepdims = 0>(x, a02)
            w = ReduceMax<keepdims = 0>(x, a12)  all = Concat<axis = 0>(r, q, w)
            h = Shape(x)  e = Concat<axis = 0>(h, more)  d = Gather(e, dims)
            n = ReduceProd<keepdims = 0>(d, one)  k = Mul(before, n)  l = ReduceSum<keepdims = 0>(k, s1)
            i = Gather<axis = 0>(which, c)  f = Gather(l, i)  z = Gather(n, i)  t = Add(f, z)
            u = Slice(all, f, t, s0)
            j = Gather<axis = 0>(kept, c)  s = Gather(e, j)  y = Reshape<allowzero = 1>(u, s) }""",
    ),
    Fixed(
        "an empty tensor before opset 14, whose Reshape cannot express 0: the result is zeros",
        before="g (float[2,0] x, int64[1] a) => (float[A,B] y) { y = ReduceSum(x, a) }",
        after="""g (float[2,0] x, int64[1] a) => (float[A,B] y)
            <int64[1] rank = {2}, int64[1] zero = {0}, float o = {0}, int64[4,2] shapes = {1, 0, 2, 1, 1, 0, 2, 1}> {
            p = Add(a, rank)  c = Squeeze(p, zero)  s = Gather<axis = 0>(shapes, c)  y = Expand(o, s) }""",
        opset=13,
    ),
    Fixed(
        "as many axes as the rank: all of them",
        before="g (float[N,3] x, int64[2] a) => (float y) { y = ReduceL2<keepdims = 0>(x, a) }",
        after="g (float[N,3] x, int64[2] a) => (float y) <int64[2] b = {0, 1}> { y = ReduceL2<keepdims = 0>(x, b) }",
    ),
    Fixed(
        "empty axes, which mean all axes; unknown rank",
        before="""g (float[A,B] x, int64[K] h, int64[0] a) => (float y) {
            r = Reshape(x, h)  y = ReduceLogSum<keepdims = 0>(r, a) }""",
        after="""g (float[A,B] x, int64[K] h, int64[0] a) => (float y) {
            r = Reshape(x, h)  y = ReduceLogSum<keepdims = 0>(r) }""",
        runs=False,
    ),
    Fixed(
        "empty axes with noop_with_empty_axes: a copy",
        before="g (float[N,3] x, int64[0] a) => (float[N,3] y) { y = ReduceSum<noop_with_empty_axes = 1>(x, a) }",
        after="g (float[N,3] x, int64[0] a) => (float[N,3] y) { y = ReduceSum<noop_with_empty_axes = 1>(x) }",
        opset=13,
    ),
    Silent(
        "a sum of squares with noop_with_empty_axes still squares, but TensorRT would copy",
        """g (float[N,3] x, int64[0] a) => (float[N,3] y) {
            y = ReduceSumSquare<noop_with_empty_axes = 1>(x, a) }""",
    ),
    Silent(
        "keepdims other than 0 and 1, which is 1 for ONNX's reference and 0 for ONNX Runtime",
        "g (float[2,3] x, int64[1] a) => (float[A,B] y) { y = ReduceSum<keepdims = 2>(x, a) }",
    ),
    _silent(
        "an unknown number of axes", "g (float[2,3] x, int64[K] a) => (float[A,B] y) { y = ReduceSum(x, a) }"
    ),
    _silent(
        "unknown rank",
        "g (float[A,B] x, int64[K] h, int64[1] a) => (float[D,E] y) { r = Reshape(x, h)  y = ReduceSum(r, a) }",
    ),
    _silent(
        "a dynamic axis before opset 14, whose Reshape cannot express 0",
        "g (float[N,3] x, int64[1] a) => (float[A,B] y) { y = ReduceSum(x, a) }",
        opset=13,
    ),
    _silent(
        "axes computed from floats, which TensorRT does not accept as a shape",
        """g (float[2,3] x, float[1] f) => (float[A,B] y) { a = Cast<to = INT64>(f)  y = ReduceSum(x, a) }""",
    ),
    _silent(
        "axes that depend on the iteration of a loop",
        """g (float[2,3] x, int64 n) => (float[2,3] y) <int64[1] s = {1}> {
            y = Loop(n, , x)<body = b (int64 i, bool c, float[2,3] v) => (bool d, float[2,3] w) {
                d = Identity(c)  a = Reshape(i, s)  r = ReduceMax(v, a)  w = Add(v, r) }> }""",
    ),
    _silent(
        "a rewrite of 948 layers",
        """g (float[2,2,2,2,2,2,2,2] x, int64[4] a) => (float[A,B,C,D] y) {
            y = ReduceLogSumExp<keepdims = 0>(x, a) }""",
    ),
    _silent(
        "the same axis twice, which ONNX leaves open and its reference refuses",
        """g (float[N,N] z, int32[2,3,4] x) => (int32[A,B,C] y) { a = Shape(z)  y = ReduceMax(x, a) }""",
    ),
    _silent("more axes than the rank", "g (float[3] x, int64[2] a) => (float[A] y) { y = ReduceSum(x, a) }"),
    Silent("a scalar: OPS024", "g (float x, int64[0] a) => (float y) { y = ReduceSum(x, a) }"),
    _silent(
        "a type whose reduction TensorRT does not support either",
        "g (int32[2,3] x, int64[1] a) => (int32[A,B] y) { y = ReduceLogSum(x, a) }",
    ),
    _silent(
        "booleans, which OPS025 casts to integers first",
        "g (bool[2,3] x, int64[1] a) => (bool[A,B] y) { y = ReduceMax(x, a) }",
        opset=20,
    ),
    Silent("constant axes", "g (float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceSum(x, a) }"),
    Silent("no axes input", "g (float[2,3] x) => (float[1,1] y) { y = ReduceSum(x) }"),
    Silent(
        "axes computed from constants, which INT001 folds",
        """g (float[2,3] x) => (float[2] y) <int64[1] o = {1}, int64[1] z = {0}> {
            a = Add(o, z)  y = ReduceSum<keepdims = 0>(x, a) }""",
    ),
    Silent(
        "in a function, whose caller may pass a constant",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A] y) <int64[1] a = {1}> { y = my.F(x, a) }
            <domain: "my", opset_import: ["" : 18]> F (x, a) => (y) { y = ReduceSum<keepdims = 0>(x, a) }""",
    ),
    Silent(
        "before opset 18 the axes of a mean are an attribute",
        "g (float[2,3] x) => (float[2,1] y) { y = ReduceMean<axes = [1]>(x) }",
        opset=17,
    ),
    Silent(
        "a default that the caller may override, which TensorRT treats as a weight, also through Cast and Identity",
        """g (float[2,3] x, int64[1] a = {1}) => (float[A,B] y) {
            b = Identity(a)  c = Cast<to = INT32>(b)  d = Cast<to = INT64>(c)  y = ReduceSum(x, d) }""",
    ),
]


@rule(
    "OPS040",
    ops=[*REDUCTIONS, "OneHot", "Squeeze", "Unsqueeze"],
    severity=Severity.ERROR,
    hazards=[56],
    general=True,
    differs={"function": "an input of a function may be a constant where it is called"},
)
def non_constant_axes(node: Node, model: Model) -> Iterator[Match]:
    """The axes of a reduction, Squeeze or Unsqueeze, or the depth of OneHot, are not constant.

    ## Why it matters
    The rank or shape of the result depends on them, and TensorRT must know it at build time. Measured with TensorRT-RTX
    1.7.1: `Axis input must resolve to a build-time constant (an initializer or a constant-foldable subgraph)!`,
    `unsqueeze axis is not a constant`, `squeeze axis is not a constant`, and from the builder `Depth input of
    IOneHotLayer must be a build time constant`. The parser follows a Cast or an Identity to a constant, but no
    arithmetic, Concat or Shape. The axis of CumSum, the diagonal of Trilu, and the inputs of Slice, Tile and Pad need
    not be constant.

    ## Fix
    None. If the number of axes is known, OPS041 and OPS042 have a fix, and this rule does not report the node. INT001
    folds what can be computed from constants. An input that is always the same should become a constant in the
    exporter.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    value = _axes.non_constant(node, model)
    if value is None:
        return
    what = "depth" if node.op_type == "OneHot" else "axes"
    source = (
        "from a graph input" if value.is_input and value.scope.parent is None else "computed by the model"
    )
    yield Match(
        f"{what} of this {node.op_type} {source}: TensorRT requires a constant", node=node, reads=(value,)
    )


_G = "g (float[2,3,4] x, int64[1] a)"
_flagged = partial(Flagged, runs=False)


def _unsqueeze(x: str, elem: str = "float", a: str = "1", y: str = "A,B,C") -> str:
    return f"g ({elem}[{x}] x, int64[{a}] a) => ({elem}[{y}] y) {{ y = Unsqueeze(x, a) }}"


def _along(x: str, y: str, a: str = "1", call: str = "Squeeze") -> str:
    return f"g (float[{x}] x, int64[{a}] a) => (float[{y}] y) {{ y = {call}(x, a) }}"


def _unary(y: str, call: str, x: str = "2,3") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) {{ y = {call}(x) }}"


non_constant_axes.examples = [
    _flagged("the axes of a reduction are a graph input", _along("2,3,4", "A,B,C", call="ReduceSum")),
    _flagged("the axes of an Unsqueeze are a graph input", _unsqueeze("2,3,4", y="A,B,C,D")),
    _flagged("the axes of a Squeeze are a graph input", _along("1,3,1", "A,B")),
    _flagged(
        "the axes are computed from data, inside a branch",
        """g (float[2,3] x, bool c) => (float[A,B] y) {
            m = ReduceMax<keepdims = 0>(x)  i = Cast<to = 7>(m)  a = Unsqueeze(i, z)  z = Constant<value_ints = [0]>()
            y = If(c)<then_branch = p () => (float[A,B] u) { u = ReduceMean(x, a) },
                      else_branch = q () => (float[A,B] v) { v = Neg(x) }> }""",
    ),
    _flagged(
        "the depth is a dynamic dimension",
        """g (int64[3] i, float[N,5] x) => (float[A,B] y) <float[2] v = {0, 1}> {
            d = Shape<start = 0, end = 1>(x)  y = OneHot(i, d, v) }""",
    ),
    Silent(
        "the depth is a static dimension",
        """g (int64[3] i, float[N,5] x) => (float[3,5] y) <float[2] v = {0, 1}> {
            d = Shape<start = 1>(x)  y = OneHot(i, d, v) }""",
    ),
    Silent("constant", "g (float[2,3,4] x) => (float[2,1,4] y) <int64[1] a = {1}> { y = ReduceSum(x, a) }"),
    Silent(
        "axes computed from constants, which INT001 folds",
        """g (float[2,3,4] x) => (float[2] y) <int64 a = {1}, int64 b = {3}, int64 d = {1}> {
            r = Range(a, b, d)  y = ReduceSum<keepdims = 0>(x, r) }""",
    ),
    _silent(
        "axes with a default", f"{_G} => (float[A,B,C] y) <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}"
    ),
    _silent(
        "CumSum, whose axis need not be constant",
        "g (float[2,3] x, int64 a) => (float[2,3] y) { y = CumSum(x, a) }",
    ),
    Silent(
        "in a function, whose caller may pass a constant",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[A] y) <int64[1] a = {1}> { y = my.F(x, a) }
            <domain: "my", opset_import: ["" : 18]> F (x, a) => (y) { y = ReduceSum<keepdims = 0>(x, a) }""",
    ),
    Silent("before opset 13 axes are attributes", _unary("2,1", "ReduceSum<axes = [1]>"), opset=11),
    Silent(
        "Trilu's k, Tile's repeats and Pad's pads that are not constant",
        """g (float[3,3] x, int64 k, int64[2] r, int64[4] p) => (float[3,3] y, float[A,B] z, float[C,D] w) { y
            = Trilu<upper=1>(x, k) z = Tile(x, r) w = Pad(x, p) }""",
    ),
    Silent(
        "starts, ends and axes of a Slice that are not constant",
        """g (float[2,3] x, int64[1] s, int64[1] e, int64[1] a) => (float[A,B] y) { y = Slice(x, s, e, a) }""",
    ),
    Flagged(
        "depth as a graph input",
        "g (int64[3] i, int64 d) => (float[A,B] y) <float[2] v={0,1}> { y = OneHot(i, d, v) }",
    ),
]


@rule("OPS042", ops=["Squeeze", "Unsqueeze"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[56])
def squeeze_over_non_constant_axes(node: Node, model: Model) -> Iterator[Match]:
    """An Unsqueeze or Squeeze whose axes are not constant, but whose number of axes is known.

    ## Why it matters
    TensorRT must know the axes at build time: `unsqueeze axis is not a constant` and `squeeze axis is not a constant`,
    measured with TensorRT-RTX 1.7.1. NVIDIA's list for TensorRT 10 says "axes must fold to a constant".

    ## Fix
    A Reshape. The shape is looked up in a table by a code computed from the axes, which are a shape tensor in TensorRT;
    they may be negative and in any order. Axes that ONNX forbids, duplicates or dimensions other than 1, have no shape
    there. 7 layers of TensorRT-RTX 1.7.1 for one axis, 8 for more, and 5 more with a dynamic dimension. If only one
    choice is possible, or all have the same result, the axes become a constant. Exact.

    No fix if the rank or the number of axes is unknown, if an axis certainly comes twice, if the axes are computed from
    floats, which TensorRT does not accept as a shape, or before opset 14, whose Reshape cannot express 0, with
    dimensions that may be 0. Empty axes have no effect in Unsqueeze; in Squeeze they mean all axes of length 1 to ONNX
    Runtime, and none to ONNX's reference. The optimization profile of such a model must give the values of the axes:
    the minimum and the maximum.

    ## References
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    - https://onnx.ai/onnx/operators/onnx__Unsqueeze.html
    """
    data = node.require(0)
    node.require_output()
    axes = _axes.non_constant(node, model)
    if axes is None or node.opset < 13:
        return
    target, elem = target_of(model), model.shapes.elem_type(data)
    count, shape = _axes.count_of(axes, model), model.shapes.shape(data)
    if count is None or (elem and target.accepts("Reshape", elem) is False):
        return
    if count == 0:
        fix = _bypass(node, data)
    elif shape is None or not max(len(shape), count, _rank(node, shape, count)) <= target.max_rank:
        fix = None
    else:
        fix = _with_axes(node, data, axes, shape, count)
    if fix is not None:
        message = f"the axes of this {node.op_type} are not constant; TensorRT requires a constant"
        yield Match(message, node=node, fix=fix, reads=(axes, data))


def _rank(node: Node, shape: tuple[Dim, ...], count: int) -> int:
    """The rank that the axes refer to."""
    return len(shape) + count if node.op_type == "Unsqueeze" else len(shape)


def _bypass(node: Node, data: Value) -> Fix | None:
    if node.op_type == "Squeeze":
        return None
    draft = Draft(node)
    draft.bypass(node, data)
    return Fix("use the data itself", draft.edits)


def _with_axes(node: Node, data: Value, axes: Value, shape: tuple[Dim, ...], count: int) -> Fix | None:
    draft = Draft(node)
    rank = _rank(node, shape, count)
    rows = _added(rank, count) if node.op_type == "Unsqueeze" else _removed(shape, count)
    if not rows:
        return None
    sizes = {tuple(_size(shape, dim) for dim in row) for row in rows.values()}
    if len(sizes) == 1:
        draft.set_input(node, 1, draft.integers(next(iter(rows)), "axes"))
        return Fix("make the axes constant: all choices have the same result", draft.edits)
    if not _axes.is_shape_tensor(axes, node.model):
        return None
    choice = Choice(draft, data, axes, rank=rank, count=count)
    empty = any(dim.value in (None, 0) for dim in shape)
    made = _axes.reshaped(draft, data, choice.shape(rows), empty=empty)
    if made is None:
        return None
    draft.replace_output(node, made)
    return Fix(f"reshape to one of {len(sizes)} shapes", draft.edits)


def _added(rank: int, count: int) -> dict[Axes, list[int]]:
    """The dimensions of the result for each set of added axes."""
    rows = {}
    for new in itertools.combinations(range(rank), count):
        old = iter(range(rank - count))
        rows[new] = [ONE if axis in new else next(old) for axis in range(rank)]
    return rows


def _removed(shape: tuple[Dim, ...], count: int) -> dict[Axes, list[int]]:
    """The dimensions of the result for each set of removed axes, which have length 1 or may have."""
    removable = [axis for axis, dim in enumerate(shape) if dim.value in (None, 1)]
    return {
        removed: [axis for axis in range(len(shape)) if axis not in removed]
        for removed in itertools.combinations(removable, count)
    }


def _size(shape: tuple[Dim, ...], dim: int) -> tuple[str, int]:
    """A dimension of the result: a known size, or the index of a dimension of the data."""
    if dim == ONE:
        return "size", 1
    known = shape[dim].value
    return ("size", known) if known is not None else ("dim", dim)


_ADD = "g (float[2,3] x, int64[1] a) => (float[A,B,C] y)"


def _along_first(x: str) -> str:
    return f"g (float[{x}] x, int64[1] a) => (float[A,B] y) <int64[1] b = {{0}}> {{ y = Squeeze(x, b) }}"


squeeze_over_non_constant_axes.examples = [
    Fixed(
        "one added axis",
        before=_unsqueeze("2,3"),
        after=f"""{_ADD} <int64[1] rank = {{3}}, int64[1] zero = {{0}},
            int64[6,3] shapes = {{1, 2, 3, 2, 1, 3, 2, 3, 1, 1, 2, 3, 2, 1, 3, 2, 3, 1}}> {{
            p = Add(a, rank)  c = Squeeze(p, zero)  s = Gather<axis = 0>(shapes, c)  y = Reshape(x, s) }}""",
        opset=13,
    ),
    Fixed(
        "two added axes; the one dimension is dynamic and may be 0",
        before=_unsqueeze("N", elem="int32", a="2"),
        after="""g (int32[N] x, int64[2] a) => (int32[A,B,C] y)
            <int64[1] rank = {3}, int64[6] powers = {1, 2, 4, 1, 2, 4}, int64[1] zero = {0}, int64[2] more = {1, 0},
            int64[9,3] dims = {2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 0, 2, 2, 2, 1, 0, 1, 0, 1, 1, 2, 2, 2, 2, 2, 2}> {
            p = Add(a, rank)  b = Gather(powers, p)  c = ReduceSum<keepdims = 0>(b, zero)
            j = Gather<axis = 0>(dims, c)  h = Shape(x)  e = Concat<axis = 0>(h, more)
            s = Gather(e, j)  y = Reshape<allowzero = 1>(x, s) }""",
    ),
    Fixed(
        "one of two removable axes",
        before=_along("1,3,1", "A,B"),
        after="""g (float[1,3,1] x, int64[1] a) => (float[A,B] y) <int64[1] rank = {3}, int64[1] zero = {0},
            int64[6,2] shapes = {3, 1, 0, 0, 1, 3, 3, 1, 0, 0, 1, 3}> {
            p = Add(a, rank)  c = Squeeze(p, zero)  s = Gather<axis = 0>(shapes, c)  y = Reshape(x, s) }""",
        opset=13,
        runs=False,  # generated axes are invalid
    ),
    Fixed("only one removable axis", before=_along("1,3,4", "A,B"), after=_along_first("1,3,4")),
    Fixed(
        "the same result for all removable axes", before=_along("1,1,3", "A,B"), after=_along_first("1,1,3")
    ),
    Fixed(
        "two axes added to a scalar",
        before="g (float x, int64[2] a) => (float[A,B] y) { y = Unsqueeze(x, a) }",
        after="g (float x, int64[2] a) => (float[A,B] y) <int64[2] b = {0, 1}> { y = Unsqueeze(x, b) }",
    ),
    Fixed(
        "no axes to add",
        before="g (float[N] x, int64[0] a) => (float[N] y) { u = Unsqueeze(x, a)  y = Neg(u) }",
        after="g (float[N] x, int64[0] a) => (float[N] y) { y = Neg(x) }",
    ),
    _silent(
        "Squeeze with empty axes: all of length 1 to ONNX Runtime, none to ONNX's reference",
        _along("1,3", "A", a="0"),
    ),
    _silent("no removable axis: the model is invalid", _along("2,3", "A")),
    _silent(
        "axes computed from floats, which TensorRT does not accept as a shape",
        """g (float[2,3] x, float[1] f) => (float[A,B,C] y) { a = Cast<to = INT64>(f)  y = Unsqueeze(x, a) }""",
    ),
    _silent("an unknown number of axes", _unsqueeze("2,3", a="K")),
    _silent("a dynamic axis before opset 14, whose Reshape cannot express 0", _unsqueeze("N,3"), opset=13),
    _silent(
        "more than eight dimensions, which TensorRT does not support",
        _unsqueeze("1,1,1,2,1,1,1,2", y="A,B,C,D,E,F,G,H,I"),
    ),
    Silent(
        "constant axes", "g (float[2,3] x) => (float[2,1,3] y) <int64[1] a = {1}> { y = Unsqueeze(x, a) }"
    ),
    Silent("no axes input: all of length 1", _unary("3", "Squeeze", x="1,3")),
    Silent("before opset 13 axes are an attribute", _unary("2,1,3", "Unsqueeze<axes = [1]>"), opset=12),
    Silent(
        "computed from a default that the caller may override, which TensorRT treats as a weight",
        """g (float[2,1] x, int64[1] a = {1}) => (float[A] y) <int64[1] z = {0}> {
            b = Add(a, z)  y = Squeeze(x, b) }""",
    ),
]
