"""Attributes that TensorRT ignores, or whose default it takes for another value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

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
    target_of,
)


@rule("OPS010", ops=["Trilu"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[1])
def trilu_without_upper(node: Node, model: Model) -> Iterator[Match]:
    """A Trilu without the attribute `upper`: ONNX's default is 1, TensorRT uses 0.

    ## Why it matters
    ONNX keeps the upper triangle, TensorRT the lower one. It parses and builds without a warning, so a causal mask
    comes out transposed. Measured with TensorRT-RTX 1.7.1 by reading the imported network: it compares row and column
    indices and selects where row ≥ column (`GREATER`, `EQUAL`, `OR`, `SELECT`), as it does for `upper = 0`; with `upper
    = 1` it is `LESS`. This holds for opsets 14, 18 and 23, with and without a diagonal `k`, constant or not, and for
    float, half, int32, int64 and bool. Eight of ONNX's own test models have this form.

    ## Fix
    Add `upper = 1`. Exact: it is ONNX's default.

    ## References
    - https://onnx.ai/onnx/operators/onnx__Trilu.html: "Default is true."
    """
    data = node.require(0)
    if node.opset < 14 or node.attribute("upper") is not None:
        return
    shape = model.shapes.static_shape(data)
    if shape is not None and (0 in shape or (shape[-2:] == (1, 1) and node.input(1) is None)):
        return  # both triangles are the same
    draft = Draft(node)
    draft.set_attr(node, "upper", 1)
    message = "Trilu without upper: ONNX keeps the upper triangle, TensorRT the lower one"
    yield Match(message, node=node, fix=Fix("add upper=1", draft.edits))


_fixed = partial(Fixed, ir_version=10, opset=28)
_silent = partial(Silent, ir_version=10, opset=28)
trilu_without_upper.examples = [
    Fixed(
        "the upper triangle, by default",
        before="g (float[4,5] x) => (float[4,5] y) { y = Trilu(x) }",
        after="g (float[4,5] x) => (float[4,5] y) { y = Trilu<upper = 1>(x) }",
    ),
    Fixed(
        "integers with a diagonal, in the first opset that has the operator",
        before="g (int64[N,4,5] x) => (int64[N,4,5] y) <int64 k = {-1}> { y = Trilu(x, k) }",
        after="g (int64[N,4,5] x) => (int64[N,4,5] y) <int64 k = {-1}> { y = Trilu<upper = 1>(x, k) }",
        opset=14,
    ),
    Silent("explicit upper = 1", "g (float[4,5] x) => (float[4,5] y) { y = Trilu<upper = 1>(x) }"),
    Silent(
        "explicit upper = 0", "g (float[4,5] x, int64 k) => (float[4,5] y) { y = Trilu<upper = 0>(x, k) }"
    ),
    Silent(
        "any nonzero value means upper, in TensorRT too",
        "g (float[4,5] x) => (float[4,5] y) { y = Trilu<upper = 2>(x) }",
    ),
    Silent("empty tensor", "g (float[3,0] x) => (float[3,0] y) { y = Trilu(x) }"),
    Silent("a single element", "g (float[5,1,1] x) => (float[5,1,1] y) { y = Trilu(x) }"),
    Fixed(
        "a single element, with a diagonal",
        before="g (float[1,1] x, int64 k) => (float[1,1] y) { y = Trilu(x, k) }",
        after="g (float[1,1] x, int64 k) => (float[1,1] y) { y = Trilu<upper = 1>(x, k) }",
    ),
    Silent(
        "every call of the function sets it",
        """<ir_version: 9, opset_import: ["" : 18, "my" : 1]>
            g (float[3,3] x) => (float[3,3] y) { y = my.F<side = 1>(x) }
            <domain: "my", opset_import: ["" : 18]> F <side> (a) => (b) { b = Trilu<upper : int = @side>(a) }""",
    ),
]


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
    message = "SpaceToDepth with mode=CRD: TensorRT orders the channels as in DCR"
    yield Match(message, node=node, fix=_fix(node, data, block, shape))


def _fix(node: Node, data: Value, block: object, shape: Sequence[Dim] | None) -> Fix | None:
    if not isinstance(block, int) or block < 1 or shape is None or len(shape) != 4 or node.output() is None:
        return None
    channels, height, width = (d.value for d in shape[1:])
    if not channels or not is_small(block, block, channels):
        return None
    draft = Draft(node)
    if height and width and height % block == width % block == 0:
        high, wide = height // block, width // block
        apart = [0, channels, high, block, wide, block]
        together = [0, channels * block * block, high, wide]
        split = draft.add("Reshape", [data, draft.integers(apart, "apart")], hint="blocks")
        moved = draft.add("Transpose", [split], perm=[0, 1, 3, 5, 2, 4])
        draft.replace_output(node, draft.add("Reshape", [moved, draft.integers(together, "together")]))
        return Fix("replace by Reshape, Transpose and Reshape", draft.edits)
    order = np.arange(block * block * channels).reshape(block * block, channels).T.reshape(-1)
    default = draft.add("SpaceToDepth", [data], hint="dcr", blocksize=block)
    draft.replace_output(node, draft.add("Gather", [default, draft.integers(order, "channels")], axis=1))
    return Fix("use the default order and permute the channels", draft.edits)


def _space_to_depth(x: str, y: str, attributes: str = 'blocksize = 2, mode = "CRD"') -> str:
    return f"g (float[{x}] x) => (float[{y}] y) {{ y = SpaceToDepth<{attributes}>(x) }}"


space_to_depth_crd.examples = [
    _fixed(
        "static sizes",
        before=_space_to_depth("1,2,4,6", "1,8,2,3"),
        after="""g (float[1,2,4,6] x) => (float[1,8,2,3] y)
            <int64[6] s = {0, 2, 2, 2, 3, 2}, int64[4] t = {0, 8, 2, 3}> {
            a = Reshape(x, s)  b = Transpose<perm = [0,1,3,5,2,4]>(a)  y = Reshape(b, t) }""",
    ),
    _fixed(
        "a dynamic batch, between other nodes",
        before="""g (float[N,3,6,3] x) => (float[N,27,2,1] y) {
            a = Neg(x)  b = SpaceToDepth<mode = "CRD", blocksize = 3>(a)  y = Neg(b) }""",
        after="""g (float[N,3,6,3] x) => (float[N,27,2,1] y)
            <int64[6] s = {0, 3, 2, 3, 1, 3}, int64[4] t = {0, 27, 2, 1}> {
            a = Neg(x)  p = Reshape(a, s)  q = Transpose<perm = [0,1,3,5,2,4]>(p)  b = Reshape(q, t)  y = Neg(b) }""",
    ),
    _fixed(
        "a dynamic image: a Gather permutes the channels",
        before=_space_to_depth("N,2,H,W", "N,8,P,Q"),
        after="""g (float[N,2,H,W] x) => (float[N,8,P,Q] y) <int64[8] i = {0, 2, 4, 6, 1, 3, 5, 7}> {
            a = SpaceToDepth<blocksize = 2>(x)  y = Gather<axis = 1>(a, i) }""",
    ),
    Flagged(
        "the number of channels is dynamic", _space_to_depth("N,C,H,W", "N,K,P,Q"), opset=28, ir_version=10
    ),
    _silent("one channel: both orders are the same", _space_to_depth("N,1,H,W", "N,4,P,Q")),
    _silent("explicit DCR", _space_to_depth("N,2,4,4", "N,8,2,2", attributes='blocksize = 2, mode = "DCR"')),
    _silent("DCR by default", _space_to_depth("N,2,4,4", "N,8,2,2", attributes="blocksize = 2")),
    Silent(
        "DepthToSpace is imported correctly in both orders",
        """g (float[N,8,2,2] x) => (float[N,2,4,4] y) { y = DepthToSpace<blocksize = 2, mode = "CRD">(x) }""",
    ),
]


@rule("OPS097", ops=["GridSample"], safety=Safety.EXACT, severity=Severity.ERROR)
def grid_sample_mode(node: Node, model: Model) -> Iterator[Match]:
    """A GridSample of opset 20 in mode `linear` or `cubic`: TensorRT takes the nearest element.

    ## Why it matters
    Opset 20 renamed the modes `bilinear` and `bicubic`. TensorRT's parser compares with the old names, and takes
    `nearest` for any other word, without a warning. Measured with TensorRT 10.6.0 on an H200: all eight of ONNX's node
    models of images in these modes are wrong, by up to 3; the six in mode `nearest` or without a mode, which means
    `linear`, are right. TensorRT 8.6.1 is wrong too. Reported for TensorRT 11.1 and TensorRT-RTX 1.5 (onnx-tensorrt
    pull request 1060). TensorRT-RTX 1.7.1 imports all modes correctly (measured by reading the imported network).

    An error for TensorRT up to 10; a warning for TensorRT 11, of which a later release may import it correctly. Nothing
    is reported for TensorRT-RTX.

    ## Fix
    Drop `mode = linear`: it is the default. Exact. The parser's default is `bilinear`, the same.

    No fix for `cubic`, for which opset 20 has no other word. Export the model in opset 16 to 19, where the mode is
    `bicubic`.

    ## References
    - https://onnx.ai/onnx/operators/text_diff_GridSample_16_20.html
    - https://github.com/onnx/onnx-tensorrt/pull/1060, https://github.com/NVIDIA/TensorRT/issues/4646
    """
    mode, target = node.attr("mode", ""), target_of(model)
    if node.opset < 20 or mode not in ("linear", "cubic"):
        return
    if target.package != "tensorrt" or target.imports("GridSample") is not True:
        return
    is_old = target.oldest < (11,)
    data = node.require(0)
    if target.oldest < (11, 2) and model.shapes.rank(data) not in (None, 4):
        return  # rejected anyway: OPS099
    fix = None
    if mode == "linear":
        draft = Draft(node)
        draft.set_attr(node, "mode", None)
        fix = Fix("drop the mode, which is the default", draft.edits)
    releases = "TensorRT" if is_old else "TensorRT 11.1"
    yield Match(
        f"GridSample with mode={mode}: {releases} knows only the names before opset 20, and takes the nearest element",
        node=node,
        fix=fix,
        severity=Severity.ERROR if is_old else Severity.WARNING,
        reads=(data,),
    )


_IO = "g (float[N,C,H,W] x, float[N,3,4,2] p) => (float[N,C,3,4] y)"


def _grid_sample(attributes: str, x: str = "N,C,H,W", p: str = "N,3,4,2", y: str = "N,C,3,4") -> str:
    return f"g (float[{x}] x, float[{p}] p) => (float[{y}] y) {{ y = GridSample{attributes}(x, p) }}"


grid_sample_mode.examples = [
    Fixed(
        "linear, which is the default",
        before=_grid_sample('<mode = "linear", align_corners = 1, padding_mode = "border">'),
        after=_grid_sample('<align_corners = 1, padding_mode = "border">'),
        opset=20,
        target="trt10",
    ),
    Fixed(
        "for TensorRT 11, of volumes",
        before="""g (float[1,1,2,3,4] x, float[1,2,2,2,3] p) => (float[1,1,2,2,2] y) {
            y = GridSample<mode = "linear">(x, p) }""",
        after=_grid_sample("", x="1,1,2,3,4", p="1,2,2,2,3", y="1,1,2,2,2"),
        opset=22,
    ),
    Flagged("cubic", _grid_sample('<mode = "cubic">'), opset=20, target="trt10"),
    Silent("nearest", _grid_sample('<mode = "nearest">'), opset=20, target="trt10"),
    Silent("no mode", _grid_sample(""), opset=20, target="trt10"),
    Silent(
        "before opset 20 the names are those that TensorRT knows",
        _grid_sample('<mode = "bilinear">'),
        opset=16,
        target="trt10",
    ),
    Silent("TensorRT-RTX 1.7.1 knows the names", _grid_sample('<mode = "linear">'), opset=20, target="rtx"),
    Silent(
        "volumes, which TensorRT 10 rejects",
        """g (float[1,1,2,3,4] x, float[1,2,2,2,3] p) => (float[1,1,2,2,2] y) {
            y = GridSample<mode = "linear">(x, p) }""",
        opset=20,
        target="trt10",
    ),
    Silent("TensorRT 8.4 has no GridSample", _grid_sample('<mode = "linear">'), opset=20, target="trt8.4"),
    Silent(
        "the caller sets the mode",
        """<ir_version: 9, opset_import: ["" : 20, "my" : 1]>
            g (float[1,1,4,4] x, float[1,2,2,2] p) => (float[1,1,2,2] y) { y = my.F<k = "linear">(x, p) }
            <domain: "my", opset_import: ["" : 20]> F <k> (a, b) => (c) { c = GridSample<mode : string = @k>(a, b) }""",
        target="trt10",
    ),
]
