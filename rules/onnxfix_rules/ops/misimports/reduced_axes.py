"""Reductions whose axes TensorRT does not read: over none (OPS073), and before release 11 (OPS098)."""
# Long because: two rules, with an example of each reduction.

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from onnx import TensorProto, helper

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
    dtypes,
    rule,
    target_of,
)

_RESULTS = {
    "ReduceL1": "the absolute value of each element",
    "ReduceL2": "the absolute value of each element",
    "ReduceLogSum": "the logarithm of each element",
    "ReduceSumSquare": "the square of each element",
}


@rule("OPS073", ops=sorted(_RESULTS), safety=Safety.EXACT, severity=Severity.ERROR, hazards=[12])
def reduction_over_no_axes(node: Node, model: Model) -> Iterator[Match]:
    """A ReduceL1, ReduceL2, ReduceLogSum or ReduceSumSquare with `noop_with_empty_axes = 1` and without axes.

    ## Why it matters
    Over no axes nothing is summed, but the rest of the operator still applies: "ReduceLogSum returns the Log of input
    tensor, and ReduceSumSquare returns the Square of the input tensor", according to ONNX; its function bodies for
    these operators have always computed that, as do its reference and ONNX Runtime (1.31). TensorRT copies: the sum of
    squares of -2 and 3 is -2 and 3, not 4 and 9. It parses and builds without a warning. Measured with TensorRT-RTX
    1.7.1 by reading the imported network, which is one `IDENTITY` layer, for float, half, int32 and int64, of any rank,
    static and dynamic. For ReduceSum, ReduceMean, ReduceProd, ReduceMax, ReduceMin and ReduceLogSumExp a copy is
    correct.

    ## Fix
    Give the omitted axes explicitly, as an empty list. Exact: ONNX defines both as the same. TensorRT imports it
    correctly: its network computes the absolute value, the square or the logarithm. No fix for ReduceL2 of integers,
    which TensorRT would then reject (`does not support the given operator SQRT with the given input data type INT32`).

    ## References
    - https://onnx.ai/onnx/operators/onnx__ReduceSumSquare.html, attribute noop_with_empty_axes: "composite-reduction
      operators will still perform the non-reduction steps as needed". Up to onnx 1.17 the text said that the output
      "would be equivalent to input tensor"; the operator's function body did not.
    """
    data = node.require(0)
    if node.opset < 18 or node.input(1) is not None or node.attr("noop_with_empty_axes", 0) != 1:
        return
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    if shape is not None and any(dim.value == 0 for dim in shape):
        return
    is_integer = elem is not None and dtypes.is_integer(elem)
    if is_integer and node.op_type == "ReduceLogSum":
        return
    fix = None
    if node.op_type != "ReduceL2" or (elem not in (None, TensorProto.UNDEFINED) and not is_integer):
        draft = Draft(node)
        draft.set_input(node, 1, draft.integers([], "axes"))
        fix = Fix("give the axes as an empty list", draft.edits)
    message = f"{node.op_type} over no axes is {_RESULTS[node.op_type]}; TensorRT copies its input"
    yield Match(message, node=node, fix=fix, reads=(data,))


reduction_over_no_axes.examples = [
    Fixed(
        "the square of each element",
        before="g (float[2,3] x) => (float[2,3] y) { y = ReduceSumSquare<noop_with_empty_axes = 1>(x) }",
        after="""g (float[2,3] x) => (float[2,3] y) <int64[0] a = {}> {
            y = ReduceSumSquare<noop_with_empty_axes = 1>(x, a) }""",
    ),
    Fixed(
        "the absolute value of each element, with dynamic shape, in half precision; the axes have an empty name",
        before="g (float16[N,M] x) => (float16[N,M] y) { y = ReduceL1<noop_with_empty_axes = 1, keepdims = 0>(x, ) }",
        after="""g (float16[N,M] x) => (float16[N,M] y) <int64[0] a = {}> {
            y = ReduceL1<noop_with_empty_axes = 1, keepdims = 0>(x, a) }""",
        opset=23,
    ),
    Fixed(
        "the root of the square, of a scalar",
        before="g (float x) => (float y) { y = ReduceL2<noop_with_empty_axes = 1>(x) }",
        after="g (float x) => (float y) <int64[0] a = {}> { y = ReduceL2<noop_with_empty_axes = 1>(x, a) }",
    ),
    Fixed(
        "the logarithm of each element",
        before="g (float[N] x) => (float[N] y) { y = ReduceLogSum<noop_with_empty_axes = 1>(x) }",
        after="g (float[N] x) => (float[N] y) <int64[0] a = {}> { y = ReduceLogSum<noop_with_empty_axes = 1>(x, a) }",
    ),
    Fixed(
        "integers",
        before="g (int32[N] x) => (int32[N] y) { y = ReduceL1<noop_with_empty_axes = 1>(x) }",
        after="g (int32[N] x) => (int32[N] y) <int64[0] a = {}> { y = ReduceL1<noop_with_empty_axes = 1>(x, a) }",
    ),
    Flagged(
        "ReduceL2 of integers: TensorRT has no square root of integers",
        "g (int32[N] x) => (int32[N] y) { y = ReduceL2<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "an explicit empty list of axes: imported correctly",
        """g (float[2,3] x) => (float[2,3] y) <int64[0] a = {}> {
            y = ReduceSumSquare<noop_with_empty_axes = 1>(x, a) }""",
    ),
    Silent(
        "an empty list of axes, as the default of a graph input",
        "g (float[2,3] x, int64[0] a = {}) => (float[2,3] y) { y = ReduceL1<noop_with_empty_axes = 1>(x, a) }",
    ),
    Silent(
        "an axis",
        """g (float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> {
            y = ReduceL2<noop_with_empty_axes = 1>(x, a) }""",
    ),
    Silent("over all axes, by default", "g (float[2,3] x) => (float[1,1] y) { y = ReduceSumSquare(x) }"),
    Silent(
        "over all axes, explicitly",
        "g (float[2,3] x) => (float[1,1] y) { y = ReduceL1<noop_with_empty_axes = 0>(x) }",
    ),
    Silent(
        "a value other than 0 and 1: ONNX's reference and ONNX Runtime disagree",
        "g (float[2,3] x) => (float[A,B] y) { y = ReduceL1<noop_with_empty_axes = 2>(x) }",
    ),
    Silent(
        "ReduceSum: the sum of one element is the element",
        "g (float[2,3] x) => (float[2,3] y) { y = ReduceSum<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "ReduceLogSumExp: the logarithm of the exponential",
        "g (float[2,3] x) => (float[2,3] y) { y = ReduceLogSumExp<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "the logarithm of integers, which is undefined",
        "g (int32[N] x) => (int32[N] y) { y = ReduceLogSum<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "empty tensor",
        "g (float[0,3] x) => (float[0,3] y) { y = ReduceSumSquare<noop_with_empty_axes = 1>(x) }",
    ),
    Silent(
        "before opset 18 there is no such attribute",
        "g (float[2,3] x) => (float[A,B] y) { y = ReduceL1<noop_with_empty_axes = 1>(x) }",
        opset=13,
    ),
    Silent(
        "every call of the function sets it",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[2,3] x) => (float[1,1] y) { y = my.F<idle = 0>(x) }
            <domain: "my", opset_import: ["" : 18]> F <idle> (a) => (b) {
                b = ReduceL1<noop_with_empty_axes : int = @idle>(a) }""",
    ),
]

_BEFORE_10 = (
    "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare",
)  # fmt: skip
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@rule("OPS098", ops=_BEFORE_10, safety=Safety.NUMERIC, severity=Severity.ERROR)
def ignored_reduction_axes(node: Node, model: Model) -> Iterator[Match]:
    """A reduction of opset 18 over some axes: TensorRT 10 (ReduceLogSumExp) or 8 (most of them) reduces all axes.

    ## Why it matters
    In opset 18 the axes became an input. TensorRT's importer of ReduceLogSumExp passes only the exponentials on, and
    reduces all axes, whether the input is constant or not, without a warning: a tensor of shape (3, 2, 2), reduced over
    axis 1, has the shape (1, 1, 1). Measured with TensorRT 10.6.0 on an H200: the seven node models of ONNX that reduce
    some axes are wrong. So says the source (onnx-tensorrt 10.1, `DEFINE_BUILTIN_OP_IMPORTER(ReduceLogSumExp)`).
    TensorRT 11.2.1 reads the axes, and so does a later state of that source (dd0a3a9f). The target trt10, 10.14 and
    later, is taken to read them.

    TensorRT 8.6 passes no axes on for the other reductions either, except for ReduceSum and ReduceLogSum. Measured with
    8.6.1 for ReduceL1, ReduceL2, ReduceMean, ReduceSumSquare and ReduceLogSumExp. Executed on an H200 with 8.6.1, a
    language model with such means is wrong, and an Attention whose ReduceMax finds rows of the mask that are -inf is
    right only as long as there is no such row.

    Over all axes, over all that are longer than 1 (with `keepdims`), and before opset 18, the result is correct. The
    maximum that a softmax subtracts before its exponentials may be that of all elements: a warning, since only rows
    far below it become 0 or NaN. 8.6.1 computes ONNX's node models of LogSoftmax right.

    ## Fix
    ReduceLogSumExp for TensorRT 10: subtract the largest element, and add it to the logarithm of the sum of
    exponentials, as ONNX Runtime does: ReduceMax, Clip, Sub, Exp, ReduceSum, Log, Add. The Clip turns an infinite
    maximum into the type's largest or lowest number, so that the difference is not NaN. TensorRT itself exponentiates
    the elements as they are, which overflows from 89 on (NVIDIA/TensorRT issue 4772). For TensorRT 8: ReduceSum of the
    absolute values or squares, its root, or the sum divided by the number of elements, at least 1 (ONNX Runtime's mean
    of nothing is 0). The largest element is the first of a TopK, along one axis after another; the least is the
    largest of the negatives, since 8.4 ignores `largest`. half and bfloat16 are added in float32.

    NUMERIC: equal up to rounding; of NaN, ONNX Runtime's ReduceMax takes some and leaves others out. Axes that are not
    constant are then OPS041's. No fix where the type is unknown, for a mean, maximum or minimum of integers, for axes
    that are not constant and may be none at all (`noop_with_empty_axes`), and for TensorRT 8 with axes that are not
    constant and ReduceProd: export the model in opset 17.

    ## References
    - https://onnx.ai/onnx/operators/text_diff_ReduceLogSumExp_13_18.html
    - https://github.com/onnx/onnx-tensorrt/blob/10.1-GA/onnxOpImporters.cpp, https://github.com/NVIDIA/TensorRT/issues/3467
    """
    target = target_of(model)
    if node.op_type not in target.ignores_axes or node.opset < 18:
        return
    has_max = not any(one.package == "tensorrt" and one.oldest < (10,) for one in target.releases)
    data, axes = node.require(0), node.require(1)
    elem = model.shapes.elem_type(data)
    if target.imports(node.op_type) is False or (elem and target.accepts(node.op_type, elem) is False):
        return
    rank = model.shapes.rank(data)
    known = axes.constant()
    if _names_all(node, model, axes, rank) if known is None else _is_right(node, known, data):
        return
    yield Match(
        f"{target.title} ignores the axes of this {node.op_type}, which are an input, and reduces all axes",
        node=node,
        severity=Severity.WARNING if _is_subtracted(node, data) else None,
        fix=_fix(node, data, None if known is None else known.tolist(), elem, has_max=has_max)
        if elem
        else None,
        reads=(data, axes),
    )


def _names_all(node: Node, model: Model, axes: Value, rank: int | None) -> bool:
    """Whether axes whose values are not known name every dimension by their number."""
    shape = model.shapes.static_shape(axes)
    every = shape is not None and len(shape) == 1 and shape[0] in (0, rank)
    return every and not node.attr("noop_with_empty_axes", 0)


def _is_right(node: Node, axes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], data: Value) -> bool:
    """Whether all axes are reduced, but for some of size 1, or the axes are invalid."""
    shape = node.model.shapes.shape(data)
    if axes.size == 0 or axes.ndim != 1:
        return True
    if shape is None:
        return False
    rank = len(shape)
    reduced = {int(axis) % rank for axis in axes if rank and -rank <= axis < rank}
    if len(reduced) < axes.size:
        return True
    others = [shape[axis].value for axis in range(rank) if axis not in reduced]
    whole = not others or (set(others) == {1} and node.attr("keepdims", 1) == 1)
    return whole and node.attr("noop_with_empty_axes", 0) == 0


def _is_subtracted(node: Node, data: Value) -> bool:
    """Whether this is the largest element, which is subtracted from all before their exponentials."""
    if node.op_type != "ReduceMax":
        return False
    differences = [use.node for use in node.require_output().uses]
    return bool(differences) and all(
        one.is_onnx
        and one.op_type == "Sub"
        and one.input(0) is data
        and any(use.node.is_onnx and use.node.op_type == "Exp" for use in one.require_output().uses)
        for one in differences
    )


def _fix(node: Node, data: Value, axes: list[int] | None, elem: int, *, has_max: bool) -> Fix | None:
    keep = node.attr("keepdims", 1)
    if keep not in (0, 1):  # ONNX Runtime does not keep them
        return None
    draft = Draft(node)
    is_extreme = node.op_type in ("ReduceMax", "ReduceMin")
    wide = TensorProto.FLOAT if elem in _NARROW and not is_extreme else elem
    source: Value | str = data if wide == elem else draft.cast(data, wide, hint="wide")
    if node.op_type == "ReduceLogSumExp":
        result = _log_sum_exp(draft, node, source, axes, wide, has_max=has_max)
    elif is_extreme:
        result = _extreme(draft, node, data, axes, elem) if axes and dtypes.is_float(elem) else ""
    else:
        result = _sum(draft, node, source, axes, wide, keep) if axes is not None else ""
    if not result:
        return None
    draft.replace_output(node, result if wide == elem else draft.cast(result, elem))
    return Fix("decompose into reductions whose axes are read", draft.edits, Safety.NUMERIC)


def _largest(draft: Draft, node: Node, source: Value | str, axes: list[int], elem: int) -> Value | str:
    """The largest element by TopK, along one axis after another, which stay with size 1; "" for an unknown rank."""
    shape, one = node.model.shapes.shape(node.require(0)), draft.integers([1], "one")
    if shape is None:
        return ""
    if not all(shape[axis].value for axis in axes):  # of nothing, the largest element is -inf
        pads = np.zeros(2 * len(shape), np.int64)
        pads[[len(shape) + axis % len(shape) for axis in axes]] = 1
        least = draft.constant(np.array(-np.inf, helper.tensor_dtype_to_np_dtype(elem)), "least")
        source = draft.add("Pad", [source, draft.integers(pads, "pads"), least])
    for axis in axes:
        outputs = [draft.name("largest"), draft.name("index")]
        dropped = {"keepdims": None, "noop_with_empty_axes": None}
        source = draft.copy_node(node, "TopK", [source, one], outputs, axis=axis, **dropped)
    return source


def _extreme(draft: Draft, node: Node, data: Value, axes: list[int], elem: int) -> str:
    """The largest element, or the least one: the largest of the negatives."""
    least = node.op_type == "ReduceMin"
    result = _largest(draft, node, draft.add("Neg", [data]) if least else data, axes, elem)
    if not result:
        return ""
    result = draft.add("Neg", [result]) if least else result
    return str(result) if node.attr("keepdims", 1) else draft.squeeze(result, axes)


def _log_sum_exp(
    draft: Draft, node: Node, source: Value | str, axes: list[int] | None, elem: int, *, has_max: bool
) -> str:
    """The decomposition; "" where it has none. Axes that are not constant (None) are the node's own."""
    dtype, own = helper.tensor_dtype_to_np_dtype(elem), node.require(1)
    unknown = axes is None and (node.attr("noop_with_empty_axes", 0) or not has_max)
    if dtype not in (np.float32, np.float64) or unknown:
        return ""
    limits = np.finfo(dtype)
    largest: Value | str = (
        draft.add("ReduceMax", [source, own]) if has_max else _largest(draft, node, source, axes or [], elem)
    )
    if not largest:
        return ""
    bounds = [draft.constant(np.array(bound, dtype), "bound") for bound in (limits.min, limits.max)]
    finite = draft.add("Clip", [largest, *bounds], hint="largest")
    below = draft.add("Sub", [source, finite], hint="below")
    total = draft.add("ReduceSum", [draft.add("Exp", [below]), own])
    result = draft.add("Add", [draft.add("Log", [total]), finite])
    if node.attr("keepdims", 1):
        return result
    # Sums of one element each.
    return draft.add("ReduceSum", [result, own], keepdims=0) if axes is None else draft.squeeze(result, axes)


def _sum(draft: Draft, node: Node, source: Value | str, axes: list[int], elem: int, keep: int) -> str:
    """The reduction by ReduceSum; "" where it has no such form."""
    kind = node.op_type
    if kind == "ReduceMean" and dtypes.is_integer(elem):
        return ""
    if kind == "ReduceL1":
        source = draft.add("Abs", [source])
    elif kind in ("ReduceL2", "ReduceSumSquare"):
        source = draft.add("Mul", [source, source], hint="squares")
    elif kind != "ReduceMean":
        return ""
    total = draft.sum(source, axes, keepdims=bool(keep))
    if kind == "ReduceL2":
        return draft.add("Sqrt", [total])
    if kind == "ReduceMean":
        return draft.add("Div", [total, _count(draft, node.require(0), axes, elem)])
    return total


def _count(draft: Draft, data: Value, axes: list[int], elem: int) -> str:
    """The number of elements along the axes, at least 1, as a float."""
    shape = draft.anchor.model.shapes.shape(data)
    sizes = [None if shape is None else shape[axis].value for axis in axes]
    known = [size for size in sizes if size is not None]
    if len(known) == len(axes):
        return draft.constant(
            np.array(max(math.prod(known), 1), helper.tensor_dtype_to_np_dtype(elem)), "count"
        )
    every, one = draft.add("Shape", [data]), draft.integers(1, "one")
    count = one
    for axis in axes:
        count = draft.add("Mul", [count, draft.add("Gather", [every, draft.integers(axis, "axis")])])
    return draft.cast(draft.add("Max", [count, one]), elem)


_LIMITS = "float lo = {-3.4028234663852886e38}, float hi = {3.4028234663852886e38}"
_ONE = "int64[1] a = {1}"


def _result(io: str, source: str = "x", target: str = "y", before: str = "", after: str = "") -> str:
    return f"""{io} <{_ONE}, {_LIMITS}, int64[1] c = {{1}}> {{ {before}
        m = ReduceMax({source}, a)  f = Clip(m, lo, hi)  d = Sub({source}, f)  e = Exp(d)
        s = ReduceSum(e, a)  l = Log(s)  {target} = Add(l, f)  {after} }}"""


def _old(io: str, body: str, constants: str = "") -> str:
    return f"{io} <{_ONE}{constants}> {{ {body} }}"


_KEPT = "g (float[N,3,2] x) => (float[N,1,2] y)"
_HALF = "g (float16[N,3,2] x) => (float16[N,1,2] y)"
_GONE = "g (float[N,3,2] x) => (float[N,2] y)"
_fixed = partial(Fixed, safety=Safety.NUMERIC)
_flagged = partial(Flagged, safety=Safety.NUMERIC, target="trt8.6")
_silent = partial(Silent, target="trt10.6")


ignored_reduction_axes.examples = [
    _fixed(
        "an axis in the middle",
        before=_old(_KEPT, "y = ReduceLogSumExp(x, a)"),
        after=_result(_KEPT).replace(", int64[1] c = {1}", ""),
        target="trt10.6",
    ),
    _fixed(
        "without keepdims, between other nodes",
        before=_old(_GONE, "n = Neg(x)  z = ReduceLogSumExp<keepdims = 0>(n, a)  y = Neg(z)"),
        after=_result(_GONE, "n", "k", "n = Neg(x)", "z = Squeeze(k, c)  y = Neg(z)"),
        target="trt10.6",
    ),
    _fixed(
        "half precision: computed in float32",
        before=_old(_HALF, "y = ReduceLogSumExp(x, a)"),
        after=_result(_HALF, "w", "z", "w = Cast<to = FLOAT>(x)", "y = Cast<to = FLOAT16>(z)").replace(
            ", int64[1] c = {1}", ""
        ),
        target="trt10.6",
    ),
    _fixed(
        "a sum of absolute values, for TensorRT 8.6",
        before=_old(_GONE, "y = ReduceL1<keepdims = 0>(x, a)"),
        after=_old(_GONE, "b = Abs(x)  y = ReduceSum<keepdims = 0>(b, a)"),
        target="trt8.6",
    ),
    _fixed(
        "a sum of squares of integers, for TensorRT 8.6",
        before=_old("g (int32[N,3] x) => (int32[N,1] y)", "y = ReduceSumSquare(x, a)"),
        after=_old("g (int32[N,3] x) => (int32[N,1] y)", "b = Mul(x, x)  y = ReduceSum<keepdims = 1>(b, a)"),
        target="trt8.6",
    ),
    _fixed(
        "a norm, for TensorRT 8.6",
        before=_old(_KEPT, "y = ReduceL2(x, a)"),
        after=_old(_KEPT, "b = Mul(x, x)  s = ReduceSum<keepdims = 1>(b, a)  y = Sqrt(s)"),
        target="trt8.6",
    ),
    _fixed(
        "a mean, for TensorRT 8.6",
        before=_old("g (float[4,3] x) => (float[4,1] y)", "y = ReduceMean(x, a)"),
        after=_old(
            "g (float[4,3] x) => (float[4,1] y)",
            "s = ReduceSum<keepdims = 1>(x, a)  y = Div(s, n)",
            ", float n = {3}",
        ),
        target="trt8.6",
    ),
    Flagged("not fixed by default", _old(_KEPT, "y = ReduceLogSumExp(x, a)"), target="trt10.6"),
    _fixed(
        "axes that are not constant: OPS041 goes on from here",
        before="g (float[2,3] x, int64[1] a) => (float[A] y) { y = ReduceLogSumExp<keepdims = 0>(x, a) }",
        after=f"""g (float[2,3] x, int64[1] a) => (float[A] y) <{_LIMITS}> {{
            m = ReduceMax(x, a)  f = Clip(m, lo, hi)  d = Sub(x, f)  e = Exp(d)
            s = ReduceSum(e, a)  l = Log(s)  k = Add(l, f)  y = ReduceSum<keepdims = 0>(k, a) }}""",
        target="trt10.6",
    ),
    _fixed(
        "a mean over a dynamic size, for TensorRT 8.6",
        before=_old("g (float[4,N] x) => (float[4,1] y)", "y = ReduceMean(x, a)"),
        after=_old(
            "g (float[4,N] x) => (float[4,1] y)",
            """t = ReduceSum<keepdims = 1>(x, a)  s = Shape(x)  i = Gather(s, j)  m = Mul(o, i)  c = Max(m, o)
            n = Cast<to = FLOAT>(c)  y = Div(t, n)""",
            ", int64 o = {1}, int64 j = {1}",
        ),
        target="trt8.6",
    ),
    _fixed(
        "whether a row of a mask is -inf, for TensorRT 8.6",
        before=_old("g (float[B,N] x) => (bool[B,1] y)", "m = ReduceMax(x, a)  y = IsInf(m)"),
        after="""g (float[B,N] x) => (bool[B,1] y)
            <int64[1] k = {1}, int64[4] b = {0, 0, 0, 1}, float l = {-inf}> {
            p = Pad(x, b, l)  m, i = TopK<axis = 1>(p, k)  y = IsInf(m) }""",
        target="trt8.6",
    ),
    _fixed(
        "the least number of two axes, for TensorRT 8.6",
        before="""g (float16[2,N,3] x) => (float16[N] y) <int64[2] a = {0, -1}> {
            y = ReduceMin<keepdims = 0>(x, a) }""",
        after="""g (float16[2,N,3] x) => (float16[N] y) <int64[2] a = {0, -1}, int64[1] k = {1}> {
            n = Neg(x)  l, i = TopK<axis = 0>(n, k)  m, j = TopK<axis = -1>(l, k)  e = Neg(m)  y = Squeeze(e, a) }""",
        target="trt8.6",
    ),
    _flagged("a product, for TensorRT 8.6", _old(_KEPT, "y = ReduceProd(x, a)")),
    Flagged(
        "the maximum that a softmax subtracts, for TensorRT 8.6: a warning",
        _old(
            "g (float[N,3] x) => (float[N,3] y)",
            "m = ReduceMax(x, a)  d = Sub(x, m)  e = Exp(d)  s = ReduceSum(e, a)  y = Div(e, s)",
        ),
        target="trt8.6",
    ),
    Silent(
        "the other axis has size 1, for TensorRT 8.6",
        _old("g (float[1,N] x) => (float[1,1] y)", "y = ReduceMean(x, a)"),
        target="trt8.6",
    ),
    Silent("TensorRT 11 reads the axes", _old(_KEPT, "y = ReduceLogSumExp(x, a)"), safety=Safety.NUMERIC),
    _silent(
        "all axes", "g (float[2,3] x) => (float[1,1] y) <int64[2] a = {0, -1}> { y = ReduceLogSumExp(x, a) }"
    ),
    _silent(
        "no axes, which are all of them", "g (float[2,3] x) => (float[1,1] y) { y = ReduceLogSumExp(x) }"
    ),
    _silent(
        "before opset 18 the axes are an attribute",
        "g (float[2,3] x) => (float[2,1] y) { y = ReduceLogSumExp<axes = [1]>(x) }",
        opset=17,
    ),
    Silent("TensorRT 10 reads the axes of others", _old(_KEPT, "y = ReduceMean(x, a)"), target="trt10.6"),
    Silent("TensorRT 8.6 reads those of sums", _old(_KEPT, "y = ReduceLogSum(x, a)"), target="trt8.6"),
    _silent(
        "integers, which TensorRT rejects",
        _old("g (int32[2,3] x) => (int32[2,1] y)", "y = ReduceLogSumExp(x, a)"),
    ),
]
