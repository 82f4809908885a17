"""OPS067: AveragePool with dilations."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx import TensorProto, helper

from onnxfix.rule import Draft, Fix, Fixed, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops.limits import _dilated_windows

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


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
    yield Match(
        f"TensorRT has no AveragePool with dilations {dilations}",
        node=node,
        fix=Fix("sum by a Conv of ones, and divide", draft.edits, Safety.NUMERIC),
    )


dilated_average.examples = [
    Fixed(
        "one spatial dimension, two channels",
        before="g (float[N,2,9] x) => (float[N,2,7] y) { y = AveragePool<kernel_shape = [2], dilations = [2]>(x) }",
        after="""g (float[N,2,9] x) => (float[N,2,7] y) <float[2,1,2] w = {1, 1, 1, 1}, float n = {2}> {
            s = Conv<kernel_shape = [2], dilations = [2], strides = [1], pads = [0, 0], group = 2>(x, w)
            y = Div(s, n) }""",
        opset=19,
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "padding that does not count: fewer elements at the edge",
        before="""g (float[N,1,4] x) => (float[N,1,4] y) {
            y = AveragePool<kernel_shape = [2], dilations = [2], pads = [1, 1]>(x) }""",
        after="""g (float[N,1,4] x) => (float[N,1,4] y) <float[1,1,2] w = {1, 1}, float[1,1,4] n = {1, 2, 2, 1}> {
            s = Conv<kernel_shape = [2], dilations = [2], strides = [1], pads = [1, 1], group = 1>(x, w)
            y = Div(s, n) }""",
        opset=19,
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a dynamic width, with padding that does not count",
        """g (float[N,1,W] x) => (float[N,1,V] y) {
            y = AveragePool<kernel_shape = [2], dilations = [2], pads = [1, 1]>(x) }""",
        opset=19,
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a dynamic number of channels",
        "g (float[N,C,9] x) => (float[N,C,7] y) { y = AveragePool<kernel_shape = [2], dilations = [2]>(x) }",
        opset=19,
        safety=Safety.NUMERIC,
    ),
    Silent(
        "a stride of 0",
        """g (float[N,2,9] x) => (float[N,2,7] y) {
            y = AveragePool<kernel_shape = [2], dilations = [2], strides = [0]>(x) }""",
        opset=19,
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Silent(
        "dilations of 1",
        "g (float[N,2,9] x) => (float[N,2,8] y) { y = AveragePool<kernel_shape = [2], dilations = [1]>(x) }",
        opset=19,
    ),
]
