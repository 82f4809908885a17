"""Sums and means in half precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from onnxfix.rule import Draft, Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule

from ._common import FLOAT, HALF, HIGHEST, producer, rank_of, scalar, type_of
from ._norm import axes_of

_SMALL_RESULT = ("ReduceL2", "ReduceLogSumExp")
_SUMS = ("ReduceL1", "ReduceLogSum", "ReduceSum", "ReduceSumSquare")


@rule(
    "PRC005",
    ops=(*_SMALL_RESULT, *_SUMS, "Softmax"),
    safety=Safety.NUMERIC,
    severity=Severity.INFO,
    hazards=[42],
    types=[HALF],
)
def sum_in_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A sum, or a root, logarithm or softmax by one, in half precision, which may exceed 65504 internally.

    ## Why it matters
    `ReduceL2` squares first: 100 elements of 300 have the length 3000, and `onnx.reference` gives infinity in float16
    for the sum of their squares. TensorRT-RTX 1.7.1 builds such models without a warning. ONNX Runtime computes half
    precision in float32 on the CPU, so it does not reveal the overflow. Of a Softmax each exponential is at most 1, and
    their sum too large only where more than 65504 scores are alike: over 65520 equal ones `onnx.reference` gives 0.

    ## Fix
    For `ReduceL2` and `ReduceLogSumExp`, whose results are smaller than their sums, and for a Softmax over more than
    65504 elements (LogSoftmax: OPS087): float32 between two Casts. The same applies to a sum whose only reader is a
    division, or a multiplication by a constant below 1. NUMERIC: rounding, and finite values instead of infinity, which
    verification judges by the original in higher precision.

    Other sums are only reported: cast back, they are as large as before. Scale their input, or keep the following
    nodes in float32.

    ## References
    - NVIDIA/TensorRT issues 2922, 3136, 4328
    """
    data = node.require(0)
    node.require_output()
    if type_of(data, model) != HALF:
        return
    if node.op_type in _SUMS:
        scaled = _scaled(node, model)
        yield Match(
            f"{node.op_type} in half precision: beyond 65504 it is infinite",
            node=node,
            fix=None if scaled is None else _wide(node, *scaled),
            severity=Severity.INFO if scaled is None else Severity.WARNING,
            reads=() if scaled is None else scaled[:1],
        )
        return
    if node.op_type == "Softmax" and not _is_long(node, model):
        return
    message = f"{node.op_type} in half precision: its sum may exceed 65504 although its result would not"
    yield Match(message, node=node, severity=Severity.WARNING, fix=_wide(node, node, None))


def _scaled(node: Node, model: Model) -> tuple[Node, np.ndarray[Any, Any]] | None:
    """The Div or Mul by a constant that is the only reader of a sum and reduces it, and that constant."""
    total = node.output()
    if total is None or total.use_count != 1 or not total.replaceable:
        return None
    [use] = total.uses
    last, other = use.node, use.node.input(1 - use.index)
    factor = scalar(other, most=rank_of(total, model))
    if factor is None or other is None or last.scope is not node.scope or last.output() is None:
        return None
    smaller = (last.op_type == "Div" and use.index == 0 and abs(factor) > 1) or (
        last.op_type == "Mul" and 0 < abs(factor) < 1
    )
    array = other.constant() if last.is_onnx and smaller and np.isfinite(factor) else None
    return None if array is None else (last, array)


def _is_long(node: Node, model: Model) -> bool:
    """Whether more elements than half precision's highest value are certainly normalized together."""
    data = node.input(0)
    shape = None if data is None else model.shapes.shape(data)
    axis = node.attr("axis", -1 if node.opset >= 13 else 1)
    if not shape or not -len(shape) <= axis < len(shape):
        return False
    axis %= len(shape)
    sizes = [dim.value or 1 for dim in (shape[axis : axis + 1] if node.opset >= 13 else shape[axis:])]
    return math.prod(sizes) > HIGHEST


def _wide(node: Node, last: Node, factor: np.ndarray[Any, Any] | None) -> Fix:
    """``node``, and ``last`` if that is another node, which scales by ``factor``, in float32."""
    data = node.require(0)
    attributes: dict[str, Any] = {a.name: node.attr(a.name) for a in node.proto.attribute}
    draft = Draft(last)
    wide = draft.add("Cast", [data], hint="wide", to=FLOAT)
    result = draft.add(node.op_type, [wide, *node.inputs[1:]], **attributes)
    if factor is not None:
        result = draft.add(last.op_type, [result, draft.constant(factor.astype(np.float32), "scale")])
    draft.replace_output(last, draft.cast(result, HALF))
    return Fix("compute in float32 between Casts", draft.edits, Safety.NUMERIC)


_fixed = partial(Fixed, safety=Safety.NUMERIC, opset=17, ir_version=8)
_flagged = partial(Flagged, safety=Safety.NUMERIC, opset=17, ir_version=8)
_IO = "g (float16[N,8] x) => (float16[N,1] y)"


def _reduce_l2(elem: str) -> str:
    return f"g ({elem}[N,8] x) => ({elem}[N,1] y) {{ y = ReduceL2<axes=[1]>(x) }}"


sum_in_half_precision.examples = [
    _fixed(
        "a length, axes as an attribute",
        _reduce_l2("float16"),
        f"{_IO} {{ w = Cast<to=FLOAT>(x)  r = ReduceL2<axes=[1]>(w)  y = Cast<to=FLOAT16>(r) }}",
        opset=13,
    ),
    _fixed(
        "a length, axes as an input",
        f"{_IO} <int64[1] a = {{1}}> {{ r = ReduceL2(x, a)  y = Neg(r) }}",
        f"{_IO} <int64[1] a = {{1}}> {{ w = Cast<to=1>(x)  t = ReduceL2(w, a)  r = Cast<to=10>(t)  y = Neg(r) }}",
        opset=18,
    ),
    _fixed(
        "exponentials under a logarithm",
        f"{_IO} {{ y = ReduceLogSumExp<axes=[1]>(x) }}",
        f"{_IO} {{ w = Cast<to=FLOAT>(x)  r = ReduceLogSumExp<axes=[1]>(w)  y = Cast<to=FLOAT16>(r) }}",
        opset=11,
    ),
    _fixed(
        "a softmax over 70,000 keys",
        "g (float16[N,70000] x) => (float16[N,70000] y) { y = Softmax(x) }",
        "g (float16[N,70000] x) => (float16[N,70000] y) {"
        " w = Cast<to=FLOAT>(x)  r = Softmax(w)  y = Cast<to=FLOAT16>(r) }",
    ),
    _fixed(
        "a softmax over two axes together, before opset 13",
        "g (float16[N,300,300] x) => (float16[N,300,300] y) { y = Softmax(x) }",
        "g (float16[N,300,300] x) => (float16[N,300,300] y) {"
        " w = Cast<to=FLOAT>(x)  r = Softmax(w)  y = Cast<to=FLOAT16>(r) }",
        opset=11,
    ),
    _fixed(
        "a sum with a division",
        f"{_IO} <int64[1] a = {{1}}, float16 n = {{f16(8.0)}}> {{ s = ReduceSum(x, a)  y = Div(s, n) }}",
        f"{_IO} <int64[1] a = {{1}}, float m = {{8}}> {{ w = Cast<to=FLOAT>(x)  s = ReduceSum(w, a)  d = Div(s, m)"
        "  y = Cast<to=FLOAT16>(d) }",
    ),
    _fixed(
        "a sum of squares times a constant below 1, axes as an attribute",
        f"{_IO} <float16 n = {{f16(0.125)}}> {{ s = ReduceSumSquare<axes=[1]>(x)  y = Mul(n, s) }}",
        f"{_IO} <float m = {{0.125}}> {{ w = Cast<to=FLOAT>(x)  s = ReduceSumSquare<axes=[1]>(w)  d = Mul(s, m)"
        "  y = Cast<to=FLOAT16>(d) }",
        opset=13,
    ),
    _flagged(
        "a sum with other readers before its division",
        "g (float16[N,8] x) => (float16[N,1] y, float16[N,1] z) <int64[1] a = {1}, float16 n = {f16(8.0)}>"
        " { s = ReduceSum(x, a)  y = Div(s, n)  z = Neg(s) }",
    ),
    _flagged(
        "a sum that is scaled up",
        f"{_IO} <int64[1] a = {{1}}, float16 n = {{f16(8.0)}}> {{ s = ReduceSum(x, a)  y = Mul(s, n) }}",
    ),
    _flagged(
        "a divided sum",
        f"{_IO} <int64[1] a = {{1}}, float16 n = {{f16(8.0)}}> {{ s = ReduceSum(x, a)  y = Div(n, s) }}",
    ),
    _flagged("a sum whose result is as large", f"{_IO} <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}"),
    _flagged("a sum of squares", f"{_IO} {{ y = ReduceSumSquare<axes=[1]>(x) }}"),
    _flagged(
        "a sum of exponentials: a decomposed Softmax",
        "g (float16[N,8] x) => (float16[N,8] y) <int64[1] a = {1}>"
        " { e = Exp(x)  s = ReduceSum(e, a)  y = Div(e, s) }",
    ),
    Silent("in float32", _reduce_l2("float"), opset=17, ir_version=8),
    Silent("in bfloat16", _reduce_l2("bfloat16"), opset=17, ir_version=8, runs=False),
    Silent(
        "axes that depend on the function's caller",
        '<ir_version: 10, opset_import: ["" : 13, "my" : 1]>'
        f" {_IO} {{ y = my.Length<over=[1]>(x) }}"
        ' <domain: "my", opset_import: ["" : 13]> Length <over>(p) => (r)'
        " { h = Cast<to=FLOAT16>(p)  r = ReduceL2<axes: ints = @over>(h) }",
    ),
    Silent("an exponential alone", "g (float16[N] x) => (float16[N] y) { y = Exp(x) }"),
    Silent(
        "a softmax over one of two axes",
        "g (float16[N,300,300] x) => (float16[N,300,300] y) { y = Softmax<axis=1>(x) }",
        opset=17,
    ),
    Silent("a softmax over 65504 keys", "g (float16[1,65504] x) => (float16[1,65504] y) { y = Softmax(x) }"),
    Silent("a softmax over N keys", "g (float16[2,N] x) => (float16[2,N] y) { y = Softmax(x) }"),
    Silent("a maximum", f"{_IO} {{ y = ReduceMax<axes=[1]>(x) }}", opset=17, ir_version=8),
    Flagged(
        "ReduceSum times 1/n",
        """g (float16[2,8] x) => (float16[2,1] y) <int64[1] a = {1}, float16 c = {f16(0.125)}> { s = ReduceSum(x, a)
            y = Mul(s, c) }""",
        opset=17,
    ),
]


MANY = 128
"""This many elements of 512, the largest value that AutoCast keeps in half precision, sum to 65536."""


@rule(
    "PRC009",
    ops=["AveragePool", "GlobalAveragePool", "GlobalLpPool", "LpPool", "ReduceMean"],
    safety=Safety.NUMERIC,
    severity=Severity.INFO,
    hazards=[42],
    types=[HALF],
)
def mean_in_half_precision(node: Node, model: Model) -> Iterator[Match]:
    """A mean or pool over many elements in half precision, whose sum may exceed 65504.

    ## Why it matters
    The mean of 256 elements of 300 is 300, their sum 76800. `onnx.reference`, which sums in the tensor's type, then
    gives infinity for ReduceMean. TensorRT-RTX 1.7.1 builds such models without a warning; the accumulation type of
    its kernels is not documented. Reported from 128 elements on: 128 times 512, the largest value that NVIDIA's
    AutoCast leaves in half precision by default, is the first such sum beyond 65504. The means of a norm are covered
    by PRC001.

    ## Fix
    float32 between two Casts. NUMERIC: rounding; where the sum overflowed, a finite value replaces infinity, which
    verification judges by the original in higher precision.

    ## References
    - NVIDIA/TensorRT issues 3136, 4328; NVIDIA ModelOpt, AutoCast (`data_max`)
    """
    data = node.require(0)
    node.require_output()
    if len(node.outputs) != 1 or type_of(data, model) != HALF:
        return
    count = _count(node, model)
    if count is not None and count < MANY:
        return
    if node.op_type == "ReduceMean" and _of_norm(node):
        return
    many = "an unknown number of" if count is None else f"{count:,}"
    message = f"{node.op_type} in half precision over {many} elements: their sum may exceed 65504"
    yield Match(message, node=node, fix=_wide(node, node, None))


def _count(node: Node, model: Model) -> int | None:
    """Number of elements in one sum; None if unknown, 0 without a sum or if not understood."""
    data = node.input(0)
    shape = None if data is None else model.shapes.shape(data)
    if node.op_type in ("AveragePool", "LpPool"):
        return int(math.prod(node.attr("kernel_shape", [])))
    if node.op_type == "ReduceMean":
        axes = axes_of(node, model)
        if axes == ():
            return 0
        if shape is not None and any(not -len(shape) <= axis < len(shape) for axis in axes or ()):
            return 0
        sizes = shape if shape is None or axes is None else [shape[axis] for axis in axes]
    else:
        sizes = None if shape is None else shape[2:]
    known = [None] if sizes is None else [dim.value for dim in sizes]
    return None if None in known else math.prod(size for size in known if size is not None)


def _of_norm(node: Node) -> bool:
    """Whether it looks like a norm's mean: it is subtracted, or it averages squares and is added to something."""
    output, data = node.output(), node.input(0)
    readers = [use.node for use in output.uses if use.node.is_onnx] if output is not None else []
    square = producer(data, "Pow", "Mul")
    return any(one.op_type == "Sub" or (one.op_type == "Add" and square is not None) for one in readers)


_IMAGE = "g (float16[N,2,16,16] x) => (float16[N,2,1,1] y)"
_ROW = "g (float16[N,256] x) => (float16[N,1] y)"


_silent = partial(Silent, opset=17, ir_version=8)
mean_in_half_precision.examples = [
    _fixed(
        "a global average",
        f"{_IMAGE} {{ y = GlobalAveragePool(x) }}",
        f"{_IMAGE} {{ w = Cast<to=FLOAT>(x)  p = GlobalAveragePool(w)  y = Cast<to=FLOAT16>(p) }}",
    ),
    _fixed(
        "a global average of unknown size",
        "g (float16[1,2,H,W] x) => (float16[1,2,1,1] y) { y = GlobalAveragePool(x) }",
        "g (float16[1,2,H,W] x) => (float16[1,2,1,1] y)"
        " { w = Cast<to=FLOAT>(x)  p = GlobalAveragePool(w)  y = Cast<to=FLOAT16>(p) }",
    ),
    _fixed(
        "an average over large windows",
        f"{_IMAGE} {{ y = AveragePool<kernel_shape=[16,16]>(x) }}",
        f"{_IMAGE} {{ w = Cast<to=FLOAT>(x)  p = AveragePool<kernel_shape=[16,16]>(w)  y = Cast<to=FLOAT16>(p) }}",
    ),
    _fixed(
        "a mean, axes as an attribute",
        f"{_ROW} {{ y = ReduceMean<axes=[1]>(x) }}",
        f"{_ROW} {{ w = Cast<to=FLOAT>(x)  p = ReduceMean<axes=[1]>(w)  y = Cast<to=FLOAT16>(p) }}",
    ),
    _fixed(
        "a mean, axes as an input",
        f"{_ROW} <int64[1] k = {{-1}}> {{ y = ReduceMean(x, k) }}",
        f"{_ROW} <int64[1] k = {{-1}}> {{ w = Cast<to=FLOAT>(x)  p = ReduceMean(w, k)  y = Cast<to=FLOAT16>(p) }}",
        opset=18,
    ),
    Fixed(
        "a root of a sum of squares",
        f"{_IMAGE} {{ y = GlobalLpPool(x) }}",
        f"{_IMAGE} {{ w = Cast<to=FLOAT>(x)  p = GlobalLpPool(w)  y = Cast<to=FLOAT16>(p) }}",
        safety=Safety.NUMERIC,
        opset=17,
        ir_version=8,
        runs=False,  # neither backend supports GlobalLpPool in half precision
    ),
    _silent(
        "an average over small windows",
        "g (float16[N,2,16,16] x) => (float16[N,2,8,8] y)"
        " { y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x) }",
    ),
    _silent("a mean of few elements", f"{_ROW} {{ y = ReduceMean<axes=[1]>(x) }}".replace("256", "127")),
    _silent(
        "the mean of a norm is covered by PRC001",
        "g (float16[N,256] x) => (float16[N,256] y) { m = ReduceMean<axes=[1]>(x)  y = Sub(x, m) }",
    ),
    _silent(
        "the mean of a norm's squares is covered by PRC001",
        f"{_ROW} <float16 e = {{f16(0.001)}}> {{ q = Mul(x, x)  v = ReduceMean<axes=[1]>(q)  a = Add(v, e)"
        "  y = Sqrt(a) }",
    ),
    _silent("a maximum", f"{_IMAGE} {{ y = GlobalMaxPool(x) }}"),
    _silent("in float32", f"{_ROW} {{ y = ReduceMean<axes=[1]>(x) }}".replace("float16", "float")),
    _silent(
        "in bfloat16", f"{_ROW} {{ y = ReduceMean<axes=[1]>(x) }}".replace("float16", "bfloat16"), runs=False
    ),
    Silent(
        "axes that are not constant",
        "g (float16[N,256] x, int64[1] k) => (float16[N,1] y) { y = ReduceMean(x, k) }",
        opset=18,
        ir_version=8,
    ),
    Silent(
        "without axes, and no reduction",
        "g (float16[N,256] x) => (float16[N,256] y) { y = ReduceMean<noop_with_empty_axes=1>(x) }",
        opset=18,
        ir_version=8,
    ),
]
