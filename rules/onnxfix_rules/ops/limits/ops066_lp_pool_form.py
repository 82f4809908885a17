"""OPS066: LpPool with dilations, or p other than 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
