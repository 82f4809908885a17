"""OPS037: pooling with gaps between the elements of a window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

from onnxfix.edits import Draft
from onnxfix.graph.overlay import Model, Node, Value
from onnxfix.rule import Example, Fix, Match, Safety, Severity, rule

EXAMPLES = [
    Example(
        why="two elements, one between them left out",
        before="g (float[N,2,L] x) => (float[N,2,M] y) { y = MaxPool<kernel_shape = [2], dilations = [2]>(x) }",
        after="""g (float[N,2,L] x) => (float[N,2,M] y) <int64[1] s = {0}, int64[1] e = {-2}, int64[1] a = {2},
            int64[1] t = {1}, int64[1] u = {2}, int64[1] v = {9223372036854775807}> {
            p = Slice(x, s, e, a, t)  q = Slice(x, u, v, a, t)  y = Max(p, q) }""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Example(
        why="in two dimensions, with steps and padding",
        before="""g (float[1,2,8,7] x) => (float[1,2,A,B] z) {
            y = MaxPool<kernel_shape = [1,2], dilations = [1,3], strides = [2,3], pads = [0,1,0,0]>(x)  z = Neg(y) }""",
        after="""g (float[1,2,8,7] x) => (float[1,2,A,B] z) <int64[8] p = {0,0,0,1,0,0,0,0}, float l = {-inf},
            int64[2] s = {0,0}, int64[2] e = {9223372036854775807,-3}, int64[2] a = {2,3}, int64[2] t = {2,3},
            int64[2] u = {0,3}, int64[2] v = {9223372036854775807,9223372036854775807}> {
            d = Pad(x, p, l)  c = Slice(d, s, e, a, t)  f = Slice(d, u, v, a, t)  y = Max(c, f)  z = Neg(y) }""",
        safety=Safety.NUMERIC,
    ),
    Example(
        why="by default it is only reported",
        before="g (float[1,2,9] x) => (float[1,2,7] y) { y = MaxPool<kernel_shape = [2], dilations = [2]>(x) }",
        detect=True,
    ),
    Example(
        why="a window of 25",
        before="""g (float[1,1,20,20] x) => (float[1,1,12,12] y) {
            y = MaxPool<kernel_shape = [5,5], dilations = [2,2]>(x) }""",
        safety=Safety.NUMERIC,
        detect=True,
    ),
    Example(
        why="the size rounded up",
        before="""g (float[1,1,10] x) => (float[1,1,A] y) {
            y = MaxPool<kernel_shape = [2], dilations = [2], strides = [3], ceil_mode = 1>(x) }""",
        safety=Safety.NUMERIC,
        detect=True,
    ),
    Example(
        why="the indices are read",
        before="""g (float[1,1,9] x) => (float[1,1,7] y, int64[1,1,7] i) {
            y, i = MaxPool<kernel_shape = [2], dilations = [2]>(x) }""",
        safety=Safety.NUMERIC,
        detect=True,
    ),
    Example(
        why="a mean",
        before="g (float[1,1,9] x) => (float[1,1,7] y) { y = AveragePool<kernel_shape = [2], dilations = [2]>(x) }",
        opset=19,
        detect=True,
    ),
    Example(
        why="a norm",
        before="g (float[1,1,9] x) => (float[1,1,7] y) { y = LpPool<kernel_shape = [2], dilations = [2]>(x) }",
        detect=True,
    ),
    Example(
        why="no gaps",
        before="g (float[1,1,9] x) => (float[1,1,8] y) { y = MaxPool<kernel_shape = [2], dilations = [1]>(x) }",
    ),
    Example(
        why="no attribute",
        before="g (float[1,1,9] x) => (float[1,1,8] y) { y = MaxPool<kernel_shape = [2]>(x) }",
    ),
    Example(
        why="a Conv, which may have gaps",
        before="""g (float[1,1,9] x, float[1,1,2] w) => (float[1,1,7] y) { y = Conv<dilations = [2]>(x, w) }""",
    ),
]

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_WINDOW = 16
"""Elements of a window that are written as slices at most: each is a layer."""
_END = np.iinfo(np.int64).max


@rule(
    "OPS037",
    ops=["AveragePool", "LpPool", "MaxPool"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    examples=EXAMPLES,
)
def dilated_pool(node: Node, model: Model) -> Iterator[Match]:
    """A MaxPool, AveragePool or LpPool with `dilations`.

    ## Why it matters
    The parser stops: `This version of TensorRT does not support dilations other than 1.`, measured with TensorRT-RTX
    1.7.1 for all three.

    ## Fix
    A MaxPool is the Max of as many Slices as its window has elements, each with the strides as its steps, after a Pad
    with minus infinity where there is padding. Up to a window of 16, without `ceil_mode` and `auto_pad`, and where
    nothing reads the indices. Equal for finite numbers, and so only with `--numeric-fixes`: ONNX Runtime's MaxPool
    gives the lowest finite number for a window of minus infinities, and ignores NaN. It costs a Slice and a Max layer
    for each element of the window. The others have no fix.

    ## References
    - https://onnx.ai/onnx/operators/onnx__MaxPool.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    gaps = node.attr("dilations")
    if not gaps or all(gap == 1 for gap in gaps):
        return
    yield Match(
        f"TensorRT has no {node.op_type} with dilations, such as {gaps}",
        node=node,
        fix=_slices(node, model) if node.op_type == "MaxPool" else None,
    )


def _slices(node: Node, model: Model) -> Fix | None:
    data, output = node.input(0), node.output()
    kernel, gaps = node.attr("kernel_shape"), node.attr("dilations")
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or output is None or elem not in _FLOATS or math.prod(kernel) > _WINDOW:
        return None
    count = len(kernel)
    if node.output(1) is not None or node.attr("ceil_mode", 0) or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return None
    pads, steps = node.attr("pads", [0] * 2 * count), node.attr("strides", [1] * count)
    if model.shapes.rank(data) != count + 2 or not len(gaps) == len(steps) == count or len(pads) != 2 * count:
        return None
    if any(pads) and node.opset < 11:
        return None
    draft = Draft(node)
    draft.remove(node)
    padded = _padded(draft, data, pads, elem) if any(pads) else data
    axes = draft.constant(np.arange(2, count + 2), "axes")
    step = draft.constant(np.array(steps, np.int64), "steps")
    parts = []
    for place in itertools.product(*(range(k) for k in kernel)):
        start = [p * g for p, g in zip(place, gaps, strict=True)]
        left = [g * (k - 1) - s for g, k, s in zip(gaps, kernel, start, strict=True)]
        first = draft.constant(np.array(start, np.int64), "starts")
        last = draft.constant(np.array([-n if n else _END for n in left], np.int64), "ends")
        parts.append(draft.add("Slice", [padded, first, last, axes, step]))
    draft.add("Max", parts, output=output.name)
    return Fix(f"take the maximum of {len(parts)} slices", draft.edits, Safety.NUMERIC)


def _padded(draft: Draft, data: Value, pads: list[int], elem: int) -> str:
    half = len(pads) // 2
    amounts = draft.constant(np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64), "pads")
    lowest = draft.constant(np.array(-np.inf, helper.tensor_dtype_to_np_dtype(elem)), "lowest")
    return draft.add("Pad", [data, amounts, lowest])
