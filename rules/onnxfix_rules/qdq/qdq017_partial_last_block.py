"""QDQ017: blocked quantization with a shorter last block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from onnxfix.rule import (
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

from ._read import WEIGHT_LIMIT, Array, sizes
from ._rewrite import MAX_SHARERS, Workshop


@dataclass(frozen=True)
class Blocks:
    """``count`` blocks of ``block`` elements along ``axis`` of ``size``; the last one is shorter."""

    scale: Value
    zero: Value | None
    axis: int
    size: int
    block: int
    count: int

    @property
    def part(self) -> int:
        """Size of the largest blocks that divide these blocks and the axis evenly."""
        return math.gcd(self.block, self.size)

    @property
    def places(self) -> Array:
        """The index of the old scale, for each block of ``part``."""
        return np.arange(0, self.size, self.part, dtype=np.int64) // self.block


@rule(
    "QDQ017",
    ops=("QuantizeLinear", "DequantizeLinear"),
    safety=Safety.EXACT,
    severity=Severity.ERROR,
    hazards=[21],
)
def partial_last_block(node: Node, model: Model) -> Iterator[Match]:
    """A blocked quantization along an axis that is no multiple of `block_size`.

    ## Why it matters
    In ONNX the last block is shorter. TensorRT's parser ignores `block_size`: it divides the size by the number of
    scales. Six elements in blocks of 4 have two scales, and become two blocks of 3: the fourth element gets the scale
    of the second block, without an error or a warning. Measured with TensorRT-RTX 1.7.1, by the imported network:
    with scales of 10 and 13 a weight of 12 becomes 156 instead of 120. If the division leaves a remainder the parser
    fails: `The quantization axis must divide into whole blocks`.

    One block that is longer than the axis is imported correctly.

    ## Fix
    Smaller blocks, of the greatest common divisor of size and `block_size`, with scales and zero points repeated for
    them: every element keeps its own, so it is exact. Non-constant scales are repeated by a Gather. If the divisor is
    1, which TensorRT does not treat as blocks, a dequantized constant is padded with zeros to whole blocks, and the
    padding is removed afterwards.

    No fix if the divisor is 1 and the data is not constant, for non-constant zero points, and above 256 MiB.

    ## References
    - https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """
    found = _blocks(node, model)
    if found is None:
        return
    rest = found.size % found.count
    what = "refuses" if rest else f"imports blocks of {found.size // found.count} in"
    yield Match(
        f"axis {found.axis} has {found.size} elements in {found.count} blocks of {found.block}: "
        f"{target_of(model).title} {what} an axis whose last block is shorter",
        node=node,
        fix=_smaller(node, found, model) if found.part > 1 else _filled(node, found),
        reads=tuple(v for v in (found.scale, found.zero) if v is not None),
    )


def _blocks(node: Node, model: Model) -> Blocks | None:
    """The blocks of a node with a shorter last one; None if it is not shorter, or unknown.

    One-dimensional data is excluded: TensorRT does not support blocks there at all.
    """
    if not node.is_onnx or node.opset < 21:
        return None
    data, scale, block = node.input(0), node.input(1), int(node.attr("block_size", 0))
    if data is None or scale is None or block <= 0:
        return None
    shape, scales, axis = sizes(data, model), sizes(scale, model), int(node.attr("axis", 1))
    if shape is None or scales is None or len(shape) != len(scales) or len(shape) < 2:
        return None
    if not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    size, count = shape[axis], scales[axis]
    if size is None or count is None or count < 2 or size % block == 0 or count != -(-size // block):
        return None
    return Blocks(scale, node.input(2), axis, size, block, count)


def _smaller(node: Node, blocks: Blocks, model: Model) -> Fix | None:
    """The same scales for more blocks, for all nodes of this graph that use them in the same way."""
    scales = blocks.scale.constant(WEIGHT_LIMIT)
    if (scales is None and blocks.scale.is_constant) or not is_small(blocks.size // blocks.part):
        return None
    zeros = None if blocks.zero is None else blocks.zero.constant(WEIGHT_LIMIT)
    shop = Workshop()
    nodes = [node, *_others(node, blocks, model)] if scales is not None else [node]
    for one in nodes:
        draft = shop.at(one)
        if scales is None:
            places = shop.constant(one, blocks.places, "blocks")
            draft.set_input(
                one, 1, draft.add("Gather", [blocks.scale, places], hint="scales", axis=blocks.axis)
            )
        else:
            more = _repeated(scales, blocks)
            if more is None:
                return None
            draft.set_input(one, 1, shop.constant(one, more, "scales"))
        if blocks.zero is not None:
            more = None if zeros is None else _repeated(zeros, blocks)
            if more is None:
                return None
            draft.set_input(one, 2, shop.constant(one, more, "zeros"))
        draft.set_attr(one, "block_size", blocks.part)
    return Fix(f"use blocks of {blocks.part} with repeated scales", shop.edits)


def _repeated(array: Array, blocks: Blocks) -> Array | None:
    """Scales or zero points for the smaller blocks; None if they do not fit, or become too large."""
    if array.ndim <= blocks.axis or array.shape[blocks.axis] != blocks.count:
        return None
    places = blocks.places
    if array.nbytes // blocks.count * len(places) > WEIGHT_LIMIT:
        return None
    return np.take(array, places, blocks.axis)


def _others(node: Node, blocks: Blocks, model: Model) -> list[Node]:
    """Other nodes of the graph with the same blocks, which can share the new scales."""
    if blocks.scale.use_count > MAX_SHARERS:
        return []
    readers = [use.node for use in blocks.scale.uses if use.index == 1 and use.node.scope is node.scope]
    linear = [one for one in readers if one.op_type in ("QuantizeLinear", "DequantizeLinear")]
    return [one for one in linear if one is not node and _blocks(one, model) == blocks]


def _filled(node: Node, blocks: Blocks) -> Fix | None:
    """The constant padded with zeros to whole blocks; the result is sliced."""
    data = node.input(0)
    weights = None if data is None or node.op_type != "DequantizeLinear" else data.constant(WEIGHT_LIMIT)
    if data is None or weights is None:
        return None
    shape = list(weights.shape)
    shape[blocks.axis] = blocks.count * blocks.block - blocks.size
    if weights.nbytes // blocks.size * (blocks.size + shape[blocks.axis]) > WEIGHT_LIMIT:
        return None
    longer = np.concatenate([weights, np.zeros(shape, weights.dtype)], blocks.axis)
    shop = Workshop()
    inputs = [shop.constant(node, longer, "filled"), *node.inputs[1:]]
    whole = shop.like(node, "DequantizeLinear", inputs)
    numbers = (0, blocks.size, blocks.axis)
    ends = [shop.constant(node, np.array([number], np.int64)) for number in numbers]
    shop.put(node, shop.at(node).add("Slice", [whole, *ends]))
    return Fix(f"pad {data.name!r} to whole blocks and slice the result", shop.edits)


_W = "int8[6,2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 120}"
_WEIGHT = "d = DequantizeLinear<axis = 0, block_size = {b}>(w, s)  y = MatMul(x, d)"
_PAIR = """q = QuantizeLinear<axis = 1, block_size = {b}, output_dtype = 3>(x, {s})
            y = DequantizeLinear<axis = 1, block_size = {b}>(q, {s})"""
_PAIR_6 = f"g (float[N,6] x) => (float[N,6] y) <float[1,2] s = {{0.5, 2}}> {{ {_PAIR.format(b=4, s='s')} }}"
_fixed = partial(Fixed, ir_version=10, opset=21)
_flagged = partial(Flagged, ir_version=10, opset=21)
_silent = partial(Silent, ir_version=10, opset=21)


partial_last_block.examples = [
    _fixed(
        "a weight in blocks of 4 and 2, which TensorRT imports as two of 3",
        before=f"""g (float[N,6] x) => (float[N,2] y) <{_W}, float[2,2] s = {{1, 2, 10, 20}}> {{
            {_WEIGHT.format(b=4)} }}""",
        after=f"""g (float[N,6] x) => (float[N,2] y) <{_W}, float[3,2] s = {{1, 2, 1, 2, 10, 20}}> {{
            {_WEIGHT.format(b=2)} }}""",
    ),
    _fixed(
        "with zero points",
        before=f"""g (float[N,6] x) => (float[N,2] y)
            <{_W}, float[2,2] s = {{1, 2, 10, 20}}, int8[2,2] z = {{0, 0, 1, 2}}> {{
            d = DequantizeLinear<axis = 0, block_size = 4>(w, s, z)  y = MatMul(x, d) }}""",
        after=f"""g (float[N,6] x) => (float[N,2] y)
            <{_W}, float[3,2] s = {{1, 2, 1, 2, 10, 20}}, int8[3,2] z = {{0, 0, 0, 0, 1, 2}}> {{
            d = DequantizeLinear<axis = 0, block_size = 2>(w, s, z)  y = MatMul(x, d) }}""",
    ),
    _fixed(
        "computed data; both nodes share the old and the new scales",
        before=_PAIR_6.replace("[N,6]", "[1,6]"),
        after=f"""g (float[1,6] x) => (float[1,6] y) <float[1,3] s = {{0.5, 0.5, 2}}> {{
            {_PAIR.format(b=2, s="s")} }}""",
    ),
    _fixed(
        "a negative axis, and another reader that needs no new scales",
        before="""g (float[2,6] x, float[2,8] u) => (float[2,6] y, float[2,8] v) <float[2,2] s = {1, 2, 3, 4}> {
            q = QuantizeLinear<axis = -1, block_size = 4, output_dtype = 3>(x, s)
            y = DequantizeLinear<axis = 1, block_size = 4>(q, s)
            p = QuantizeLinear<axis = 1, block_size = 4, output_dtype = 3>(u, s)
            v = DequantizeLinear<axis = 1, block_size = 4>(p, s) }""",
        after="""g (float[2,6] x, float[2,8] u) => (float[2,6] y, float[2,8] v)
            <float[2,2] s = {1, 2, 3, 4}, float[2,3] t = {1, 1, 2, 3, 3, 4}> {
            q = QuantizeLinear<axis = -1, block_size = 2, output_dtype = 3>(x, t)
            y = DequantizeLinear<axis = 1, block_size = 2>(q, t)
            p = QuantizeLinear<axis = 1, block_size = 4, output_dtype = 3>(u, s)
            v = DequantizeLinear<axis = 1, block_size = 4>(p, s) }""",
    ),
    _fixed(
        "non-constant scales, for a dynamic batch",
        before=f"g (float[N,6] x, float[N,2] s) => (float[N,6] y) {{ {_PAIR.format(b=4, s='s')} }}",
        after="""g (float[N,6] x, float[N,2] s) => (float[N,6] y)
            <int64[3] i = {0, 0, 1}, int64[3] j = {0, 0, 1}> {
            t = Gather<axis = 1>(s, i)  u = Gather<axis = 1>(s, j)
            q = QuantizeLinear<axis = 1, block_size = 2, output_dtype = 3>(x, t)
            y = DequantizeLinear<axis = 1, block_size = 2>(q, u) }""",
    ),
    _fixed(
        "blocks of 3 and 2 have divisor 1: the weight is padded",
        before="""g (float[N,5] x) => (float[N,1] y) <int8[5,1] w = {1, 2, 3, 4, 5}, float[2,1] s = {1, 10}> {
            d = DequantizeLinear<axis = 0, block_size = 3>(w, s)  y = MatMul(x, d) }""",
        after="""g (float[N,5] x) => (float[N,1] y) <int8[6,1] w = {1, 2, 3, 4, 5, 0}, float[2,1] s = {1, 10},
            int64[1] b = {0}, int64[1] e = {5}> {
            d = DequantizeLinear<axis = 0, block_size = 3>(w, s)  c = Slice(d, b, e, b)  y = MatMul(x, c) }""",
    ),
    _flagged(
        "9 in blocks of 4, which TensorRT imports as three of 3; the data is not constant",
        f"""g (float[1,9] x) => (float[1,9] y) <float[1,3] s = {{1, 2, 3}}> {{
            {_PAIR.format(b=4, s="s")} }}""",
    ),
    _flagged(
        "non-constant zero points",
        f"""g (float[N,6] x, int8[2,2] z) => (float[N,2] y) <{_W}, float[2,2] s = {{1, 2, 10, 20}}> {{
            d = DequantizeLinear<axis = 0, block_size = 4>(w, s, z)  y = MatMul(x, d) }}""",
    ),
    Silent(
        "a size that depends on the function's caller",
        """<ir_version: 10, opset_import: ["" : 21, "f" : 1]>
            g (float[N,6] x) => (float[N,2] y) { y = f.h<b = 4>(x) }
            <domain: "f", opset_import: ["" : 21]> h<b>(x) => (y) {
            w = Constant<value = int8[6,2] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 120}>()
            s = Constant<value = float[2,2] {1, 2, 10, 20}>()
            d = DequantizeLinear<axis = 0, block_size : int = @b>(w, s)  y = MatMul(x, d) }""",
    ),
    _silent(
        "whole blocks",
        f"""g (float[N,6] x) => (float[N,2] y) <{_W}, float[2,2] s = {{1, 2, 10, 20}}> {{
            {_WEIGHT.format(b=3)} }}""",
    ),
    _silent(
        "one block, longer than the axis, is the axis",
        f"""g (float[N,6] x) => (float[N,2] y) <{_W}, float[1,2] s = {{1, 2}}> {{
            {_WEIGHT.format(b=8)} }}""",
    ),
    _silent(
        "per-channel scales",
        f"""g (float[N,6] x) => (float[N,2] y) <{_W}, float[2] s = {{1, 2}}> {{
            d = DequantizeLinear<axis = 1>(w, s)  y = MatMul(x, d) }}""",
    ),
    _silent(
        "invalid: one scale too many",
        f"""g (float[N,6] x) => (float[N,2] y) <{_W}, float[3,2] s = {{1, 2, 3, 4, 5, 6}}> {{
            {_WEIGHT.format(b=4)} }}""",
    ),
    _silent(
        "unknown axis size",
        f"g (float[2,M] x, float[2,K] s) => (float[2,M] y) {{ {_PAIR.format(b=4, s='s')} }}",
    ),
]
