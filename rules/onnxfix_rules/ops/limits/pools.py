"""Pools with dilated windows, and LpPool with p other than 1 and 2."""
# Long because: three rules that write windows as slices, with an example of each pool.

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

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
    is_small,
    rule,
    target_of,
)
from onnxfix_rules.ops.limits import _dilated_windows

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@rule("OPS066", ops=["LpPool"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[74])
def lp_pool_form(node: Node, model: Model) -> Iterator[Match]:
    """A LpPool with dilations, or with a `p` other than 1 and 2.

    ## Why it matters
    The parser stops: `Only L1 and L2 normalization are supported.`, measured with TensorRT-RTX 1.7.1; for dilations see
    OPS037.

    ## Fix
    The root of the sum of powers. The sum is an AveragePool that counts the padding, times the window's size; with
    dilations it is a Conv of ones for each channel. Rounding differs: `--numeric-fixes`. No fix with `ceil_mode`, where
    windows past the edge have fewer elements, or for dilations over an unknown number of channels.

    TensorRT layers: 8 to 12; 3 or 4 with dilations.

    ## References
    - https://onnx.ai/onnx/operators/onnx__LpPool.html
    """
    data = node.input(0)
    node.require_output()
    kernel, dilations, power = node.attr("kernel_shape"), node.attr("dilations", []), node.attr("p", 2)
    elem = None if data is None else model.shapes.elem_type(data)
    dilated = any(dilation != 1 for dilation in dilations)
    if data is None or elem not in _FLOATS or not kernel or node.opset < 2:
        return
    if (power in (1, 2) and not dilated) or target_of(model).imports("LpPool") is not True:
        return
    fix = None
    if (
        not node.attr("ceil_mode", 0)
        and power >= 1
        and node.scope.opset() >= 7
        and _has_no_negative_padding(node)
    ):
        draft = Draft(node)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
        name = _powers(draft, data, power, dtype)
        name = (
            _dilated_total(draft, node, model, data, name, dtype)
            if dilated
            else _total(draft, node, name, dtype)
        )
        if name:
            draft.replace_output(node, _root(draft, name, power, dtype))
            fix = Fix("compute the root of a sum of powers", draft.edits, Safety.NUMERIC)
    yield Match(
        f"TensorRT has no LpPool with p = {power}"
        if not dilated
        else "TensorRT has no LpPool with dilations",
        node=node,
        fix=fix,
    )


def _has_no_negative_padding(node: Node) -> bool:
    """Whether no padding is negative, as AveragePool requires; `auto_pad` with long strides may make it negative."""
    kernel = node.attr("kernel_shape")
    if node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return all(step <= size for step, size in zip(node.attr("strides", []), kernel, strict=False))
    return min(node.attr("pads", []), default=0) >= 0


def _powers(draft: Draft, data: Value, power: int, dtype: np.dtype[Any]) -> str:
    if power == 2:
        return draft.add("Mul", [data, data])
    name = draft.add("Abs", [data])
    return name if power == 1 else draft.add("Pow", [name, draft.constant(np.array(power, dtype), "power")])


def _root(draft: Draft, name: str, power: int, dtype: np.dtype[Any]) -> str:
    if power == 2:
        return draft.add("Sqrt", [name])
    return (
        name if power == 1 else draft.add("Pow", [name, draft.constant(np.array(1 / power, dtype), "root")])
    )


def _total(draft: Draft, node: Node, name: str, dtype: np.dtype[Any]) -> str:
    """The sums of windows without dilations: the mean with padding, times the number of elements."""
    dropped = dict.fromkeys(("p", "ceil_mode", "dilations"))
    mean = draft.copy_node(node, "AveragePool", [name], [draft.name("mean")], count_include_pad=1, **dropped)
    count = draft.constant(np.array(math.prod(node.attr("kernel_shape")), dtype), "count")
    return draft.add("Mul", [mean, count])


def _dilated_total(
    draft: Draft, node: Node, model: Model, data: Value, name: str, dtype: np.dtype[Any]
) -> str:
    """The sums of dilated windows by a Conv of ones; "" if the number of channels is unknown."""
    shape = model.shapes.shape(data)
    windows = None if shape is None else _dilated_windows.windows_of(node, [dim.value for dim in shape[2:]])
    channels = shape[1].value if shape is not None and len(shape) > 2 else None
    if not windows or not channels:
        return ""
    if channels * math.prod(node.attr("kernel_shape")) > _dilated_windows.LIMIT:
        return ""
    return _dilated_windows.summed(draft, name, windows, channels, dtype)


lp_pool_form.examples = [
    Fixed(
        "p = 3",
        before="g (float[1,2,5,5] x) => (float[1,2,4,4] y) { y = LpPool<kernel_shape = [2, 2], p = 3>(x) }",
        after="""g (float[1,2,5,5] x) => (float[1,2,4,4] y) <float p = {3}, float k = {4}, float q = {0.33333334}> {
            a = Abs(x)  b = Pow(a, p)  c = AveragePool<kernel_shape = [2, 2], count_include_pad = 1>(b)
            d = Mul(c, k)  y = Pow(d, q) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "p = 2 with dilations, strides and padding",
        before="""g (float[1,2,9] x) => (float[1,2,5] y) {
            y = LpPool<kernel_shape = [2], dilations = [2], strides = [2], pads = [1, 1]>(x) }""",
        after="""g (float[1,2,9] x) => (float[1,2,5] y) <float[2,1,2] w = {1, 1, 1, 1}> {
            b = Mul(x, x)
            c = Conv<kernel_shape = [2], dilations = [2], strides = [2], pads = [1, 1], group = 2>(b, w)
            y = Sqrt(c) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "dilations, unknown number of channels",
        "g (float[1,C,9] x) => (float[1,C,7] y) { y = LpPool<kernel_shape = [2], dilations = [2]>(x) }",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "strides longer than the window: auto_pad may mean negative padding",
        """g (float[1,2,5,6] x) => (float[1,2,3,2] y) {
            y = LpPool<kernel_shape = [2, 2], strides = [2, 3], auto_pad = "SAME_LOWER", p = 3>(x) }""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "p = 2, which TensorRT supports",
        "g (float[1,2,5,5] x) => (float[1,2,4,4] y) { y = LpPool<kernel_shape = [2, 2]>(x) }",
    ),
    Flagged(
        "ceil_mode",
        """g (float[1,2,5] x) => (float[1,2,3] y) {
            y = LpPool<kernel_shape = [2], strides = [2], ceil_mode = 1, p = 3>(x) }""",
        safety=Safety.NUMERIC,
    ),
]
_LAYERS = 200
"""Maximum number of TensorRT layers of a fix: measured, a Gather costs 4 and a Slice up to 36."""
_END = np.iinfo(np.int64).max


@rule(
    "OPS037",
    ops=["AveragePool", "LpPool", "MaxPool"],
    safety=Safety.NUMERIC,
    severity=Severity.ERROR,
    hazards=[74],
    general=True,
)
def dilated_pool(node: Node, model: Model) -> Iterator[Match]:
    """A MaxPool, AveragePool or LpPool with `dilations`.

    ## Why it matters
    The parser stops: `This version of TensorRT does not support dilations other than 1.`, measured with TensorRT-RTX
    1.7.1 for all three.

    ## Fix
    A MaxPool is decomposed axis by axis: the Max of one Gather per window element, or one Slice if the size is dynamic,
    after a Pad with minus infinity if there is padding. It requires no `auto_pad`, a known size with `ceil_mode`, and
    unused indices. Equal for finite values, so it requires `--numeric-fixes`: ONNX Runtime's MaxPool returns the lowest
    finite value for a window of minus infinities, and ignores NaN. OPS066 and OPS067 replace the other two by
    convolutions.

    TensorRT layers: 4 per element of the window along an axis, up to 36 if the size is dynamic; no fix above 200.

    ## References
    - https://onnx.ai/onnx/operators/onnx__MaxPool.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    dilations = node.attr("dilations")
    if not dilations or all(dilation == 1 for dilation in dilations):
        return
    if node.op_type == "MaxPool" and node.opset < 10:
        return  # the attribute does not exist yet, and TensorRT accepts it
    message = f"TensorRT has no {node.op_type} with dilations {dilations}"
    yield Match(message, node=node, fix=_slices(node, model) if node.op_type == "MaxPool" else None)


def _slices(node: Node, model: Model) -> Fix | None:
    data, output = node.input(0), node.output()
    elem = None if data is None else model.shapes.elem_type(data)
    shape = None if data is None else model.shapes.shape(data)
    if data is None or shape is None or output is None or node.output(1) is not None or elem not in _FLOATS:
        return None
    windows = _dilated_windows.windows_of(node, [dim.value for dim in shape[2:]])
    if windows is None or any(window.ceil and window.size is None for window in windows):
        return None
    pads = [*(window.begin for window in windows), *(window.padding for window in windows)]
    cost = sum((4 if window.size is not None else 36) * window.kernel for window in windows)
    if cost > _LAYERS or (any(pads) and node.opset < 11):
        return None
    if not all(is_small(window.count(window.size)) for window in windows if window.size is not None):
        return None
    draft = Draft(node)
    found = _padded(draft, data, pads, elem) if any(pads) else data.name
    for axis, window in enumerate(windows, 2):
        found = _along(draft, found, axis, window)
    draft.replace_output(node, found)
    total = sum(window.kernel for window in windows)
    return Fix(f"compute the maximum axis by axis, {total} elements in total", draft.edits, Safety.NUMERIC)


def _along(draft: Draft, data: str, axis: int, window: _dilated_windows.Window) -> str:
    """The maxima along one axis."""
    if window.kernel == window.stride == 1:
        return data
    firsts = [index * window.dilation for index in range(window.kernel)]
    if window.size is not None:
        starts = np.arange(window.count(window.size), dtype=np.int64) * window.stride
        indices = [draft.constant(starts + first, "places") for first in firsts]
        parts = [draft.add("Gather", [data, one], axis=axis) for one in indices]
    else:
        last = [_one(draft, axis, "axis"), _one(draft, window.stride, "step")]
        begins = [_one(draft, first, "start") for first in firsts]
        ends = [_one(draft, first - firsts[-1] or _END, "end") for first in firsts]
        parts = [draft.add("Slice", [data, a, b, *last]) for a, b in zip(begins, ends, strict=True)]
    return parts[0] if len(parts) == 1 else draft.add("Max", parts)


def _one(draft: Draft, value: int, hint: str) -> str:
    return draft.integers([value], hint)


def _padded(draft: Draft, data: Value, pads: list[int], elem: int) -> str:
    half = len(pads) // 2
    amounts = draft.integers([0, 0, *pads[:half], 0, 0, *pads[half:]], "pads")
    lowest = draft.constant(np.array(-np.inf, helper.tensor_dtype_to_np_dtype(elem)), "lowest")
    return draft.add("Pad", [data, amounts, lowest])


_fixed = partial(Fixed, safety=Safety.NUMERIC)
_silent = partial(Silent, opset=19, safety=Safety.NUMERIC)


def _max_pool(y: str, x: str = "1,1,9", attributes: str = "kernel_shape = [2], dilations = [2]") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) {{ y = MaxPool<{attributes}>(x) }}"


def _pool(x: str, y: str, call: str = "AveragePool<kernel_shape = [2], dilations = [2]>") -> str:
    return f"g (float[{x}] x) => (float[{y}] y) {{ y = {call}(x) }}"


dilated_pool.examples = [
    _fixed(
        "one axis of dynamic size",
        before=_max_pool("N,2,M", x="N,2,L"),
        after="""g (float[N,2,L] x) => (float[N,2,M] y) <int64[1] s = {0}, int64[1] e = {-2}, int64[1] a = {2},
            int64[1] t = {1}, int64[1] u = {2}, int64[1] v = {9223372036854775807}> {
            p = Slice(x, s, e, a, t)  q = Slice(x, u, v, a, t)  y = Max(p, q) }""",
        runs=False,
    ),
    _fixed(
        "two axes, with strides and padding",
        before="""g (float[1,2,8,7] x) => (float[1,2,A,B] z) {
            y = MaxPool<kernel_shape = [1,2], dilations = [1,3], strides = [2,3], pads = [0,1,0,0]>(x)  z = Neg(y) }""",
        after="""g (float[1,2,8,7] x) => (float[1,2,A,B] z) <int64[8] p = {0,0,0,1,0,0,0,0}, float l = {-inf},
            int64[4] r = {0,2,4,6}, int64[2] s = {0,3}, int64[2] t = {3,6}> {
            d = Pad(x, p, l)  e = Gather<axis = 2>(d, r)  c = Gather<axis = 3>(e, s)  f = Gather<axis = 3>(e, t)
            y = Max(c, f)  z = Neg(y) }""",
    ),
    _fixed(
        "both axes dilated",
        before="""g (float[N,2,8,8] x) => (float[N,2,6,6] y) {
            y = MaxPool<kernel_shape = [2,2], dilations = [2,2]>(x) }""",
        after="""g (float[N,2,8,8] x) => (float[N,2,6,6] y) <int64[6] a = {0,1,2,3,4,5}, int64[6] b = {2,3,4,5,6,7},
            int64[6] c = {0,1,2,3,4,5}, int64[6] d = {2,3,4,5,6,7}> {
            p = Gather<axis = 2>(x, a)  q = Gather<axis = 2>(x, b)  r = Max(p, q)
            s = Gather<axis = 3>(r, c)  t = Gather<axis = 3>(r, d)  y = Max(s, t) }""",
    ),
    Flagged("not fixed by default", _max_pool("1,2,7", x="1,2,9")),
    Flagged(
        "a large window over dynamic sizes: too many layers",
        """g (float[1,1,H,W] x) => (float[1,1,A,B] y) {
            y = MaxPool<kernel_shape = [5,5], dilations = [2,2]>(x) }""",
        safety=Safety.NUMERIC,
    ),
    _fixed(
        "ceil_mode with a known size",
        before="""g (float[1,1,10] x) => (float[1,1,4] y) {
            y = MaxPool<kernel_shape = [2], dilations = [2], strides = [3], ceil_mode = 1>(x) }""",
        after="""g (float[1,1,10] x) => (float[1,1,4] y) <int64[6] p = {0,0,0,0,0,2}, float l = {-inf},
            int64[4] a = {0,3,6,9}, int64[4] b = {2,5,8,11}> {
            d = Pad(x, p, l)  q = Gather<axis = 2>(d, a)  r = Gather<axis = 2>(d, b)  y = Max(q, r) }""",
    ),
    Flagged(
        "ceil_mode with a dynamic size",
        """g (float[1,1,L] x) => (float[1,1,A] y) {
            y = MaxPool<kernel_shape = [2], dilations = [2], strides = [3], ceil_mode = 1>(x) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "the indices are used",
        """g (float[1,1,9] x) => (float[1,1,7] y, int64[1,1,7] i) {
            y, i = MaxPool<kernel_shape = [2], dilations = [2]>(x) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged("an AveragePool", _pool("1,1,9", "1,1,7"), opset=19),
    Flagged("an LpPool", _pool("1,1,9", "1,1,7", call="LpPool<kernel_shape = [2], dilations = [2]>")),
    Silent("dilations of 1", _max_pool("1,1,8", attributes="kernel_shape = [2], dilations = [1]")),
    Silent("no dilations", _max_pool("1,1,8", attributes="kernel_shape = [2]")),
    Silent("before opset 10 MaxPool has no dilations", _max_pool("1,1,7"), opset=9, runs=False),
    Silent(
        "a Conv, which supports dilations",
        """g (float[1,1,9] x, float[1,1,2] w) => (float[1,1,7] y) { y = Conv<dilations = [2]>(x, w) }""",
    ),
]


@rule("OPS067", ops=["AveragePool"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[74])
def dilated_average(node: Node, model: Model) -> Iterator[Match]:
    """An AveragePool with dilations, over a known number of channels.

    ## Why it matters
    The parser stops: `This version of TensorRT does not support dilations other than 1.`, measured with TensorRT-RTX
    1.7.1. Convolutions support dilations.

    ## Fix
    A Conv of each channel with ones, divided by the number of elements. The divisor is a constant; if padding does not
    count or windows reach past the edge it has the output's size, and the input's size must be known. Rounding differs:
    `--numeric-fixes`.

    TensorRT layers: 3 or 4.

    ## References
    - https://onnx.ai/onnx/operators/onnx__AveragePool.html
    """
    data = node.input(0)
    node.require_output()
    dilations, kernel = node.attr("dilations"), node.attr("kernel_shape")
    shape = None if data is None else model.shapes.shape(data)
    elem = None if data is None else model.shapes.elem_type(data)
    if data is None or shape is None or elem not in _FLOATS or not dilations or max(dilations) == 1:
        return
    windows = _dilated_windows.windows_of(node, [dim.value for dim in shape[2:]])
    channels = shape[1].value if len(shape) > 2 else None
    if not windows or not channels or channels * math.prod(kernel) > _dilated_windows.LIMIT:
        return
    padding = bool(node.attr("count_include_pad", 0))
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    counts = _dilated_windows.counts_of(windows, padding)
    if counts is None:
        return
    draft = Draft(node)
    total = _dilated_windows.summed(draft, data, windows, channels, dtype)
    draft.replace_output(node, draft.add("Div", [total, draft.constant(counts.astype(dtype), "counts")]))
    message = f"TensorRT has no AveragePool with dilations {dilations}"
    yield Match(message, node=node, fix=Fix("sum by a Conv of ones, and divide", draft.edits, Safety.NUMERIC))


dilated_average.examples = [
    _fixed(
        "one spatial dimension, two channels",
        before=_pool("N,2,9", "N,2,7"),
        after="""g (float[N,2,9] x) => (float[N,2,7] y) <float[2,1,2] w = {1, 1, 1, 1}, float n = {2}> {
            s = Conv<kernel_shape = [2], dilations = [2], strides = [1], pads = [0, 0], group = 2>(x, w)
            y = Div(s, n) }""",
        opset=19,
    ),
    _fixed(
        "padding that does not count: fewer elements at the edge",
        before="""g (float[N,1,4] x) => (float[N,1,4] y) {
            y = AveragePool<kernel_shape = [2], dilations = [2], pads = [1, 1]>(x) }""",
        after="""g (float[N,1,4] x) => (float[N,1,4] y) <float[1,1,2] w = {1, 1}, float[1,1,4] n = {1, 2, 2, 1}> {
            s = Conv<kernel_shape = [2], dilations = [2], strides = [1], pads = [1, 1], group = 1>(x, w)
            y = Div(s, n) }""",
        opset=19,
    ),
    _silent(
        "a dynamic width, with padding that does not count",
        """g (float[N,1,W] x) => (float[N,1,V] y) {
            y = AveragePool<kernel_shape = [2], dilations = [2], pads = [1, 1]>(x) }""",
    ),
    _silent("a dynamic number of channels", _pool("N,C,9", "N,C,7")),
    _silent(
        "a stride of 0",
        """g (float[N,2,9] x) => (float[N,2,7] y) {
            y = AveragePool<kernel_shape = [2], dilations = [2], strides = [0]>(x) }""",
        runs=False,
    ),
    Silent(
        "dilations of 1",
        _pool("N,2,9", "N,2,8", call="AveragePool<kernel_shape = [2], dilations = [1]>"),
        opset=19,
    ),
]
