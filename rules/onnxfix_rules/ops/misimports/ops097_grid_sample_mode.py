"""OPS097: GridSample in the modes that opset 20 renamed."""

from __future__ import annotations

from collections.abc import Iterator

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
    rule,
    target_of,
)


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
    if is_old and model.shapes.rank(data) not in (None, 4):
        return  # rejected anyway
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


grid_sample_mode.examples = [
    Fixed(
        "linear, which is the default",
        before=f'{_IO} {{ y = GridSample<mode = "linear", align_corners = 1, padding_mode = "border">(x, p) }}',
        after=f'{_IO} {{ y = GridSample<align_corners = 1, padding_mode = "border">(x, p) }}',
        opset=20,
        target="trt10",
    ),
    Fixed(
        "for TensorRT 11, of volumes",
        before="""g (float[1,1,2,3,4] x, float[1,2,2,2,3] p) => (float[1,1,2,2,2] y) {
            y = GridSample<mode = "linear">(x, p) }""",
        after="""g (float[1,1,2,3,4] x, float[1,2,2,2,3] p) => (float[1,1,2,2,2] y) { y = GridSample(x, p) }""",
        opset=22,
    ),
    Flagged("cubic", f'{_IO} {{ y = GridSample<mode = "cubic">(x, p) }}', opset=20, target="trt10"),
    Silent("nearest", f'{_IO} {{ y = GridSample<mode = "nearest">(x, p) }}', opset=20, target="trt10"),
    Silent("no mode", f"{_IO} {{ y = GridSample(x, p) }}", opset=20, target="trt10"),
    Silent(
        "before opset 20 the names are those that TensorRT knows",
        f'{_IO} {{ y = GridSample<mode = "bilinear">(x, p) }}',
        opset=16,
        target="trt10",
    ),
    Silent(
        "TensorRT-RTX 1.7.1 knows the names",
        f'{_IO} {{ y = GridSample<mode = "linear">(x, p) }}',
        opset=20,
        target="rtx",
    ),
    Silent(
        "volumes, which TensorRT 10 rejects",
        """g (float[1,1,2,3,4] x, float[1,2,2,2,3] p) => (float[1,1,2,2,2] y) {
            y = GridSample<mode = "linear">(x, p) }""",
        opset=20,
        target="trt10",
    ),
    Silent(
        "TensorRT 8.4 has no GridSample",
        f'{_IO} {{ y = GridSample<mode = "linear">(x, p) }}',
        opset=20,
        target="trt8.4",
    ),
    Silent(
        "the caller sets the mode",
        """<ir_version: 9, opset_import: ["" : 20, "my" : 1]>
            g (float[1,1,4,4] x, float[1,2,2,2] p) => (float[1,1,2,2] y) { y = my.F<k = "linear">(x, p) }
            <domain: "my", opset_import: ["" : 20]> F <k> (a, b) => (c) { c = GridSample<mode : string = @k>(a, b) }""",
        target="trt10",
    ),
]
