"""OPS066: pooling by other norms than the first two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from onnxfix.rule import (
    AddNode,
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
from onnxfix_rules.ops import _rewrite as rw
from onnxfix_rules.ops._result import put
from onnxfix_rules.ops.limits import _gaps

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@rule("OPS066", ops=["LpPool"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[44])
def lp_pool_form(node: Node, model: Model) -> Iterator[Match]:
    """A LpPool with another `p` than 1 and 2, or with gaps.

    ## Why it matters
    The parser stops: `Only L1 and L2 normalization are supported.`, measured with TensorRT-RTX 1.7.1; for gaps see
    OPS037.

    ## Fix
    The powers of the amounts, their sums, and the root: with an AveragePool that counts the padding, times the window's
    size, or for gaps with a Conv of ones for each channel. Rounding differs: `--numeric-fixes`. None with `ceil_mode`,
    where windows over the edge have fewer elements, and none for gaps over an unknown number of channels.

    TensorRT layers: 8 to 12; 3 or 4 for gaps.

    ## References
    - https://onnx.ai/onnx/operators/onnx__LpPool.html
    """
    data, output = node.input(0), node.require_output()
    kernel, gaps, power = node.attr("kernel_shape"), node.attr("dilations", []), node.attr("p", 2)
    elem = None if data is None else model.shapes.elem_type(data)
    dilated = any(gap != 1 for gap in gaps)
    if data is None or elem not in _FLOATS or not kernel or node.opset < 2:
        return
    if (power in (1, 2) and not dilated) or target_of(model).imports("LpPool") is not True:
        return
    fix = None
    if not node.attr("ceil_mode", 0) and power >= 1 and node.scope.opset() >= 7 and _pads(node):
        draft = Draft(node)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
        name = _powers(draft, data, power, dtype)
        name = (
            _dilated(draft, node, model, data, name, dtype) if dilated else _total(draft, node, name, dtype)
        )
        if name:
            put(draft, _root(draft, name, power, dtype), output)
            fix = Fix("take the root of a sum of powers", draft.edits, Safety.NUMERIC)
    yield Match(
        f"TensorRT has no LpPool with p = {power}" if not dilated else "TensorRT has no LpPool with gaps",
        node=node,
        fix=fix,
    )


def _pads(node: Node) -> bool:
    """Whether no padding is negative: an AveragePool has none, and `auto_pad` may come to it by long strides."""
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
    """The sums of windows without gaps: their mean with the padding, times how many they are."""
    proto: NodeProto = rw.copy_of(node)
    proto.op_type, proto.name = "AveragePool", ""
    proto.input[0], proto.output[0] = name, draft.name("mean")
    for attribute in ("p", "ceil_mode", "dilations"):
        rw.set_attribute(proto, attribute, None)
    rw.set_attribute(proto, "count_include_pad", 1)
    draft.edits.append(AddNode(node.scope, proto, node))
    count = draft.constant(np.array(math.prod(node.attr("kernel_shape")), dtype), "count")
    return draft.add("Mul", [proto.output[0], count])


def _dilated(draft: Draft, node: Node, model: Model, data: Value, name: str, dtype: np.dtype[Any]) -> str:
    """The sums of windows with gaps: a Conv of ones; "" where nobody knows how many channels there are."""
    shape = model.shapes.shape(data)
    windows = None if shape is None else _gaps.windows_of(node, [dim.value for dim in shape[2:]])
    channels = shape[1].value if shape is not None and len(shape) > 2 else None
    if not windows or not channels or channels * math.prod(node.attr("kernel_shape")) > _gaps.LIMIT:
        return ""
    return _gaps.summed(draft, name, windows, channels, dtype)


lp_pool_form.examples = [
    Fixed(
        "the third norm",
        before="g (float[1,2,5,5] x) => (float[1,2,4,4] y) { y = LpPool<kernel_shape = [2, 2], p = 3>(x) }",
        after="""g (float[1,2,5,5] x) => (float[1,2,4,4] y) <float p = {3}, float k = {4}, float q = {0.33333334}> {
            a = Abs(x)  b = Pow(a, p)  c = AveragePool<kernel_shape = [2, 2], count_include_pad = 1>(b)
            d = Mul(c, k)  y = Pow(d, q) }""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "the second with gaps, and strides and padding",
        before="""g (float[1,2,9] x) => (float[1,2,5] y) {
            y = LpPool<kernel_shape = [2], dilations = [2], strides = [2], pads = [1, 1]>(x) }""",
        after="""g (float[1,2,9] x) => (float[1,2,5] y) <float[2,1,2] w = {1, 1, 1, 1}> {
            b = Mul(x, x)
            c = Conv<kernel_shape = [2], dilations = [2], strides = [2], pads = [1, 1], group = 2>(b, w)
            y = Sqrt(c) }""",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "gaps, over a number of channels that nobody knows",
        "g (float[1,C,9] x) => (float[1,C,7] y) { y = LpPool<kernel_shape = [2], dilations = [2]>(x) }",
        safety=Safety.NUMERIC,
    ),
    Flagged(
        "strides longer than the window, which crop where the padding is to be found",
        """g (float[1,2,5,6] x) => (float[1,2,3,2] y) {
            y = LpPool<kernel_shape = [2, 2], strides = [2, 3], auto_pad = "SAME_LOWER", p = 3>(x) }""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "the second norm, which TensorRT has",
        "g (float[1,2,5,5] x) => (float[1,2,4,4] y) { y = LpPool<kernel_shape = [2, 2]>(x) }",
    ),
    Flagged(
        "a window over the edge",
        """g (float[1,2,5] x) => (float[1,2,3] y) {
            y = LpPool<kernel_shape = [2], strides = [2], ceil_mode = 1, p = 3>(x) }""",
        safety=Safety.NUMERIC,
    ),
]
