"""OPS012: SpaceToDepth in the newer of its two channel orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from onnxfix.rule import (
    Dim,
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
)


@rule("OPS012", ops=["SpaceToDepth"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[3])
def space_to_depth_crd(node: Node, model: Model) -> Iterator[Match]:
    """A SpaceToDepth with `mode = CRD`: TensorRT orders the channels as in DCR.

    ## Why it matters
    The attribute was introduced in opset 28 and TensorRT does not read it: the shape is right, the channels are
    permuted. It parses and builds without a warning. Measured with TensorRT-RTX 1.7.1 by reading the imported network:
    the axes [N, C, H, b, W, b] are transposed by (0, 3, 5, 1, 2, 4), whatever the mode; CRD is (0, 1, 3, 5, 2, 4). The
    mode of DepthToSpace, the inverse, is imported correctly.

    ## Fix
    Reshape, Transpose and Reshape, where channels, height and width are static (two layers, as many as the operator
    has); otherwise the default order and a Gather that permutes the channels. Both are exact: elements only move. No
    fix where even the number of channels is unknown.

    ## References
    - https://onnx.ai/onnx/operators/onnx__SpaceToDepth.html
    """
    data = node.require(0)
    if node.opset < 28 or node.attr("mode", "DCR") != "CRD":
        return
    block = node.attr("blocksize")
    shape = model.shapes.shape(data)
    if shape is not None and len(shape) == 4 and (block == 1 or shape[1].value == 1):
        return  # both orders are the same
    yield Match(
        "SpaceToDepth with mode=CRD: TensorRT orders the channels as in DCR",
        node=node,
        fix=_fix(node, data, block, shape),
    )


def _fix(node: Node, data: Value, block: object, shape: Sequence[Dim] | None) -> Fix | None:
    output = node.output()
    if not isinstance(block, int) or block < 1 or shape is None or len(shape) != 4 or output is None:
        return None
    channels, height, width = (d.value for d in shape[1:])
    if not channels or not is_small(block, block, channels):
        return None
    draft = Draft(node)
    draft.remove(node)
    if height and width and height % block == width % block == 0:
        high, wide = height // block, width // block
        apart = np.array([0, channels, high, block, wide, block], dtype=np.int64)
        together = np.array([0, channels * block * block, high, wide], dtype=np.int64)
        split = draft.add("Reshape", [data, draft.constant(apart, "apart")], hint="blocks")
        moved = draft.add("Transpose", [split], perm=[0, 1, 3, 5, 2, 4])
        draft.add("Reshape", [moved, draft.constant(together, "together")], output=output.name)
        return Fix("replace by Reshape, Transpose and Reshape", draft.edits)
    order = np.arange(block * block * channels).reshape(block * block, channels).T.reshape(-1)
    default = draft.add("SpaceToDepth", [data], hint="dcr", blocksize=block)
    draft.add("Gather", [default, draft.constant(order, "channels")], output=output.name, axis=1)
    return Fix("use the default order and permute the channels", draft.edits)


space_to_depth_crd.examples = [
    Fixed(
        "static sizes",
        before="""g (float[1,2,4,6] x) => (float[1,8,2,3] y) { y = SpaceToDepth<blocksize = 2, mode = "CRD">(x) }""",
        after="""g (float[1,2,4,6] x) => (float[1,8,2,3] y)
            <int64[6] s = {0, 2, 2, 2, 3, 2}, int64[4] t = {0, 8, 2, 3}> {
            a = Reshape(x, s)  b = Transpose<perm = [0,1,3,5,2,4]>(a)  y = Reshape(b, t) }""",
        opset=28,
        ir_version=10,
    ),
    Fixed(
        "a dynamic batch, between other nodes",
        before="""g (float[N,3,6,3] x) => (float[N,27,2,1] y) {
            a = Neg(x)  b = SpaceToDepth<mode = "CRD", blocksize = 3>(a)  y = Neg(b) }""",
        after="""g (float[N,3,6,3] x) => (float[N,27,2,1] y)
            <int64[6] s = {0, 3, 2, 3, 1, 3}, int64[4] t = {0, 27, 2, 1}> {
            a = Neg(x)  p = Reshape(a, s)  q = Transpose<perm = [0,1,3,5,2,4]>(p)  b = Reshape(q, t)  y = Neg(b) }""",
        opset=28,
        ir_version=10,
    ),
    Fixed(
        "a dynamic image: a Gather permutes the channels",
        before="""g (float[N,2,H,W] x) => (float[N,8,P,Q] y) { y = SpaceToDepth<blocksize = 2, mode = "CRD">(x) }""",
        after="""g (float[N,2,H,W] x) => (float[N,8,P,Q] y) <int64[8] i = {0, 2, 4, 6, 1, 3, 5, 7}> {
            a = SpaceToDepth<blocksize = 2>(x)  y = Gather<axis = 1>(a, i) }""",
        opset=28,
        ir_version=10,
    ),
    Flagged(
        "the number of channels is dynamic",
        """g (float[N,C,H,W] x) => (float[N,K,P,Q] y) { y = SpaceToDepth<blocksize = 2, mode = "CRD">(x) }""",
        opset=28,
        ir_version=10,
    ),
    Silent(
        "one channel: both orders are the same",
        """g (float[N,1,H,W] x) => (float[N,4,P,Q] y) { y = SpaceToDepth<blocksize = 2, mode = "CRD">(x) }""",
        opset=28,
        ir_version=10,
    ),
    Silent(
        "explicit DCR",
        """g (float[N,2,4,4] x) => (float[N,8,2,2] y) { y = SpaceToDepth<blocksize = 2, mode = "DCR">(x) }""",
        opset=28,
        ir_version=10,
    ),
    Silent(
        "DCR by default",
        "g (float[N,2,4,4] x) => (float[N,8,2,2] y) { y = SpaceToDepth<blocksize = 2>(x) }",
        opset=28,
        ir_version=10,
    ),
    Silent(
        "DepthToSpace is imported correctly in both orders",
        """g (float[N,8,2,2] x) => (float[N,2,4,4] y) { y = DepthToSpace<blocksize = 2, mode = "CRD">(x) }""",
    ),
]
