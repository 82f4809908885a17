"""Indices of maxima: MaxPool's second output and MaxUnpool (OPS119, OPS120)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfix.rule import (
    Dim,
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
    is_read,
    is_small,
    rule,
    target_of,
)
from onnxfix_rules.ops.limits import _dilated_windows

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


@rule(
    "OPS119",
    ops=["MaxPool"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[52],
    alike=["OPS021", "OPS037"],
)
def max_pool_indices(node: Node, model: Model) -> Iterator[Match]:
    """A MaxPool of known spatial sizes whose indices are used.

    ## Why it matters
    Networks that pool and unpool, such as SegNet, use the indices. The parser stops: `This version of TensorRT doesn't
    support mode than 1 outputs for MaxPool nodes!`, measured with TensorRT-RTX 1.7.1.

    ## Fix
    A Gather with a constant table copies the elements of each window. Their ReduceMax is the maximum. The index is
    the smallest of the places whose elements are not less: the first one, as ONNX Runtime chooses. Where the window
    reaches into the padding, the table repeats the window's first element. Channels before are added by a constant,
    or by a Range if their number is dynamic; a second table converts places where `storage_order` is 1. Equal for
    finite values: ONNX Runtime ignores NaN, and has no index for a window of minus infinities. An
    earlier form of it, whose reductions dropped their axis, was executed on an engine with the same bits:
    TensorRT-RTX 1.6.1, NVIDIA H200.

    Tables have at most 2**20 elements. The Gather makes a tensor as large as all windows together.

    TensorRT layers: 10 to 20.

    ## References
    - https://onnx.ai/onnx/operators/onnx__MaxPool.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md, MaxPool
    """
    data = node.require(0)
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    if len(node.outputs) < 2 or not is_read(node.outputs[1]) or node.opset < 9 or elem not in _FLOATS:
        return
    sizes = [] if shape is None else [dim.value for dim in shape[2:]]
    windows = _dilated_windows.windows_of(node, sizes) if all(sizes) else None
    leading = [] if shape is None else [dim.value for dim in shape[:2]]
    if not windows or leading == [None, None] or (None in leading and node.opset < 11):
        return
    places, size = _places(windows), math.prod(window.size or 0 for window in windows)
    if places is None or not is_small(size):
        return
    draft = Draft(node)
    maxima, indices = _pool(draft, data, places, size)
    if node.attr("storage_order", 0):
        table = np.arange(size).reshape([window.size or 0 for window in windows[::-1]]).transpose().ravel()
        indices = draft.add("Gather", [draft.constant(table, "by_columns"), indices])
    indices = draft.add("Add", [indices, _before(draft, data, leading, size)])
    counts = draft.integers([0, 0, *(window.count(window.size or 0) for window in windows)], "shape")
    draft.remove(node)
    for value, result in zip(node.outputs, (maxima, indices), strict=True):
        if value is not None and is_read(value):
            draft.add("Reshape", [result, counts], output=value.name)
    fix = Fix("compare the elements of each window", draft.edits, Safety.NUMERIC)
    yield Match("TensorRT supports only one output of MaxPool, and the indices are used", node=node, fix=fix)


def _places(windows: Sequence[_dilated_windows.Window]) -> np.ndarray[Any, Any] | None:
    """For each window the places of its elements in its channel; None if there are too many, or none in a window."""
    counts, kernel = [w.count(w.size or 0) for w in windows], [w.kernel for w in windows]
    if not is_small(*counts, *kernel):
        return None
    places, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for window, count in zip(windows, counts, strict=True):
        size = window.size or 0
        axis = (
            np.arange(count)[:, None] * window.stride
            - window.begin
            + np.arange(window.kernel) * window.dilation
        )
        places = (places[:, None, :, None] * size + axis[None, :, None, :]).reshape(len(places) * count, -1)
        within = (axis >= 0) & (axis < size)
        inside = (inside[:, None, :, None] & within[None, :, None, :]).reshape(places.shape)
    if not inside.any(axis=1).all():
        return None
    first = np.take_along_axis(places, inside.argmax(axis=1)[:, None], axis=1)
    return np.where(inside, places, first)


def _pool(draft: Draft, data: Value, places: np.ndarray[Any, Any], size: int) -> tuple[str, str]:
    """The maxima of channels of this size, and their places in the channel."""
    if places.shape == (size, 1):
        return data.name, draft.constant(places, "places")
    flat = draft.reshape(data, [0, 0, size])
    table = draft.constant(places, "places")
    elements = draft.add("Gather", [flat, table], axis=2)
    maxima = draft.along("ReduceMax", elements, [-1], keepdims=1)
    less = draft.add("Less", [elements, maxima])
    among = draft.add("Where", [less, draft.constant(np.array(size), "beyond"), table])
    return maxima, draft.along("ReduceMin", among, [-1], keepdims=1)


def _before(draft: Draft, data: Value, leading: Sequence[int | None], size: int) -> str:
    """The number of elements before each channel: the indices count through the whole tensor."""
    shape = [-1 if length is None else length for length in leading]
    if None not in leading and is_small(*shape):
        return draft.constant(np.arange(0, math.prod(shape) * size, size).reshape(*shape, 1, 1), "before")
    axis = leading.index(None) if None in leading else 0
    length = draft.add("Gather", [draft.add("Shape", [data]), draft.constant(np.array(axis), "axis")])
    whole = draft.add("Mul", [length, draft.constant(np.array(shape[1 - axis] * size), "sizes")])
    zero, step = draft.constant(np.array(0), "zero"), draft.constant(np.array(size), "size")
    return draft.reshape(draft.add("Range", [zero, whole, step]), [*shape, 1, 1])


@rule("OPS120", ops=["MaxUnpool"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43])
def max_unpool(node: Node, model: Model) -> Iterator[Match]:
    """A MaxUnpool, which no TensorRT imports.

    ## Why it matters
    The parser rejects it by name: `UNSUPPORTED_NODE` in `checkMaxUnpool`, measured with TensorRT-RTX 1.7.1 and found in
    NVIDIA's lists of operators of every version. Without a fix, OPS001 reports it.

    ## Fix
    ScatterElements into zeros: the indices count places in the flattened output. The same bits where no two indices
    are equal. ONNX does not say which of two elements at one place remains, and neither does TensorRT; indices that a
    MaxPool computed are equal only where the maxima are the same. So it requires `--numeric-fixes`.

    There is no fix for an `output_shape` that is computed, or other than what follows from kernel, strides and pads.
    Implementations disagree there: for ONNX Runtime the indices count places in the output, for ONNX's reference
    implementation, at least up to onnx 1.23, in a smaller tensor that is padded afterwards.

    TensorRT layers: 6 to 10.

    ## References
    - https://onnx.ai/onnx/operators/onnx__MaxUnpool.html
    - https://github.com/microsoft/onnxruntime/pull/2193
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target, data, places = target_of(model), node.require(0), node.require(1)
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    if target.imports("MaxUnpool") is not False or elem not in _FLOATS or shape is None or node.opset < 11:
        return
    sizes, wanted = _unpooled(node, [dim.value for dim in shape[2:]]), node.input(2)
    if sizes is None:
        return
    known = None if wanted is None else wanted.constant()
    if wanted is not None and (known is None or known.tolist() != [shape[0].value, shape[1].value, *sizes]):
        return
    draft = Draft(node)
    whole = wanted or _whole(draft, data, shape, sizes)
    zero, flat = helper.make_tensor("", elem, [1], [0]), draft.integers([-1], "flat")
    zeros = draft.add("ConstantOfShape", [whole], value=zero)
    scattered = draft.add("ScatterElements", [draft.add("Reshape", [v, flat]) for v in (zeros, places, data)])
    draft.replace_output(node, draft.add("Reshape", [scattered, whole]))
    message = f"{target.title} does not import MaxUnpool (source: {target.source})"
    yield Match(message, node=node, fix=Fix("scatter the elements into zeros", draft.edits, Safety.NUMERIC))


def _unpooled(node: Node, sizes: Sequence[int | None]) -> list[int] | None:
    """The spatial sizes that follow from the attributes; None where one is dynamic or the node is not valid."""
    kernel, count = node.attr("kernel_shape"), len(sizes)
    strides, pads = node.attr("strides") or [1] * count, node.attr("pads") or [0] * 2 * count
    if not count or not len(kernel) == len(strides) == count or len(pads) != 2 * count:
        return None
    found = []
    for axis, size in enumerate(sizes):
        if size is None:
            return None
        found.append((size - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axis + count])
    return found if min(found) > 0 else None


def _whole(draft: Draft, data: Value, shape: Sequence[Dim], sizes: Sequence[int]) -> str:
    """The shape of the output."""
    batch, channels = (dim.value for dim in shape[:2])
    if batch is not None and channels is not None:
        return draft.integers([batch, channels, *sizes], "shape")
    leading = draft.add("Slice", [draft.add("Shape", [data]), draft.integers([0]), draft.integers([2])])
    return draft.add("Concat", [leading, draft.integers(list(sizes))], axis=0)


_fixed = partial(Fixed, safety=Safety.NUMERIC)
_silent = partial(Silent, safety=Safety.NUMERIC)
_IMAGE = "g (float[1,2,2,3] x) => (float[1,2,1,2] y, int64[1,2,1,2] i)"
_DYNAMIC = "g (float[N,2,3] x) => (int64[N,2,2] z)"
_PLACES = """g = Gather<axis = 2>(r, t)  m = ReduceMax<keepdims = 1>(g, l)  b = Less(g, m)  w = Where(b, n, t)
            k = ReduceMin<keepdims = 1>(w, ll)"""
max_pool_indices.examples = [
    _fixed(
        "two channels of one image",
        before=f"{_IMAGE} {{ y, i = MaxPool<kernel_shape = [2,2]>(x) }}",
        after=f"""{_IMAGE} <int64[3] s = {{0,0,6}}, int64[2,4] t = {{0,1,3,4,1,2,4,5}}, int64[1] l = {{-1}},
            int64[1] ll = {{-1}}, int64 n = {{6}}, int64[1,2,1,1] o = {{0,6}}, int64[4] u = {{0,0,1,2}}> {{
            r = Reshape(x, s)  {_PLACES}  a = Add(k, o)  y = Reshape(m, u)  i = Reshape(a, u) }}""",
    ),
    _fixed(
        "a dynamic batch, padding, only the indices used, between other nodes",
        before=f"""{_DYNAMIC} {{
            v = Neg(x)  y, i = MaxPool<kernel_shape = [2], strides = [2], pads = [1,0]>(v)  z = Neg(i) }}""",
        after=f"""{_DYNAMIC} <int64[3] s = {{0,0,3}}, int64[2,2] t = {{0,0,1,2}}, int64[1] l = {{-1}},
            int64[1] ll = {{-1}}, int64 n = {{3}}, int64 o = {{0}}, int64 e = {{6}}, int64 f = {{0}}, int64 h = {{3}},
            int64[4] oo = {{-1,2,1,1}}, int64[3] u = {{0,0,2}}> {{
            v = Neg(x)  r = Reshape(v, s)  {_PLACES}  p = Shape(v)  q = Gather(p, o)  j = Mul(q, e)
            d = Range(f, j, h)  bb = Reshape(d, oo)  cc = Add(k, bb)  i = Reshape(cc, u)  z = Neg(i) }}""",
    ),
    _fixed(
        "windows of one element, as PyTorch counts, by columns",
        before="""g (float[1,1,2,3] x) => (int64[1,1,2,3] i) {
            y, i = MaxPool<kernel_shape = [1,1], storage_order = 1>(x) }""",
        after="""g (float[1,1,2,3] x) => (int64[1,1,2,3] i) <int64[6,1] t = {0,1,2,3,4,5}, int64[6] c = {0,2,4,1,3,5},
            int64[1,1,1,1] o = {0}, int64[4] u = {0,0,2,3}> { g = Gather(c, t)  a = Add(g, o)  i = Reshape(a, u) }""",
    ),
    _fixed(
        "SAME_UPPER, which pads the last window",
        before="""g (float[1,1,3] x) => (float[1,1,3] y, int64[1,1,3] i) {
            y, i = MaxPool<kernel_shape = [2], auto_pad = "SAME_UPPER">(x) }""",
        after=f"""g (float[1,1,3] x) => (float[1,1,3] y, int64[1,1,3] i) <int64[3] s = {{0,0,3}},
            int64[3,2] t = {{0,1,1,2,2,2}}, int64[1] l = {{-1}},
            int64[1] ll = {{-1}}, int64 n = {{3}}, int64[1,1,1,1] o = {{0}}, int64[3] u = {{0,0,3}}> {{
            r = Reshape(x, s)  {_PLACES}  a = Add(k, o)  y = Reshape(m, u)  i = Reshape(a, u) }}""",
    ),
    _silent(
        "unused indices: OPS021",
        "g (float[1,2,2,3] x) => (float[1,2,1,2] y) { y, i = MaxPool<kernel_shape = [2,2]>(x) }",
    ),
    _silent(
        "SAME_LOWER, which onnx's evaluator gets wrong",
        """g (float[1,1,3] x) => (float[1,1,3] y, int64[1,1,3] i) {
            y, i = MaxPool<kernel_shape = [2], auto_pad = "SAME_LOWER">(x) }""",
    ),
    _silent(
        "a dynamic batch and a dynamic number of channels",
        "g (float[N,C,3] x) => (float[N,C,2] y, int64[N,C,2] i) { y, i = MaxPool<kernel_shape = [2]>(x) }",
    ),
    _silent(
        "a dynamic height",
        "g (float[1,2,H,3] x) => (float[1,2,I,2] y, int64[1,2,I,2] i) { y, i = MaxPool<kernel_shape = [2,2]>(x) }",
    ),
    _silent(
        "SAME_UPPER with strides longer than windows, of which ONNX Runtime crops the input",
        """g (float[1,1,4] x) => (float[1,1,1] y, int64[1,1,1] i) {
            y, i = MaxPool<kernel_shape = [2], strides = [4], auto_pad = "SAME_UPPER">(x) }""",
    ),
    _silent(
        "a window longer than the input",
        """g (float[1,1,2] x) => (float[1,1,A] y, int64[1,1,A] i) {
            y, i = MaxPool<kernel_shape = [4], strides = [4]>(x) }""",
        runs=False,
    ),
    _silent(
        "before opset 11 Range does not exist",
        f"{_DYNAMIC} {{ y, i = MaxPool<kernel_shape = [2]>(x)  z = Neg(i) }}",
        opset=10,
    ),
]
_UNPOOL = "MaxUnpool<kernel_shape = [2], strides = [2]>"
_PAIRS = "g (float[1,1,2] x, int64[1,1,2] i) => (float[1,1,4] y)"
_SCATTER = (
    "a = Reshape(o, f)  b = Reshape(i, f)  c = Reshape(x, f)  d = ScatterElements(a, b, c)  y = Reshape(d, s)"
)
_ZEROS = "o = ConstantOfShape<value = float[1] {0}>(s)"
max_unpool.examples = [
    _fixed(
        "known sizes",
        before=f"{_PAIRS} {{ y = {_UNPOOL}(x, i) }}",
        after=f"{_PAIRS} <int64[3] s = {{1,1,4}}, int64[1] f = {{-1}}> {{ {_ZEROS}  {_SCATTER} }}",
    ),
    _fixed(
        "a dynamic batch in half precision, with padding that is not there, between other nodes",
        before="""g (float16[N,1,2] v, int64[N,1,2] j) => (float16[N,1,3] z) {
            x = Neg(v)  i = Abs(j)
            y = MaxUnpool<kernel_shape = [2], strides = [2], pads = [0,1]>(x, i)  z = Neg(y) }""",
        after=f"""g (float16[N,1,2] v, int64[N,1,2] j) => (float16[N,1,3] z)
            <int64[1] e = {{0}}, int64[1] t = {{2}}, int64[1] h = {{3}}, int64[1] f = {{-1}}> {{
            x = Neg(v)  i = Abs(j)  p = Shape(x)  q = Slice(p, e, t)  s = Concat<axis = 0>(q, h)
            o = ConstantOfShape<value = float16[1] {{0}}>(s)  {_SCATTER}  z = Neg(y) }}""",
    ),
    _fixed(
        "an output_shape that says the same",
        before=f"{_PAIRS} <int64[3] s = {{1,1,4}}> {{ y = {_UNPOOL}(x, i, s) }}",
        after=f"{_PAIRS} <int64[3] s = {{1,1,4}}, int64[1] f = {{-1}}> {{ {_ZEROS}  {_SCATTER} }}",
    ),
    _silent(
        "another output_shape, about which implementations disagree: OPS001 reports it",
        f"{_PAIRS.replace('4]', '5]')} <int64[3] s = {{1,1,5}}> {{ y = {_UNPOOL}(x, i, s) }}",
    ),
    _silent(
        "a dynamic width",
        f"g (float[1,1,W] x, int64[1,1,W] i) => (float[1,1,V] y) {{ y = {_UNPOOL}(x, i) }}",
    ),
]
