"""OPS013: a transposed convolution with an explicit output shape."""

from __future__ import annotations

from collections.abc import Iterator

from onnxfix.rule import Fix, Fixed, Flagged, Match, Model, Node, Safety, Severity, Silent, rule
from onnxfix_rules.ops.misimports import _deconv as dc


@rule("OPS013", ops=["ConvTranspose"], safety=Safety.EXACT, severity=Severity.ERROR, hazards=[4])
def conv_transpose_output_shape(node: Node, model: Model) -> Iterator[Match]:
    """A ConvTranspose with `output_shape` for which TensorRT computes other padding than ONNX.

    ## Why it matters
    ONNX cuts the full result down to `output_shape`; where the number of elements to cut is odd, the odd one is cut at
    the start (since opset 11). TensorRT cuts it at the end: the shape is right, the image is shifted by a pixel, and it
    parses and builds without a warning. Measured with TensorRT-RTX 1.7.1 in opsets 11, 18 and 22 by reading the
    imported network: for an image and a kernel of 3x3, strides of 2 and `output_shape = [6, 6]` the deconvolution has
    `pre_padding (0, 0), post_padding (1, 1)`. With the values 1 to 9 in both, its first row is 1, 2, 5, 4, 9, 6 instead
    of ONNX's 5, 14, 10, 24, 15, 18.

    - **A dynamic image**: TensorRT computes the padding at import and uses -1 for the unknown size. It rejects the node
      (`TensorRT does not support negative pre-padding in the ConvTranspose operator!`) or, with a large kernel, pads by
      a wrong amount.
    - **A signal** (one spatial axis): the same error, whatever the length.

    With two and three spatial axes, an even number to cut, including 0, is imported correctly. tensorflow-onnx prefers
    `output_shape` to `pads`.

    ## Fix
    Replace `output_shape` by explicit `pads`. Exact: ONNX gives the equations. No fix where the image is dynamic; where
    `output_shape` is larger than the full result; before opset 11 where the number to cut is odd (the specification and
    ONNX Runtime differ); and where ONNX's reference evaluator, which uses `pads` as given, would differ from the
    specification.

    ## References
    - https://onnx.ai/onnx/operators/onnx__ConvTranspose.html: the equations for total_padding and pads
    - onnx/tensorflow-onnx issue 1501: where such nodes come from
    """
    if node.attribute("output_shape") is None:
        return
    found = dc.deconv(node, model)
    if found is None or found.output_shape is None or found.auto_pad != "NOTSET":
        return
    problem = _problem(found)
    if not problem:
        return
    totals = found.totals
    draft = None if totals is None else dc.write_pads(node, found, totals)
    yield Match(
        f"ConvTranspose with output_shape {list(found.output_shape)}: {problem}",
        node=node,
        fix=Fix("replace output_shape by explicit pads", draft.edits) if draft is not None else None,
    )


def _problem(found: dc.Deconv) -> str:
    """What TensorRT does differently, or "" where it imports the node correctly."""
    if None in found.sizes:
        return (
            "TensorRT computes the padding with -1 for a dynamic size, and rejects the node or pads wrongly"
        )
    assert found.output_shape is not None
    if len(found.spans) == 1 and found.output_shape[0] != 1:
        return "TensorRT rejects it with one spatial axis"
    totals = [found.total(axis) or 0 for axis in found.axes]
    if found.opset >= 11 and any(total > 0 and total % 2 for total in totals):
        return f"of the {totals} elements to cut, ONNX cuts the odd one at the start, TensorRT at the end"
    return ""


_IMAGE = "g (float[N,1,3,3] x, float[1,2,3,3] w) => (float[N,2,6,6] y)"


conv_transpose_output_shape.examples = [
    Fixed(
        "one pixel to cut along each axis",
        before=f"{_IMAGE} {{ y = ConvTranspose<strides = [2,2], output_shape = [6,6]>(x, w) }}",
        after=f"{_IMAGE} {{ y = ConvTranspose<strides = [2,2], pads = [1,1,0,0]>(x, w) }}",
    ),
    Fixed(
        "explicit auto_pad = NOTSET; ONNX ignores the pads",
        before=f'{_IMAGE} {{ y = ConvTranspose<strides = [2,2], auto_pad = "NOTSET", pads = [1,1,0,0], '
        "output_shape = [6,6]>(x, w) }",
        after=f"{_IMAGE} {{ y = ConvTranspose<strides = [2,2], pads = [1,1,0,0]>(x, w) }}",
        opset=11,
    ),
    Fixed(
        "an odd and an even axis, a dilated kernel, a bias",
        before="""g (float[1,2,3,3] x, float[2,1,3,2] w, float[1] b) => (float[1,1,8,5] y) {
            y = ConvTranspose<strides = [2,2], dilations = [2,1], output_shape = [8,5]>(x, w, b) }""",
        after="""g (float[1,2,3,3] x, float[2,1,3,2] w, float[1] b) => (float[1,1,8,5] y) {
            y = ConvTranspose<strides = [2,2], dilations = [2,1], pads = [1,1,0,0]>(x, w, b) }""",
        opset=22,
    ),
    Fixed(
        "with output_padding",
        before=f"{_IMAGE} {{ y = ConvTranspose<strides = [3,3], output_padding = [1,1], output_shape = [7,7]>(x, w) }}",
        after=f"{_IMAGE} {{ y = ConvTranspose<strides = [3,3], output_padding = [1,1], pads = [2,2,1,1]>(x, w) }}",
        opset=14,
    ),
    Fixed(
        "a signal: TensorRT rejects any length",
        before="""g (float[N,1,3] x, float[1,2,3] w) => (float[N,2,5] y) {
            y = ConvTranspose<strides = [2], output_shape = [5]>(x, w) }""",
        after="""g (float[N,1,3] x, float[1,2,3] w) => (float[N,2,5] y) {
            y = ConvTranspose<strides = [2], pads = [1,1]>(x, w) }""",
    ),
    Fixed(
        "a grouped 3-D convolution, in a branch",
        before="""g (float[1,2,2,2,2] x, float[2,1,3,3,3] w, bool c) => (float[1,2,4,4,4] y) {
            y = If(c)<then_branch = p () => (float[1,2,4,4,4] u) {
                          u = ConvTranspose<group = 2, strides = [2,2,2], output_shape = [4,4,4]>(x, w) },
                      else_branch = q () => (float[1,2,4,4,4] v) {
                          v = ConvTranspose<group = 2, strides = [2,2,2], pads = [1,1,1,0,0,0]>(x, w) }> }""",
        after="""g (float[1,2,2,2,2] x, float[2,1,3,3,3] w, bool c) => (float[1,2,4,4,4] y) {
            y = If(c)<then_branch = p () => (float[1,2,4,4,4] u) {
                          u = ConvTranspose<group = 2, strides = [2,2,2], pads = [1,1,1,0,0,0]>(x, w) },
                      else_branch = q () => (float[1,2,4,4,4] v) {
                          v = ConvTranspose<group = 2, strides = [2,2,2], pads = [1,1,1,0,0,0]>(x, w) }> }""",
    ),
    Flagged(
        "a dynamic image: the padding depends on its size",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,6,6] y) {
            y = ConvTranspose<strides = [2,2], output_shape = [6,6]>(x, w) }""",
    ),
    Flagged(
        "the result includes output_padding; ONNX's reference evaluator differs",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,7,7] y) {
            y = ConvTranspose<strides = [2,2], output_padding = [1,1], output_shape = [7,7]>(x, w) }""",
    ),
    Flagged(
        "longer than the full result: ONNX does not define where the extra elements go",
        """g (float[1,1,3] x, float[1,2,3] w) => (float[1,2,8] y) {
            y = ConvTranspose<strides = [2], output_shape = [8]>(x, w) }""",
    ),
    Silent(
        "an even number of elements to cut",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,5,5] y) {
            y = ConvTranspose<strides = [2,2], output_shape = [5,5]>(x, w) }""",
    ),
    Silent(
        "nothing to cut",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,7,7] y) {
            y = ConvTranspose<strides = [2,2], output_shape = [7,7]>(x, w) }""",
    ),
    Silent(
        "larger than the full result: added at the end, by TensorRT and in ONNX's own test",
        """g (float[1,1,3,3] x, float[1,2,3,3] w) => (float[1,2,8,8] y) {
            y = ConvTranspose<strides = [2,2], output_shape = [8,8]>(x, w) }""",
    ),
    Silent(
        "before opset 11 ONNX cut the odd element at the end, as TensorRT does",
        f"{_IMAGE} {{ y = ConvTranspose<strides = [2,2], output_shape = [6,6]>(x, w) }}",
        opset=10,
    ),
    Silent(
        "explicit pads",
        """g (float[1,1,H,W] x, float[1,2,3,3] w) => (float[1,2,A,B] y) {
            y = ConvTranspose<strides = [2,2], pads = [1,1,0,0]>(x, w) }""",
    ),
    Silent(
        "a dynamic kernel",
        """g (float[1,1,3,3] x, float[1,2,A,B] w) => (float[1,2,6,6] y) {
            y = ConvTranspose<strides = [2,2], output_shape = [6,6]>(x, w) }""",
    ),
]
