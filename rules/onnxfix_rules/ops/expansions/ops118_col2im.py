"""OPS118: Col2Im."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxfix.rule import (
    Draft,
    Fix,
    Fixed,
    Match,
    Model,
    Node,
    Safety,
    Severity,
    Silent,
    is_small,
    rule,
    target_of,
)


@rule("OPS118", ops=["Col2Im"], safety=Safety.NUMERIC, severity=Severity.ERROR, hazards=[43])
def col2im(node: Node, model: Model) -> Iterator[Match]:
    """A Col2Im of a known image, which no TensorRT imports.

    ## Why it matters
    `torch.nn.functional.fold` is exported as Col2Im, as in VOLO. The parser rejects it by name: `UNSUPPORTED_NODE` in
    `checkCol2Im`, measured with TensorRT-RTX 1.7.1 and found in NVIDIA's lists of operators of every version. Where
    image, block or the number of channels is not known, OPS001 reports it, without a fix.

    ## Fix
    Reshape to one image for each channel, and ConvTranspose with a kernel that puts element k of a block at place k:
    both add up the overlapping blocks. Agrees within tolerance: sums have another order, and an infinity makes NaN of
    the other places of its block, since the kernel's zeros are multiplied.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Col2Im.html
    - https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md
    """
    target, data = target_of(model), node.require(0)
    image, block = (node.require(index).constant() for index in (1, 2))
    shape, elem = model.shapes.shape(data), model.shapes.elem_type(data)
    if target.imports("Col2Im") is not False or image is None or block is None:
        return
    if elem not in (TensorProto.FLOAT, TensorProto.FLOAT16) or shape is None or len(shape) != 3:
        return
    fix = _convolve(node, shape[1].value, image.tolist(), block.tolist(), elem)
    if fix is not None:
        message = f"{target.title} does not import Col2Im (source: {target.source})"
        yield Match(message, node=node, fix=fix, reads=(data, node.require(1), node.require(2)))


def _convolve(node: Node, channels: int | None, image: list[int], block: list[int], elem: int) -> Fix | None:
    """None where the channels are not known, or the node is not valid."""
    rank, kernel = len(image), math.prod(block)
    strides, dilations = (list(node.attr(name, [1] * rank)) for name in ("strides", "dilations"))
    pads: Any = list(node.attr("pads", [0] * 2 * rank))
    if not 1 <= rank <= 3 or len(block) != rank or min(*image, *block, *strides, *dilations) < 1:
        return None
    if not channels or channels % kernel or not is_small(kernel, kernel):
        return None
    room = [
        size + pads[axis] + pads[axis + rank] - dilations[axis] * (block[axis] - 1) - 1
        for axis, size in enumerate(image)
    ]
    if min(room) < 0:
        return None
    steps = [left // stride + 1 for left, stride in zip(room, strides, strict=True)]
    rest = [left % stride for left, stride in zip(room, strides, strict=True)]
    weights = np.zeros((kernel, 1, *block), np.float16 if elem == TensorProto.FLOAT16 else np.float32)
    for number, place in enumerate(product(*map(range, block))):
        weights[(number, 0, *place)] = 1
    draft = Draft(node)
    blocks = draft.reshape(node.require(0), [-1, kernel, *steps])
    attributes = {"strides": strides, "dilations": dilations, "pads": pads}
    if any(rest):
        attributes["output_padding"] = rest
    images = draft.add("ConvTranspose", [blocks, draft.constant(weights, "kernel")], **attributes)
    draft.replace_output(node, draft.reshape(images, [-1, channels // kernel, *image]))
    return Fix("replace by ConvTranspose", draft.edits, safety=Safety.NUMERIC)


_X = "g (float[N,12,4] x) => (float[N,3,4,4] y)"


col2im.examples = [
    Fixed(
        "blocks that do not overlap",
        before=f"{_X} <int64[2] i = {{4, 4}}, int64[2] b = {{2, 2}}> {{ y = Col2Im<strides = [2, 2]>(x, i, b) }}",
        after=f"""{_X} <int64[4] s = {{-1, 4, 2, 2}}, int64[4] t = {{-1, 3, 4, 4}},
            float[4,1,2,2] w = {{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}}> {{
            r = Reshape(x, s)
            c = ConvTranspose<strides = [2, 2], dilations = [1, 1], pads = [0, 0, 0, 0]>(r, w)
            y = Reshape(c, t) }}""",
        safety=Safety.NUMERIC,
    ),
    Fixed(
        "overlapping and dilated blocks of an odd image with padding, between other nodes",
        before="""g (float16[2,4,3] x) => (float16[2,2,6] y) <int64[1] i = {6}, int64[1] b = {2}> {
            a = Neg(x)  m = Col2Im<strides = [2], dilations = [2], pads = [1, 0]>(a, i, b)  y = Abs(m) }""",
        after="""g (float16[2,4,3] x) => (float16[2,2,6] y) <int64[3] s = {-1, 2, 3}, int64[3] t = {-1, 2, 6},
            float16[2,1,2] w = {f16(1.0), f16(0.0), f16(0.0), f16(1.0)}> {
            a = Neg(x)  r = Reshape(a, s)
            c = ConvTranspose<strides = [2], dilations = [2], pads = [1, 0]>(r, w)
            m = Reshape(c, t)  y = Abs(m) }""",
        safety=Safety.NUMERIC,
        runs=False,
    ),
    Fixed(
        "a last row and column that no block reaches",
        before="""g (float[1,4,4] x) => (float[1,1,5,5] y) <int64[2] i = {5, 5}, int64[2] b = {2, 2}> {
            y = Col2Im<strides = [2, 2]>(x, i, b) }""",
        after="""g (float[1,4,4] x) => (float[1,1,5,5] y) <int64[4] s = {-1, 4, 2, 2}, int64[4] t = {-1, 1, 5, 5},
            float[4,1,2,2] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> {
            r = Reshape(x, s)
            c = ConvTranspose<strides = [2, 2], dilations = [1, 1], pads = [0, 0, 0, 0], output_padding = [1, 1]>(r, w)
            y = Reshape(c, t) }""",
        safety=Safety.NUMERIC,
    ),
    Silent(
        "the image's shape is an input: OPS001 reports it",
        f"""{_X.replace("x)", "x, int64[2] i)")} <int64[2] b = {{2, 2}}> {{
            y = Col2Im<strides = [2, 2]>(x, i, b) }}""",
    ),
    Silent(
        "the number of channels is not known",
        """g (float[N,C,4] x) => (float[N,D,4,4] y) <int64[2] i = {4, 4}, int64[2] b = {2, 2}> {
            y = Col2Im<strides = [2, 2]>(x, i, b) }""",
    ),
]
